"""Replies of models: OpenAI's chat and responses formats, and Anthropic's messages format, as objects or dicts."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, cast

from anabranch._recording.context import listed
from anabranch._recording.fitting import text_of
from anabranch._wire.kinds import Kind, is_a, kind_of, type_name

CHAT = "openai.chat"
RESPONSES = "openai.responses"
ANTHROPIC = "anthropic.messages"
FORMATS = (CHAT, RESPONSES, ANTHROPIC)

_SCALARS = frozenset({str, int, float, bool, type(None)})
#: Values below this depth are left as they are. The encoder of values replaces them.
_DEPTH = 100
#: Values that are stored as they are.
_STORED = frozenset({Kind.BYTES, Kind.ARRAY, Kind.TORCH, Kind.IMAGE})
#: Members of an item of the responses format that say what is to be done.
_ARGUMENTS = ("arguments", "input", "actions", "action", "operation")


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool in a reply: of a function, or of another tool that expects an answer."""

    #: Empty if the model gave none.
    id: str
    name: str
    #: The arguments as JSON text, as the model wrote them; of a custom tool any text.
    arguments: str
    #: The call as the reply has it.
    raw: object = None
    #: The type that the format has for such a call, for example `function` or `computer_call`.
    kind: str = "function"

    @property
    def input(self) -> Any:
        """The arguments as a value. Their text if they are not JSON, or those of a custom tool."""
        return self._parsed()[0]

    @property
    def input_error(self) -> str | None:
        """Why the arguments are not JSON. None if they are, and for a custom tool."""
        return self._parsed()[1]

    def _parsed(self) -> tuple[Any, str | None]:
        if self.kind in ("custom", "custom_tool_call"):
            return self.arguments, None
        try:
            return json.loads(self.arguments or "{}"), None
        except (ValueError, RecursionError) as error:
            return self.arguments, f"the arguments are not JSON: {error}"


@dataclass
class Reply:
    """What a reply says, in whatever format it came."""

    format: str
    #: The whole reply as dicts and lists, without the tokens and logprobs below.
    recorded: dict[str, Any]
    text: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    token_ids: Sequence[int] = ()
    prompt_token_ids: Sequence[int] | None = None
    #: One for each of `token_ids`, or none.
    logprobs: Sequence[float] = ()
    #: Whether `recorded` has logprobs, because they do not belong to as many token ids.
    has_other_logprobs: bool = False
    #: Numbers by their names, for example `completion_tokens_details.reasoning_tokens`.
    usage: dict[str, float] = field(default_factory=dict[str, float])
    id: str = ""
    model: str = ""
    stop_reason: str = ""

    def keep(self, name: str, value: object) -> None:
        """Records a member of the first choice that could not be recorded as tokens."""
        self.recorded["choices"][0][name] = plain(value)


class NotAReply(TypeError):
    """The object can never be a reply: a mistake of the program, which shows at its first turn."""


def parse(reply: object) -> Reply:
    """Reads a reply. Raises NotAReply if it is none, as a part of a streamed one, and ValueError if its format is unknown."""
    given = members(reply)
    if given is not None and not _is_chunk(given):
        if "choices" in given and (given["choices"] is None or _is_list(given["choices"])):
            return _chat(given)
        if _is_list(given.get("output")):
            return _responses(plain(given))
        if _is_list(given.get("content")) and plain(given.get("role") or "assistant") == "assistant":
            return _anthropic(plain(given))
    if is_a(reply, Awaitable):
        raise NotAReply(f"reply is a {type_name(reply)}: `await` it, and give its result to turn()")
    expected = "expected a whole reply of OpenAI's chat or responses format, or of Anthropic's messages format"
    is_chunk = given is not None and _is_chunk(given)
    if not is_chunk and (reply is None or isinstance(reply, Mapping) or hasattr(reply, "choices")):
        raise ValueError(f"the reply has none of `choices`, `output` and `content`: {expected}")
    raise NotAReply(
        f"reply is a {type_name(reply)}: {expected}. Collect a streamed reply first: `get_final_completion()`, "
        "`get_final_response()` or `get_final_message()` of its stream returns it"
    )


def calls_of(format: str, reply: Any) -> list[ToolCall]:
    """Returns the calls of a recorded reply that expect an answer."""
    if not isinstance(reply, dict):
        return []
    data = cast("dict[str, Any]", reply)
    calls = {CHAT: _chat_calls, RESPONSES: _response_calls, ANTHROPIC: _anthropic_calls}[format]
    return list(calls(data))


def chat_message(reply: dict[str, Any]) -> dict[str, Any]:
    """Returns the message of the first choice. Empty if there is none."""
    choices = items_of(reply, "choices")
    return _member(choices[0], "message") if choices else {}


