"""Random replies of the services, made after the reply types of the packages openai and anthropic."""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

import anthropic.types
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion_message_tool_call import ChatCompletionMessageToolCallUnion
from openai.types.responses import Response, ResponseOutputItem
from pydantic import BaseModel

from anabranch._recording.replies import ANTHROPIC, CHAT, RESPONSES

TEXT = st.text(st.sampled_from('aé工 "\\{}\n\0\ud83d😀'), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
#: What a model writes as arguments: mostly JSON.
ARGUMENTS = st.sampled_from(['{"x": 1}', "{}", "", "{", '{"x": NaN}', '{"a": 1, "a": 2}', "[" * 3000, '{"$bytes": 5}'])
#: What a model writes as ids and names. Two calls can have the same id.
IDS = st.sampled_from(["", "c1", "c2", "c" * 200, "\ud83d"])
#: Values of fields whose types leave them open.
FIELDS: dict[tuple[str, Any], st.SearchStrategy[Any]] = {
    ("arguments", str): ARGUMENTS,
    ("id", str): IDS,
    ("call_id", str): IDS,
    ("name", str): IDS,
}
#: Fields that services always send, with null, because requests demand them.
SENT = {"code", "document_title", "keys", "outputs", "param", "parameters", "result", "strict", "title"}


@cache
def values_of(wanted: Any) -> st.SearchStrategy[Any]:
    """Returns values of a type of a reply, as JSON."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is typing.Annotated:
        return values_of(arguments[0])
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(each) for each in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(st.deferred(lambda: values_of(arguments[0])), max_size=2)
    if origin is dict:
        return st.dictionaries(TEXT, values_of(arguments[1]), max_size=2)
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        return objects_of(wanted)
    return {str: TEXT, int: st.integers(0, 99), float: st.floats(0, 1), bool: st.booleans(), type(None): st.none()}.get(
        wanted, JSON
    )


def objects_of(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Returns objects of a type. Optional fields are missing, null or set."""
    required: dict[Any, st.SearchStrategy[Any]] = {}
    optional: dict[Any, st.SearchStrategy[Any]] = {}
    for name, each in model.model_fields.items():
        key = each.alias or name
        values = FIELDS.get((key, each.annotation)) if isinstance(each.annotation, type) else None
        values = values_of(each.annotation) if values is None else values
        (required if each.is_required() or key in SENT else optional)[key] = values
    return st.fixed_dictionaries(required, optional=optional)


ITEMS = [each for each in get_args(get_args(ResponseOutputItem)[0]) if each.__name__ != "AdditionalTools"]
#: Those that expect an answer.
CALLS = [each for each in ITEMS if each.__name__.endswith(("ToolCall", "ShellCall", "SearchCall", "ApprovalRequest"))]
CHAT_CALL = get_args(get_args(ChatCompletionMessageToolCallUnion)[0])


def replies_of(format: str, contents: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Returns replies with these messages (chat), items (responses) or blocks (Anthropic)."""
    common = {"id": IDS, "model": st.just("m")}
    if format == CHAT:
        choice = st.fixed_dictionaries({"index": st.just(0), "finish_reason": st.just("stop"), "message": contents})
        choices = st.lists(choice, min_size=1, max_size=2)
        return st.fixed_dictionaries({**common, "object": st.just("chat.completion"), "choices": choices})
    if format == RESPONSES:
        output = st.lists(contents, min_size=1, max_size=4)
        return st.fixed_dictionaries({**common, "status": st.just("completed"), "output": output})
    content = st.lists(contents, min_size=1, max_size=4)
    return st.fixed_dictionaries(
        {**common, "role": st.just("assistant"), "type": st.just("message"), "content": content}
    )


#: All that the types of a service allow.
ANY = {
    CHAT: replies_of(CHAT, objects_of(ChatCompletionMessage)),
    RESPONSES: replies_of(RESPONSES, st.one_of([objects_of(each) for each in ITEMS])),
    ANTHROPIC: replies_of(ANTHROPIC, values_of(anthropic.types.ContentBlock)),
}
_CHAT_CALLS = st.lists(st.one_of([objects_of(each) for each in CHAT_CALL]), min_size=1, max_size=3)
_CALLING = st.fixed_dictionaries({"role": st.just("assistant"), "content": st.none() | TEXT, "tool_calls": _CHAT_CALLS})
#: Replies that call tools.
CALLING = {
    CHAT: replies_of(CHAT, _CALLING),
    RESPONSES: replies_of(RESPONSES, st.one_of([objects_of(each) for each in CALLS])),
    ANTHROPIC: replies_of(ANTHROPIC, objects_of(anthropic.types.ToolUseBlock) | objects_of(anthropic.types.TextBlock)),
}
MODELS: dict[str, Any] = {CHAT: ChatCompletion, RESPONSES: Response, ANTHROPIC: anthropic.types.Message}


@st.composite
def as_sent(draw: st.DrawFn, format: str, replies: st.SearchStrategy[dict[str, Any]]) -> Any:
    """Returns a reply as a dict, or as the object that the service's package makes of it."""
    reply = draw(replies)
    return MODELS[format].construct(**reply) if draw(st.booleans()) else reply
