"""Reads see what this process has recorded, and `client.flush()` waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Server, free_port, stored_steps

import anabranch as ab
from anabranch import aio
from anabranch._recording.sender import Sender
from anabranch.errors import AnabranchError, TrajectoryNotFound, Unreachable
from anabranch.v1.trajectory_service_pb2 import DeleteTrajectoryRequest

MAY_LACK = "may lack what is recorded and not sent of trajectory"


@pytest.fixture
def client(server: Server) -> ab.Client:
    return ab.connect(server.address)


@pytest.fixture
def task() -> str:
    return f"task {uuid.uuid4()}"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The waits for the sender that begin while the test runs, in seconds."""
    begun: list[float | None] = []
    wait = Sender.wait

    def counted(self: Sender, condition: Callable[[], bool], seconds: float | None, what: Any = None) -> bool:
        begun.append(seconds)
        return wait(self, condition, seconds, what)

    monkeypatch.setattr(Sender, "wait", counted)
    return begun


@contextlib.contextmanager
def held(t: ab.Trajectory) -> Iterator[None]:
    """Keeps what is recorded of a trajectory from being sent until the end of the block."""
    t._transfer.waits_for = lambda: False
    try:
        yield
    finally:
        t._transfer.waits_for = None
        t.flush(60)


def record(t: ab.Trajectory, count: int = 10) -> None:
    t.reset(observation=0)
    for number in range(1, count):
        t.step(action=number, observation=number, reward=1.0)


def test_reads_right_after_a_with_block_are_complete(client: ab.Client, task: str) -> None:
    for count in range(1, 21):
        with client.trajectory(task=task, labels={"count": str(count)}) as t:
            record(t)
        episodes = list(client.episodes(task=task, status="completed", min_reward=9.0))
        assert [(len(each.steps), each.labels["count"]) for each in episodes] == [
            (10, str(number)) for number in range(count, 0, -1)
        ]


READS: dict[str, Callable[[ab.Client, ab.Trajectory, Path], int]] = {
    "episodes of a task": lambda client, t, _: len(next(iter(client.episodes(task=str(t.recorded.task)))).steps),
    "episodes of ids": lambda client, t, _: len(next(iter(client.episodes(ids=[t]))).steps),
    "episodes by labels": lambda client, t, _: len(next(iter(client.episodes(labels={"of": t.name}))).steps),
    "steps": lambda client, t, _: len(list(client.episodes(name=t.name).steps())),
    "table": lambda client, t, _: len(client.episodes(name=t.name).to_pandas()),
    "episode": lambda client, t, _: len(client.episode(t).steps),
    "episode of an id": lambda client, t, _: len(client.episode(t.id).steps),
    "own episode": lambda client, t, _: len(t.episode().steps),
    "own steps": lambda client, t, _: len(list(t.steps())),
    "own series": lambda client, t, _: 1 + len(t.series("reward")),
    "own search": lambda client, t, _: len(list(t.search("x"))),
    "comparison": lambda client, t, _: t.compare(t.id).shared_steps,
    "comparison with another one": lambda client, t, _: client.branch(t.id, at=0).compare(t) and 10,
    "tree": lambda client, t, _: int(t.tree().splitlines()[1].split()[-3]),
    "watch": lambda client, t, _: next(client.watch_tree(t.id))[0].trajectory.next_step_number,
    "series": lambda client, t, _: 1 + len(client.series("reward", trajectories=[t])[t.id]),
    "series of a tree": lambda client, t, _: 1 + len(client.series("reward", tree=t)[t.id]),
    "search": lambda client, t, _: len(list(client.search("x", trajectory=t))),
    "search in a task": lambda client, t, _: len(list(client.search("x", task=str(t.recorded.task)))),
    "difference of states": lambda client, t, _: 9 + client.diff_states((t, 9, "env"), (t.id, 9, "env")).identical,
    "branch of an id": lambda client, t, _: client.branch(t.id).next_step,
    "branch of an id at a step": lambda client, t, _: client.branch(t.id, at=9).next_step,
    "branch of an id at a tag": lambda client, t, _: client.branch(t.id, tag="last").next_step,
    "resume": lambda client, t, _: client.trajectory(id=t.id, resume="must").next_step,
    "archive": lambda client, t, folder: client.export(folder / "archive", trajectory=t) and 10,
    "storage": lambda client, t, _: client.storage_usage(trajectory=t) and 10,
}


