"""`turn()`: replies of three formats, as objects and as dicts, and the conversation that they make."""

from __future__ import annotations

import array
import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Server, stored_steps

import anabranch as ab
from anabranch.v1.trajectory_pb2 import Step

CALL = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"code": "1+1"}'}}
CHAT: dict[str, Any] = {
    "model": "m",
    "prompt_token_ids": [1, 2, 3],
    "choices": [
        {
            "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL], "refusal": None},
            "token_ids": [10, 11],
            "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]},
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}},
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "status": "completed",
    "output": [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "name": "run", "arguments": '{"code": "1+1"}'},
    ],
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
ANTHROPIC: dict[str, Any] = {
    "model": "m",
    "role": "assistant",
    "stop_reason": "tool_use",
    "content": [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "c1", "name": "run", "input": {"code": "1+1"}},
    ],
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
RESULTS = {
    "chat": {"role": "tool", "tool_call_id": "c1", "content": "2"},
    "responses": {"type": "function_call_output", "call_id": "c1", "output": "2"},
    "anthropic": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
}


def as_object(value: Any) -> Any:
    """Returns dicts as objects with attributes, as the client libraries do."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: as_object(each) for key, each in value.items()})
    return [as_object(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", ["dict", "object"])
@pytest.mark.parametrize(("name", "reply"), [("chat", CHAT), ("responses", RESPONSES), ("anthropic", ANTHROPIC)])
def test_a_turn_is_one_step_and_continues_the_conversation(server: Server, name: str, reply: Any, kind: str) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    start = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1?"}]
    t.reset(messages=start)
    with t.turn(as_object(reply) if kind == "object" else reply) as turn:
        assert turn.text == "Let me see."
        (call,) = turn.tool_calls
        assert (call.id, call.name, call.input) == ("c1", "run", {"code": "1+1"})
        turn.result(call, "2")
        assert t.messages[-1] == RESULTS[name]
        turn.reward, turn.terminated = 1.0, True
    assert t.done
    assert t.messages[:2] == start
    t.flush(30)
    step = stored_steps(server, t.id)[1]
    assert [(action.type, action.name, action.call_id) for action in step.actions][1:] == [("tool_call", "run", "c1")]
    (result,) = step.observations
    assert (result.type, result.call_id, result.is_error, result.content.text) == ("tool_result", "c1", False, "2")
    assert (step.reward, step.terminated) == (1.0, True)
    usage = {key: value for key, value in step.metrics.items() if key.startswith("usage.")}
    assert sorted(usage.values()) == [*([0.0] if name == "chat" else []), 2.0, 3.0]
    if name == "chat":
        assert (list(step.actions[0].token_ids), list(step.actions[0].logprobs)) == ([10, 11], [-0.5, -0.25])
    again = client.branch(t.id, at=1)
    assert again.messages == t.messages


def chat(prompt: list[int], tokens: list[int]) -> dict[str, Any]:
    choice = {"finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}, "token_ids": tokens}
    return {"prompt_token_ids": prompt, "choices": [choice]}


def test_a_prompt_is_sent_as_what_it_adds_to_the_context(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    for reply in (
        chat([1, 2, 3], [10, 11]),
        chat([1, 2, 3, 10, 11, 7], [12]),
        chat([1, 2, 9], []),
        chat([1, 2, 9], [5]),
    ):
        with t.turn(reply):
            pass
    t.flush(30)
    actions = [step.actions[0] for step in stored_steps(server, t.id)[1:]]
    kept = [action.kept_tokens if action.HasField("kept_tokens") else None for action in actions]
    assert [list(action.prompt_token_ids) for action in actions] == [[1, 2, 3], [7], [9], []]
    assert kept == [None, None, 2, 3]


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def run_tool(call: Any, divisor: int = 0) -> float:
    return call.input["code"].count("1") / divisor


def test_an_exception_of_a_tool_is_recorded_and_the_loop_continues(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    for further in ((), (2,)):
        with t.turn(CHAT) as turn:
            for call in turn.tool_calls:
                turn.result(call, run_tool, call, *further)
    with t.turn(CHAT) as turn:
        assert turn.result("c1", run_tool, turn.tool_calls[0], divisor=4) == 0.5
    with t.turn(CHAT) as turn:
        assert isinstance(turn.result("c1", Silent()), Silent)
    with pytest.raises(KeyboardInterrupt), t.turn(CHAT) as turn:
        turn.result("c1", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    t.flush(30)
    found = [
        [(item.is_error, item.content.text or item.content.json) for item in step.observations]
        for step in stored_steps(server, t.id)[1:]
    ]
    failed = (True, "ZeroDivisionError: division by zero")
    assert found == [[failed], [(False, "1.0")], [(False, "0.5")], [(True, "Silent")], []]


def test_an_exception_in_a_turn_is_the_result_of_the_first_call_without_one(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    with pytest.raises(ZeroDivisionError), t.turn(CHAT) as turn:
        turn.result(turn.tool_calls[0], 1 / 0)
    t.flush(30)
    (result,) = stored_steps(server, t.id)[1].observations
    assert (result.is_error, result.call_id, result.content.text) == (True, "c1", "ZeroDivisionError: division by zero")


def test_a_result_after_its_turn_is_reported(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    t = ab.connect(server.address).trajectory()
    with t.turn(CHAT) as turn:
        pass
    turn.result("c1", "late")
    assert "a result of c1 came after its turn was recorded" in caplog.text


def recorded(server: Server, trajectory_id: str) -> list[dict[str, Any]]:
    """Returns the recorded replies."""
    return [json.loads(step.actions[0].content.json) for step in stored_steps(server, trajectory_id)[1:]]


def test_nothing_of_a_reply_is_lost(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    details = {"usage": {"output_tokens_details": {"reasoning_tokens": 7}}, "incomplete_details": {"reason": "length"}}
    responses = {**RESPONSES, "id": "resp_1", "status": "incomplete", **details}
    choices = [{**CHAT["choices"][0], "index": index} for index in range(3)]
    for reply in (responses, {**CHAT, "id": "chat_1", "choices": choices}, {**ANTHROPIC, "stop_sequence": "END"}):
        with t.turn(reply):
            pass
    t.flush(30)
    one, two, three = recorded(server, t.id)
    assert one == responses
    assert two["choices"][1:] == choices[1:]
    assert three == {**ANTHROPIC, "stop_sequence": "END"}
    first, second, _ = stored_steps(server, t.id)[1:]
    assert first.metrics["usage.output_tokens_details.reasoning_tokens"] == 7
    facts = [json.loads(step.metadata_json) for step in (first, second)]
    assert facts[0] == {"id": "resp_1", "model": "m", "stop_reason": "incomplete"}
    assert facts[1] == {"id": "chat_1", "model": "m", "stop_reason": "tool_calls"}
    assert list(second.actions[0].token_ids) == [10, 11]


def test_logprobs_of_other_counts_are_recorded_with_one_warning_and_never_shifted(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    logprobs = {"content": [{"token": "a", "logprob": -0.5}]}
    for tokens in ([10, 11], [12, 13]):
        choice = {"message": {"role": "assistant", "content": "a"}, "token_ids": tokens, "logprobs": logprobs}
        with t.turn({"prompt_token_ids": [1], "choices": [choice]}):
            pass
    t.step(action=1, token_ids=[14, 15], logprobs=[-0.5], prompt_token_ids=[1])
    t.flush(30)
    assert [reply["choices"][0]["logprobs"] for reply in recorded(server, t.id)[:2]] == [logprobs] * 2
    assert caplog.text.count("logprobs of a reply do not belong to as many token ids") == 1
    for row in t.tokens().rows:
        assert all(math.isnan(logprob) for logprob, is_own in zip(row.logprobs, row.loss_mask, strict=True) if is_own)
        assert len(row.logprobs) == len(row.input_ids)


@pytest.mark.parametrize("tokens", ["ab", [1.5], [None], [2**40], b"\1\0\0\0", {"a": 1}])
def test_token_ids_that_are_none_stay_in_the_recorded_reply(server: Server, tokens: Any) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    choice = {
        "message": {"role": "assistant", "content": "a"},
        "token_ids": tokens,
        "logprobs": {"content": [{"logprob": -0.5}]},
    }
    with t.turn({"choices": [choice], "prompt_token_ids": tokens}):
        pass
    t.flush(30)
    (reply,) = recorded(server, t.id)
    assert reply.keys() | reply["choices"][0].keys() >= {"choices", "token_ids", "prompt_token_ids", "logprobs"}
    assert not stored_steps(server, t.id)[1].actions[0].token_ids


def test_arguments_are_stored_as_json_if_they_are_strict_json_and_as_text_otherwise(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    texts = [
        '{"x": 1}',
        "",
        "{",
        '{"x": NaN}',
        "[" * 2000,
        "[" * 200_000,
        '{"a": 1, "a": 2}',
        '"\0"',
        '{"x": "\\ud83d"}',
    ]
    for text in texts:
        call = {**CALL, "function": {"name": "run", "arguments": text}}
        with t.turn({"choices": [{"message": {"role": "assistant", "tool_calls": [call]}}]}):
            pass
    t.flush(30)
    contents = [step.actions[1].content for step in stored_steps(server, t.id)[1:]]
    kinds = [next(name for name in ("text", "json", "data") if content.HasField(name)) for content in contents]
    assert kinds == ["json", "text", "text", "text", "text", "text", "json", "data", "json"]


def test_a_branch_of_an_unsent_conversation_has_its_messages(own_server: Server) -> None:
    t = ab.connect(own_server.address).trajectory()
    t.reset(messages=[{"role": "user", "content": "hello"}])
    branch = t.branch()
    assert branch.messages == t.messages
    with branch.turn(CHAT):
        pass
    assert len(branch.messages) == len(t.messages) + 1


def test_unknown_replies_and_calls_are_named(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    with pytest.raises(TypeError, match="reply is a int"):
        t.turn(3)
    for unknown in ("c9", {"id": "c9"}, {"id": [1]}, 9, object(), None):
        with pytest.raises(ValueError, match="the reply has no tool call"):
            t.turn(CHAT).result(unknown, "")


def chat_of(message: Any, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, **choice}]}


#: What services have answered, or what their clients have made of it.
UNREADABLE = [
    None,
    {},
    {"error": {"code": 502, "message": "bad gateway"}},
    SimpleNamespace(choices=None, error={"code": 502}),
    {"choices": []},
    {"choices": None, "usage": None},
    {"choices": [None]},
    {"choices": [{}]},
    chat_of(None, finish_reason="content_filter"),
    chat_of(3),
    chat_of({"role": "assistant", "content": [None]}),
    chat_of({"role": "assistant", "content": None, "tool_calls": [None]}),
    {**chat_of({"role": "assistant", "content": "a"}), "usage": 3},
    {"output": []},
    {"output": [None]},
    {"role": "assistant", "content": []},
]


@pytest.mark.parametrize("as_it_is", [True, False])
def test_a_reply_that_cannot_be_read_is_a_turn_without_tool_calls(server: Server, as_it_is: bool) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(messages=[{"role": "user", "content": "go"}])
    replies = UNREADABLE if as_it_is else [as_object(reply) for reply in UNREADABLE[4:]]
    for reply in replies:
        with t.turn(reply) as turn:
            assert turn.tool_calls == []
            turn.reward = 1.0
    with t.turn(CHAT):
        pass
    steps = list(t.steps(1))
    assert [step.reward for step in steps] == [1.0] * len(replies) + [None]
    assert client.branch(t.id, at=t.next_step - 1).messages == t.messages
    assert t.messages[-1]["content"] == "Let me see."
    if as_it_is:
        # The reply itself is kept.
        assert steps[2].action == {"message": UNREADABLE[2]}


def test_strict_raises_for_a_reply_that_cannot_be_read(server: Server) -> None:
    t = ab.connect(server.address, strict=True).trajectory()
    with pytest.raises(ValueError, match="the reply has none of `choices`, `output` and `content`"):
        t.turn({"error": "overloaded"})
    assert t.next_step == 0


@pytest.mark.parametrize("given", [7, 0, "c1", 7.5])
def test_ids_of_tool_calls_are_text(server: Server, given: Any) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(messages=[])
    raw = {**CALL, "id": given}
    replies = [
        chat_of({"role": "assistant", "content": None, "tool_calls": [raw]}),
        {"output": [{"type": "function_call", "call_id": given, "name": "run", "arguments": "{}"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": given, "name": "run", "input": {}}]},
    ]
    for reply in replies:
        for call in (None, given, raw, str(given)):
            with t.turn(reply) as turn:
                assert turn.tool_calls[0].id == str(given)
                turn.result(turn.tool_calls[0] if call is None else call, "done")
    for step in t.steps(1):
        assert [action.call_id for action in step.message.actions] == ["", str(given)]
        assert step.message.observations[0].call_id == str(given)
    assert client.branch(t.id, at=t.next_step - 1).messages == t.messages


@pytest.mark.parametrize("listed", [list, tuple, np.array, lambda ids: array.array("i", ids)])
def test_token_ids_are_lists_or_arrays(server: Server, listed: Any) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    for tokens in ([10, 11], []):
        message = {"role": "assistant", "content": "a"}
        with t.turn({"prompt_token_ids": listed([1, 2]), **chat_of(message, token_ids=listed(tokens))}):
            pass
        with t.turn(chat_of(message, token_ids=listed(tokens), prompt_token_ids=listed([1, 2]))):
            pass
    first, second, *rest = (step.actions[0] for step in steps_of(server, t))
    assert list(first.token_ids) == list(second.token_ids) == [10, 11]
    assert list(first.prompt_token_ids) == [1, 2]
    assert all(not action.token_ids for action in rest)


@pytest.mark.parametrize("arguments", ["[" * 2000, '{"a":' * 100_000, "[" * 5000 + "]" * 5000, "", "{"])
def test_arguments_of_any_depth_and_syntax_end_no_turn(server: Server, arguments: str) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    call = {**CALL, "function": {"name": "run", "arguments": arguments}}
    with t.turn(chat_of({"role": "assistant", "content": None, "tool_calls": [call]})) as turn:
        turn.result(turn.tool_calls[0], "done")
        turn.reward = np.array([1.0, 2.0])  # type: ignore[assignment]
    (step,) = steps_of(server, t)
    assert turn.tool_calls[0].arguments == arguments
    assert dict(step.metrics) == {"reward/0": 1.0, "reward/1": 2.0}


def steps_of(server: Server, t: ab.Trajectory) -> list[Step]:
    """Returns the steps after the reset, when the server has them."""
    t.flush(60)
    return stored_steps(server, t.id)[1:]
