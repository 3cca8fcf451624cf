"""What the server would refuse raises when the trajectory is created, and names the argument."""

from __future__ import annotations

import re
import uuid
from typing import Any

import grpc
import gymnasium as gym
import pytest
from conftest import Server, stored_steps
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch._recording.creation import Creation
from anabranch.errors import RunNotFound
from anabranch.gym import Record, RecordVector
from anabranch.v1.trajectory_service_pb2 import CreateTrajectoryRequest

ID = "01a22200-0000-7000-8000-000000000000"

#: Arguments, and what the error says.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": "n" * 300}, r"`name` has 300 bytes .*: expected at most 256"),
    ({"name": "é" * 129}, r"`name` has 258 bytes"),
    ({"name": 7}, r"`name` is 7, of type int: expected text"),
    ({"name": None}, r"`name` is None, of type NoneType: expected text"),
    ({"name": "a\0b"}, r"`name` is 'a\\x00b': it has U\+0000 at index 1"),
    ({"name": "a\ud83d"}, r"`name` is 'a\\ud83d': it has a lone surrogate at index 1"),
    ({"task": "t" * 257}, r"`task` has 257 bytes"),
    ({"task": b"task"}, r"`task` is b'task', of type bytes: expected text"),
    ({"labels": {"gpus": 8}}, r"`labels\['gpus'\]` is 8, of type int: expected text"),
    ({"labels": {"gpus": None}}, r"`labels\['gpus'\]` is None"),
    ({"labels": {8: "gpus"}}, r"`a key of labels` is 8, of type int: expected text"),
    ({"labels": {"": "1"}}, r"`labels` has an empty key: expected 1 to 64 bytes"),
    ({"labels": {"k" * 65: "1"}}, r"`a key of labels` has 65 bytes"),
    ({"labels": {"k": "v" * 257}}, r"`labels\['k'\]` has 257 bytes .*: expected at most 256"),
    ({"labels": {"k": "a\0b"}}, r"`labels\['k'\]` is 'a\\x00b'"),
    ({"labels": {f"k{i}": "v" for i in range(100)}}, r"`labels` has 100 entries: expected at most 64"),
    ({"labels": [("k", "v")]}, r"`labels` is \[\('k', 'v'\)\], of type list: expected a dict of text"),
    ({"run": "my run"}, r"`run` is 'my run': expected a Run, or the id of one, which is a UUID"),
    ({"run": 7}, r"`run` is 7, of type int: expected a Run"),
]
ONLY_TRAJECTORIES: list[tuple[dict[str, Any], str]] = [
    ({"id": "my id"}, r"`id` is 'my id': expected a UUID"),
    ({"id": 7}, r"`id` is 7, of type int: expected text"),
    ({"metadata": {"x": "y" * 600_000}}, r"`metadata` has 600008 bytes as JSON: expected at most 524288"),
]


def names_of(cases: list[tuple[dict[str, Any], str]]) -> list[str]:
    return [pattern for _, pattern in cases]


@pytest.mark.parametrize(
    ("arguments", "message"), REFUSED + ONLY_TRAJECTORIES, ids=names_of(REFUSED + ONLY_TRAJECTORIES)
)
def test_trajectory_names_the_argument_that_the_server_would_refuse(arguments: dict[str, Any], message: str) -> None:
    client = ab.connect("127.0.0.1:1")
    for resume in ("never", "allow"):
        with pytest.raises((TypeError, ValueError), match=message):
            client.trajectory(**{"resume": resume, **arguments})
    assert client.stats.recorded == 0


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=names_of(REFUSED))
def test_the_wrappers_of_gymnasium_raise_when_they_are_made(arguments: dict[str, Any], message: str) -> None:
    client = ab.connect("127.0.0.1:1")
    with pytest.raises((TypeError, ValueError), match=message):
        Record(gym.make("CartPole-v1"), client, **arguments)
    with pytest.raises((TypeError, ValueError), match=message):
        RecordVector(SyncVectorEnv([lambda: gym.make("CartPole-v1")]), client, **arguments)


def test_a_vector_environment_needs_room_for_its_own_label() -> None:
    labels = {f"k{i}": "v" for i in range(64)}
    client = ab.connect("127.0.0.1:1")
    assert Record(gym.make("CartPole-v1"), client, labels=labels)
    with pytest.raises(ValueError, match="`labels` has 65 entries: expected at most 64"):
        RecordVector(SyncVectorEnv([lambda: gym.make("CartPole-v1")]), client, labels=labels)