@pytest.mark.parametrize("read", READS)
def test_each_read_sees_what_was_recorded(client: ab.Client, task: str, tmp_path: Path, read: str) -> None:
    t = client.trajectory(task=task, name=task, labels={"of": task})
    t.reset(observation="x")
    for number in range(1, 10):
        t.step(action="x", observation=number, reward=1.0, states={"env": b"{}"}, tags=["last"])
    t.seal()
    assert READS[read](client, t, tmp_path) == 10


def test_a_read_waits_only_for_what_it_selects(
    client: ab.Client, task: str, waits: list[float | None], caplog: pytest.LogCaptureFixture
) -> None:
    run = client.run(task, config={})
    other = client.trajectory(task="another", name="another", labels={"of": "another"})
    with held(other):
        record(other)
        t = client.trajectory(task=task, run=run, name=task, labels={"of": task})
        record(t)
        t.flush(30)
        waits.clear()
        selections = [
            {"task": task},
            {"name": task},
            {"labels": {"of": task}},
            {"run": run},
            {"ids": [t]},
            {"task": task, "status": "running", "min_reward": 1},
        ]
        for selection in selections:
            (episode,) = client.episodes(**selection)
            assert len(episode.steps) == 10
        assert len(t.episode().steps) == len(client.episode(t).steps) == 10
        assert list(run.rollouts()) == []
        assert len(list(client.search("running", task=task))) == 0
        assert waits == []
    assert caplog.records == []


@pytest.mark.parametrize(
    "selection", [{}, {"name": "held"}, {"labels": {"of": "held"}}, {"status": "failed"}, {"task": "held"}]
)
def test_a_read_that_would_wait_for_too_long_warns_and_reads(
    client: ab.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    selection: dict[str, object],
) -> None:
    monkeypatch.setenv("ANABRANCH_READ_SECONDS", "0.05")
    t = client.trajectory(task="held", name="held", labels={"of": "held"})
    with held(t):
        record(t)
        next(iter(client.episodes(**selection)), None)  # pyright: ignore[reportArgumentType]
        assert f"after 0.05 s (ANABRANCH_READ_SECONDS) and {MAY_LACK} {t.id}" in caplog.text
    caplog.clear()
    assert len(client.episode(t).steps) == 10
    assert caplog.records == []


def test_reads_wait_five_seconds_by_default(client: ab.Client, waits: list[float | None]) -> None:
    t = client.trajectory()
    record(t)
    assert len(t.episode().steps) == 10
    assert len(waits) == 1
    assert waits[0] is not None
    assert 4 < waits[0] <= 5


def test_a_read_without_a_server_fails_after_the_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ANABRANCH_READ_SECONDS", "0.05")
    client = ab.connect(f"127.0.0.1:{free_port()}", spool=False)
    t = client.trajectory()
    record(t)
    with pytest.raises(Unreachable):
        t.episode()
    assert f"{MAY_LACK} {t.id}" in caplog.text


def test_a_read_sees_what_another_client_of_this_process_recorded(server: Server, task: str, tmp_path: Path) -> None:
    for spool in tmp_path / "other", False:
        t = ab.connect(server.address, spool=spool).trajectory(task=task)
        record(t)
        t.seal()
    assert [len(each.steps) for each in ab.connect(server.address).episodes(task=task)] == [10, 10]


