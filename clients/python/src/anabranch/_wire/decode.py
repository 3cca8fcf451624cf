"""Reads contents, observations, actions and info of steps back as Python values. The inverse of `values`.

Stored values come from any client, so none of them stops a read: what cannot be decoded is `Undecodable`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anabranch._wire.kinds import is_a
from anabranch._wire.paths import Path, parse_path
from anabranch._wire.tensors import Tensor, array_of, image_of
from anabranch._wire.values import (
    JSON_TYPE,
    SURROGATES_TYPE,
    TENSOR_TYPE,
    TEXT_TYPE,
    TUPLES_TYPE,
    VALUE_TYPE,
    content_bytes,
)
from anabranch.errors import StateNotFound

if TYPE_CHECKING:
    from anabranch.v1.trajectory_pb2 import Action, Content, Observation, Step, StepState

#: Type of an action after all others whose tensor has the logprobs of the first action, because they exceed a step.
LOGPROBS_TYPE = "anabranch.logprobs"

Fetch = Callable[[str], bytes]
"""Returns the bytes of the state with a digest. Raises StateNotFound."""

_MOST_DEPTH = 500

Decode = Callable[["Content"], Any]
"""Returns the value of a content."""

_Bytes = bytes


def no_states(digest: str) -> bytes:
    """Returns the states of contents that have none."""
    raise StateNotFound(f"no state {digest} is read", reason="STATE_NOT_FOUND")


@dataclass(frozen=True)
class Undecodable:
    """Stands for a stored value that cannot be decoded: broken JSON, an image that is none, a content that was pruned."""

    #: What is wrong.
    reason: str
    #: What is stored. Empty if nothing is.
    bytes: _Bytes


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
    if content.HasField("pruned_time"):
        return Undecodable(f"the content was pruned at {content.pruned_time.ToJsonString()}", b"")
    digest = digest_of(content)
    try:
        stored = fetch(digest) if digest else None
    except StateNotFound as error:
        return Undecodable(str(error), b"")
    try:
        if content.HasField("json"):
            return parse_json(content.json, content.media_type)
        if content.HasField("text"):
            return content.text
        if content.HasField("uri"):
            return Uri(content.uri, content.media_type)
        if content.HasField("tensor"):
            tensor = content.tensor
            return array_of(Tensor(tensor.dtype, tuple(tensor.shape), tensor.data if stored is None else stored))
        return _decode_bytes(content.data if stored is None else stored, content.media_type)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - the value is another client's
        return Undecodable(_reason_of(error), content_bytes(content)[0] if stored is None else stored)


def decode_json(text: str) -> Any:
    """Returns the value of info, metadata or a config: of plain JSON."""
    try:
        return parse_json(text)
    except (RecursionError, ValueError) as error:
        return Undecodable(_reason_of(error), text.encode())


def parse_json(text: str, media_type: str = "") -> Any:
    """Returns the value of JSON. Tags are read only if the media type is ours. Raises ValueError and RecursionError."""
    is_ours = media_type in (VALUE_TYPE, TUPLES_TYPE)
    value = (_TAGGED if is_ours else _PLAIN).decode(text)
    if text.count("[") + text.count("{") > _MOST_DEPTH:
        _check_depth(value)
    return _with_tuples(value) if media_type == TUPLES_TYPE else value


def _check_depth(value: Any) -> None:
    """Raises ValueError for a value that many functions of Python could not work on, with any version."""
    level: list[Any] = [value]
    for _ in range(_MOST_DEPTH):
        members = (each.values() if is_a(each, dict) else each for each in level if is_a(each, (dict, list, tuple)))
        level = [member for each in members for member in each]
        if not level:
            return
    raise ValueError(f"the JSON is nested deeper than {_MOST_DEPTH} levels")


def undecodable_in(value: Any) -> Undecodable | None:
    """Returns the first part of a value that could not be decoded."""
    if isinstance(value, Undecodable):
        return value
    members: Any = value.values() if is_a(value, dict) else value if is_a(value, (list, tuple)) else ()
    return next((found for member in members if (found := undecodable_in(member)) is not None), None)


def digest_of(content: Content) -> str:
    """Returns the digest of the state that has the bytes of a content; empty if there is none, or it was pruned."""
    holder = content.tensor if content.HasField("tensor") else content
    return "" if content.HasField("pruned_time") else holder.state_digest


def decode_items(items: Sequence[Observation] | Sequence[Action], fetch: Fetch) -> Any:
    """Returns the value of all observations or actions of a step."""
    return items_value(items, lambda content: decode_content(content, fetch))


def items_value(items: Sequence[Observation] | Sequence[Action], decode: Decode) -> Any:
    """Returns the value of observations or actions: None if there is none; the value of a single one without type; nested
    dicts and tuples if the types are paths of leaves; otherwise the list of values."""
    if items and items[-1].type == LOGPROBS_TYPE:
        items = items[:-1]
    if not items:
        return None
    values = [decode(item.content) if item.HasField("content") else None for item in items]
    if len(values) == 1 and not items[0].type:
        return values[0]
    paths = [parse_path(item.type) for item in items]
    try:
        return _nest([(path, value) for path, value in zip(paths, values, strict=True) if path is not None], len(items))
    except _NoPaths:
        return values


def digests_of(step: Step) -> list[str]:
    """Returns the digests of all states that the values and the tokens of a step need."""
    digests = [digest_of(item.content) for item in (*step.observations, *step.actions)]
    return list(dict.fromkeys([*filter(None, digests), *token_digests_of(step)]))


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
    if media_type in (JSON_TYPE, VALUE_TYPE, TUPLES_TYPE):
        return parse_json(data.decode(), media_type)
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
    "$tuple": tuple,
    "$items": _items,
    "$unstored": Unstored,
}


def _with_tuples(value: Any) -> Any:
    """Returns a value with tuples in the place of its lists."""
    if isinstance(value, list):
        return tuple(map(_with_tuples, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, dict):
        return {key: _with_tuples(member) for key, member in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


def _reason_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


#: `json.loads` would create a decoder for each text.
_PLAIN = json.JSONDecoder()
_TAGGED = json.JSONDecoder(object_hook=_untag)


class _NoPaths(Exception):
    pass


def _nest(leaves: list[tuple[Path, Any]], count: int) -> Any:
    """Builds the nested value that has these leaves. Raises _NoPaths unless they are the leaves of one."""
    if len(leaves) != count:
        raise _NoPaths
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    groups: dict[str | int, list[tuple[Path, Any]]] = {}
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
