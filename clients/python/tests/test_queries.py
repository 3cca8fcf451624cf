"""Questions across steps and trajectories: search, series, metrics, branches in pairs, watches."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Server

import anabranch as ab
from anabranch._reading import queries as _queries
from anabranch._reading.json_patch import json_patch
from anabranch.client import Client
from anabranch.trajectory import Trajectory
from anabranch.v1.admin_service_pb2 import ImportArchiveRequest
from anabranch.v1.admin_service_pb2_grpc import AdminServiceStub


@pytest.fixture
def client(server: Server) -> Client:
    return ab.connect(server.address)


def recorded(client: Client, word: str, **fields: str) -> Trajectory:
    t = client.trajectory(task=word, **fields)
    t.reset(observation=0)
    for number in range(1, 6):
        observation = {"pole": {"angle": number / 10}, "text": f"{word} {number}"}
        t.step(action=number, observation=observation, reward=float(number), metrics={"loss": 1 / number})
    return t


def test_search_finds_text_in_a_trajectory_a_tree_and_a_task(client: Client) -> None:
    word = f"word{uuid.uuid4().hex}"
    t = recorded(client, word)
    assert [match.step for match in t.search(f"{word.upper()} 3")] == [3]
    branch = t.branch(at=2)
    branch.step(action="other", observation=f"{word} 3")
    branch.flush(30)
    assert {(match.trajectory_id, match.step) for match in client.search(f"{word} 3", tree=t)} == {
        (t.id, 3),
        (branch.id, 3),
    }
    matches = list(client.search(word, task=word, limit=2))
    assert [match.match for match in matches] == [word, word]
    assert matches[0].field.startswith("observations[0].content")
    assert list(client.search(uuid.uuid4().hex, trajectory=t.id)) == []


def test_search_continues_behind_the_matches_of_one_call(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_queries, "_MOST_HITS", 2)
    word = f"word{uuid.uuid4().hex}"
    assert sorted(match.step for match in recorded(client, word).search(word)) == [1, 2, 3, 4, 5]
    assert sorted(match.step for match in client.search(word, limit=3)) == [1, 2, 3]


def test_numbers_of_arrays_are_searched_and_are_series(client: Client) -> None:
    t = client.trajectory(task="arrays")
    arms = (np.float32([[1, 2], [3, 4]]), 5)
    t.reset(observation=np.float32([0.1, 7]))
    t.step(action=np.int64(3), observation={"pos": np.float64([8, 9]), "arms": arms})
    t.step(action=np.int64(3), observation=(np.int64(10), np.arange(4096.0)))
    t.step(action=np.int64(3), observation={"pos": [8, 9]})
    t.flush(30)

    def at(pointer: str) -> list[tuple[int, float]]:
        found = t.series(f"observation:{pointer}")
        return list(zip(found.steps.tolist(), found.values.tolist(), strict=True))

    assert at("/1") == [(0, 7.0), (1, 9.0), (2, 1.0)]
    assert at("/pos/0") == [(1, 8.0), (3, 8.0)]
    assert at("/arms/0/1/0") == [(1, 3.0)]
    assert at("/arms/1") == [(1, 5.0)]
    assert at("/1/4095") == [(2, 4095.0)]
    assert at("/0/0/0") == at("/missing") == []
    assert t.series("action:").values.tolist() == [3, 3, 3]
    assert [(match.step, match.field) for match in t.search("[0.1,7]")] == [(0, "observations[0].content.tensor")]


def test_series_of_a_trajectory_and_of_a_tree(client: Client) -> None:
    t = recorded(client, "series")
    rewards = t.series()
    assert (rewards.steps.dtype, rewards.values.dtype) == (np.int64, np.float64)
    assert rewards.values[-1] == 15.0
    assert t.series("metric:loss", start=2, stop=4).values.tolist() == [1 / 2, 1 / 3]
    angles = t.series("observation:/pole/angle")
    assert dict(zip(angles.steps.tolist(), angles.values.tolist(), strict=True)) == {n: n / 10 for n in range(1, 6)}
    branch = t.branch(at=3)
    branch.step(action=1, reward=100.0)
    branch.flush(30)
    found = client.series("reward", tree=t.id, own=True)
    assert {trajectory_id: series.values.tolist() for trajectory_id, series in found.items()} == {
        t.id: [1.0, 2.0, 3.0, 4.0, 5.0],
        branch.id: [100.0],
    }
    assert len(client.series(trajectories=[branch])[branch.id]) > 1
    for value in ("speed", "reward:x"):
        with pytest.raises(ValueError, match=f"value is '{value}': expected reward_sum"):
            t.series(value)


def test_metrics_of_a_run_are_read_back_across_its_stages(client: Client) -> None:
    run = client.run(f"run {uuid.uuid4()}", plan=ab.Plan(train_steps=3))
    for stage in run.train_steps():
        stage.log(loss=1.0 / (stage.number + 1))
        run.log(10 * stage.number, memory=float(stage.number))
    found = run.metrics()
    assert {key: (series.steps.tolist(), series.values.tolist()) for key, series in found.items()} == {
        "loss": ([0, 1, 2], [1.0, 1 / 2, 1 / 3]),
        "memory": ([0, 10, 20], [0.0, 1.0, 2.0]),
    }
    assert list(run.metrics("loss")) == ["loss"]


def test_branches_are_compared_in_pairs(client: Client) -> None:
    t = recorded(client, "pairs")
    for at in 1, 3:
        for lr, reward in (("low", 1.0), ("high", 2.0 + at)):
            branch = client.branch(t, at=at, labels={"lr": lr})
            branch.step(action=1, reward=reward)
            branch.flush(30)
    found = client.compare_branches(t, "lr", "low", "high")
    assert (found.pair_count, found.mean_difference, found.higher, found.lower) == (2, 3.0, 2, 0)
    assert found.interval == (2.0, 4.0)
    assert [pair.difference for pair in found.pairs] == [2.0, 4.0]
    assert client.compare_branches(t, "lr", "low", "high", measure="steps").mean_difference == 0.0
    nothing = client.compare_branches(t, "lr", "low", "none")
    assert (nothing.pair_count, nothing.mean_difference, nothing.interval) == (0, None, None)


def test_a_watched_tree_yields_what_changes_and_outlasts_a_restart(own_server: Server) -> None:
    own_server.start()
    client = ab.connect(own_server.address)
    t = client.trajectory(name="main")
    t.reset(observation=0)
    t.flush(30)
    changes = client.watch_tree(t)
    assert [node.trajectory.name for node in next(changes)] == ["main"]
    own_server.restart()
    branch = t.branch(name="late")
    branch.step(action=1)
    branch.flush(30)
    names = set[str]()
    while "late" not in names:
        names |= {node.trajectory.name for node in next(changes)}


def test_watched_runs_are_reported_through_a_restart(own_server: Server) -> None:
    own_server.start()
    client = ab.connect(own_server.address)
    first = client.run("first", config={}, labels={"kind": "watched"})
    messages = client.watch_runs(labels={"kind": "watched"})
    page = next(messages)
    assert ([each.run.name for each in page.runs], list(page.page.run_ids)) == (["first"], [first.id])
    own_server.restart()
    client.run("other", config={})
    second = client.run("second", config={}, labels={"kind": "watched"})
    names = set[str]()
    for message in messages:
        names |= {each.run.name for each in message.runs}
        if list(message.page.run_ids) == [second.id, first.id]:
            break
    assert names == {"first", "second"}


def test_states_are_compared_as_json(client: Client) -> None:
    t = client.trajectory()
    t.reset(states={"env": {"x": 1, "y": [1, 2]}, "raw": b"a" * 5000})
    t.step(action=1, states={"env": {"x": 2, "y": [1, 2]}, "raw": b"a" * 4000 + b"b" * 1000})
    t.flush(30)
    patched = client.diff_states((t, 0, "env"), (t.id, 1, "env"))
    assert patched.patch == [{"op": "replace", "path": "/x", "value": 2}]
    assert not patched.identical
    differing = client.diff_states((t, 0, "raw"), (t, 1, "raw"))
    assert (differing.identical, differing.patch) == (False, None)
    digests = [state.digest for step in t.steps() for state in step.message.states if state.name == "raw"]
    assert client.diff_states(*digests) == differing
    assert client.diff_states(digests[0], digests[0]).identical
    with pytest.raises(ab.errors.StateNotFound):
        client.diff_states((t, 0, "other"), (t, 1, "raw"))


@pytest.mark.parametrize(
    ("one", "other", "patch"),
    [
        ({"a": 1}, {"a": 1.0}, []),
        (1, True, [("replace", "", True)]),
        ([1, 2], {"0": 1}, [("replace", "", {"0": 1})]),
        (
            {"a/b": {"~": 1}, "x": 0},
            {"a/b": {"~": 2}, "y": 0},
            [("remove", "/x"), ("replace", "/a~1b/~0", 2), ("add", "/y", 0)],
        ),
        ([1, 2, 3, 4], [1, 9, 4], [("replace", "/1", 9), ("remove", "/2")]),
        ([1, 4], [1, 2, 3, 4], [("add", "/1", 2), ("add", "/2", 3)]),
        ([1, 1], [1], [("remove", "/1")]),
    ],
)
def test_a_patch_names_what_differs(one: Any, other: Any, patch: list[tuple[Any, ...]]) -> None:
    found = json_patch(one, other)
    assert [tuple(operation.values()) for operation in found] == patch


def test_storage_of_a_trajectory_a_run_and_everything(client: Client) -> None:
    run = client.run(f"run {uuid.uuid4()}", config={})
    t = client.trajectory(run=run)
    t.reset(states={"env": b"s" * 10_000})
    t.flush(30)
    of_trajectory, of_run, of_all = (
        client.storage_usage(trajectory=t),
        client.storage_usage(run=run),
        client.storage_usage(),
    )
    assert 10_000 <= of_trajectory.states.logical_bytes == of_run.states.logical_bytes <= 10_001
    assert of_all.states.logical_bytes >= 10_000
    assert of_trajectory.steps.stored_bytes > 0


def test_an_export_is_an_archive_that_imports(own_server: Server, client: Client, tmp_path: Path) -> None:
    t = client.trajectory(name="kept")
    t.reset(observation=1)
    t.step(action=1, observation=2, states={"env": b"s" * 10_000})
    t.flush(30)
    archive = tmp_path / "kept.archive"
    assert client.export(archive, trajectory=t) == archive.stat().st_size
    own_server.start()
    stub = AdminServiceStub(own_server.stubs().channel)
    assert stub.ImportArchive(iter([ImportArchiveRequest(chunk=archive.read_bytes())])).steps == 2
    read = ab.connect(own_server.address).episode(t)
    assert (read.name, read.observations.tolist(), read.steps[1].state("env")) == ("kept", [1, 2], b"s" * 10_000)
    before = archive.read_bytes()
    with pytest.raises(FileExistsError):
        client.export(archive, trajectory=t)
    with pytest.raises(ab.errors.TrajectoryNotFound):
        client.export(tmp_path / "none.archive", trajectory=str(uuid.uuid4()))
    assert archive.read_bytes() == before
    assert [path.name for path in tmp_path.glob("*.archive*")] == ["kept.archive"]


def test_a_trajectory_of_an_imported_run_is_resumed(server: Server, own_server: Server, tmp_path: Path) -> None:
    client, name = ab.connect(server.address), f"run {uuid.uuid4()}"
    run = client.run(name, config={})
    with client.trajectory(task="t", name="n", run=run, resume="allow") as t:
        t.reset(observation=0)
        t.step(action=1, observation=1)
    t.flush(30)
    client.export(tmp_path / "run.archive", run=run)
    own_server.start()
    other = ab.connect(own_server.address)
    own = other.run("own", config={})
    stub = AdminServiceStub(own_server.stubs().channel)
    stub.ImportArchive(iter([ImportArchiveRequest(chunk=(tmp_path / "run.archive").read_bytes())]))
    imported = other.run(name)
    assert (imported.id, imported.experiment_id) == (run.id, own.experiment_id)
    assert run.experiment_id != own.experiment_id
    for same in imported, run.id:
        found = other.trajectory(task="t", name="n", run=same, resume="must")
        assert (found.id, found.next_step) == (t.id, 2)


async def test_aio_watches_compares_measures_and_exports(server: Server, tmp_path: Path) -> None:
    async with ab.aio.connect(server.address) as client:
        run = await client.run(f"run {uuid.uuid4()}", config={}, labels={"kind": (kind := uuid.uuid4().hex)})
        async for message in client.watch_runs(labels={"kind": kind}):
            assert [each.run.id for each in message.runs] == [run.id]
            break
        async with client.trajectory(run=run) as t:
            t.reset(states={"env": {"x": 1}})
            t.step(action=1, states={"env": {"x": 2}})
        await t.flush(30)
        difference = await client.diff_states((t.id, 0, "env"), (t.id, 1, "env"))
        assert difference.patch == [{"op": "replace", "path": "/x", "value": 2}]
        assert (await client.storage_usage(run=run)).steps.logical_bytes > 0
        assert await client.export(tmp_path / "run.archive", run=run) == (tmp_path / "run.archive").stat().st_size


def test_a_watched_run_outlasts_a_restart(own_server: Server) -> None:
    own_server.start()
    run = ab.connect(own_server.address).run("watched", config={})
    messages = run.watch()
    assert next(messages).run.id == run.id
    own_server.restart()
    run.complete()
    statuses = [message.run.status for message in messages if message.HasField("run")]
    assert statuses[-1] == run.proto.status


def test_a_watch_of_what_is_not_there_raises_the_error_of_the_subject(client: Client) -> None:
    with pytest.raises(ab.errors.TrajectoryNotFound) as raised:
        next(client.watch_tree(missing := str(uuid.uuid4())))
    assert raised.value.metadata["trajectory_id"] == missing
