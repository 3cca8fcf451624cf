"""How many calls reads make: one stream for any number of episodes, in each process that reads a part of them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Server
from front import Front
from recorded import branch, episode_steps, new_step, record

import anabranch as ab
from anabranch import aio
from anabranch._wire.connection import Connection
from anabranch.client import Client
from anabranch.v1.trajectory_pb2 import Step

COUNT = 120


@pytest.fixture(scope="module")
def task(server: Server) -> str:
    """A task with 120 short episodes, of which 60 have the name `even`."""
    name, connection = f"task {uuid.uuid4()}", Connection(server.address)
    for number in range(COUNT):
        steps = episode_steps(2, lambda _: np.int64(1), lambda _: np.int64(0))
        record(connection, steps, task_id=name, name="odd" if number % 2 else "even")
    return name


@pytest.fixture
def front(server: Server) -> Iterator[Front]:
    running = Front(server)
    yield running
    running.stop()


@pytest.fixture
def client(front: Front) -> Client:
    return ab.connect(front.address)


def test_one_stream_reads_any_number_of_episodes_of_a_name(front: Front, client: Client, task: str) -> None:
    episodes = list(client.episodes(task=task, name="even"))
    assert [episode.name for episode in episodes] == ["even"] * (COUNT // 2)
    assert front.methods == ["ReadTrajectories"]


def test_one_stream_reads_each_part(front: Front, client: Client, task: str) -> None:
    episodes = client.episodes(task=task)
    parts = [[episode.id for episode in episodes.shard(index, 3)] for index in range(3)]
    assert front.methods == ["ReadTrajectories"] * 3
    assert sorted(id for part in parts for id in part) == sorted(episode.id for episode in episodes)
    # The same parts again, also of a smaller selection.
    even = client.episodes(task=task, name="even")
    named = {episode.id for episode in even}
    for index, part in enumerate(parts):
        assert [episode.id for episode in even.shard(index, 3)] == [id for id in part if id in named]


def test_one_stream_reads_ids_in_their_order(front: Front, client: Client, task: str) -> None:
    ids = sorted(episode.id for episode in client.episodes(task=task))
    front.methods.clear()
    assert [episode.id for episode in client.episodes(ids=ids)] == ids
    assert front.methods == ["ReadTrajectories"]
    parts = [[episode.id for episode in client.episodes(ids=ids).shard(index, 2)] for index in range(2)]
    assert parts[0] + parts[1] != ids
    assert [part == sorted(part) for part in parts] == [True, True]
    assert sorted(parts[0] + parts[1]) == ids


def labelled(number: int, **labels: str) -> Step:
    return new_step(number, observation=number, labels=labels)


def test_labels_of_steps_select_the_trajectories_that_own_one(server: Server, client: Client, front: Front) -> None:
    connection, task = Connection(server.address), f"task {uuid.uuid4()}"
    both = record(connection, [labelled(0), labelled(1, phase="reach", hand="left")], seal="", task_id=task)
    record(connection, [labelled(0, phase="reach"), labelled(1, hand="left")], task_id=task, name="apart")
    branch(connection, both, 1, [labelled(2)], name="branch")
    found = list(client.episodes(task=task, step_labels={"phase": "reach", "hand": "left"}))
    assert [(episode.id, len(episode.steps)) for episode in found] == [(both, 2)]
    assert {episode.name for episode in client.episodes(task=task, step_labels={"phase": "reach"})} == {"", "apart"}
    assert list(client.episodes(task=task, step_labels={"phase": "lift"})) == []
    assert front.methods == ["ReadTrajectories"] * 3


async def test_aio_selects_by_labels_of_steps_and_name(server: Server, task: str) -> None:
    async with aio.connect(server.address) as client:
        assert len([episode async for episode in client.episodes(task=task, name="even")]) == COUNT // 2
        assert [episode async for episode in client.episodes(task=task, step_labels={"a": "b"})] == []


def test_groups_of_a_stage_bring_their_small_states(server: Server, front: Front, client: Client) -> None:
    """`inline_bytes` of ReadRollouts: states of up to 32 KiB need no call of their own, and larger ones need one call."""
    writing = ab.connect(server.address)
    run = writing.run(f"run {uuid.uuid4()}", config={})
    stage = run.stage("train_step", 0)
    stage.start()
    small, large = np.arange(5000, dtype=np.int32), np.arange(20_000, dtype=np.int32)
    for group, observation in enumerate((small, large)):
        for number in range(2):
            with stage.rollout(group, number) as rollout:
                rollout.reset(observation=observation + number)
                rollout.step(action=1, observation=observation, reward=1.0)
    read = client.run(run.name).stage("train_step", 0).groups(complete=True, follow=False)
    for expected, calls in ((small, 0), (large, 2)):
        front.methods.clear()
        group = next(read)
        for number, played in enumerate(group.rollouts):
            assert np.array_equal(played.episode.observations, np.stack([expected + number, expected]))
        assert [name for name in front.methods if name != "ReadRollouts"] == ["ReadStates"] * calls


def test_rollouts_of_a_run_are_read_lazily_by_one_stream(server: Server, front: Front, client: Client) -> None:
    run = ab.connect(server.address).run(f"run {uuid.uuid4()}", config={})
    for number in range(2):
        stage = run.stage("train_step", number)
        stage.start()
        for rollout in range(3):
            with stage.rollout(0, rollout) as played:
                played.reset(observation=10 * number + rollout)
    read = client.run(run.name)
    front.methods.clear()
    everything, first = read.rollouts(), read.rollouts(stage=0)
    missing = read.rollouts(stage=7)
    assert front.methods == []
    assert sorted(episode.observations[0] for episode in everything) == [0, 1, 2, 10, 11, 12]
    assert front.methods == ["ListRollouts", "ReadTrajectories"]
    assert sorted(episode.observations[0] for episode in pickle.loads(pickle.dumps(first))) == [0, 1, 2]
    parts = [[episode.id for episode in everything.shard(index, 2)] for index in range(2)]
    assert sorted(parts[0] + parts[1]) == sorted(episode.id for episode in everything)
    with pytest.raises(ab.errors.StageNotFound):
        next(iter(missing))


#: What torch offers to a dataset, with the worker and the rank of this process in the environment.
TORCH = {
    "torch/__init__.py": "",
    "torch/utils/__init__.py": "",
    "torch/utils/data.py": """
