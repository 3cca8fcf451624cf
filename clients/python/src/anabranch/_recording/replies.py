"""Replies of models: OpenAI's chat and responses formats, and Anthropic's messages format, as objects or dicts."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, cast

from anabranch._recording.context import listed
from anabranch._wire.kinds import is_a, type_name

CHAT = "openai.chat"
RESPONSES = "openai.responses"
ANTHROPIC = "anthropic.messages"

_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool in a reply."""

    id: str
    name: str
    #: The arguments as JSON text, as the model wrote them.
    arguments: str
    #: The call as the reply has it.
    raw: object = None

    def __post_init__(self) -> None:
        # Some services send integers.
        given: Any = self.id
        object.__setattr__(self, "id", "" if given is None else str(given))

    @property
    def input(self) -> Any:
        """The arguments as a value. Raises ValueError if they are not JSON."""
        return json.loads(self.arguments or "{}")


@dataclass
class Reply:
    """What a reply says, in whatever format it came."""

    format: str
    #: The messages that continue the conversation.
    messages: list[dict[str, Any]]
    text: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    token_ids: Sequence[int] = field(default_factory=list[int])
    prompt_token_ids: list[int] | None = None
    logprobs: list[float] = field(default_factory=list[float])
    usage: dict[str, float] = field(default_factory=dict[str, float])
    model: str = ""
    stop_reason: str = ""


class NotAReply(TypeError):
    """The object can never be a reply: a mistake of the program, which shows at its first turn."""


def parse(reply: object) -> Reply:
    """Reads a reply. Raises NotAReply if it is none, and any other error if it cannot be read."""
    if _get(reply, "choices") is not None:
        return _chat(reply)
    if isinstance(_get(reply, "output"), list):
        return _responses(plain(reply))
    if isinstance(_get(reply, "content"), list) and (_get(reply, "role") or "assistant") == "assistant":
        return _anthropic(plain(reply))
    if is_a(reply, Awaitable):
        raise NotAReply(f"reply is a {type_name(reply)}: `await` it, and give its result to turn()")
    expected = "expected a reply of OpenAI's chat or responses format, or of Anthropic's messages format"
    if reply is None or isinstance(reply, Mapping) or hasattr(reply, "choices"):
        raise ValueError(f"the reply has none of `choices`, `output` and `content`: {expected}")
    raise NotAReply(f"reply is a {type(reply).__name__}: {expected}")


def plain(value: Any) -> Any:
    """Returns an object of a client library as dicts and lists."""
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in cast("Mapping[object, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in cast("list[Any]", value)]
    dump: Callable[[], Any] | None = getattr(value, "model_dump", None) or getattr(value, "to_dict", None)
    if callable(dump):
        return plain(dump())
    attributes: dict[str, Any] | None = getattr(value, "__dict__", None)
    if attributes is not None and not callable(value):
        return {key: plain(each) for key, each in attributes.items() if not key.startswith("_")}
    return value


def result_message(format: str, call: ToolCall, text: str, *, is_error: bool) -> dict[str, Any]:
    """Returns the message that gives the model the result of a tool."""
    if format == RESPONSES:
        return {"type": "function_call_output", "call_id": call.id, "output": text}
    if format == ANTHROPIC:
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id, "content": text}
        if is_error:
            result["is_error"] = True
        return {"role": "user", "content": [result]}
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def call_ids_in(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the ids of the tool calls in the messages of a reply."""
    ids: list[Any] = []
    for message in messages:
        ids.append(message.get("call_id"))
        ids += [part.get("id") for name in ("tool_calls", "content") for part in _items(message, name)]
    return [each for each in ids if isinstance(each, str)]


def _get(value: Any, key: str) -> Any:
    """Returns a member of an object or a dict; None if it has none."""
    if isinstance(value, (dict, Mapping)):
        return cast("Mapping[str, Any]", value).get(key)
    return getattr(value, key, None)


def _chat(data: object) -> Reply:
    # The lists of tokens are long: they are not copied, and no object is made for each token.
    choice: Any = next(iter(_get(data, "choices")), None)
    if _get(choice, "message") is None:
        return _with_usage(Reply(CHAT, []), data, _get(choice, "finish_reason"))
    message = {key: value for key, value in plain(_get(choice, "message")).items() if value is not None}
    message.setdefault("role", "assistant")
    message.setdefault("content", None)
    reply = Reply(CHAT, [message], _text(message["content"]))
    for call in _items(message, "tool_calls"):
        function = _member(call, "function") or _member(call, "custom")
        arguments = str(function.get("arguments", function.get("input", "")))
        reply.tool_calls.append(ToolCall(call.get("id", ""), function.get("name") or "", arguments, call))
    entries: list[Any] = _get(_get(choice, "logprobs"), "content") or []
    are_dicts = bool(entries) and isinstance(entries[0], dict)
    reply.logprobs = list(map(itemgetter("logprob") if are_dicts else attrgetter("logprob"), entries))
    tokens = _get(choice, "token_ids")
    reply.token_ids = [] if tokens is None else listed(tokens)
    prompt = _get(choice, "prompt_token_ids")
    reply.prompt_token_ids = _get(data, "prompt_token_ids") if prompt is None else prompt
    return _with_usage(reply, data, _get(choice, "finish_reason"))


def _responses(data: dict[str, Any]) -> Reply:
    items: list[dict[str, Any]] = [
        {key: value for key, value in item.items() if value is not None} for item in data["output"]
    ]
    reply = Reply(RESPONSES, items)
    for item in items:
        if item.get("type") == "message":
            reply.text += _text(item.get("content"))
            for part in _items(item, "content"):
                reply.logprobs += [float(entry["logprob"]) for entry in _items(part, "logprobs")]
        elif item.get("type") == "function_call":
            call = ToolCall(item.get("call_id", ""), item.get("name", ""), str(item.get("arguments", "")), item)
            reply.tool_calls.append(call)
    return _with_usage(reply, data, data.get("status"))


def _anthropic(data: dict[str, Any]) -> Reply:
    blocks: list[dict[str, Any]] = [
        {key: value for key, value in block.items() if value is not None} for block in data["content"]
    ]
    reply = Reply(ANTHROPIC, [{"role": "assistant", "content": blocks}], _text(blocks))
    for block in blocks:
        if block.get("type") == "tool_use":
            arguments = json.dumps(block.get("input", {}), ensure_ascii=False, separators=(",", ":"))
            reply.tool_calls.append(ToolCall(block.get("id", ""), block.get("name", ""), arguments, block))
    return _with_usage(reply, data, data.get("stop_reason"))


def _with_usage(reply: Reply, data: object, stop_reason: object) -> Reply:
    usage: dict[str, Any] = plain(_get(data, "usage") or {})
    reply.usage = {key: float(value) for key, value in usage.items() if isinstance(value, (int, float))}
    reply.model = str(_get(data, "model") or "")
    reply.stop_reason = str(stop_reason or "")
    return reply


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = cast("list[dict[str, Any]]", content) if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") in ("text", "output_text"))


def _member(data: dict[str, Any], key: str) -> dict[str, Any]:
    """Returns a member that is an object; empty if it is missing."""
    found: object = data.get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _items(data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Returns a member that is a list of objects; empty if it is missing."""
    found: object = data.get(key)
    return cast("list[dict[str, Any]]", found) if isinstance(found, list) else []