@pytest.mark.parametrize(("arguments", "message"), [case for case in REFUSED if case[0].keys() <= {"name", "labels"}])
def test_branch_names_the_argument_too(arguments: dict[str, Any], message: str) -> None:
    client = ab.connect("127.0.0.1:1", spool=False)
    t = client.trajectory()
    t.reset(observation=0)
    with pytest.raises((TypeError, ValueError), match=message):
        client.branch(t, **arguments)


#: Text around the bounds of 64 and 256 bytes, and text that cannot be stored.
texts = st.builds(
    lambda character, length, end: character * length + end,
    st.sampled_from(["a", "é", "日", "👍"]),
    st.sampled_from([0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 84, 85, 86, 127, 128, 129, 255, 256, 257]),
    st.sampled_from(["", "", "", "b", "\0", "\ud83d", " /", "\n"]),
)
labels_of_any_size = st.one_of(
    st.dictionaries(texts, texts, max_size=3),
    st.integers(63, 66).map(lambda count: {f"k{i}": "v" for i in range(count)}),
)


@settings(max_examples=150, deadline=None)
@given(task=texts, name=texts, labels=labels_of_any_size)
def test_trajectories_accept_exactly_what_the_server_accepts(
    server: Server, task: str, name: str, labels: dict[str, str]
) -> None:
    try:
        Creation.checked(task=task, name=name, labels=labels)
        accepted = True
    except ValueError:
        accepted = False
    try:
        request = CreateTrajectoryRequest(task_id=task, name=name, labels=labels)
        server.stubs().trajectories.CreateTrajectory(request, timeout=60)
        stored = True
    except (grpc.RpcError, UnicodeEncodeError):
        stored = False
    assert accepted == stored


@pytest.mark.parametrize("size", [524288, 524289])
def test_the_bound_of_metadata_is_that_of_the_server(server: Server, size: int) -> None:
    client = ab.connect(server.address)
    metadata = "x" * (size - 2)
    request = CreateTrajectoryRequest(metadata_json=client.values.info_json(metadata))
    if size == 524288:
        server.stubs().trajectories.CreateTrajectory(request)
        assert client.trajectory(metadata=metadata)
        return
    with pytest.raises(grpc.RpcError):
        server.stubs().trajectories.CreateTrajectory(request)
    with pytest.raises(ValueError, match="`metadata` has 524289 bytes"):
        client.trajectory(metadata=metadata)


def test_metadata_that_is_too_large_breaks_no_loop_of_gymnasium(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    env = Record(gym.make("CartPole-v1"), ab.connect(server.address), task=f"task {uuid.uuid4()}")
    for _ in range(2):
        env.reset(seed=1, options={"start": "x" * 600_000})
    env.step(0)
    env.trajectory.flush(60)
    assert '"options":null' in server.stored(env.trajectory.id).metadata_json
    assert '"seed":1' in server.stored(env.trajectory.id).metadata_json
    assert caplog.text.count("`options` of an episode is not recorded") == 1


def test_an_id_of_a_run_is_looked_up_if_the_server_answers(own_server: Server) -> None:
    client = ab.connect(own_server.address)
    t = client.trajectory(run=ID)
    t.reset(observation=0)
    own_server.start()
    with pytest.raises(RunNotFound, match="RUN_NOT_FOUND"):
        t.flush(60)
    other = ab.connect(own_server.address)
    for _ in range(2):
        with pytest.raises(
            RunNotFound, match=f"`run` is '{ID}', and the server at {own_server.address} has no such run"
        ):
            other.trajectory(run=ID)
    run = client.run("a run", config={})
    known = other.trajectory(run=run.id)
    known.reset(observation=0)
    known.flush(60)
    assert len(stored_steps(own_server, known.id)) == 1


@pytest.mark.parametrize("message", ["a\0b", "x" * 10_000, "a\ud83d"])
def test_any_text_of_an_exception_seals(server: Server, message: str) -> None:
    t = ab.connect(server.address).trajectory()
    with pytest.raises(RuntimeError), t:
        t.reset(observation=0)
        raise RuntimeError(message)
    t.flush(60)
    assert server.stored(t.id).status == 6


def test_a_run_names_the_argument_that_the_server_would_refuse(server: Server) -> None:
    client = ab.connect(server.address, spool=False)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"name": 7}, "`name` is 7, of type int: expected text"),
        ({"name": "n" * 300}, "`name` has 300 bytes"),
        ({"name": "n", "labels": {"gpus": 8}}, "`labels['gpus']` is 8, of type int: expected text"),
        ({"name": "n", "labels": {"": "a"}}, "`labels` has an empty key"),
    ]
    for arguments, message in refused:
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            client.run(config={}, **arguments)
