"""A part that breaks a rule costs itself only: the server stores the rest of its step, and of its log."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from conftest import Server, stored_steps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch._recording.fitting import is_plain_json, text_of
from anabranch.v1.limits import LIMITS
from anabranch.v1.rollout_service_pb2 import GetRolloutRequest
from anabranch.v1.rules import RULES
from anabranch.v1.trajectory_pb2 import Action, Content, Observation, Step, StepState

TYPE, NAME, CALL_ID, STATE_NAME = (
    LIMITS[name] for name in ("typeBytes", "actionNameBytes", "callIdBytes", "stateNameBytes")
)
PARTS = LIMITS["stepParts"]


def texts(most: int) -> st.SearchStrategy[str]:
    """Texts of any kind; many have about as many bytes as a bound, in characters of one to four bytes."""
    letter, difference = st.sampled_from("aé中🌊"), st.integers(-1, 2)
    about = st.builds(lambda each, more: each * (most // len(each.encode()) + more), letter, difference)
    bad = st.text(st.sampled_from("a\0\ud83d\udfff"), max_size=9).map(text_of)
    return st.sampled_from(["", "name"]) | st.text(max_size=9) | about | bad


def lists(item: st.SearchStrategy[Any], small: Any, most: int) -> st.SearchStrategy[list[Any]]:
    """Short lists, and some with about as many items as a bound."""
    long = st.integers(most - 1, most + 2).map(lambda count: [small] * count)
    short = st.lists(item, max_size=3)
    return short | short | short | long


def maps(keys: int, most: int, value: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    full = st.tuples(st.integers(most - 1, most + 2), value)
    short = st.dictionaries(texts(keys), value, max_size=4)
    return short | short | full.map(lambda each: {f"key {number}": each[1] for number in range(each[0])})


contents = st.sampled_from([None, Content(text=""), Content(json="[1]"), Content(data=b"\0", media_type="a/b")])
actions = st.builds(Action, type=texts(TYPE), name=texts(NAME), call_id=texts(CALL_ID), content=contents)
observations = st.builds(
    Observation, type=texts(TYPE), call_id=texts(CALL_ID), is_error=st.booleans(), content=contents
)
states = st.builds(StepState, name=texts(STATE_NAME) | st.just("env"), data=st.binary(max_size=3))
full_states = st.integers(254, 258).map(
    lambda count: [StepState(name=f"s{number}", data=b"x") for number in range(count)]
)
steps = st.builds(
    Step,
    # A turn begins with its reply.
    actions=lists(actions, Action(name="a"), PARTS - 1).map(lambda others: [Action(token_ids=[1, 2]), *others]),
    observations=lists(observations, Observation(type="o"), PARTS),
    metrics=maps(LIMITS["metricKeyBytes"], LIMITS["metrics"], st.floats()),
    labels=maps(LIMITS["labelKeyBytes"], LIMITS["stepLabels"], texts(LIMITS["labelValueBytes"])),
    states=st.lists(states, max_size=4) | full_states,
    reward=st.none() | st.floats(),
    terminated=st.booleans(),
    truncated=st.booleans(),
    info_json=st.sampled_from(["", '{"a":1}']),
)


def test_the_server_stores_every_step_with_all_its_valid_parts(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset()
    recorded: list[Step] = []

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(steps)
    def record(step: Step) -> None:
        recorded.append(Step.FromString(step.SerializeToString()))
        t._append(step, ())  # pyright: ignore[reportPrivateUsage]

    record()
    t.flush(300)
    assert "rejected" not in client.stats.unstored
    for step, stored in zip(recorded, stored_steps(server, t.id)[1:], strict=True):
        assert_valid_parts_are_stored(step, stored)


def assert_valid_parts_are_stored(step: Step, stored: Step) -> None:
    scalars = [(each.HasField("reward"), repr(each.reward), each.terminated, each.truncated) for each in (step, stored)]
    assert scalars[0] == scalars[1] and step.info_json == stored.info_json
    assert_items_are_stored(step.actions, stored.actions)
    assert_items_are_stored(step.observations, stored.observations)
    ids = {item.call_id for item in (*step.actions[:PARTS], *step.observations[:PARTS])}
    assert len(ids) == len({item.call_id for item in (*stored.actions, *stored.observations)}), "ids stay different"
    metrics = {key: repr(value) for key, value in step.metrics.items() if is_text(key, LIMITS["metricKeyBytes"], 1)}
    assert {key: repr(value) for key, value in stored.metrics.items()}.items() <= metrics.items()
    assert len(stored.metrics) == min(len(metrics), LIMITS["metrics"])
    labels = {key: text for key, text in step.labels.items() if is_text(key, 64, 1) and is_text(text, 256)}
    assert stored.labels.items() <= labels.items()
    assert len(stored.labels) == min(len(labels), LIMITS["stepLabels"])
    # Of several states of one name, the first is stored.
    named = {each.name or "env": each.data for each in reversed(step.states) if is_text(each.name, STATE_NAME)}
    assert {each.name for each in stored.states} <= named.keys()
    assert len(stored.states) == min(len(named), LIMITS["statesPerStep"])


def assert_items_are_stored(items: Sequence[Any], stored: Sequence[Any]) -> None:
    assert len(stored) == min(len(items), PARTS)
    for item, other in zip(items, stored, strict=False):
        for name, most in (("type", TYPE), ("name", NAME), ("call_id", CALL_ID)):
            text, found = getattr(item, name, ""), getattr(other, name, "")
            if is_text(text, most):
                assert found == text
            else:
                # A cut is between two characters.
                assert is_text(found, most) and ("\0" in text or len(found.encode()) > most - 4)
            item.ClearField(name) if text else None
            other.ClearField(name) if found else None
        assert item == other


def is_text(text: str, most: int, least: int = 0) -> bool:
    return "\0" not in text and least <= len(text.encode()) <= most


def reply(*calls: tuple[str, str, str], **message: Any) -> dict[str, Any]:
    """Returns a reply with tool calls: id, name and arguments."""
    made = [{"id": i, "type": "function", "function": {"name": name, "arguments": args}} for i, name, args in calls]
    return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": made, **message}}]}


LONG = "call_1__thought__" + "Q" * CALL_ID


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("c" * 949, "d" * 949),
        (LONG[:CALL_ID], LONG[: CALL_ID - 1]),
        (LONG, LONG + "R"),
        ("中" * 2000, "中" * 2001),
        ("a\0", "a\0\0"),
        ("a\ud83d", "a\ud83e"),
    ],
)
def test_ids_of_calls_match_their_results_and_read_back_whole(server: Server, first: str, second: str) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(messages=[{"role": "user", "content": "go"}])
    with t.turn(reply((first, "run", "{}"), (second, "run", "{}"))) as turn:
        for call in reversed(turn.tool_calls):
            turn.result(call, call.id[-9:].encode("ascii", "replace").decode())
        turn.reward, turn.terminated = 1.0, True
    t.flush(60)
    step = stored_steps(server, t.id)[1]
    assert [item.call_id for item in step.observations] == [action.call_id for action in reversed(step.actions[1:])]
    assert len({item.call_id for item in step.observations}) == 2
    if is_text(text_of(first), CALL_ID):
        assert [action.call_id for action in step.actions[1:]] == [first, second]
    assert (step.reward, step.terminated) == (1.0, True)
    assert client.branch(t.id, at=1).messages == t.messages


@pytest.mark.parametrize(
    ("arguments", "plain"),
    [
        ('{"x":1}', True),
        ('{"a":1,"a":2}', True),
        ('{"a":"' + "[" * 1000 + '"}', True),
        ("[" * 64 + "]" * 64, True),
        ('{"x":1e999}', True),
        ('{"x":"\\ud83d"}', True),
        ("[" * 65 + "]" * 65, False),
        ("[" * 2000 + "]" * 2000, False),
        ("[" * 200_000, False),
        ('{"a":' * 100_000, False),
        ('{"x":NaN}', False),
        ("-Infinity", False),
        ('{"x":1', False),
        ("", False),
        ('{"x":"\ud83d"}', False),
        ('{"x":"\0"}', False),
        ("9" * 5000, False),
    ],
)
def test_arguments_that_are_no_plain_json_are_text(server: Server, arguments: str, plain: bool) -> None:
    assert is_plain_json(arguments) == plain
    client = ab.connect(server.address, strict=True)
    t = client.trajectory()
    t.reset()
    with t.turn(reply(("c1", "run", arguments))) as turn:
        turn.reward = 1.0
    t.flush(60)
    step = stored_steps(server, t.id)[1]
    assert step.reward == 1.0
    content = step.actions[1].content
    assert content.json == arguments if plain else not content.HasField("json")
    if not plain:
        assert t.episode().steps[1].action["tool_calls"][0]["arguments"] == arguments
    assert client.stats.unstored == {}


LARGE = {"text": "x" * 1_100_000}


@pytest.mark.parametrize(
    ("arguments", "kind", "read"),
    [
        ({"metrics": {"": 1.0, "a": 2.0}}, 'metrics[""] is empty', {"metrics": {"a": 2.0}}),
        ({"metrics": {"x" * 129: 1.0, "a": 2.0}}, "129 bytes: expected at most 128", {"metrics": {"a": 2.0}}),
        ({"metrics": {"a\0": 1.0, "\ud83d": 3.0, "a": 2.0}}, "U+0000 or a lone surrogate", {"metrics": {"a": 2.0}}),
        (
            {"metrics": {f"{n:03}": 1.0 for n in range(257)}},
            "metrics has 257 entries: expected at most 256",
            {"metrics": {f"{n:03}": 1.0 for n in range(256)}},
        ),
        ({"states": {"n" * 65: b"1", "a": b"2"}}, "65 bytes: expected at most 64", {"states": ("a",)}),
        (
            {"states": {"env": b"1", "": b"2", "a\0": b"3"}},
            'states["env"] is the name of an earlier',
            {"states": ("env",)},
        ),
        (
            {"states": {f"{n:03}": b"1" for n in range(257)}},
            "states has 257 items: expected at most 256",
            {"states": tuple(f"{n:03}" for n in range(256))},
        ),
        (
            {"info": LARGE, "states": {"info": b"{}"}},
            "info_json does not fit",
            {"info": {"$unstored": "JSON that is too large"}},
        ),
        (
            {"info": LARGE, "states": {f"{n:03}": b"1" for n in range(256)}},
            "info_json does not fit",
            {"info": {"$unstored": "JSON that is too large"}},
        ),
        ({"tags": ["no name", "é", "ok", "x" * 129, ""]}, 'tags["no name"] is unexpected', {}),
        ({"tags": ["ok", *(f"t{n}" for n in range(16))]}, "tags has 17 names: expected at most 16", {}),
        ({"states": {"a": np.zeros((0, *[10] * 17, *[1] * 14))}}, "", {"states": ("a",)}),
        ({"screenshot": b"\x89PNG\r\n\x1a\n", "observation": {f"k{n}": b"x" for n in range(1024)}}, "", {}),
    ],
)
def test_arguments_of_a_step_cost_themselves_only(
    server: Server, caplog: pytest.LogCaptureFixture, arguments: dict[str, Any], kind: str, read: dict[str, Any]
) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset()
    with caplog.at_level(logging.WARNING, "anabranch"):
        for _ in range(2):
            t.step(**{"observation": "seen", **arguments}, action="go", reward=1.0, terminated=True)
    t.flush(60)
    assert sum(kind in record.getMessage() for record in caplog.records) == (1 if kind else 0), "one warning for a kind"
    if not kind:
        assert caplog.records == []
    for step in t.episode().steps[1:]:
        assert (step.action, step.reward, step.terminated) == ("go", 1.0, True)
        assert "observation" in arguments or step.observation == "seen"
        assert {name: getattr(step, name) for name in read} == read
    if "tags" in arguments:
        assert client.branch(t.id, tag="ok").next_step == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": {"x" * 129: 1.0}}, r'^metrics\["x+…"\] has 129 bytes: expected at most 128$'),
        ({"states": {"n" * 65: b"1"}}, r'^states\["n+…"\] has 65 bytes: expected at most 64$'),
        ({"tags": ["no name"]}, r'^tags\["no name"\] is unexpected: expected a match of \^\[A-Z'),
    ],
)
def test_strict_names_the_part_its_value_and_its_bound(arguments: dict[str, Any], message: str) -> None:
    t = ab.connect("127.0.0.1:1", strict=True, spool=False).trajectory()
    t.reset()
    with pytest.raises(ValueError, match=message):
        t.step(action=1, **arguments)
    assert t.next_step == 1
    with (
        pytest.raises(ValueError, match=r'^actions\[1\]\.name "中+…" has 300 bytes: expected at most 256$'),
        t.turn(reply(("c1", "中" * 100, "{}"))),
    ):
        pass
    assert t.next_step == 1


def test_a_turn_of_any_size_is_stored(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    messages = [{"role": "user", "content": f"message {number}"} for number in range(1500)]
    t.reset(messages=messages, observation={f"k{number}": b"x" for number in range(1000)})
    with t.turn({"model": "m" * 2_000_000, **reply(*((f"c{n}", "run", "{}") for n in range(1100)))}) as turn:
        for call in turn.tool_calls:
            turn.result(call, "x" * 1000)
        turn.reward = 1.0
    with t.turn(reply(*((f"{n}" * 1000, "run" * 80, "{}") for n in range(600)))) as turn:
        for call in turn.tool_calls:
            turn.result(call, "x")
        turn.reward = 2.0
    t.flush(100)
    assert "rejected" not in client.stats.unstored
    first, second, third = stored_steps(server, t.id)
    assert client.branch(t.id, at=0).messages == messages
    assert len(first.observations) < PARTS
    assert (len(second.actions), len(second.observations), second.reward) == (PARTS, PARTS, 1.0)
    assert json.loads(second.metadata_json) == {"$unstored": "JSON that is too large"}
    # Calls and results without room are left out from the end on.
    assert 1 < len(third.actions) < 601
    assert t.episode().reward_sum == 3.0


def test_points_whose_names_the_server_rejects_cost_no_others(server: Server) -> None:
    client = ab.connect(server.address)
    run = client.run(f"run {uuid.uuid4()}", config={})
    long = "x" * (LIMITS["seriesNameBytes"] - 6)
    run.log(1, **{"good": 1.0, "bad" * 100: 2.0, "": 3.0, "a\0": 4.0, "\ud83d": 5.0, "also": 6.0})
    # More than one message can have, by number and by size.
    run.log(2, **{f"{number:06}{long if number < 5000 else ''}": float(number) for number in range(12_000)})
    run.log(3, good=2.0)
    found = run.metrics("good", "also", f"000000{long}", f"004999{long}", "011999")
    assert {key: list(series.values) for key, series in found.items()} == {
        "good": [1.0, 2.0],
        "also": [6.0],
        f"000000{long}": [0.0],
        f"004999{long}": [4999.0],
        "011999": [11999.0],
    }
    assert client.stats.unstored == {"metrics": 4}
    strict = ab.connect(server.address, strict=True).run(run.name)
    with pytest.raises(ValueError, match=r'^metrics\["bad[a-d…]+"\] has 300 bytes: expected at most 256$'):
        strict.log(4, **{"bad" * 100: 2.0})


def test_a_rollout_ends_with_all_valid_parts_of_its_result(server: Server) -> None:
    client = ab.connect(server.address)
    run = client.run(f"run {uuid.uuid4()}", config={})
    stage = run.stage("train_step", 0)
    stage.start()
    ids: list[str] = []
    with stage.rollout(0, 0) as rollout:
        ids.append(rollout.id)
        rollout.step(action=1, reward=1.0)
        rollout.log(**{"good": 1.0, "bad" * 100: 2.0, "\ud83d": 3.0})
        rollout.log(good=2.0)
        for success in (False, True):
            rollout.validate("check " * 40, success=success, details={"text": "x" * 70_000}, error="e\0" * 5000)
    with pytest.raises(RuntimeError), stage.rollout(0, 1) as rollout:
        ids.append(rollout.id)
        raise RuntimeError("🌊\0\ud83d" * 2000)
    completed, failed = (server.stubs().rollouts.GetRollout(GetRolloutRequest(rollout_id=each)) for each in ids)
    assert completed.rollout.success and completed.attempts[0].metrics == {"good": 2.0}
    (validation,) = completed.validations
    assert (validation.success, validation.name) == (True, ("check " * 40)[:128])
    assert validation.error_message.startswith("e\\x00e")
    assert failed.rollout.status_message.startswith("RuntimeError: 🌊\\x00\\ud83d")
    run.fail("🌊\0" * 2000)
    assert run.status == "failed" and run.status_message.startswith("🌊\\x00")


def test_a_seal_has_what_fits_of_its_message(server: Server) -> None:
    t = ab.connect(server.address, strict=True).trajectory()
    t.reset()
    t.seal("failed", "é\0\ud83d" * 1000)
    t.flush(60)
    stored = server.stored(t.id)
    assert stored.status_message.startswith("é\\x00\\ud83d") and len(stored.status_message.encode()) > 4092


def test_a_tag_that_the_server_would_reject_is_left_out(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset()
    t.tag("no name")
    t.tag("kept")
    t.flush(60)
    assert client.branch(t.id, tag="kept").next_step == 1
    assert client.stats.unstored == {"tags": 1}
    with pytest.raises(ValueError, match="no name"):
        ab.connect(server.address, strict=True).branch(t.id).tag("no name")


def test_every_rule_of_a_step_is_tried() -> None:
    """A new field with a rule belongs into `steps` above."""
    tried = {
        "Step": {"actions", "observations", "metrics", "labels", "states"},
        "Action": {"type", "name", "call_id"},
        "Observation": {"type", "call_id"},
        # The package sets the others.
        "StepState": {"name", "digest", "media_type"},
    }
    fields = [rule.partition(".")[::2] for rule in RULES]
    assert tried == {message: {name for each, name in fields if each == message} for message in tried}
