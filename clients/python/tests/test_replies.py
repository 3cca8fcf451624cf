"""Replies of three formats: what is read of them, what is recorded, and which messages can be sent back."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_replies import ANY, CALLS, JSON, as_sent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from request_types import problems

from anabranch._recording.messages import reply_messages
from anabranch._recording.replies import ANTHROPIC, CHAT, RESPONSES, ToolCall, call_ids, parse

EXAMPLES = settings(
    max_examples=100, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def chat(message: dict[str, Any] | None, **rest: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"message": message, **rest}]}


def calling(arguments: object, **fields: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": arguments}, **fields}
    return chat({"role": "assistant", "content": None, "tool_calls": [call]})


@pytest.mark.parametrize("format", ANY)
def test_each_reply_gives_messages_that_the_service_accepts(format: str) -> None:
    @EXAMPLES
    @given(as_sent(format, ANY[format]))
    def accepted(reply: Any) -> None:
        read = parse(reply)
        for message in reply_messages(read.format, read.recorded):
            assert problems(format, message) == []

    accepted()


@pytest.mark.parametrize("format", ANY)
def test_a_reply_is_recorded_whole(format: str) -> None:
    @EXAMPLES
    @given(ANY[format])
    def whole(reply: Any) -> None:
        assert parse(reply).recorded == reply

    whole()


def test_objects_of_packages_are_recorded_as_the_service_sent_them() -> None:
    item = {"type": "function_call", "call_id": "c1", "name": "run", "arguments": "{}", "async": True, "status": None}
    sent = {"id": "r1", "output": [item], "incomplete_details": {"reason": "max_output_tokens"}, "new_field": [1]}
    read = parse(Response.construct(**sent))
    assert read.recorded == sent
    assert reply_messages(RESPONSES, read.recorded) == [{key: item[key] for key in item if key != "status"}]


@pytest.mark.parametrize("format", ANY)
def test_no_value_within_a_reply_raises(format: str) -> None:
    """Models and services return anything: each member of a reply is replaced by something else."""
    something = JSON | st.sampled_from(
        [10**400, float("nan"), b"\0", object(), [[]], [None], [3], {"type": 7}, "[" * 3000]
    )

    def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [path, *(each for key, member in inner for each in paths(member, (*path, key)))]

    def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
        if not path:
            return other
        changed = dict(value) if isinstance(value, dict) else list(value)
        changed[path[0]] = replaced(value[path[0]], path[1:], other)
        return changed

    @EXAMPLES
    @given(ANY[format], st.data())
    def read(reply: Any, data: st.DataObject) -> None:
        # The member by which the format is recognised stays a list.
        path = data.draw(st.sampled_from([each for each in paths(reply) if len(each) > 1]))
        changed = parse(replaced(reply, path, data.draw(something)))
        reply_messages(changed.format, changed.recorded)
        for call in changed.tool_calls:
            assert isinstance(call.input_error, str | None) and call.input is not call

    read()


@pytest.mark.parametrize("reply", [{"choices": []}, {"choices": None, "error": {"code": 502}}, {"output": []}])
def test_a_reply_without_content_is_a_reply(reply: dict[str, Any]) -> None:
    read = parse(reply)
    assert (read.text, read.tool_calls) == ("", [])
    assert read.recorded.get("error") == reply.get("error")
    assert reply_messages(read.format, read.recorded) == []


@pytest.mark.parametrize("item", CALLS, ids=lambda item: item.__name__)
def test_each_item_of_a_response_that_expects_an_answer_is_a_call(item: type[Any]) -> None:
    kind = item.model_fields["type"].annotation.__args__[0]
    made = {"type": kind, "id": "i1", "call_id": "c1", "name": "run", "arguments": "{}", "execution": "client"}
    (call,) = parse({"output": [made]}).tool_calls
    assert (call.id, call.kind) == ("i1" if kind == "mcp_approval_request" else "c1", kind)


def test_what_the_service_has_answered_itself_is_no_call() -> None:
    items = [
        {"type": "web_search_call", "id": "w1", "status": "completed", "action": {}},
        {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c1", "output": []},
        {"type": "tool_search_call", "call_id": "c2", "execution": "server", "arguments": {}},
        {"type": "future_call", "call_id": "c3"},
    ]
    assert [call.id for call in parse({"output": items}).tool_calls] == ["c3"]


def test_a_legacy_function_call_is_a_call() -> None:
    (call,) = parse(chat({"function_call": {"name": "run", "arguments": "{}"}})).tool_calls
    assert (call.id, call.name, call.input, call.kind) == ("", "run", {}, "function_call")


@pytest.mark.parametrize("arguments", ["{", '{"x": ', "[" * 200_000, "NaN{", "x"])
def test_arguments_that_are_not_json_are_their_text_with_an_error(arguments: str) -> None:
    (call,) = parse(calling(arguments)).tool_calls
    assert call.input == call.arguments == arguments
    assert call.input_error is not None and "not JSON" in call.input_error


def test_the_input_of_a_custom_tool_is_its_text() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "apply_patch", "input": '{"a": 1}'}}
    (read,) = parse(chat({"tool_calls": [call]})).tool_calls
    assert (read.input, read.input_error) == ('{"a": 1}', None)


@pytest.mark.parametrize(("arguments", "value"), [("", {}), (None, {}), ('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1})])
def test_arguments_that_are_json_are_their_value(arguments: object, value: object) -> None:
    (call,) = parse(calling(arguments)).tool_calls
    assert (call.input, call.input_error) == (value, None)


def test_calls_with_the_same_id_are_told_apart() -> None:
    calls = [ToolCall(id, "run", "") for id in ("", "a", "", "a", "b", "\ud83d", "a#3")]
    ids = call_ids(calls)
    assert ids == ["#0", "a#1", "#2", "a#3#", "b", "\0ud83d", "a#3"]
    assert len(set(ids)) == len(ids)


STREAMED = [
    ChatCompletionChunk.construct(id="r", object="chat.completion.chunk", choices=[], model="m", created=1),
    {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "a"}}]},
    {"choices": [SimpleNamespace(index=0, delta={"content": "a"})]},
    [{"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "a"}}]}],
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
    {"type": "response.output_text.delta", "delta": "a"},
    iter([]),
]


@pytest.mark.parametrize("reply", STREAMED, ids=range(len(STREAMED)))
def test_a_part_of_a_streamed_reply_is_refused_with_what_to_do(reply: object) -> None:
    with pytest.raises(TypeError, match="Collect a streamed reply first"):
        parse(reply)


def logprobs(*values: Any, **entry: Any) -> dict[str, Any]:
    return {"content": [{"token": "a", "logprob": value, **entry} for value in values]}


def test_tokens_and_their_logprobs_are_no_second_time_in_the_recorded_reply() -> None:
    reply = chat({"content": "a"}, token_ids=[1, 2], logprobs=logprobs(-1.0, -2.0), prompt_token_ids=[3])
    read = parse(reply)
    assert (read.token_ids, read.prompt_token_ids, read.logprobs) == ([1, 2], [3], [-1.0, -2.0])
    assert read.recorded == chat({"content": "a"})
    assert not read.has_other_logprobs
    # No list is copied.
    assert read.token_ids is reply["choices"][0]["token_ids"]


@pytest.mark.parametrize("tokens", [None, [], [1], [1, 2, 3]])
@pytest.mark.parametrize(
    "given", [logprobs(-1.0, -2.0), logprobs(-1.0, None), {"tokens": ["a"], "token_logprobs": [-1.0]}]
)
def test_logprobs_of_other_counts_stay_in_the_reply(tokens: Any, given: dict[str, Any]) -> None:
    read = parse(chat({"content": "a"}, token_ids=tokens, logprobs=given))
    assert (list(read.logprobs), read.has_other_logprobs) == ([], True)
    assert read.recorded["choices"][0]["logprobs"] == given


def test_alternatives_of_tokens_stay_in_the_reply_beside_their_logprobs() -> None:
    given = logprobs(-1.0, top_logprobs=[{"token": "b", "logprob": -2.0}])
    read = parse(chat({"content": "a"}, token_ids=[1], logprobs=given))
    assert (read.logprobs, read.has_other_logprobs) == ([-1.0], False)
    assert read.recorded["choices"][0]["logprobs"] == given


@pytest.mark.parametrize("tokens", [np.array([1, 2]), (1, 2), np.array([1, 2], "i8").tolist()])
def test_token_ids_can_be_arrays(tokens: Any) -> None:
    assert list(parse(chat({}, token_ids=tokens)).token_ids) == [1, 2]


def test_all_numbers_of_the_usage_are_read() -> None:
    details = {"cached_tokens": 7, "audio_tokens": None}
    usage = {"prompt_tokens": 9, "prompt_tokens_details": details, "is_estimate": True, "tier": "flex", "huge": 10**400}
    read = parse({**chat({"content": "a"}), "usage": usage})
    assert read.usage == {"prompt_tokens": 9.0, "prompt_tokens_details.cached_tokens": 7.0, "huge": float("inf")}


def test_further_choices_are_recorded_and_the_first_is_the_turn() -> None:
    choices = [
        {"index": i, "message": {"role": "assistant", "content": str(i)}, "token_ids": [i] * 3} for i in range(3)
    ]
    read = parse(ChatCompletion.construct(id="r", choices=choices, model="m", object="chat.completion", created=1))
    assert (read.text, read.token_ids) == ("0", [0] * 3)
    assert read.recorded["choices"][1:] == choices[1:]


def test_fields_of_other_services_come_back_and_what_only_replies_have_does_not() -> None:
    message = {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "why",
        "parsed": {"x": 1},
        "logprobs": None,
        "annotations": [],
        "function_call": None,
        "audio": {"id": "a1", "data": "AAAA", "expires_at": 1, "transcript": "a"},
        "tool_calls": [],
    }
    (back,) = reply_messages(CHAT, parse(chat(message)).recorded)
    assert back == {"role": "assistant", "content": "a", "reasoning_content": "why", "audio": {"id": "a1"}}
    extra = {"google": {"thought_signature": "s"}}
    reply = calling({"x": None}, extra_content=extra, index=0)
    reply["choices"][0]["message"]["tool_calls"][0]["function"]["parsed_arguments"] = {"x": None}
    ((call,),) = (each["tool_calls"] for each in reply_messages(CHAT, parse(reply).recorded))
    assert call == {
        "id": "c1",
        "type": "function",
        "function": {"name": "run", "arguments": '{"x":null}'},
        "extra_content": extra,
    }


def test_null_that_a_model_wrote_stays() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "run", "input": {"x": None}, "caller": None}
    (message,) = reply_messages(ANTHROPIC, parse({"role": "assistant", "content": [block]}).recorded)
    assert message["content"] == [{key: block[key] for key in block if key != "caller"}]


def test_empty_text_of_anthropic_is_not_sent_back() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": "s"}
    for content, kept in (([{"type": "text", "text": ""}], []), ([thinking, {"type": "text", "text": ""}], [thinking])):
        messages = reply_messages(ANTHROPIC, parse({"role": "assistant", "content": content}).recorded)
        assert messages == ([{"role": "assistant", "content": kept}] if kept else [])


def test_input_that_is_no_object_is_sent_back_in_the_form_of_anthropic() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "run", "input": '{"x": '}
    read = parse({"role": "assistant", "content": [block]})
    assert (read.tool_calls[0].input, bool(read.tool_calls[0].input_error)) == ('{"x": ', True)
    (message,) = reply_messages(ANTHROPIC, read.recorded)
    assert json.dumps(message["content"][0]["input"]) == json.dumps({"INVALID_JSON": '{"x": '})
