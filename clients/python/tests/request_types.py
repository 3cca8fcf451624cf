"""Checks messages against the request types of the packages openai and anthropic, more strictly than these do: a field
that a request does not have is a problem, and iterables are looked into."""

from __future__ import annotations

import collections.abc
import types
import typing
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from anthropic.types import MessageParam
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from typing_extensions import NotRequired, Required, get_type_hints, is_typeddict

from anabranch._recording.replies import ANTHROPIC, CHAT, RESPONSES

TYPES: dict[str, Any] = {
    CHAT: ChatCompletionMessageParam,
    RESPONSES: ResponseInputItemParam,
    ANTHROPIC: MessageParam,
}
#: Fields that a service reads and its types do not have (openai-agents-python#1855).
MISSING = {"LocalShellCallOutput": {"call_id"}}


def problems(format: str, message: Any) -> list[str]:
    """Returns why a service would refuse a message. Empty if it accepts it."""
    return _problems(message, TYPES[format], "message")


def _problems(value: Any, wanted: Any, path: str) -> list[str]:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Required, NotRequired, typing.Annotated):
        return _problems(value, arguments[0], path)
    if origin in (Union, types.UnionType):
        found = [_problems(value, each, path) for each in arguments]
        # The alternative that fits best explains most.
        return [] if [] in found else min(found, key=len)
    if origin is Literal:
        return [] if value in arguments else [f"{path} is {value!r}, none of {arguments}"]
    if is_typeddict(wanted):
        return _members(value, wanted, path)
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(value, dict):
            return [f"{path} is no object"]
        return [each for key, member in value.items() for each in _problems(member, arguments[1], f"{path}.{key}")]
    if origin is not None and (issubclass(origin, collections.abc.Iterable) or origin.__name__ == "SequenceNotStr"):
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [each for i, part in enumerate(value) for each in _problems(part, arguments[0], f"{path}[{i}]")]
    return _plain(value, wanted, path)


def _members(value: Any, wanted: Any, path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path} is no object"]
    fields = _fields(wanted)
    known = fields.keys() | MISSING.get(wanted.__name__, set())
    found = [f"{path}.{key} is no field of {wanted.__name__}" for key in value.keys() - known]
    for key, field in fields.items():
        if key in value:
            found += _problems(value[key], field, f"{path}.{key}")
        elif get_origin(field) is Required:
            found.append(f"{path}.{key} of {wanted.__name__} is missing")
    return found


@cache
def _fields(wanted: Any) -> dict[str, Any]:
    return get_type_hints(wanted, include_extras=True)


def _plain(value: Any, wanted: Any, path: str) -> list[str]:
    if wanted in (object, Any):
        return []
    if wanted in (None, type(None)):
        return [] if value is None else [f"{path} is no null"]
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return [f"{path} has a lone surrogate"]
    expected = (int, float) if wanted is float else wanted
    is_one = (
        isinstance(wanted, type) and isinstance(value, expected) and (wanted is bool or not isinstance(value, bool))
    )
    return [] if is_one else [f"{path} is {value!r}: expected {wanted}"]