def call_ids(calls: Sequence[ToolCall]) -> list[str]:
    """Returns an id for each call that no other call of the reply has: the model's, if it is unique."""
    names = [text_of(call.id) for call in calls]
    counts = Counter(names)
    taken = set(names)
    for index, name in enumerate(names):
        if name and counts[name] == 1:
            continue
        names[index] = f"{name}#{index}"
        while names[index] in taken:
            names[index] += "#"
        taken.add(names[index])
    return names


def plain(value: Any, depth: int = _DEPTH) -> Any:
    """Returns a value with the objects of client libraries as dicts. Never raises."""
    if type(value) in _SCALARS or depth == 0:
        return value
    if type(value) is dict:
        return {str(key): plain(member, depth - 1) for key, member in cast("dict[Any, Any]", value).items()}
    if kind_of(value) in _STORED:
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value, depth - 1)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (list, tuple)):
        parts = cast("list[Any]", value)
        # Lists of tokens are long: they are not copied.
        return parts if _SCALARS.issuperset(map(type, parts)) else [plain(part, depth - 1) for part in parts]
    found = members(value)
    return value if found is None else {key: plain(member, depth - 1) for key, member in found.items()}


def members(value: Any) -> dict[str, Any] | None:
    """Returns the members of a dict, or of an object of a client library. None for other values. Never raises."""
    try:
        if isinstance(value, (dict, Mapping)):
            return {str(key): member for key, member in cast("Mapping[object, Any]", value).items()}
        return _attributes(value)
    except Exception:  # noqa: BLE001 - the value's own code fails
        return None


def _attributes(value: Any) -> dict[str, Any] | None:
    if isinstance(value, type) or callable(value):
        return None
    cls = cast("Any", type(value))
    fields: Any = getattr(cls, "model_fields", None)
    if isinstance(fields, dict):
        # What the service sent, by the names that it has there. A default that it did not send is None.
        names = {name: each.serialization_alias or each.alias for name, each in cast("dict[str, Any]", fields).items()}
        sent: set[str] = value.model_fields_set
        own = {names.get(name) or name: each for name, each in _own(value).items() if each is not None or name in sent}
        return {**own, **(value.__pydantic_extra__ or {})}
    dump: Callable[[], Any] | None = getattr(value, "model_dump", None) or getattr(value, "to_dict", None)
    if callable(dump):
        return members(dump())
    if dataclasses.is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if not hasattr(value, "__dict__"):
        return None
    # Attributes of the object, else those of its class.
    found = _own(value) or {name: getattr(value, name, None) for name in dir(value)}
    return {name: each for name, each in found.items() if not name.startswith("_") and not callable(each)}


def _own(value: object) -> dict[str, Any]:
    return vars(value)


def items_of(data: Any, key: str) -> list[dict[str, Any]]:
    """Returns the objects of a member that is a list."""
    found: object = cast("dict[str, Any]", data).get(key) if isinstance(data, dict) else None
    return [each for each in cast("list[Any]", found) if isinstance(each, dict)] if isinstance(found, list) else []


