"""The new messages of a checkpoint as actions and observations, as which the page and other readers show them. They are
never read back: the checkpoint has the messages themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from anabranch._sessions import id_of_call, name_of_call

if TYPE_CHECKING:
    from anabranch.v1.trajectory_pb2 import Content, Step

#: The channel that has the messages of most graphs.
MESSAGES = "messages"
_MOST_SHOWN = 64
_TEXT_BYTES = 32 * 1024
#: A step can have 1,024.
_MOST_ACTIONS = 512


def prints_of(messages: object) -> dict[str, int]:
    """Returns a number for each message that has an id: another one when its text or its calls are others."""
    given = cast("list[Any]", messages) if isinstance(messages, list) else []
    return {str(id): _print_of(message) for message in given if (id := getattr(message, "id", None))}


def _print_of(message: Any) -> int:
    content, calls = getattr(message, "content", None), getattr(message, "tool_calls", None)
    return hash((content if isinstance(content, str) else repr(content), repr(calls) if calls else ""))


def add_messages(step: Step, messages: object, known: Mapping[str, int]) -> None:
    """Adds the messages whose numbers are not known. Without known ones, adds the last message only: the others may be
    old."""
    from langchain_core.messages import BaseMessage, convert_to_openai_messages

    given = cast("list[Any]", messages) if isinstance(messages, list) else []
    if not given or not all(isinstance(message, BaseMessage) for message in given):
        return
    new = [each for each in given if known.get(each.id) != _print_of(each)] if known else given[-1:]
    for message in new[-_MOST_SHOWN:]:
        try:
            _add(step, cast("dict[str, Any]", convert_to_openai_messages(message)))
        except Exception:  # noqa: BLE001, S112 - a message that has no such form is not shown
            continue


def _add(step: Step, message: dict[str, Any]) -> None:
    if message["role"] == "assistant":
        action = step.actions.add(type="message", name="openai.chat")
        _set(action.content, {"choices": [{"message": message}]}, message)
        for call in message.get("tool_calls", ()):
            name, call_id = name_of_call(call["function"]["name"]), id_of_call(call["id"])
            if name and call_id and len(step.actions) < _MOST_ACTIONS:
                called = step.actions.add(type="tool_call", name=name, call_id=call_id)
                called.content.text = call["function"]["arguments"][:_TEXT_BYTES].replace("\0", "\ufffd")
    elif message["role"] == "tool":
        observation = step.observations.add(type="tool_result", call_id=id_of_call(message["tool_call_id"]) or "")
        _set(observation.content, message["content"], message)
    else:
        _set(step.observations.add(type="message").content, message, message)


def _set(content: Content, value: object, message: dict[str, Any]) -> None:
    text = json.dumps(value, allow_nan=False)
    if len(text) > _TEXT_BYTES:
        shown = {"role": message["role"], "content": str(message["content"])[: _TEXT_BYTES // 8] + "…"}
        text = json.dumps({"choices": [{"message": shown}]} if message["role"] == "assistant" else shown)
    content.json = text
