"""Reads contents, observations, actions and info of steps back as Python values. The inverse of `values`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anabranch._wire.paths import parse_path
from anabranch._wire.tensors import Tensor, array_of, image_of
from anabranch._wire.values import JSON_TYPE, SURROGATES_TYPE, TENSOR_TYPE, TEXT_TYPE

if TYPE_CHECKING:
    from anabranch.v1.trajectory_pb2 import Action, Content, Observation, Step, StepState

#: Type of an action after all others whose tensor has the logprobs of the first action, because they exceed a step.
LOGPROBS_TYPE = "anabranch.logprobs"

Fetch = Callable[[str], bytes]
"""Returns the bytes of the state with a digest."""


@dataclass(frozen=True)
class Unstored:
    """Stands for a value that could not be stored."""

    type: str


@dataclass(frozen=True)
class Uri:
    """The location of a content that is stored elsewhere."""

    uri: str
    media_type: str


def decode_content(content: Content, fetch: Fetch) -> Any:
    """Returns the value of a content. `fetch` is called for contents that are stored as states."""
    if content.HasField("json"):
        return decode_json(content.json)
    if content.HasField("text"):
        return content.text
    if content.HasField("uri"):
        return Uri(content.uri, content.media_type)
    if content.HasField("tensor"):
        tensor = content.tensor
        items = fetch(tensor.state_digest) if tensor.HasField("state_digest") else tensor.data
        return array_of(Tensor(tensor.dtype, tuple(tensor.shape), items))
    data = fetch(content.state_digest) if content.HasField("state_digest") else content.data
    return _decode_bytes(data, content.media_type)


def decode_json(text: str) -> Any:
    """Returns the value of info, metadata or JSON content."""
    return _JSON.decode(text)


def decode_items(items: Sequence[Observation] | Sequence[Action], fetch: Fetch) -> Any:
    """Returns the value of all observations or actions of a step: None if there is none; the value of a single one
    without type; nested dicts and tuples if the types are paths of leaves; otherwise the list of values."""
    if items and items[-1].type == LOGPROBS_TYPE:
        items = items[:-1]
    if not items:
        return None
    values = [decode_content(item.content, fetch) if item.HasField("content") else None for item in items]
    if len(values) == 1 and not items[0].type:
        return values[0]
    paths = [parse_path(item.type) for item in items]
    try:
        return _nest([(path, value) for path, value in zip(paths, values, strict=True) if path is not None], len(items))
    except _NoPaths:
        return values


def digests_of(step: Step) -> list[str]:
    """Returns the digests of all states that the values and the tokens of a step need."""
    digests: list[str] = []
    for item in (*step.observations, *step.actions):
        content = item.content.tensor if item.content.HasField("tensor") else item.content
        if content.HasField("state_digest"):
            digests.append(content.state_digest)
    return list(dict.fromkeys(digests + token_digests_of(step)))


def token_digests_of(step: Step) -> list[str]:
    """Returns the digests of all states that the tokens of a step need."""
    states = [digest for action in step.actions for digest in (action.token_ids_state, action.prompt_token_ids_state)]
    return [digest for digest in (*states, logprobs_digest_of(step)) if digest]


def logprobs_digest_of(step: Step) -> str:
    """Returns the digest of the state that has the logprobs of the first action. Empty if the action has them itself."""
    moved = step.actions and step.actions[-1].type == LOGPROBS_TYPE
    return step.actions[-1].content.tensor.state_digest if moved else ""


def state_of(step: Step, name: str) -> StepState | None:
    """Returns the state of a step that has a name."""
    return next((state for state in step.states if state.name == name), None)


def _decode_bytes(data: bytes, media_type: str) -> Any:
    if media_type.startswith(TENSOR_TYPE):
        return array_of(_described(media_type, data))
    if media_type == TEXT_TYPE:
        return data.decode()
    if media_type == SURROGATES_TYPE:
        return data.decode("utf-8", "surrogatepass")
    if media_type == JSON_TYPE:
        return decode_json(data.decode())
    return image_of(data) if media_type.startswith("image/") else data


def _described(media_type: str, data: bytes) -> Tensor:
    parameters = dict(part.split("=", 1) for part in media_type.split(";")[1:])
    return Tensor(parameters["dtype"], tuple(int(size) for size in parameters["shape"].split(",") if size), data)


def _untag(members: dict[str, Any]) -> Any:
    if len(members) != 1:
        return members
    ((key, value),) = members.items()
    untag = _TAGS.get(key)
    return members if untag is None else untag(value)


def _tensor(value: dict[str, Any]) -> Any:
    return array_of(Tensor(value["dtype"], tuple(value["shape"]), base64.b64decode(value["base64"])))


def _items(value: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_hashable(key): member for key, member in value}


def _hashable(key: Any) -> Any:
    return tuple(_hashable(part) for part in key) if isinstance(key, list) else key  # pyright: ignore


_TAGS: dict[str, Callable[[Any], Any]] = {
    "$tensor": _tensor,
    "$bytes": base64.b64decode,
    "$png": lambda value: image_of(base64.b64decode(value)),
    "$float": float,
    "$surrogates": lambda value: base64.b64decode(value).decode("utf-8", "surrogatepass"),
    "$items": _items,
    "$unstored": Unstored,
}


#: `json.loads` would create a decoder for each text.
_JSON = json.JSONDecoder(object_hook=_untag)


class _NoPaths(Exception):
    pass


def _nest(leaves: list[tuple[tuple[str | int, ...], Any]], count: int) -> Any:
    """Builds the nested value that has these leaves. Raises _NoPaths unless they are the leaves of one."""
    if len(leaves) != count:
        raise _NoPaths
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    groups: dict[str | int, list[tuple[tuple[str | int, ...], Any]]] = {}
    for path, value in leaves:
        if not path:
            raise _NoPaths
        groups.setdefault(path[0], []).append((path[1:], value))
    members = {key: _nest(group, len(group)) for key, group in groups.items()}
    if all(isinstance(key, str) for key in members):
        return members
    if list(members) != list(range(len(members))):
        raise _NoPaths
    return tuple(members.values())
