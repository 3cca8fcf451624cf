"""Checkpoints: `checkpoint()` reads them, and `rewind()` continues after one."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import Server, stored_steps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch import aio
from anabranch.client import Resume
from anabranch.errors import CheckpointNotFound, StepNotFound, TagNotFound, TrajectoryNotFound


@pytest.fixture
def client(server: Server) -> ab.Client:
    return ab.connect(server.address)


@pytest.fixture
def name() -> str:
    return f"name {uuid.uuid4()}"


def recorded(client: ab.Client, name: str, states: Sequence[int], **fields: Any) -> ab.Trajectory:
    """Records the steps 0 to 5 with observations 0 to 5, durably. Some have a state of their number."""
    t = client.trajectory(name=name, resume="allow", **fields)
    t.reset(observation=0, messages=[{"role": "user", "content": "go"}])
    for number in range(1, 6):
        state = {"env": b"%d" % number} if number in states else None
        t.step(action=1, observation=number, reward=1.0, states=state, tags=["best"] if number == 3 else [])
    t.flush(30)
    return t


def observed(server: Server, trajectory_id: str) -> list[int]:
    steps = stored_steps(server, trajectory_id)
    return [int(step.observations[-1].content.json) for step in steps]


def branches_of(server: Server, t: ab.Trajectory) -> list[str]:
    tree = server.stored(t.id).tree_id
    return [each.id for each in server.listed() if each.tree_id == tree and each.id != tree]


def test_a_checkpoint_is_read_and_moves_nothing(server: Server, client: ab.Client, name: str) -> None:
    t = recorded(client, name, [1, 3])
    assert [t.checkpoint(at) for at in (1, 3, "best", None)] == [{"env": b"1"}, *[{"env": b"3"}] * 3]
    for at, error in ((2, CheckpointNotFound), (99, StepNotFound), ("worst", TagNotFound)):
        with pytest.raises(error):
            t.checkpoint(at)
    assert (t.next_step, t.last_observation) == (6, 5)
    t.step(action=1, observation=6)
    t.flush(30)
    assert observed(server, t.id) == [0, 1, 2, 3, 4, 5, 6]
    assert branches_of(server, t) == []


def test_a_rewound_trajectory_continues_in_a_branch(server: Server, client: ab.Client, name: str) -> None:
    t = recorded(client, name, [1, 3], labels={"lr": "0.1"})
    before, receipt = t.id, t.step(action=1, observation=6, reward=5.0, terminated=True)
    assert t.rewind(1) == {"env": b"1"}
    assert (t.id != before, t.next_step, t.done) == (True, 2, False)
    assert (t.last_observation, t.reward_sum, len(t.messages)) == (1, 1.0, 1)
    assert receipt.wait(30).durable
    t.step(action=2, observation=20, states={"env": b"20"})
    t.flush(30)
    assert observed(server, before) == [0, 1, 2, 3, 4, 5, 6]
    assert observed(server, t.id) == [0, 1, 20]
    stored = server.stored(t.id)
    assert (stored.name, dict(stored.labels)) == (name, {"lr": "0.1", "anabranch.rewound_from": before})
    # A branch of the branch at an inherited step waits for nothing.
    other = t.branch(at=0)
    other.step(action=3, observation=30)
    other.flush(30)
    assert observed(server, other.id) == [0, 30]


def test_a_rewind_to_the_last_step_makes_no_branch(server: Server, client: ab.Client, name: str) -> None:
    t = recorded(client, name, [5])
    assert (t.rewind(), t.rewind(5)) == ({"env": b"5"}, {"env": b"5"})
    t.step(action=1, observation=6)
    t.flush(30)
    assert observed(server, t.id) == [0, 1, 2, 3, 4, 5, 6]
    assert branches_of(server, t) == []


@pytest.mark.parametrize("at", [3, 5])
@pytest.mark.parametrize("again", [False, True])
def test_a_sealed_trajectory_is_rewound_into_a_branch(
    server: Server, client: ab.Client, name: str, at: int, again: bool
) -> None:
    with pytest.raises(ValueError, match="lost"), recorded(client, name, [3, 5]) as t:
        raise ValueError("lost")
    sealed = t.id
    if again:
        t = client.trajectory(name=name, resume="must")
        assert t.done
    t.rewind(at)
    assert not t.done
    with t:
        t.step(action=1, observation=6)
    t.flush(30)
    assert observed(server, t.id) == [*range(at + 1), 6]
    assert (server.stored(sealed).status, server.stored(t.id).status) == (6, 5)


def test_a_rewind_that_fails_changes_nothing(server: Server, client: ab.Client, name: str) -> None:
    t = client.trajectory(name=name)
    assert (t.checkpoint(), t.rewind()) == (None, None)
    for read in t.checkpoint, t.rewind:
        for at in 0, "best":
            with pytest.raises(ValueError, match=f"`at` is {at!r}: trajectory {t.id} has no steps"):
                read(at)
    t = recorded(client, name, [])
    assert (t.checkpoint(), t.rewind()) == (None, None)
    for read in t.checkpoint, t.rewind:
        with pytest.raises(ValueError, match="`at` is -1: expected the number of a step"):
            read(-1)
        with pytest.raises(TypeError, match=r"`at` is 1\.5: expected the number of a step"):
            read(1.5)  # pyright: ignore[reportArgumentType]
        for at, error in ((2, CheckpointNotFound), (99, StepNotFound), ("worst", TagNotFound)):
            with pytest.raises(error):
                read(at)
    t.step(action=1, observation=6)
    t.flush(30)
    assert observed(server, t.id) == [0, 1, 2, 3, 4, 5, 6]
    assert branches_of(server, t) == []


def test_handles_that_rewind_do_not_collide(server: Server, client: ab.Client, name: str) -> None:
    first = recorded(client, name, [1, 3])
    handles = [first, *(client.trajectory(name=name, resume="must") for _ in range(3))]

    def continue_at(handle: ab.Trajectory, number: int) -> None:
        handle.rewind(number)
        handle.step(action=2, observation=number * 10)

    positions = (3, 3, 1, 1)
    threads = [threading.Thread(target=continue_at, args=each) for each in zip(handles, positions, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for handle, number in zip(handles, positions, strict=True):
        handle.flush(30)
        assert observed(server, handle.id) == [*range(number + 1), number * 10]
    assert len({handle.id for handle in handles}) == 4
    # None was cut off by another one.
    tree = server.stored(first.id).tree_id
    labels = [each.labels for each in server.listed() if each.tree_id == tree]
    assert (len(labels), any("anabranch.spooled_from" in each for each in labels)) == (5, False)


def test_a_handle_that_lags_behind_is_rewound_to_what_another_one_recorded(
    server: Server, client: ab.Client, name: str
) -> None:
    lagging = recorded(client, name, [3])
    ahead = client.trajectory(name=name, resume="must")
    ahead.step(action=1, observation=6, states={"env": b"6"})
    ahead.step(action=1, observation=7)
    ahead.flush(30)
    assert lagging.rewind() == {"env": b"6"}
    lagging.step(action=2, observation=70)
    lagging.flush(30)
    assert observed(server, lagging.id) == [0, 1, 2, 3, 4, 5, 6, 70]
    assert observed(server, ahead.id) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_an_attempt_is_not_rewound(server: Server, client: ab.Client, name: str) -> None:
    stage = client.run(name, config={}).stage("train_step", 0)
    stage.start()
    with stage.rollout(0, 0) as rollout:
        rollout.reset(observation=0)
        rollout.step(action=1, observation=1, states={"env": b"1"})
        rollout.step(action=1, observation=2)
        assert rollout.trajectory.checkpoint() == {"env": b"1"}
        for at in None, 1, 2:
            with pytest.raises(ValueError, match="is an attempt at a rollout"):
                rollout.trajectory.rewind(at)
        rollout.step(action=1, observation=3)
    assert observed(server, rollout.trajectory.id) == [0, 1, 2, 3]


def test_a_resume_stays_at_the_end_or_rewinds_to_the_latest_checkpoint(
    server: Server, client: ab.Client, name: str
) -> None:
    created = client.trajectory(name=f"{name}, new", resume="checkpoint")
    assert (created.next_step, created.checkpoint()) == (0, None)
    t = recorded(client, name, [])
    for resume in ("allow", "must", "checkpoint"):
        again = client.trajectory(name=name, resume=resume)
        assert (again.id, again.next_step) == (t.id, 6)
    t.step(action=1, observation=6, states={"env": b"6"})
    t.flush(30)
    again = client.trajectory(name=name, resume="checkpoint")
    assert (again.id, again.next_step, again.checkpoint()) == (t.id, 7, {"env": b"6"})
    again.step(action=1, observation=7)
    again.flush(30)
    assert client.trajectory(name=name, resume="allow").next_step == 8
    rewound = client.trajectory(name=name, resume="checkpoint")
    assert (rewound.id != t.id, rewound.next_step, rewound.checkpoint()) == (True, 7, {"env": b"6"})
    # A process that dies before its first step leaves a branch that the next one continues.
    last = client.trajectory(name=name, resume="checkpoint")
    assert (last.id, last.next_step) == (rewound.id, 7)
    last.step(action=2, observation=70)
    last.flush(30)
    assert client.trajectory(name=name, resume="must").id == last.id
    assert observed(server, last.id) == [0, 1, 2, 3, 4, 5, 6, 70]
    with pytest.raises(ValueError, match="`resume` is 'alow': expected one of never, allow, must, checkpoint"):
        client.trajectory(name=name, resume="alow")  # pyright: ignore[reportArgumentType]


def test_a_resume_of_an_id_follows_its_own_branches(server: Server, client: ab.Client, name: str) -> None:
    t = recorded(client, name, [1, 2, 3])
    t.rewind(3)
    middle = t.id
    again = client.trajectory(id=middle, resume="must")
    again.step(action=1, observation=40)
    again.rewind(2)
    assert client.trajectory(id=middle, resume="must").id == again.id
    assert client.trajectory(name=name, resume="must").id == again.id
    with pytest.raises(TrajectoryNotFound):
        client.trajectory(id=str(uuid.uuid4()), resume="must")


def test_a_resume_follows_the_branch_that_is_left_after_a_deletion(
    server: Server, client: ab.Client, name: str
) -> None:
    from anabranch.v1.trajectory_service_pb2 import DeleteTrajectoryRequest

    t = recorded(client, name, [1, 3])
    t.rewind(3)
    older = t.id
    t.rewind(1)
    server.stubs().trajectories.DeleteTrajectory(DeleteTrajectoryRequest(trajectory_id=t.id))
    again = client.trajectory(name=name, resume="checkpoint")
    assert (again.id, again.next_step) == (older, 4)
    again.rewind(1)
    again.step(action=1, observation=20)
    again.flush(30)
    assert observed(server, again.id) == [0, 1, 20]


async def test_an_asynchronous_trajectory_is_rewound(server: Server, name: str) -> None:
    async with aio.connect(server.address) as client:
        async with client.trajectory(name=name, resume="checkpoint") as t:
            t.reset(observation=0, messages=[{"role": "user", "content": "go"}])
            t.step(action=1, observation=1, states={"env": b"1"})
            t.step(action=1, observation=2)
            assert await t.checkpoint() == {"env": b"1"}
            assert t.next_step == 3
            assert await t.rewind() == {"env": b"1"}
            await t.load()
            assert (t.next_step, t.last_observation, len(t.messages)) == (2, 1, 1)
            t.step(action=1, observation=20)
        await client.flush(60)
    assert observed(server, t.id) == [0, 1, 20]


REWINDS = """
import os, sys
import anabranch as ab
t = ab.connect(sys.argv[1]).trajectory(name=sys.argv[2], resume="checkpoint")
t.step(action=1, observation=t.next_step, states={"env": b"s"})
t.step(action=1, observation=1000)
# The process dies before its sender has sent anything.
os._exit(0)
"""


def test_a_resume_sends_what_a_dead_process_recorded_after_its_rewind(
    server: Server, client: ab.Client, name: str
) -> None:
    recorded(client, name, [3])
    for _ in range(2):
        subprocess.run([sys.executable, "-c", REWINDS, server.address, name], check=True)
    t = client.trajectory(name=name, resume="checkpoint")
    assert t.checkpoint() == {"env": b"s"}
    assert observed(server, t.id) == [0, 1, 2, 3, 4, 5]
    assert client.trajectory(name=name, resume="allow").id == t.id


# A step is (its observation, whether it has a state).
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.booleans()),
        st.tuples(st.just("rewind"), st.integers(0, 9)),
        st.tuples(st.just("read"), st.integers(0, 9)),
        st.tuples(st.just("seal"), st.none()),
        st.tuples(st.just("resume"), st.sampled_from(["allow", "must", "checkpoint"])),
    ),
    max_size=15,
)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS)
def test_any_order_of_steps_rewinds_seals_and_resumes_continues_what_was_chosen(
    server: Server, operations: list[tuple[str, Any]]
) -> None:
    client, name = ab.connect(server.address, strict=True), f"name {uuid.uuid4()}"
    t = client.trajectory(name=name, resume="allow")
    t.reset(observation=0, states={"env": b"0"})
    steps, sealed = [(0, True)], False
    for count, (operation, value) in enumerate(operations, 1):
        checkpoints = [number for number, (_, has_state) in enumerate(steps) if has_state]
        if operation == "step" and not sealed:
            t.step(action=1, observation=count, states={"env": b"%d" % count} if value else None)
            steps.append((count, value))
        elif operation == "seal":
            t.seal()
            sealed = True
        elif operation == "read":
            at = checkpoints[value % len(checkpoints)]
            assert t.checkpoint(at) == {"env": b"%d" % steps[at][0]}
        elif operation == "rewind":
            at = checkpoints[value % len(checkpoints)]
            assert t.rewind(at) == {"env": b"%d" % steps[at][0]}
            steps, sealed = steps[: at + 1], False
        elif operation == "resume":
            t = client.trajectory(name=name, resume=resume_of(value))
            assert t.done == (sealed and value != "checkpoint")
            if value == "checkpoint":
                steps, sealed = steps[: checkpoints[-1] + 1], False
        assert (t.next_step, t.last_observation) == (len(steps), steps[-1][0])
    t.flush(30)
    assert observed(server, t.id) == [observation for observation, _ in steps]


def resume_of(value: str) -> Resume:
    return "allow" if value == "allow" else "must" if value == "must" else "checkpoint"
