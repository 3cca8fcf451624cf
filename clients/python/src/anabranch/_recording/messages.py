"""Messages: those that a program gives, and those of a reply, in the form that the service that answered accepts.

A recorded reply has all that the service sent. Its messages lack what services return and do not accept: fields that
are output only, and null where a request has no field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from anabranch._recording.replies import ANTHROPIC, CHAT, RESPONSES, chat_message, items_of, json_text, members, plain
from anabranch._wire.decode import Unstored, decode_content
from anabranch._wire.kinds import type_name
from anabranch._wire.tensors import UnsupportedValue
from anabranch.v1.trajectory_pb2 import Observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from anabranch._wire.values import ValueEncoder

Message = dict[str, object]

#: Type of an observation that is a message: one that follows the reply of its step, and one that precedes it.
MESSAGE, PROMPT_MESSAGE = "message", "prompt_message"
#: Observations that the messages of one call take. More than these share observations, of which a step has 1,024.
_MOST_OBSERVATIONS = 256

#: Fields that only replies have.
_OUTPUT_ONLY = frozenset({"parsed", "parsed_arguments", "logprobs", "created_by"})
#: Fields that requests must have and that can be null.
_NULLABLE = frozenset({"code", "document_title", "keys", "outputs", "param", "parameters", "result", "strict", "title"})
#: Fields whose values belong to the model or to a tool. They stay as they are.
_OPAQUE = frozenset({"arguments", "env", "headers", "input", "input_schema", "output_schema", "parameters", "schema"})
_SURROGATE = re.compile("[\ud800-\udfff]")


def message_items(values: ValueEncoder, messages: Any, root: str = "messages") -> list[Observation]:
    """Returns the observations that hold the messages of a program. Text alone is a message of the user."""
    found = _given(values, messages, root)
    size = math.ceil(len(found) / _MOST_OBSERVATIONS)
    items: list[Observation] = []
    for start in range(0, len(found), max(size, 1)):
        item = Observation(type=MESSAGE)
        values.set_content(item.content, found[start] if size == 1 else found[start : start + size], root)
        items.append(item)
    return items


def messages_in(items: Iterable[Observation], fetch: Callable[[str], bytes]) -> list[Message]:
    """Returns the messages that observations hold."""
    found: list[Message] = []
    for item in items:
        value: Any = decode_content(item.content, fetch)
        each = cast("list[Any]", value) if isinstance(value, list) else [value]
        found += [cleaned(message) for message in each if isinstance(message, dict)]
    return found


def reply_messages(format: str, reply: Any) -> list[Message]:
    """Returns the messages of a recorded reply."""
    if not isinstance(reply, dict):
        return []
    data = cast("dict[str, Any]", reply)
    if format == CHAT:
        found = [_chat_message(_accepted(chat_message(data)))] if chat_message(data) else []
    elif format == RESPONSES:
        found = [_item(_accepted(item)) for item in items_of(data, "output")]
    else:
        assert format == ANTHROPIC
        blocks = [_block(_accepted(block)) for block in items_of(data, "content") if not _is_empty(block)]
        found = [{"role": "assistant", "content": blocks}] if blocks else []
    return [cleaned(message) for message in found]


def copied(value: Any) -> Any:
    """Returns a copy of a message."""
    if isinstance(value, dict):
        return {key: copied(member) for key, member in cast("dict[str, Any]", value).items()}
    return [copied(part) for part in cast("list[Any]", value)] if isinstance(value, list) else value


def cleaned(value: Any) -> Any:
    """Returns a copy that can be sent: without lone surrogates, and with text for what could not be stored."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {cleaned(key): cleaned(member) for key, member in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(part) for part in cast("Sequence[Any]", value)]
    return f"[{value.type} that could not be stored]" if isinstance(value, Unstored) else value


def _given(values: ValueEncoder, messages: Any, root: str) -> list[dict[str, Any]]:
    single = isinstance(messages, str) or members(messages) is not None
    try:
        given = [messages] if single else list(cast("Iterable[Any]", () if messages is None else messages))
    except Exception:  # noqa: BLE001 - the value's own code fails
        given = []
        values.marker(UnsupportedValue(type_name(messages)), root, ())
    found: list[dict[str, Any]] = []
    for index, each in enumerate(given):
        message = plain(each)
        if isinstance(message, str):
            found.append({"role": "user", "content": message})
        elif isinstance(message, dict):
            found.append(cast("dict[str, Any]", message))
        else:
            values.marker(UnsupportedValue(type_name(each)), root, (index,))
    return found


def _accepted(value: Any) -> Any:
    """Returns a part of a reply without fields that requests do not have."""
    if isinstance(value, list):
        return [_accepted(part) for part in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return {
        key: member if key in _OPAQUE else _accepted(member)
        for key, member in cast("dict[str, Any]", value).items()
        if key not in _OUTPUT_ONLY and (member is not None or key in _NULLABLE or key in _OPAQUE)
    }


def _chat_message(message: dict[str, Any]) -> dict[str, Any]:
    message.setdefault("role", "assistant")
    message.pop("annotations", None)
    if isinstance(message.get("audio"), dict):
        message["audio"] = {"id": str(message["audio"].get("id", ""))}
    calls = [_chat_call(call) for call in items_of(message, "tool_calls")]
    message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = calls
    if isinstance(message.get("function_call"), dict):
        _as_texts(message["function_call"], "arguments")
    # Services demand content, or one of the others in its place.
    replaced = any(message.get(key) for key in ("tool_calls", "function_call", "audio", "refusal"))
    message.setdefault("content", None if replaced else "")
    return message


def _chat_call(call: dict[str, Any]) -> dict[str, Any]:
    call.pop("index", None)
    call["id"] = str(call.get("id", ""))
    kind = "function" if isinstance(call.get("function"), dict) else "custom"
    call.setdefault("type", kind)
    if isinstance(call.get(kind), dict):
        _as_texts(call[kind], "arguments" if kind == "function" else "input")
    return call


def _as_texts(called: dict[str, Any], arguments: str) -> None:
    """Makes the name and the arguments text, as which services want them back."""
    called["name"] = str(called.get("name", ""))
    called[arguments] = json_text(called.get(arguments))


def _item(item: dict[str, Any]) -> dict[str, Any]:
    if item.get("call_id") is not None:
        item["call_id"] = str(item["call_id"])
    if item.get("type") in ("function_call", "custom_tool_call"):
        item.setdefault("call_id", "")
        _as_texts(item, "arguments" if item["type"] == "function_call" else "input")
    if item.get("type") in ("computer_call_output", "custom_tool_call_output"):
        # Requests have fewer values of it, or none.
        item.pop("status", None)
    return item


def _block(block: dict[str, Any]) -> dict[str, Any]:
    if block.get("type") == "tool_use":
        block["id"], block["name"] = str(block.get("id", "")), str(block.get("name", ""))
        if not isinstance(block.get("input"), dict):
            # The form that the service names for input that is no JSON object.
            block["input"] = {"INVALID_JSON": json_text(block["input"])} if block.get("input") else {}
    for citation in items_of(block, "citations"):
        citation.pop("file_id", None)
    return block


def _is_empty(block: Mapping[str, Any]) -> bool:
    """Returns whether a block is empty text, which the service returns and refuses."""
    return block.get("type") == "text" and not block.get("text")
