"""The digest that tells a repeated step from a different one (rule W6), as the server computes it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from hashlib import sha256
from math import isnan
from typing import TYPE_CHECKING

from anabranch.v1.limits import LIMITS

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from anabranch.v1.trajectory_pb2 import Action, Content, Step

_NAN = bytes.fromhex("7ff8000000000000")
#: Fields that were added to actions and contents later have tags: this plus their number.
_ADDED = 64


def step_digest(step: Step, moved_bytes: int = LIMITS["contentStateBytes"]) -> str:
    """Returns the SHA-256 of the canonical form of what a client sends of a step, in hex.

    The server moves data of contents from `moved_bytes` on into a state.

    Each field is a tag and its value. Text is UTF-8 after its length; numbers are big endian; maps are sorted.
    """
    form = _Form()
    form.tag(1).int(step.step_number)
    if step.actions:
        form.tag(2).count(len(step.actions))
        for action in step.actions:
            _write_action(form, action, moved_bytes)
    if step.observations:
        form.tag(3).count(len(step.observations))
        for item in step.observations:
            form.text(item.type).text(item.call_id).tag(int(item.is_error))
            _write_content(form, item.content if item.HasField("content") else None, moved_bytes)
    if step.HasField("reward"):
        form.tag(4).double(step.reward)
    if step.terminated:
        form.tag(5)
    if step.truncated:
        form.tag(6)
    if step.info_json:
        form.tag(7).text(step.info_json)
    if step.metadata_json:
        form.tag(8).text(step.metadata_json)
    _write_metrics(form, step.metrics)
    if step.HasField("start_time"):
        _write_time(form.tag(10), step.start_time)
    if step.HasField("end_time"):
        _write_time(form.tag(11), step.end_time)
    if step.states:
        form.tag(12).count(len(step.states))
        states = {state.name or "env": state for state in step.states}
        for name, state in sorted(states.items()):
            digest = sha256(state.data).hexdigest() if state.HasField("data") else state.digest
            form.text(name).text(digest).text(state.media_type)
    _write_labels(form, step.labels)
    return form.digest()


def _write_action(form: _Form, action: Action, moved_bytes: int) -> None:
    form.text(action.type).text(action.name).text(action.call_id)
    _write_content(form, action.content if action.HasField("content") else None, moved_bytes)
    form.words(action.token_ids).count(len(action.logprobs))
    for logprob in action.logprobs:
        form.double(logprob)
    if action.prompt_token_ids:
        form.tag(_ADDED + 7).words(action.prompt_token_ids)
    if action.HasField("kept_tokens"):
        form.tag(_ADDED + 8).word(action.kept_tokens)
    if action.HasField("token_ids_state"):
        form.tag(_ADDED + 9).text(action.token_ids_state)
    if action.HasField("prompt_token_ids_state"):
        form.tag(_ADDED + 10).text(action.prompt_token_ids_state)


def _write_content(form: _Form, content: Content | None, moved_bytes: int) -> None:
    if content is None:
        form.tag(0)
    elif content.HasField("text"):
        form.tag(1).text(content.text)
    elif content.HasField("json"):
        form.tag(2).text(content.json)
        if content.media_type:
            form.tag(_ADDED + 6).text(content.media_type)
    elif content.HasField("data"):
        if len(content.data) < moved_bytes:
            form.tag(3).bytes(content.data).text(content.media_type)
        else:
            form.tag(4).text(sha256(content.data).hexdigest()).text(content.media_type)
    elif content.HasField("state_digest"):
        form.tag(4).text(content.state_digest).text(content.media_type)
    elif content.HasField("tensor"):
        tensor = content.tensor
        form.tag(8).text(tensor.dtype).words(tensor.shape)
        if tensor.HasField("data") and len(tensor.data) < moved_bytes:
            form.tag(3).bytes(tensor.data)
        else:
            form.tag(4).text(sha256(tensor.data).hexdigest() if tensor.HasField("data") else tensor.state_digest)
    elif content.HasField("uri"):
        form.tag(5).text(content.uri).text(content.media_type)
    else:
        form.tag(0)


def _write_metrics(form: _Form, metrics: Mapping[str, float]) -> None:
    if metrics:
        form.tag(9).count(len(metrics))
        for key in sorted(metrics):
            form.text(key).double(metrics[key])


def _write_labels(form: _Form, labels: Mapping[str, str]) -> None:
    if labels:
        form.tag(16).count(len(labels))
        for key in sorted(labels):
            form.text(key).text(labels[key])


def _write_time(form: _Form, time: Timestamp) -> None:
    # Seconds and nanoseconds have the same sign in the form.
    seconds, nanos = time.seconds, time.nanos
    if seconds < 0 < nanos:
        seconds, nanos = seconds + 1, nanos - 1_000_000_000
    form.int(seconds).int(nanos)


class _Form:
    """The canonical form of a step."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def tag(self, value: int) -> _Form:
        self._bytes.append(value)
        return self

    def count(self, value: int) -> _Form:
        self._bytes += struct.pack(">I", value)
        return self

    def word(self, value: int) -> _Form:
        self._bytes += struct.pack(">i", value)
        return self

    def words(self, values: Iterable[int]) -> _Form:
        words = list(values)
        self._bytes += struct.pack(f">I{len(words)}i", len(words), *words)
        return self

    def int(self, value: int) -> _Form:
        self._bytes += struct.pack(">q", value)
        return self

    def double(self, value: float) -> _Form:
        self._bytes += _NAN if isnan(value) else struct.pack(">d", value)
        return self

    def text(self, value: str) -> _Form:
        return self.bytes(value.encode())

    def bytes(self, value: bytes) -> _Form:
        self._bytes += struct.pack(">I", len(value)) + value
        return self

    def digest(self) -> str:
        return sha256(self._bytes).hexdigest()
