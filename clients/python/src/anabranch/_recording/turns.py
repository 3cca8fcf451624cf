"""`Turn`: a reply of a model and the results of its tool calls, recorded as one step."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from anabranch._recording.arguments import flag_of, prompt_of, unbroken, write_reward, write_tokens
from anabranch._recording.fitting import is_plain_json, text_of
from anabranch._recording.messages import MESSAGE, PROMPT_MESSAGE, Message, messages_in, reply_messages
from anabranch._recording.replies import FORMATS, NotAReply, Reply, ToolCall, call_ids, calls_of, members, parse, plain
from anabranch._recording.results import is_failure, result_messages, results_in
from anabranch._wire.decode import decode_content
from anabranch._wire.plain import text_of_error
from anabranch._wire.shown import Shown
from anabranch.v1.trajectory_pb2 import Observation, Step

if TYPE_CHECKING:
    from typing_extensions import Self

    from anabranch._wire.values import ValueEncoder
    from anabranch.receipt import Receipt

log = logging.getLogger("anabranch")

REPLY, CALL, RESULT = "message", "tool_call", "tool_result"


class Conversation(Protocol):
    """What a turn is a step of: a trajectory."""

    def begin(self, turn: Turn) -> None: ...
    def end(self, turn: Turn, step: Step, prompt: Sequence[int] | None) -> Receipt: ...


class Turn(Shown):
    """One turn of an agent. The step is recorded at the end of the `with` block."""

    _internal = frozenset({"messages", "said", "say"})

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
        # Programs take calls from their list.
        self._calls = tuple(self.reply.tool_calls)
        self._ids = call_ids(self._calls)
        #: Indices of the calls that have a result.
        self._answered: set[int] = set()
        #: Messages that were said before the turn and within it.
        self.said: list[Observation] = []
        #: The messages so far. Unset if the step has changed since they were read.
        self._messages: list[Message] | None = None
        with unbroken(values, "turn()"):
            self._write_actions(reply)

    def __repr__(self) -> str:
        state = "open" if self.receipt is None else f"step {self.receipt.number}"
        return f"Turn({state}, {len(self._calls)} calls, {len(self._answered)} answered)"

    @property
    def text(self) -> str:
        """The text of the reply."""
        return self.reply.text

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of the reply that expect an answer."""
        return self.reply.tool_calls

    def result(self, call: object, value: object, *args: object, **kwargs: object) -> Any:
        """Records the result of a tool call, and returns it.

        `call` is one of `tool_calls`, the call as the reply has it, or its id. Raises ValueError if the reply has no
        such call. `value` is any value (docs/python.md, "Values"); an exception is recorded as its text, with
        `is_error`. A function is called with the further arguments: `turn.result(call, run_tool, call)` records and
        returns what it returns, or the exception that it raises. If a call gets several results, all are recorded, and
        the messages have the last one.
        """
        index = self._index_of(call)
        if args or kwargs or callable(value):
            value = outcome_of(value, args, kwargs)
        if self.receipt is not None:
            log.warning("anabranch: a result of %s came after its turn was recorded: it is lost", self._ids[index])
            return value
        is_error = isinstance(value, BaseException)
        item = Observation(type=RESULT, call_id=self._ids[index], is_error=is_error)
        name = f"result of {self._calls[index].name}"
        if isinstance(value, BaseException):
            self._values.set_content(item.content, text_of_error(value), name)
        else:
            self._values.image_content(item.content, value, name)
            if item.content.HasField("json") and is_failure(decode_content(item.content, no_state)):
                item.is_error = True
        # Tools can run in several threads.
        self._step.observations.append(item)
        self._answered.add(index)
        self._messages = None
        return value

    @property
    def messages(self) -> list[Message]:
        """What the turn has added to the conversation so far: the reply, the results, and what was said."""
        if self._messages is None:
            self._messages = messages_of(self._step, no_state)
        return self._messages

    def say(self, items: Iterable[Observation], *, before: bool = False) -> None:
        """Adds messages before the reply, or at the end."""
        items = list(items)
        if before:
            for item in items:
                item.type = PROMPT_MESSAGE
        self.said += items
        self._step.observations.extend(items)
        self._messages = None

    def __enter__(self) -> Self:
        self._trajectory.begin(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            # The tool that failed is the first one without a result.
            failed = next((call for i, call in enumerate(self._calls) if i not in self._answered), None)
            if failed is not None:
                self.result(failed, error)
        values = self._values
        if self.reward is not None:
            write_reward(values, self._step, self.reward)
        self._step.terminated = flag_of(values, self.terminated, "terminated")
        self._step.truncated = flag_of(values, self.truncated, "truncated")
        self.receipt = self._trajectory.end(self, self._step, self._prompt)

    def _write_actions(self, given: object) -> None:
        reply, step, values = self.reply, self._step, self._values
        first = step.actions.add()
        first.type, first.name = REPLY, reply.format
        self._prompt = prompt_of(values, reply.prompt_token_ids)
        if self._prompt is None and reply.prompt_token_ids is not None:
            reply.keep("prompt_token_ids", reply.prompt_token_ids)
        if reply.token_ids and not write_tokens(values, first, reply.token_ids, reply.logprobs):
            reply.keep("token_ids", reply.token_ids)
            reply.keep("logprobs", list(reply.logprobs))
        if reply.has_other_logprobs:
            values.report(
                "logprobs",
                "logprobs of a reply do not belong to as many token ids: they are recorded in the reply, and "
                "`tokens()` has none. With vLLM, `return_token_ids` adds the ids",
            )
        values.set_content(first.content, reply.recorded if reply.format else given, "reply")
        for call, call_id in zip(self._calls, self._ids, strict=True):
            action = step.actions.add()
            action.type, action.name, action.call_id = CALL, text_of(call.name), call_id
            if is_plain_json(call.arguments):
                action.content.json = call.arguments
            else:
                values.set_content(action.content, call.arguments, "arguments")
        for key, value in reply.usage.items():
            step.metrics[text_of(f"usage.{key}")] = value
        facts = {"id": reply.id, "model": reply.model, "stop_reason": reply.stop_reason}
        step.metadata_json = json.dumps({key: text_of(value) for key, value in facts.items() if value})

    def _index_of(self, call: object) -> int:
        """Returns the index of the call that an object, a dict or an id names: of several, the first unanswered."""
        calls = self._calls
        found = [i for i, known in enumerate(calls) if known is call]
        if not found:
            raw = call.raw if isinstance(call, ToolCall) else plain(call)
            found = [i for i, known in enumerate(calls) if known.raw == raw]
        if not found:
            data = {"id": call.id} if isinstance(call, ToolCall) else members(call) or {"id": call}
            names = [str(data[key]) for key in ("call_id", "id") if data.get(key) is not None]
            found = [i for i, known in enumerate(calls) if known.id in names]
        if not found:
            raise ValueError(f"the reply has no tool call {call!r}: expected one of {[known.id for known in calls]}")
        return next((i for i in found if i not in self._answered), found[0])


def _read(values: ValueEncoder, given: object) -> Reply:
    """Reads a reply. One that cannot be read has neither text nor tool calls, and its turn has it as it came. Raises
    NotAReply, and with `strict` any error."""
    reply = Reply("", {})
    with unbroken(values, "turn()", NotAReply):
        reply = parse(given)
    return reply


def outcome_of(function: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """Returns what a tool returns, or the exception that it raises."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the tool's own code fails
        return error


def messages_of(step: Step, fetch: Callable[[str], bytes]) -> list[Message]:
    """Returns the messages that a step added to the conversation, in the order in which they are sent.

    Results follow the reply, because services demand them there; what was said within the turn follows them.
    """
    before = [item for item in step.observations if item.type == PROMPT_MESSAGE]
    after = [item for item in step.observations if item.type == MESSAGE]
    return [*messages_in(before, fetch), *_turn_messages(step, fetch), *messages_in(after, fetch)]


def _turn_messages(step: Step, fetch: Callable[[str], bytes]) -> list[Message]:
    first = step.actions[0] if step.actions else None
    if first is None or first.type != REPLY or first.name not in FORMATS:
        return []
    reply = decode_content(first.content, fetch)
    messages = reply_messages(first.name, reply)
    results = [item for item in step.observations if item.type == RESULT]
    if results:
        ids = [action.call_id for action in step.actions if action.type == CALL]
        found = results_in(calls_of(first.name, reply), ids, results, fetch)
        messages += result_messages(first.name, found)
    return messages


def no_state(digest: str) -> bytes:
    """A step that is not encoded yet has all of its contents."""
    raise KeyError(digest)
