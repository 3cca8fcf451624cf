"""A server that lacks what this package needs: one clear error, before anything is lost."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Server, package_version
from front import Front, info_of
from recorded import new_step, record

import anabranch as ab
from anabranch import aio
from anabranch._connection import Connection
from anabranch._limits import RECORDING, Limits
from anabranch.client import Client
from anabranch.errors import Unimplemented
from anabranch.v1.server_service_pb2 import GetServerInfoResponse

UPGRADE = f"upgrade it to {package_version()}"


@pytest.fixture
def older(server: Server) -> Iterator[Front]:
    """A server of an earlier version, which has only the features that recorders need."""
    running = Front(server, info_of(server, version="0.0.9", features=RECORDING))
    yield running
    running.stop()


def first(client: Client, **filters: object) -> None:
    next(iter(client.episodes(**filters)), None)


@pytest.mark.parametrize(
    ("filters", "what"),
    [
        ({"name": "main"}, "`name` in ReadTrajectories"),
        ({"step_labels": {"phase": "reach"}}, "`step_labels` in ReadTrajectories"),
        ({"ids": [str(uuid.uuid4()), str(uuid.uuid4())]}, "the order REQUESTED in ReadTrajectories"),
    ],
)
def test_a_filter_that_an_older_server_ignores_is_refused(older: Front, filters: dict[str, object], what: str) -> None:
    client = ab.connect(older.address)
    with pytest.raises(Unimplemented) as raised:
        first(client, **filters)
    assert str(raised.value) == f"server 0.0.9 has no {what}: {UPGRADE}"
    assert raised.value.metadata == {"version": "0.0.9", "feature": "read_trajectories_filters"}
    assert older.methods == []


def test_a_part_is_refused_and_what_an_older_server_has_is_read(server: Server, older: Front) -> None:
    task = f"task {uuid.uuid4()}"
    own = record(Connection(server.address), [new_step(0, observation=1)], task_id=task)
    client = ab.connect(older.address)
    assert [episode.id for episode in client.episodes(task=task, min_reward=-1)] == [own]
    assert client.episode(own).observations.tolist() == [1]
    with pytest.raises(Unimplemented, match="server 0.0.9 has no `shard` in ReadTrajectories"):
        next(iter(client.episodes(task=task).shard(0, 2)))
    # The same client, after the server was upgraded.
    older.info = info_of(server)
    assert sum(len(list(client.episodes(task=task).shard(index, 2))) for index in range(2)) == 1


async def test_aio_raises_the_same_error(older: Front) -> None:
    async with aio.connect(older.address) as client:
        with pytest.raises(Unimplemented, match=f"server 0.0.9 has no `name` in ReadTrajectories: {UPGRADE}"):
            [episode async for episode in client.episodes(name="main")]


def test_claims_that_an_older_server_ignores_are_refused(server: Server, older: Front) -> None:
    run = ab.connect(older.address).run(f"run {uuid.uuid4()}", config={})
    stage = run.stage("train_step", 0)
    stage.start()
    with pytest.raises(Unimplemented, match="server 0.0.9 has no `claim` in CreateRollouts"):
        stage.rollout(0, 0)
    older.info = info_of(server, version="0.0.9", features=[*RECORDING, "claim_created_rollouts"])
    stage.rollouts([(0, 0, "")])
    with pytest.raises(Unimplemented, match="server 0.0.9 has no `rollout_ids` in ClaimRollouts"):
        stage.rollout(0, 0)


RECORD_LATER = """
import sys
import anabranch as ab
client = ab.connect(sys.argv[1])
client.trajectory(task="other").reset(observation=2)
t = client.trajectory(id=sys.argv[2], resume="must")
print(t.next_step)
"""


@pytest.mark.parametrize("feature", RECORDING)
def test_recorders_need_each_feature(feature: str) -> None:
    limits = Limits()
    limits.take_info(GetServerInfoResponse(version="0.0.9", features=[name for name in RECORDING if name != feature]))
    assert limits.too_old == f"server 0.0.9 has no `{feature}`: {UPGRADE}"
    limits.take_info(GetServerInfoResponse(version="0.0.9", features=RECORDING))
    assert limits.too_old == ""


@pytest.mark.parametrize("feature", ["create_by_open", "tensors"])
def test_steps_are_kept_until_the_server_is_upgraded(server: Server, spool: Path, feature: str) -> None:
    """An older server would store steps without the fields that it does not know, so that they were lost silently."""
    features = [name for name in RECORDING if name != feature]
    front = Front(server, info_of(server, version="0.0.9", features=features))
    recording = """
import sys
import anabranch as ab
t = ab.connect(sys.argv[1]).trajectory(name="main")
t.reset(observation=1)
t.step(action=1, observation=2, tags=["best"])
try:
    t.flush(60)
except ab.errors.Unimplemented as error:
    print(t.id, error.reason, error, sep="|")
"""
    try:
        done = subprocess.run(
            [sys.executable, "-c", recording, front.address], check=True, capture_output=True, text=True
        )
        trajectory_id, reason, message = done.stdout.strip().split("|")
        assert reason == "UNIMPLEMENTED"
        assert f"server 0.0.9 has no `{feature}`: {UPGRADE}" in message
        assert done.stderr.count("server 0.0.9 has no") == 1
        assert "2 steps are kept in" in done.stderr
        assert all(trajectory.next_step_number == 0 for trajectory in server.listed() if trajectory.id == trajectory_id)
        front.info = info_of(server)
        again = [sys.executable, "-c", RECORD_LATER, front.address, trajectory_id]
        later = subprocess.run(again, check=True, capture_output=True, text=True)
        assert later.stdout.strip() == "2", (done.stderr, later.stderr)
    finally:
        front.stop()


def without_info(server: Server) -> Front:
    front = Front(server)
    front.info = None
    return front


@pytest.mark.parametrize("use", [lambda client: first(client, name="main"), lambda client: recorded(client)])
def test_a_server_without_get_server_info_has_no_features(server: Server, use: Callable[[Client], None]) -> None:
    front = without_info(server)
    try:
        with pytest.raises(Unimplemented, match=f"server {package_version()} has no .*: {UPGRADE}"):
            use(ab.connect(front.address, spool=False))
    finally:
        front.stop()


def recorded(client: Client) -> None:
    t = client.trajectory()
    t.reset(observation=1)
    t.flush(60)
