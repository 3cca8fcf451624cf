"""Resources as records: lists, counts, verbs and histories of trajectories, runs, stages and rollouts."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import uuid
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from conftest import Server

import anabranch as ab
from anabranch import aio
from anabranch._wire.record import Record
from anabranch.client import Client
from anabranch.errors import HasBranches, NoMainTrajectory, RunActive, TrajectoryNotFound
from anabranch.runs import Run
from anabranch.v1 import records
from anabranch.v1.run_pb2 import Plan, Stage, StageKind
from anabranch.v1.run_pb2 import Run as RunMessage

CLASSES = [each for _, each in inspect.getmembers(records, inspect.isclass) if each.__module__ == records.__name__]


@pytest.fixture
def client(server: Server) -> Client:
    return ab.connect(server.address, strict=True)


@pytest.fixture
def name() -> str:
    return f"records {uuid.uuid4()}"


def recorded(client: Client, task: str, rewards: list[float], **fields: Any) -> ab.Trajectory:
    with client.trajectory(task=task, **fields) as t:
        t.reset(observation=0)
        for reward in rewards:
            t.step(action=1, observation=1, reward=reward)
    t.flush(60)
    return t


def played(client: Client, name: str) -> Run:
    """Returns a run whose first rollout of two has succeeded."""
    client.tasks.put([name])
    run = client.run(name, config={"lr": 0.1}, plan=ab.Plan(train_steps=1, groups=1, group_size=2, max_turns=2))
    stage = run.stage("train_step", 0)
    stage.start()
    stage.rollouts([{"group": 0, "number": number, "task": name, "labels": {"of": name}} for number in range(2)])
    rollout = next(iter(client.claims(run=run, wait_seconds=1)))
    with rollout:
        rollout.reset(observation=0)
        rollout.step(action=1, reward=0.5)
        rollout.success = True
    return run


def test_a_record_has_the_fields_of_its_message() -> None:
    message = RunMessage(id="a", name="n", config_json='{"lr": 0.1}', status=3, metrics={"loss": 0.5})
    message.plan.stage_plans.add(kind=StageKind.STAGE_KIND_EVAL, stages=2)
    message.create_time.FromJsonString("2026-11-28T10:00:00Z")
    message.heartbeat_timeout.FromTimedelta(datetime.timedelta(minutes=2))
    run = records.Run(message)
    assert (run.id, run.config, run.status, run.metrics) == ("a", {"lr": 0.1}, "running", {"loss": 0.5})
    assert (run.metadata, run.reward_sum, run.end_time) == (None, None, None)
    assert run.create_time == datetime.datetime(2026, 11, 28, 10, tzinfo=datetime.timezone.utc)
    assert run.heartbeat_timeout == datetime.timedelta(minutes=2)
    assert run.plan is not None
    assert [(each.kind, each.stages) for each in run.plan.stage_plans] == [("eval", 2)]
    with pytest.raises(AttributeError, match="Run has no attribute 'speed'"):
        _ = run.speed  # pyright: ignore[reportAttributeAccessIssue]
    assert run == records.Run(message) != records.Run(RunMessage())


@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
def test_types_of_attributes_are_true(of: type[Record]) -> None:
    from anabranch.v1 import rollout_pb2, run_pb2, run_service_pb2, status_pb2, trajectory_pb2, trajectory_service_pb2

    modules = (rollout_pb2, run_pb2, run_service_pb2, status_pb2, trajectory_pb2, trajectory_service_pb2)
    message = next(getattr(module, of.__name__) for module in modules if hasattr(module, of.__name__))()
    for field in message.DESCRIPTOR.fields:
        if (
            field.message_type is not None
            and not field.message_type.GetOptions().map_entry
            and not is_list(message, field)
        ):
            getattr(message, field.name).SetInParent()
    for attribute, hint in get_type_hints(of).items():
        if not attribute.startswith("_"):
            value = getattr(of(message), attribute)
            kinds = [get_origin(each) or each for each in (get_args(hint) if type(None) in get_args(hint) else (hint,))]
            assert any(kind is Any or isinstance(value, kind) for kind in kinds), (attribute, value, hint)
    assert {name for name in dir(of(message)) if not name.startswith("_")} >= set(get_type_hints(of)) - {"_internal"}


def is_list(message: Any, field: Any) -> bool:
    return not hasattr(getattr(message, field.name), "SetInParent")


def test_trajectories_are_listed_counted_and_deleted(client: Client, name: str) -> None:
    t = recorded(client, name, [1.0, 2.0], name="root", metadata={"seed": 7}, labels={"of": "a"})
    branch = client.branch(t, at=1, name="branch")
    branch.seal()
    branch.flush(60)
    listing = client.trajectories(task=name)
    assert [(each.name, each.next_step_number, each.status) for each in listing] == [
        ("branch", 2, "completed"),
        ("root", 3, "completed"),
    ]
    assert (listing.count(), client.trajectories(task=name, roots=True).count()) == (2, 1)
    assert client.trajectories(task="nothing has this").first() is None
    root = client.get(t)
    assert (root.metadata, root.labels, root.reward_sum) == ({"seed": 7}, {"of": "a"}, 3.0)
    assert [(change.old_status, change.new_status) for change in root.history()] == [
        ("", "running"),
        ("running", "completed"),
    ]
    assert "└─@1 branch" in root.tree()
    with pytest.raises(HasBranches):
        client.delete(t)
    with pytest.raises(ValueError, match="branches is 'all': expected one of refuse, cascade, keep_shared"):
        client.delete(t, branches="all")  # pyright: ignore[reportArgumentType]
    assert client.delete(t, branches="cascade") == 2
    assert (client.exists(t), client.exists(branch.id)) == (False, False)
    with pytest.raises(TrajectoryNotFound):
        client.get(t.id)


def test_an_episode_has_the_metadata_of_its_trajectory(client: Client, name: str) -> None:
    t = recorded(client, name, [1.0], metadata={"seed": 7, "env": {"gravity": 9.8}})
    assert client.episode(t).metadata == {"seed": 7, "env": {"gravity": 9.8}}
    assert client.episode(recorded(client, name, [1.0])).metadata is None


def test_steps_are_listed_by_their_rewards(client: Client, name: str) -> None:
    t = recorded(client, name, [1.0, 5.0, 3.0])
    best = client.steps(task=name, min_reward=2.0, order="reward", descending=True)
    assert [(step.reward, step.number, step.owner_id, step.action) for step in best] == [
        (5.0, 2, t.id, 1),
        (3.0, 3, t.id, 1),
    ]
    assert (best.count(), client.steps(trajectory=t).count()) == (2, 4)
    with pytest.raises(ValueError, match="order is 'best': expected one of number, reward, time, metric"):
        client.steps(task=name, order="best")  # pyright: ignore[reportArgumentType]


def test_words_that_no_status_has_are_refused_with_those_that_exist(client: Client) -> None:
    for lists in (client.episodes, client.trajectories):
        with pytest.raises(ValueError, match="status is 'done': expected one of running, completed, failed, cancelled"):
            lists(status="done")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="status is 'done': expected one of pending, initializing, running, paused"):
        client.runs(status="done")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="kind is 'test': expected one of train_step, eval, baseline"):
        client.run(f"kinds {uuid.uuid4()}", config={}).stages(kind="test")  # pyright: ignore[reportArgumentType]


def test_a_run_is_paused_resumed_and_remembers_it(client: Client, name: str) -> None:
    run = client.run(name, config={"lr": 0.1})
    run.pause("a new cluster")
    assert (run.status, client.runs(name=name, status="paused").count()) == ("paused", 1)
    run.resume()
    run.cancel()
    run.reopen()
    assert [change.new_status for change in run.history()] == ["running", "paused", "running", "cancelled", "running"]
    assert run.history()[1].message == "a new cluster"


def test_a_run_shows_stages_rollouts_and_progress(client: Client, name: str) -> None:
    run = played(client, name)
    progress = run.progress()
    assert (progress.turns_done, progress.kinds[0].kind, progress.kinds[0].rollouts_created) == (1, "train_step", 2)
    assert progress.percent is not None
    assert 0 < progress.percent < 100
    assert [(stage.kind, stage.number, stage.status) for stage in run.stages(status="running")] == [
        ("train_step", 0, "running")
    ]
    stage = run.stages().first()
    assert stage is not None
    stage.cancel("enough")
    assert [change.new_status for change in stage.history()][-1] == "cancelled"
    done = client.rollouts(run=run, success=True).first()
    assert done is not None
    assert (done.group_number, done.task_id, done.reward, done.labels) == (0, name, 0.5, {"of": name})
    assert [attempt.status for attempt in done.attempts()] == ["completed"]
    assert [step.reward for step in done.episode().moves] == [0.5]
    assert [change.new_status for change in done.history()] == ["pending", "initializing", "running", "completed"]


def test_a_verdict_is_overridden_and_withdrawn(client: Client, name: str) -> None:
    run = played(client, name)
    rollout = client.rollouts(run=run, status="completed").first()
    assert rollout is not None
    rollout.override_verdict(False, "the screenshot shows an error", actor="reviewer")
    assert (rollout.success, rollout.refresh().success) == (False, False)
    rollout.override_verdict(None, "it was another window")
    assert rollout.success is True
    assert [(each.success, each.reason) for each in rollout.overrides()] == [
        (None, "it was another window"),
        (False, "the screenshot shows an error"),
    ]


def test_a_rollout_is_cancelled_and_retried(client: Client, name: str) -> None:
    rollout = client.rollouts(run=played(client, name), status="pending").first()
    assert rollout is not None
    rollout.cancel("not needed")
    assert (rollout.status, rollout.status_message) == ("cancelled", "not needed")
    rollout.retry()
    assert rollout.status == "pending"


def test_a_run_with_live_rollouts_is_deleted_only_on_demand(client: Client, name: str) -> None:
    run = played(client, name)
    held = next(iter(client.claims(run=run, wait_seconds=1)))
    with pytest.raises(RunActive):
        run.delete()
    assert run.delete(cancel_live=True) == 1
    held.drop_lease()


def test_a_run_is_branched_with_another_config_and_compared(client: Client, name: str) -> None:
    run = client.run(name, config={"lr": 0.1, "seed": 1}, main=True)
    with pytest.raises(NoMainTrajectory, match="has no main trajectory: create it with `main=True`"):
        client.run(f"{name}, without", config={}).main_trajectory()
    main = run.main_trajectory()
    main.reset(observation=0)
    for reward in 1.0, 2.0, 4.0:
        main.step(action=1, observation=1, reward=reward)
    main.flush(60)
    branch = run.branch(at=2, name=f"{name}, faster", config={"lr": 1.0}, remove=["/seed"], labels={"sweep": "lr"})
    assert (branch.config, branch.parent_id, branch.branch_point, branch.status) == ({"lr": 1.0}, run.id, 2, "running")
    continued = branch.main_trajectory()
    assert continued.next_step == 3
    continued.step(action=2, observation=1, reward=10.0)
    continued.flush(60)
    assert run.branch().branch_point == 3
    comparison = run.compare(branch)[0]
    assert {each.path: (each.value, each.other_value) for each in comparison.config_differences} == {
        "/lr": (0.1, 1.0),
        "/seed": (1, None),
    }
    assert comparison.trajectories is not None
    assert (comparison.trajectories.reward_sum, comparison.trajectories.other_reward_sum) == (7.0, 13.0)
    assert f"├─@2 {name}, faster" in branch.tree()


def test_experiments_and_runs_are_listed_and_deleted(client: Client, name: str) -> None:
    run = client.run(name, config={"lr": 0.1}, experiment=name, labels={"of": name})
    experiment = next(each for each in client.experiments() if each.name == name)
    assert (experiment.run_count, [each.id for each in experiment.runs(text=name[:20])]) == (1, [run.id])
    assert [each.config for each in client.runs(labels={"of": name})] == [{"lr": 0.1}]
    assert name in experiment.tree()
    assert run.delete() == 1
    assert experiment.delete() == 0
    assert name not in [each.name for each in client.experiments()]


def test_objects_show_themselves_shortly(client: Client, name: str) -> None:
    t = recorded(client, name, [1.0, 2.0])
    run, task = played(client, name), client.tasks.get(name)
    for left in client.rollouts(run=run, status="pending"):
        left.cancel()
    receipt = client.trajectory(task=name).step(action=1)
    receipt.wait(60)
    shown: dict[str, object] = {
        f"Episodes(task={name!r})": client.episodes(task=name),
        f"Steps of Episodes(task={name!r})": client.episodes(task=name).steps(),
        f"Tasks({client.address!r})": client.tasks,
        "Receipt(step 1, durable)": receipt,
        f"Listing(Trajectories: task_id={name})": client.trajectories(task=name),
        f"Run({name!r}, running)": run,
    }
    assert [repr(each) for each in shown.values()] == list(shown)
    for each in (
        task,
        client.get(t),
        run.progress(),
        run.history()[0],
        next(run.stage("train_step", 0).groups(follow=False)),
    ):
        assert len(repr(each)) < 1000
        assert "\n" not in repr(each)
    assert "<svg" in client.episode(t)._repr_html_()
    assert name in run._repr_html_()
    assert repr(t.tree()) == str(t.tree())
    assert t.tree()._repr_html_().startswith("<pre>trajectory")
    assert "Trajectories" in client.trajectories(task=name)._repr_html_()


def test_completion_offers_no_internals(client: Client, name: str) -> None:
    t = recorded(client, name, [1.0])
    everything: list[Any] = [client, t, client.get(t), client.episodes(), client.episode(t), client.trajectories()]
    for each in everything:
        names = dir(each)
        assert not [member for member in names if member.startswith("_")]
        assert {"wait_for", "append_step", "recorder", "values"}.isdisjoint(names)
    assert {"episodes", "trajectories", "run"} <= set(dir(client))
    assert {"status", "labels", "delete"} <= set(dir(client.get(t)))


def test_asyncio_programs_list_and_change_them_too(client: Client, name: str) -> None:
    t, run = recorded(client, name, [1.0]), played(client, name)

    async def main() -> None:
        async with aio.connect(client.address) as own:
            listing = own.trajectories(task=name, roots=True)
            assert await listing.count() == 2
            assert {each.status async for each in listing} == {"completed"}
            found = await own.get(t.id)
            assert (found.name, [change.new_status for change in await found.history()][-1]) == ("", "completed")
            assert [step.reward async for step in own.steps(trajectory=t.id, min_reward=1.0)] == [1.0]
            same = await own.runs(name=name).first()
            assert same is not None
            assert (same.id, same.config, (await same.progress()).turns_done) == (run.id, {"lr": 0.1}, 1)
            await same.pause()
            assert same.status == "paused"
            rollout = await own.rollouts(run=run.id, success=True).first()
            assert rollout is not None
            assert len((await rollout.episode()).moves) == 1
            await rollout.override_verdict(False, "seen")
            assert rollout.success is False
            assert [stage.number async for stage in same.stages()] == [0]
            assert await own.exists(t.id)
            await own.delete(t.id)
            assert not await own.exists(t.id)

    asyncio.run(main())


def test_a_record_is_a_mapping_of_no_protobuf_messages() -> None:
    stage = records.Stage(Stage(metrics={"loss": 1.0}))
    assert isinstance(stage.metrics, Mapping)
    assert isinstance(records.Run(RunMessage(plan=Plan())).plan, records.Plan)
