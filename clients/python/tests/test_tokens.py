"""Tokens of episodes: rows, masks, logprobs, rewards, and prefixes that branches share."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np
import pytest
from conftest import Server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import branch, new_step, record, token_step

import anabranch as ab
from anabranch._reading.read import Selection
from anabranch._recording.arguments import write_logprobs
from anabranch._wire.connection import Connection
from anabranch.episodes import Episodes, episode_of
from anabranch.tokens import TokenRow
from anabranch.v1.state_service_pb2 import PutStateRequest
from anabranch.v1.trajectory_pb2 import Action


@pytest.fixture(scope="module")
def connection(server: Server) -> Connection:
    return Connection(server.address)


def test_prompts_have_no_loss_and_rewards_stand_on_the_last_generated_token(connection: Connection) -> None:
    steps = [
        new_step(0, observation="task"),
        token_step(1, [1, 2], [3, 4], reward=0.5),
        new_step(2, action="no tokens", reward=0.25),
        token_step(3, [5], [6]),
        token_step(4, [], [7], reward=1.0),
    ]
    tokens = episode_of(connection, record(connection, steps)).tokens()
    (row,) = tokens.rows
    assert row.input_ids == [1, 2, 3, 4, 5, 6, 7]
    assert row.loss_mask == [0, 0, 1, 1, 0, 1, 1]
    assert row.logprobs == [0, 0, -3, -4, 0, -6, -7]
    assert row.rewards == [0, 0, 0, 0.75, 0, 0, 1.0]
    assert [array.dtype for array in (tokens.input_ids[0], tokens.logprobs[0])] == [np.int64, np.float32]


@pytest.mark.parametrize(
    "logprobs",
    [[], [-1, -0.5, 0], np.array([-0.5, -2], "f4"), [float("-inf"), float("nan")], [-1e300, -0.25], (-0.5,) * 500],
)
def test_logprobs_are_written_as_the_message_does(logprobs: Sequence[float]) -> None:
    action, expected = Action(), Action()
    write_logprobs(action, logprobs)
    expected.logprobs.extend(logprobs)
    assert action.SerializeToString() == expected.SerializeToString()


@pytest.mark.parametrize("logprobs", [["a"], [None]])
def test_logprobs_that_are_no_numbers_are_rejected(logprobs: Sequence[float]) -> None:
    with pytest.raises(TypeError):
        write_logprobs(Action(), logprobs)


def test_a_shorter_context_begins_a_row_that_does_not_train_kept_tokens_again(connection: Connection) -> None:
    steps = [token_step(0, [1, 2], [3, 4], reward=1.0), token_step(1, [9], [10], reward=2.0)]
    steps[1].actions[0].kept_tokens = 3
    one, two = episode_of(connection, record(connection, steps)).tokens().rows
    assert (one.input_ids, one.loss_mask, one.rewards) == ([1, 2, 3, 4], [0, 0, 1, 1], [0, 0, 0, 1.0])
    assert (two.input_ids, two.loss_mask, two.rewards) == ([1, 2, 3, 9, 10], [0, 0, 0, 0, 1], [0, 0, 0, 0, 2.0])


def test_kept_tokens_beyond_the_context_are_an_error(connection: Connection) -> None:
    steps = [token_step(0, [1], [2]), token_step(1, [], [3])]
    steps[1].actions[0].kept_tokens = 3
    trajectory_id = record(connection, steps)
    with pytest.raises(ValueError, match=f"step 1 of trajectory {trajectory_id} is 3, but the context so far has 2"):
        episode_of(connection, trajectory_id).tokens()


def test_missing_logprobs_are_nan(connection: Connection) -> None:
    step = token_step(0, [1], [2])
    del step.actions[0].logprobs[:]
    (row,) = episode_of(connection, record(connection, [step])).tokens().rows
    assert row.logprobs[0] == 0
    assert np.isnan(row.logprobs[1])


TOKENS = st.lists(st.integers(0, 3), max_size=5)


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[list[int] | None, list[int]]]:
    """Prompts and replies of a conversation whose history is now and then rewritten, cut or discarded."""
    context: list[int] = []
    drawn: list[tuple[list[int] | None, list[int]]] = []
    for _ in range(draw(st.integers(1, 6))):
        kept = context if draw(st.booleans()) else context[: draw(st.integers(0, len(context)))]
        prompt = kept + draw(TOKENS) if draw(st.integers(0, 3)) else None
        reply = draw(TOKENS)
        drawn.append((prompt, reply))
        context = (context if prompt is None else prompt) + reply
    return drawn


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversation=turns(), reads=st.booleans(), data=st.data())
def test_recorded_prompts_are_read_back_exactly(
    server: Server, conversation: list[tuple[list[int] | None, list[int]]], reads: bool, data: st.DataObject
) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    at = data.draw(st.integers(0, len(conversation)))
    for number, (prompt, reply) in enumerate(conversation):
        if number == at:
            t = t.branch(at=number)
        if reads:
            assert t.messages == []
        t.step(action="reply", token_ids=reply, prompt_token_ids=prompt, logprobs=[-1.0] * len(reply))
    rows = [list(ids) for ids in t.tokens().input_ids]
    # Each prompt with its reply is the beginning of a row, in order.
    index = 0
    for prompt, reply in conversation:
        if prompt is None:
            continue
        whole = prompt + reply
        while rows[index][: len(whole)] != whole:
            index += 1
    # No generated token is trained twice.
    assert sum(sum(mask) for mask in t.tokens().loss_mask) == sum(len(reply) for _, reply in conversation)


def test_a_rejected_step_keeps_its_tokens(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.trajectory.fit", lambda step, values: None)
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    t.step(action="a", token_ids=[3], prompt_token_ids=[1, 2], metrics={"x" * 200: 1.0})
    t.step(action="b", token_ids=[5], prompt_token_ids=[1, 2, 3, 4])
    assert [list(ids) for ids in t.tokens().input_ids] == [[1, 2, 3, 4, 5]]


def test_tokens_beyond_the_limit_of_a_step_are_read_back(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=[])
    prompt, reply = [200_000] * 300_000, [100_000] * 200_000
    t.step(token_ids=reply, prompt_token_ids=np.array(prompt))
    t.step(token_ids=[2], prompt_token_ids=[*prompt, *reply, 1])
    t.flush(60)
    branch = ab.connect(server.address).branch(t.id)
    assert branch.messages == []
    branch.step(token_ids=[4], prompt_token_ids=[*prompt, *reply, 1, 2, 3])
    (row,) = branch.tokens().rows
    assert row.input_ids == [*prompt, *reply, 1, 2, 3, 4]


def put(connection: Connection, tokens: list[int]) -> str:
    data = np.array(tokens, "<i4").tobytes()
    return connection.stubs.states.PutState(iter([PutStateRequest(chunk=data)]), timeout=20).state.digest


def test_tokens_that_are_stored_as_states_are_the_same(connection: Connection) -> None:
    prompt, reply = list(range(5000)), [7, 8]
    steps = [token_step(0, [], []), token_step(1, [1], [2])]
    steps[0].actions[0].prompt_token_ids_state = put(connection, prompt)
    steps[0].actions[0].token_ids_state = put(connection, reply)
    (row,) = episode_of(connection, record(connection, steps)).tokens().rows
    assert row.input_ids == [*prompt, *reply, 1, 2]
    assert sum(row.loss_mask) == 3


def test_an_episode_without_tokens_has_no_row(connection: Connection) -> None:
    assert len(episode_of(connection, record(connection, [new_step(0, action="text")])).tokens()) == 0


def test_padded_arrays_are_cut_at_max_length(connection: Connection) -> None:
    ids = (record(connection, [token_step(0, [1, 2], [3])]), record(connection, [token_step(0, [4], [])]))
    padded = Episodes(connection, Selection(ids=ids)).tokens(pad_id=99, max_length=2)
    assert padded["input_ids"].tolist() == [[1, 2], [4, 99]]
    assert padded["attention_mask"].tolist() == [[1, 1], [1, 0]]


def test_branches_share_the_segments_of_their_common_steps(connection: Connection) -> None:
    task = f"task {uuid.uuid4()}"
    trunk = [token_step(0, [1, 2], [3]), token_step(1, [4], [5]), token_step(2, [6], [7], reward=1.0)]
    trunk_id = record(connection, trunk, task_id=task)
    branch_id = branch(connection, trunk_id, 1, [token_step(2, [8], [9], reward=2.0)])
    episodes = Episodes(connection, Selection(ids=(trunk_id, branch_id)))
    shared = episodes.tokens(shared=True)
    assert len(shared.segments) == 4
    assert shared.trajectory_ids == [trunk_id, branch_id]
    assert [shared.row(index) for index in range(2)] == episodes.tokens().rows
    assert isinstance(shared.row(0), TokenRow)


@pytest.mark.parametrize("how", ["step", "turn"])
def test_logprobs_beyond_a_step_are_stored_apart_and_read_back(server: Server, how: str) -> None:
    client = ab.connect(server.address, strict=True)
    t = client.trajectory(task=f"long {how} {uuid.uuid4()}")
    count = 300_000
    reply, prompt = list(range(count)), [7, 8, 9]
    logprobs = np.linspace(-20, 0, count, dtype=np.float32)
    t.reset(observation=0)
    if how == "step":
        t.step(action="long", token_ids=reply, logprobs=logprobs, prompt_token_ids=prompt, observation=1, reward=2.0)
    else:
        choice = {
            "finish_reason": "length",
            "message": {"role": "assistant", "content": "long"},
            "token_ids": reply,
            "logprobs": {"content": [{"token": "", "logprob": logprob} for logprob in logprobs.tolist()]},
        }
        with t.turn({"model": "m", "choices": [choice], "prompt_token_ids": prompt}) as turn:
            turn.reward = 2.0
    t.step(action="short", token_ids=[1, 2], logprobs=[-0.5, -0.25], prompt_token_ids=[*prompt, *reply, 5])
    t.flush(60)
    (episode,) = client.episodes(task=t.episode().task)
    (row,) = episode.tokens().rows
    assert row.input_ids == [*prompt, *reply, 5, 1, 2]
    assert row.logprobs == [0.0] * 3 + logprobs.tolist() + [0.0, -0.5, -0.25]
    assert row.rewards[count + 2] == 2.0
    assert client.stats.unstored == {}
    # They are no action of the agent, and no checkpoint.
    long, short = episode.steps[1:]
    assert (short.action, long.states) == ("short", ())
    if how == "step":
        assert (long.action, episode.actions.tolist()) == ("long", ["long", "short"])
    assert t.checkpoint() is None
    assert len(client.branch(t.id, at=1).messages) == (1 if how == "turn" else 0)