def json_text(value: Any) -> str:
    """Returns the JSON text of a value that a model wrote. Text stays as it is."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (TypeError, ValueError, RecursionError):
        return "" if isinstance(value, (dict, list)) else str(value)


def _is_chunk(given: Mapping[str, Any]) -> bool:
    if plain(given.get("object")) == "chat.completion.chunk" or "delta" in given:
        return True
    choices: Any = given.get("choices")
    first = members(choices[0]) if _is_list(choices) and choices else None
    return first is not None and "delta" in first and "message" not in first


def _chat(given: dict[str, Any]) -> Reply:
    choices = [members(choice) or {} for choice in given.get("choices") or ()]
    first = choices[0] if choices else {}
    reply = Reply(CHAT, {}, token_ids=_listed(first.get("token_ids")) or ())
    # The lists of tokens are long: they are not copied, and no object is made for each token.
    without = {"token_ids"} if reply.token_ids else set[str]()
    choice = {key: plain(member) for key, member in first.items() if key not in without and key not in _LISTS}
    rest = {key: plain(member) for key, member in given.items() if key not in ("choices", "prompt_token_ids")}
    reply.recorded = {**rest, "choices": [choice, *map(plain, choices[1:])] if choices else []}
    for holder, kept in ((first, choice), (given, reply.recorded)):
        prompt = holder.get("prompt_token_ids")
        if reply.prompt_token_ids is None and (tokens := _listed(prompt)) is not None:
            reply.prompt_token_ids = tokens
        elif prompt is not None:
            kept["prompt_token_ids"] = plain(prompt)
    if first.get("logprobs") is not None:
        left = _move_logprobs(reply, members(first["logprobs"]) or {})
        if left:
            choice["logprobs"] = plain(left)
    reply.text = _text(chat_message(reply.recorded).get("content"))
    return _finished(reply, first.get("finish_reason"))


_LISTS = frozenset({"logprobs", "prompt_token_ids"})


def _move_logprobs(reply: Reply, given: dict[str, Any]) -> dict[str, Any]:
    """Takes the logprobs of the tokens. Returns what stays in the reply: all if they belong to other tokens, or have
    alternatives."""
    entries: Any = given.get("content")
    if not _is_list(entries) or not entries:
        reply.has_other_logprobs = any(member is not None for member in given.values())
        return given
    try:
        logprobs = list(map(itemgetter("logprob") if isinstance(entries[0], dict) else attrgetter("logprob"), entries))
        # Checks all at once that they are numbers.
        sum(logprobs)
    except Exception:  # noqa: BLE001 - the value's own code fails
        logprobs = []
    if not logprobs or len(logprobs) != len(reply.token_ids):
        reply.has_other_logprobs = True
        return given
    reply.logprobs = logprobs
    if (members(entries[0]) or {}).get("top_logprobs"):
        return given
    return {key: member for key, member in given.items() if key != "content" and member is not None}


def _listed(value: Any) -> Sequence[Any] | None:
    """Returns the items of a list, an array or a tensor. None if the value is none."""
    try:
        items = listed(value)
    except Exception:  # noqa: BLE001 - the value's own code fails
        return None
    return items if _is_list(items) else None


def _chat_calls(reply: dict[str, Any]) -> Iterator[ToolCall]:
    message = chat_message(reply)
    for call in items_of(message, "tool_calls"):
        kind = "function" if isinstance(call.get("function"), dict) else "custom"
        called = _member(call, kind)
        arguments = json_text(called.get("arguments", called.get("input")))
        yield ToolCall(_name(call.get("id")), _name(called.get("name")), arguments, call, kind)
    if function := _member(message, "function_call"):
        arguments = json_text(function.get("arguments"))
        yield ToolCall("", _name(function.get("name")), arguments, function, "function_call")


def _responses(recorded: dict[str, Any]) -> Reply:
    reply = Reply(RESPONSES, recorded)
    for item in items_of(recorded, "output"):
        if item.get("type") == "message":
            reply.text += _text(item.get("content"))
            reply.has_other_logprobs |= any(part.get("logprobs") for part in items_of(item, "content"))
    return _finished(reply, recorded.get("status"))


def _response_calls(reply: dict[str, Any]) -> Iterator[ToolCall]:
    items = items_of(reply, "output")
    # The service has answered these itself.
    answered = {_name(item.get("call_id")) for item in items if str(item.get("type")).endswith("_output")}
    answered |= {_name(item.get("approval_request_id")) for item in items}
    for item in items:
        kind = str(item.get("type"))
        is_call = kind.endswith("_call") and item.get("call_id") is not None
        if not (is_call or kind in ("function_call", "custom_tool_call", "mcp_approval_request")):
            continue
        found = _name(item.get("id" if kind == "mcp_approval_request" else "call_id"))
        if (found and found in answered) or (kind == "tool_search_call" and item.get("execution") != "client"):
            continue
        arguments = next((json_text(item[key]) for key in _ARGUMENTS if item.get(key) is not None), "")
        yield ToolCall(found, _name(item.get("name")) or kind.removesuffix("_call"), arguments, item, kind)


def _anthropic(recorded: dict[str, Any]) -> Reply:
    reply = Reply(ANTHROPIC, recorded, _text(recorded.get("content")))
    return _finished(reply, recorded.get("stop_reason"))


def _anthropic_calls(reply: dict[str, Any]) -> Iterator[ToolCall]:
    for block in items_of(reply, "content"):
        if block.get("type") == "tool_use":
            arguments = json_text(block.get("input", {}))
            yield ToolCall(_name(block.get("id")), _name(block.get("name")), arguments, block, "tool_use")


def _finished(reply: Reply, stop_reason: object) -> Reply:
    reply.tool_calls = calls_of(reply.format, reply.recorded)
    reply.usage = dict(_numbers(reply.recorded.get("usage"), ""))
    reply.id, reply.model = _name(reply.recorded.get("id")), _name(reply.recorded.get("model"))
    reply.stop_reason = _name(plain(stop_reason))
    return reply


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Yields the numbers of nested objects, by their names."""
    if isinstance(value, dict):
        for key, member in cast("dict[str, Any]", value).items():
            yield from _numbers(member, f"{name}.{key}" if name else key)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            yield name, float(value)
        except OverflowError:
            yield name, float("inf") if value > 0 else float("-inf")


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = items_of({"content": content}, "content")
    return "".join(str(part.get("text") or "") for part in parts if part.get("type") in ("text", "output_text"))


def _name(value: object) -> str:
    """Returns an id or a name. Models also give numbers, and None."""
    return "" if value is None else str(value)


def _member(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns a member that is an object; empty if it is missing."""
    found: object = data.get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))