import json, os, types
class IterableDataset:
    pass
def get_worker_info():
    info = os.environ.get("WORKER")
    return types.SimpleNamespace(**json.loads(info)) if info else None
""",
    "torch/distributed.py": """
import json, os
def is_available(): return True
def is_initialized(): return "RANK" in os.environ
def get_rank(): return json.loads(os.environ["RANK"])[0]
def get_world_size(): return json.loads(os.environ["RANK"])[1]
""",
}
#: The process of a rank: pickles the dataset, as a DataLoader does for workers that are spawned.
RANK = """
import pickle, sys, anabranch
address, task = sys.argv[1:]
sys.stdout.buffer.write(pickle.dumps(anabranch.connect(address).episodes(task=task).to_torch(shuffle=10)))
"""
#: The process of a worker: prints the numbers of its episodes, which are their observations.
WORKER = """
import json, pickle, sys
print(json.dumps([int(episode["observations"][0]) for episode in pickle.load(sys.stdin.buffer)]))
"""


@pytest.mark.parametrize("how", ["spawned", "forked", "no workers"])
def test_workers_of_ranks_read_each_episode_once(server: Server, front: Front, tmp_path: Path, how: str) -> None:
    """Workers that are spawned do not know the process group of their rank; those that are forked do."""
    for path, text in TORCH.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    connection, task = Connection(server.address), f"task {uuid.uuid4()}"
    for number in range(12):
        record(connection, episode_steps(1, lambda _, n=number: np.int64(n), lambda _: np.int64(0)), task_id=task)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'clients/python/src'}"}
    workers = [None] if how == "no workers" else [0, 1]
    read: list[int] = []
    for rank in range(2):
        of_rank = {**environment, "RANK": json.dumps([rank, 2])}
        command = [sys.executable, "-c", RANK, front.address, task]
        dataset = subprocess.run(command, env=of_rank, check=True, stdout=subprocess.PIPE).stdout
        for worker in workers:
            own = dict(environment if how == "spawned" else of_rank)
            if worker is not None:
                own["WORKER"] = json.dumps({"id": worker, "num_workers": 2})
            done = subprocess.run(
                [sys.executable, "-c", WORKER], env=own, input=dataset, check=True, stdout=subprocess.PIPE
            )
            read += json.loads(done.stdout)
    assert sorted(read) == list(range(12))
    assert front.methods == ["ReadTrajectories"] * 2 * len(workers)
