"""Builds and encodes steps. Parts that are too large for a step become states of their own."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from anabranch._recording.arguments import mapping_of, packed_logprobs
from anabranch._recording.context import move_logprobs
from anabranch._wire.values import JSON_TYPE, content_bytes

if TYPE_CHECKING:
    from anabranch._wire.limits import Limits
    from anabranch._wire.values import ValueEncoder
    from anabranch.v1.trajectory_pb2 import Action, Content, Step, StepState, Tensor

#: Smaller parts stay inline, because the digest that replaces them takes space too.
_UPLOAD_MIN_BYTES = 256
#: What the server adds to a content that refers to a state.
_SIZE_BYTES = 6


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


#: Stands for an argument that was not given: None is a value.
UNSET: object = _Unset()
#: Name of the state that has the info of a step if that is large.
_INFO_STATE = "info"
#: JSON in place of a part that is left out.
_UNSTORED = '{"$unstored":"JSON that is too large"}'

_Part = tuple[bytes, Callable[[str], None]]


class TooLargeError(Exception):
    """A step does not fit, even with its large parts stored as states."""


def _refuse(fault: str, outcome: str) -> None:
    raise TooLargeError(fault)


def encode(step: Step, limits: Limits, left_out: Callable[[str, str], None] = _refuse) -> tuple[bytes, list[bytes]]:
    """Returns the encoded step, and the states that must be stored before it. Parts that no state can hold are left out if
    there is no room for them: `left_out` is told what does not fit, and what becomes of it. Its default raises
    TooLargeError, as does a value that is too large for a state."""
    data = step.SerializeToString()
    inline_bytes, step_bytes, state_bytes = limits["inlineStateBytes"], limits["stepBytes"], limits["stateBytes"]
    if len(data) <= inline_bytes and len(data) <= step_bytes:
        return data, []
    parts = sorted(_parts_of(step, limits), key=lambda part: -len(part[0]))
    uploads: list[bytes] = []
    for part, replace in parts:
        if len(part) <= inline_bytes and _size_of(step) <= step_bytes:
            break
        if len(part) < _UPLOAD_MIN_BYTES:
            break
        if len(part) > state_bytes:
            raise TooLargeError(f"a value has {len(part)} bytes: expected at most {state_bytes}")
        uploads.append(part)
        replace(sha256(part).hexdigest())
    _shorten(step, step_bytes, left_out)
    return step.SerializeToString(), uploads


def _size_of(step: Step) -> int:
    """Returns the size of a step when it is read."""
    referring = [item for item in (*step.actions, *step.observations) if item.content.HasField("state_digest")]
    return step.ByteSize() + _SIZE_BYTES * len(referring)


def _shorten(step: Step, most: int, left_out: Callable[[str, str], None]) -> None:
    """Leaves parts out until the step fits: JSON and logprobs for which there is no state, then the last items."""

    def exceeds() -> bool:
        return _size_of(step) > most

    def report(part: str) -> None:
        fault = f"{part} does not fit: the step has {_size_of(step)} bytes when encoded, expected at most {most}"
        left_out(fault, "It is left out.")

    for field in ("metadata_json", "info_json"):
        if exceeds() and len(getattr(step, field)) >= _UPLOAD_MIN_BYTES:
            report(field)
            setattr(step, field, _UNSTORED)
    if exceeds() and step.actions and step.actions[0].logprobs:
        report("logprobs")
        step.actions[0].ClearField("logprobs")
    for name, items, fewest in (("observations", step.observations, 0), ("actions", step.actions, 1)):
        if exceeds() and len(items) > fewest:
            report(f"the end of {name}")
        while exceeds() and len(items) > fewest:
            del items[-1]


def _parts_of(step: Step, limits: Limits) -> list[_Part]:
    """Returns what can be replaced by a digest."""
    parts: list[_Part] = [(state.data, _replace_state(state)) for state in step.states if state.HasField("data")]
    for item in (*step.actions, *step.observations):
        content = item.content
        if content.HasField("tensor"):
            parts.append((content.tensor.data, _replace_tensor(content.tensor)))
        elif content.HasField("text") or content.HasField("json") or content.HasField("data"):
            data, media_type = content_bytes(content)
            parts.append((data, _replace_content(content, media_type)))
    for action in step.actions:
        if action.token_ids:
            parts.append((_token_bytes(action.token_ids), _replace_tokens(action, "token_ids")))
        if action.prompt_token_ids:
            parts.append((_token_bytes(action.prompt_token_ids), _replace_tokens(action, "prompt_token_ids")))
    if step.actions and step.actions[0].logprobs and len(step.actions) < limits["stepParts"]:
        logprobs = packed_logprobs(step.actions[0].logprobs)
        parts.append((logprobs, lambda digest: move_logprobs(step, digest)))
    has_name = any(state.name == _INFO_STATE for state in step.states)
    if step.info_json and not has_name and len(step.states) < limits["statesPerStep"]:
        parts.append((step.info_json.encode(), _replace_info(step)))
    return parts


def _replace_state(state: StepState) -> Callable[[str], None]:
    def replace(digest: str) -> None:
        state.ClearField("data")
        state.digest = digest

    return replace


def _replace_tensor(tensor: Tensor) -> Callable[[str], None]:
    def replace(digest: str) -> None:
        tensor.ClearField("data")
        tensor.state_digest = digest

    return replace


def _replace_content(content: Content, media_type: str) -> Callable[[str], None]:
    def replace(digest: str) -> None:
        content.Clear()
        content.state_digest = digest
        content.media_type = media_type

    return replace


def _token_bytes(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def _replace_tokens(action: Action, field: str) -> Callable[[str], None]:
    def replace(digest: str) -> None:
        action.ClearField(field)  # pyright: ignore[reportArgumentType]
        setattr(action, f"{field}_state", digest)

    return replace


def _replace_info(step: Step) -> Callable[[str], None]:
    def replace(digest: str) -> None:
        step.info_json = ""
        state = step.states.add()
        state.name, state.digest, state.media_type = _INFO_STATE, digest, JSON_TYPE

    return replace


def fill(
    step: Step,
    values: ValueEncoder,
    observation: object,
    info: object,
    screenshot: object,
    states: Mapping[str, object] | None,
) -> None:
    """Writes what an environment returned into a step."""
    if observation is not UNSET:
        values.add_observation(step, observation)
    if screenshot is not UNSET:
        item = step.observations.add()
        item.type = "screenshot"
        values.image_content(item.content, screenshot)
    if info is not UNSET and info is not None:
        step.info_json = values.info_json(info)
    if states is not None:
        for name, value in mapping_of(values, states, "states").items():
            part, media_type = f"states[{name!r}]", ""
            if isinstance(value, (bytes, bytearray)):
                data = bytes(value)
            else:
                data, media_type = values.state(value, part)
            if values.is_state(data, part):
                state = step.states.add()
                state.name, state.data, state.media_type = name, data, media_type
