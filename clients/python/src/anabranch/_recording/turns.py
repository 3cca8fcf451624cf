"""`Turn`: a reply of a model and the results of its tool calls, recorded as one step."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from anabranch._recording.arguments import flag_of, prompt_of, unbroken, write_reward, write_tokens
from anabranch._recording.fitting import is_plain_json, is_same_id, text_of
from anabranch._recording.replies import NotAReply, Reply, ToolCall, call_ids_in, parse, plain, result_message
from anabranch._wire.decode import decode_content
from anabranch._wire.kinds import is_a
from anabranch.v1.trajectory_pb2 import Step

if TYPE_CHECKING:
    from typing_extensions import Self

    from anabranch._wire.values import ValueEncoder
    from anabranch.receipt import Receipt


class Conversation(Protocol):
    """What a turn is a step of: a trajectory."""

    def say(self, messages: Iterable[Mapping[str, object]]) -> None: ...
    def append_step(self, step: Step, prompt: Sequence[int] | None) -> Receipt: ...


class Turn:
    """One turn of an agent. The step is recorded at the end of the `with` block."""

    def __init__(self, trajectory: Conversation, values: ValueEncoder, reply: object) -> None:
        self.reply: Reply = _read(values, reply)
        self.reward: float | None = None
        self.terminated = False
        self.truncated = False
        #: Set at the end of the `with` block.
        self.receipt: Receipt | None = None
        self._trajectory = trajectory
        self._values = values
        self._step = Step()
        self._answered: set[str] = set()
        with unbroken(values, "turn()"):
            self._write_actions(reply)
        trajectory.say(self.reply.messages)

    @property
    def text(self) -> str:
        """The text of the reply."""
        return self.reply.text

    @property
    def tool_calls(self) -> list[ToolCall]:
        return self.reply.tool_calls

    def result(self, call: object, value: object) -> None:
        """Adds the result of a tool call. An exception is stored as its text, with `is_error`."""
        known = self._known(call)
        is_error = isinstance(value, BaseException)
        item = self._step.observations.add()
        item.type = "tool_result"
        item.call_id = text_of(known.id)
        item.is_error = is_error
        content: object = f"{type(value).__name__}: {value}" if is_error else value
        self._values.set_content(item.content, content, f"result of {known.name}")
        self._answered.add(known.id)
        self._trajectory.say([result_message(self.reply.format, known, _as_text(content), is_error=is_error)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            # The tool that failed is the first one without a result.
            failed = next((call for call in self.tool_calls if call.id not in self._answered), None)
            if failed is not None:
                self.result(failed, error)
        values = self._values
        if self.reward is not None:
            write_reward(values, self._step, self.reward)
        self._step.terminated = flag_of(values, self.terminated, "terminated")
        self._step.truncated = flag_of(values, self.truncated, "truncated")
        self.receipt = self._trajectory.append_step(self._step, prompt_of(values, self.reply.prompt_token_ids))

    def _write_actions(self, given: object) -> None:
        reply, step, values = self.reply, self._step, self._values
        first = step.actions.add()
        first.type, first.name = "message", reply.format
        values.set_content(first.content, reply.messages if reply.format else given, "reply")
        if reply.token_ids:
            logprobs = reply.logprobs if len(reply.logprobs) == len(reply.token_ids) else ()
            write_tokens(values, first, reply.token_ids, logprobs)
        for call in reply.tool_calls:
            action = step.actions.add()
            action.type, action.name, action.call_id = "tool_call", text_of(call.name), text_of(call.id)
            if is_plain_json(call.arguments):
                action.content.json = call.arguments
            else:
                values.set_content(action.content, call.arguments, "arguments")
        for key, value in reply.usage.items():
            step.metrics[text_of(f"usage.{key}")] = value
        step.metadata_json = _metadata_json(reply.model, reply.stop_reason)

    def _known(self, call: object) -> ToolCall:
        """Returns the call of this reply that an object, a dict or an id names."""
        if isinstance(call, ToolCall):
            return call
        data = plain(call)
        ids: list[Any] = [data.get("id"), data.get("call_id")] if is_a(data, dict) else [data]
        wanted = {str(each) for each in ids if each is not None}
        for known in self.tool_calls:
            if known.id in wanted:
                return known
        raise ValueError(f"the reply has no tool call {call!r}")


def _read(values: ValueEncoder, given: object) -> Reply:
    """Reads a reply. One that cannot be read has neither text nor tool calls, and its turn has it as it came. Raises
    NotAReply, and with `strict` any error."""
    reply = Reply("", [])
    with unbroken(values, "turn()", NotAReply):
        reply = parse(given)
    return reply


@functools.lru_cache(maxsize=64)
def _metadata_json(model: str, stop_reason: str) -> str:
    """Returns what a reply says about itself. It is nearly always the same."""
    facts = {"model": model, "stop_reason": stop_reason}
    return json.dumps({key: value for key, value in facts.items() if value})


def write_messages(values: ValueEncoder, step: Step, messages: Sequence[Mapping[str, object]]) -> None:
    """Adds messages to a step: each is an observation, and the last observation has those for which there is no room."""
    all_messages = [dict(message) for message in messages]
    room = values.limits["stepParts"] // 2
    alone, together = all_messages[:room], all_messages[room:]
    for message in alone:
        values.set_content(step.observations.add(type="message").content, message, "messages")
    if together:
        values.set_content(step.observations.add(type="messages").content, together, "messages")


def messages_of(step: Step, fetch: Callable[[str], bytes]) -> list[dict[str, object]]:
    """Returns the messages that a step added to the conversation."""
    messages: list[dict[str, object]] = []
    for item in step.observations:
        if item.type == "message":
            messages.append(decode_content(item.content, fetch))
        elif item.type == "messages":
            messages += decode_content(item.content, fetch)
    first = step.actions[0] if step.actions else None
    if first is None or first.type != "message" or not first.name:
        return messages
    reply = decode_content(first.content, fetch)
    replies: list[dict[str, object]] = reply if isinstance(reply, list) else [reply]
    messages += replies
    ids = call_ids_in(replies)
    for item in step.observations:
        if item.type == "tool_result":
            text = _as_text(decode_content(item.content, fetch))
            original = (each for each in ids if is_same_id(item.call_id, each))
            call = ToolCall(next(original, item.call_id), "", "")
            messages.append(result_message(first.name, call, text, is_error=item.is_error))
    return messages


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)