def test_a_read_sees_trajectories_that_step_together(client: ab.Client, task: str) -> None:
    group = client.recorder.group()
    ts = [client.trajectory(task=task) for _ in range(3)]
    for t in ts:
        t._transfer.deliver = group.add
    for number in range(10):
        with group:
            for t in ts:
                t.step(observation=number)
    assert [len(each.steps) for each in client.episodes(task=task)] == [10, 10, 10]


def test_a_read_of_the_rollouts_of_a_run_sees_their_steps(client: ab.Client, task: str) -> None:
    run = client.run(task, config={})
    stage = run.stage("train_step", 0)
    stage.start()
    with stage.rollout(0, 0) as rollout:
        for number in range(10):
            rollout.step(observation=number)
        assert [len(each.steps) for each in run.rollouts(stage=0)] == [10]


def test_a_read_after_the_end_of_a_recording_does_not_wait(
    server: Server, client: ab.Client, waits: list[float | None]
) -> None:
    t = client.trajectory()
    record(t)
    t.flush(30)
    server.stubs().trajectories.DeleteTrajectory(DeleteTrajectoryRequest(trajectory_id=t.id))
    with pytest.raises(TrajectoryNotFound):
        t.step(action=1).wait(30)
    waits.clear()
    with pytest.raises(TrajectoryNotFound):
        t.episode()
    client.flush(30)
    assert [each for each in waits if each is not None and each <= 5] == []


def test_flush_waits_for_everything_that_was_recorded(server: Server, client: ab.Client, task: str) -> None:
    client.flush(30)
    run = client.run(task, config={})
    ts = [client.trajectory(task=task, run=run) for _ in range(20)]
    for t in ts:
        record(t)
        t.tag("last")
        t.seal()
    receipt = run.log(1, loss=0.5)
    client.flush(60)
    assert receipt.durable
    assert {(server.stored(t.id).next_step_number, server.stored(t.id).status) for t in ts} == {(10, 5)}


def test_flush_names_what_is_not_durable_in_time(client: ab.Client) -> None:
    t = client.trajectory()
    with held(t):
        record(t)
        with pytest.raises(TimeoutError, match=rf"after 0\.05 s, records are not durable, and kept, of .*{t.id}"):
            client.flush(0.05)
    client.flush(0)
    assert len(t.episode().steps) == 10


def test_flush_raises_what_keeps_records_from_being_sent(tmp_path: Path) -> None:
    client = ab.connect(f"127.0.0.1:{free_port()}", spool=tmp_path / "own", give_up_after=0.01)
    t = client.trajectory()
    record(t)
    with pytest.raises(AnabranchError, match=rf"{t.id}: .* gave up after 0\.01 s"):
        client.flush(60)


LEAVES = """
import os, sys
import anabranch as ab
t = ab.connect(sys.argv[1]).trajectory(task=sys.argv[2])
t.reset(observation=0)
for number in range(1, 10):
    t.step(action=number, observation=number)
os.write(1, t.id.encode())
os._exit(0)
"""


def test_flush_sends_what_a_dead_process_has_left(server: Server, task: str) -> None:
    command = [sys.executable, "-c", LEAVES, server.address, task]
    ids = [subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout for _ in range(2)]
    # This process has recorded nothing with this spool.
    ab.connect(server.address).flush(60)
    assert [len(stored_steps(server, each)) for each in ids] == [10, 10]


async def test_asynchronous_reads_and_flushes_wait_too(server: Server, task: str) -> None:
    async with aio.connect(server.address) as client:
        for count in range(1, 6):
            async with client.trajectory(task=task) as t:
                t.reset(observation=0)
                t.step(action=1, observation=1)
            assert [len(each.steps) async for each in client.episodes(task=task)] == [2] * count
        t = await client.trajectory(task=task)
        t.reset(observation=0)
        await asyncio.wait_for(client.flush(), 60)
        assert len(stored_steps(server, t.id)) == 1
