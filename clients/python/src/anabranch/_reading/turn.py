"""Turns of a conversation: steps that a model's reply and the results of its tool calls make.

The values of a turn have one shape, whatever the number of calls:

- The action has `text`, `tool_calls` (dicts with `id`, `name` and `arguments`, which is the text that the model wrote),
  and `messages`, those that the reply added to the conversation.
- The observation has `messages`, those that came before the reply, and `tool_results` (dicts with `id`, `is_error` and
  `content`). If the environment returned an observation too, it is `observation`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from anabranch._wire.decode import LOGPROBS_TYPE, Decode, Undecodable, items_value
from anabranch._wire.kinds import is_a
from anabranch._wire.values import JSON_TYPE, TUPLES_TYPE, VALUE_TYPE

if TYPE_CHECKING:
    from anabranch.v1.trajectory_pb2 import Action, Observation, Step

_MESSAGE, _CALL, _RESULT = "message", "tool_call", "tool_result"
#: Observations that are messages: after the reply of their step, and before it.
_MESSAGES = (_MESSAGE, "prompt_message")
_TEXT_PARTS = ("text", "output_text")
_JSON_TYPES = (JSON_TYPE, VALUE_TYPE, TUPLES_TYPE)


def action_of(step: Step, decode: Decode) -> Any:
    """Returns the value of a step's actions. None if there are none."""
    if not is_turn(step):
        return items_value(step.actions, decode)
    value: dict[str, Any] = {"text": "", "tool_calls": [], "messages": []}
    for action in step.actions:
        if _is_call(action):
            call = {"id": action.call_id, "name": action.name, "arguments": _argument_text(action, decode)}
            value["tool_calls"].append(call)
        elif action.type != LOGPROBS_TYPE and action.HasField("content"):
            said = decode(action.content)
            if isinstance(said, str):
                value["text"] += said
            elif action.type == _MESSAGE:
                messages = _messages_of(said)
                value["messages"] += messages
                value["text"] += "".join(map(_text_of, messages))
    return value


def observation_of(step: Step, decode: Decode) -> Any:
    """Returns the value of a step's observations. None if there are none."""
    messages: list[Any] = []
    results: list[dict[str, Any]] = []
    others: list[Observation] = []
    is_after_calls = is_turn(step)
    for item in step.observations:
        if _is_result(item, is_after_calls):
            content = decode(item.content) if item.HasField("content") else None
            results.append({"id": item.call_id, "is_error": item.is_error, "content": content})
        elif _is_message(item):
            said = decode(item.content)
            messages += cast("list[Any]", said) if isinstance(said, list) else [said]
        else:
            others.append(item)
    if not (messages or results or is_after_calls):
        return items_value(others, decode)
    value = {"messages": messages, "tool_results": results}
    return {**value, "observation": items_value(others, decode)} if others else value


def is_turn(step: Step) -> bool:
    """Returns whether a step has the reply of a model, or calls of tools."""
    actions: Sequence[Action] = step.actions
    return bool(actions) and ((actions[0].type == _MESSAGE and bool(actions[0].name)) or any(map(_is_call, actions)))


def is_conversation(step: Step) -> bool:
    """Returns whether the step is a turn, or has messages or results of tools."""
    return is_turn(step) or any(_is_result(item, False) or _is_message(item) for item in step.observations)


# The leaf of a dict can be named like a call, a result or a message. It has neither name nor id.


def _is_call(action: Action) -> bool:
    return bool(action.call_id) or (action.type == _CALL and bool(action.name))


def _is_result(item: Observation, is_after_calls: bool) -> bool:
    return bool(item.call_id) or (is_after_calls and item.type == _RESULT)


def _argument_text(action: Action, decode: Decode) -> str:
    """Returns the arguments of a call as they were written."""
    if action.content.HasField("json"):
        return action.content.json
    value = decode(action.content) if action.HasField("content") else ""
    if isinstance(value, Undecodable):
        return value.bytes.decode("utf-8", "replace")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)


def _is_message(item: Observation) -> bool:
    """Returns whether an observation is a message of the conversation, or several: JSON objects."""
    content = item.content
    return item.type in _MESSAGES and (content.json.startswith(("{", "[{")) or content.media_type in _JSON_TYPES)


def _messages_of(said: Any) -> list[Any]:
    """Returns the messages of a recorded reply, which is whole: a reply of OpenAI's chat or responses format or of
    Anthropic's, a list of messages, or a message."""
    if not is_a(said, dict):
        return cast("list[Any]", said) if isinstance(said, list) else [said]
    choices, output = said.get("choices"), said.get("output")
    if isinstance(choices, list):
        first: Any = cast("list[Any]", choices)[0] if choices else None
        return [first["message"]] if is_a(first, dict) and is_a(first.get("message"), dict) else []
    if isinstance(output, list):
        return cast("list[Any]", output)
    if "stop_reason" in said:
        return [{"role": said.get("role", "assistant"), "content": said.get("content")}]
    return [said]


def _text_of(message: Any) -> str:
    """Returns the text of a message: of OpenAI's chat and responses formats, or of Anthropic's."""
    content: Any = message.get("content") if is_a(message, dict) else None
    if isinstance(content, str):
        return content
    parts: list[Any] = cast("list[Any]", content) if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if is_a(part, dict) and part.get("type") in _TEXT_PARTS)
