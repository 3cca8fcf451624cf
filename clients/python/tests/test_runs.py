"""A trainer and its workers: runs, stages, rollouts, leases."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
from conftest import Server, free_port

from anabranch import connect
from anabranch.client import Client
from anabranch.errors import (
    AnabranchError,
    ConfigMismatch,
    LeaseLost,
    RolloutConflict,
    RunNotFound,
    TaskNotFound,
    Unreachable,
)
from anabranch.rollouts import Rollout
from anabranch.runs import Plan, Run


@pytest.fixture
def client(server: Server) -> Client:
    return connect(server.address, strict=True)


@pytest.fixture
def name() -> str:
    return f"run {uuid.uuid4()}"


def play(rollout: Rollout) -> None:
    rollout.reset(observation=rollout.task.description)
    for turn in range(2):
        rollout.step(action=f"turn {turn}", token_ids=[turn], logprobs=[-0.5], reward=float(rollout.number))
    rollout.validate("state", success=rollout.number == 1)
    rollout.log(tokens=2.0)


def started(client: Client, name: str, **fields: Any) -> Run:
    return client.run(name, plan=Plan(train_steps=2, groups=2, group_size=2, max_turns=5), **fields)


def test_a_trainer_and_a_worker_play_a_run(client: Client, name: str) -> None:
    run = started(client, name, config={"lr": 0.1})
    client.tasks.put(
        [{"id": f"{name}/{number}", "description": f"task {number}", "input": {"n": number}} for number in range(2)],
        validators={"state": {}, "screenshot": {"advisory": True}},
    )
    worker = threading.Thread(
        target=client.work, args=(play,), kwargs={"run": run, "concurrency": 2, "wait_seconds": 1}
    )
    worker.start()
    seen = []
    for stage in run.train_steps():
        ids = stage.rollouts([(group, number, f"{name}/{group}") for group in range(2) for number in range(2)])
        assert len(set(ids)) == 4
        groups = sorted(stage.groups(complete=True), key=lambda group: group.number)
        assert [group.rewards for group in groups] == [[0.0, 2.0], [0.0, 2.0]]
        assert [[rollout.success for rollout in group.rollouts] for group in groups] == [[False, True]] * 2
        assert groups[1].rollouts[0].episode.steps[0].observation == "task 1"
        assert [row.input_ids for row in groups[0].tokens().rows] == [[0, 1], [0, 1]]
        stage.log(loss=0.5)
        stage.checkpoint(f"model {stage.number}")
        seen.append(stage.number)
    worker.join(30)
    assert not worker.is_alive()
    assert seen == [0, 1]
    assert run.refresh().status == "completed"
    assert len(list(run.rollouts(stage=1, success=True))) == 2
    assert len(list(run.rollouts())) == 8
    (summary,) = client.summarize(runs=[run])
    assert (summary.rollout_count, summary.success_count) == (8, 4)


def test_a_restarted_trainer_continues_after_the_latest_checkpoint(client: Client, name: str) -> None:
    for stage in started(client, name).train_steps():
        stage.checkpoint(f"model {stage.number}")
        if stage.number == 1:
            break
    # The loop ended before stage 1 was completed: it is repeated.
    stages = list(started(client, name).train_steps())
    assert [stage.number for stage in stages] == [1]
    assert client.run(name).status == "completed"


def test_a_run_is_found_by_its_name_and_not_replaced(client: Client, name: str) -> None:
    run = started(client, name, config={"lr": 0.1})
    assert client.run(name).id == run.id
    assert client.run(name).config == {"lr": 0.1}
    with pytest.raises(RunNotFound):
        client.run(f"{name}, too")
    with pytest.raises(ConfigMismatch):
        started(client, name, config={"lr": 0.2})


def test_a_run_creates_its_experiment(client: Client, name: str) -> None:
    run = client.run("a run", experiment=name, config={"lr": 0.1})
    assert client.run("a run", experiment=name).id == run.id
    assert client.run("another run", experiment=name, config={}).experiment_id == run.experiment_id
    with pytest.raises(RunNotFound):
        client.run("a third run", experiment=name)


def test_tasks_are_created_updated_and_listed(client: Client, name: str) -> None:
    client.tasks.put([f"{name}/a", {"id": f"{name}/b", "category": name, "tags": ["x"], "max_turns": 3}])
    client.tasks.put([{"id": f"{name}/b", "input": {"level": [1, 2]}}])
    (task,) = client.tasks.list(category=name)
    assert (task.id, task.tags, task.max_turns, task.input) == (f"{name}/b", ("x",), 3, {"level": [1, 2]})
    assert client.tasks.get(f"{name}/a").input is None
    with pytest.raises(TaskNotFound):
        client.tasks.get(f"{name}/c")
    with pytest.raises(TypeError, match="no field 'lable'"):
        client.tasks.put([{"id": "a", "lable": "b"}])


def claimed(client: Client, run: Run, count: int = 1) -> list[Rollout]:
    stage = run.stage("train_step", 0)
    stage.start()
    stage.rollouts([{"group": 0, "number": number} for number in range(count)])
    claims = client.claims(run=run, wait_seconds=1)
    return [next(claims) for _ in range(count)]


def test_an_exception_fails_the_rollout_with_its_text(client: Client, name: str) -> None:
    run = started(client, name)
    (rollout,) = claimed(client, run)
    with pytest.raises(ValueError, match="no screen"), rollout:
        rollout.reset(observation="a")
        raise ValueError("no screen")
    (group,) = run.stage("train_step", 0).groups()
    assert group.rollouts[0].message.status_message == "ValueError: no screen"
    assert group.rollouts[0].episode.status == "failed"


def test_a_failing_rollout_does_not_end_the_worker(client: Client, name: str) -> None:
    run = started(client, name)
    stage = run.stage("train_step", 0)
    stage.start()
    stage.rollouts([{"group": 0, "number": number, "max_attempts": 1} for number in range(3)])
    stage.close_queue()

    def fail_first(rollout: Rollout) -> None:
        rollout.reset(observation=1)
        if rollout.number == 0:
            raise ValueError("first")

    client.work(fail_first, stage=stage, wait_seconds=1)
    (group,) = stage.groups()
    assert [rollout.episode.status for rollout in group.rollouts] == ["failed", "completed", "completed"]


def test_a_lost_lease_ends_the_rollout(client: Client, name: str) -> None:
    run = started(client, name)
    (rollout,) = claimed(client, run)
    after = []
    with rollout:
        rollout.reset(observation="a")
        run.cancel("enough")
        rollout._leases.renew()
        assert rollout.cancelled
        rollout.step(action="b")
        after.append("not reached")
    assert not after
    with pytest.raises(LeaseLost):
        rollout.log(a=1.0)


def test_a_rollout_whose_run_was_cancelled_ends_without_an_error(client: Client, name: str) -> None:
    run = started(client, name)
    (rollout,) = claimed(client, run)
    with rollout:
        rollout.reset(observation="a")
        rollout.trajectory.flush(20)
        run.cancel("enough")
    assert (rollout.cancelled, rollout.ended) == (True, False)


def test_unsent_steps_of_a_lost_lease_are_dropped(
    own_server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.start()
    client = connect(own_server.address)
    run = started(client, name)
    (rollout,) = claimed(client, run)
    with rollout:
        rollout.reset(observation="a")
        rollout.trajectory.flush(20)
        run.cancel("enough")
        for _ in range(3):
            rollout.step(action="b")
        with pytest.raises(AnabranchError, match="SEALED|sealed|CANCELLED"):
            rollout.trajectory.flush(20)
        rollout.step(action="not recorded")
    assert rollout.cancelled
    assert [each.next_step_number for each in own_server.listed()] == [1]
    (line,) = [each.message for each in caplog.records]
    assert line.endswith("has lost its lease; 3 steps that were not sent are dropped")
    assert (client.stats.dropped, client.stats.spooled) == (3, 0)


def test_leases_of_ended_rollouts_are_not_renewed(client: Client, name: str) -> None:
    run = started(client, name)
    one, two = claimed(client, run, 2)
    with one:
        one.reset(observation="a")
    two._leases.renew()
    assert (one.ended, one.cancelled, two.cancelled) == (True, False, False)
    two.release(refund_attempt=True)
    assert two.ended


def test_an_interrupted_rollout_returns_to_the_queue(client: Client, name: str) -> None:
    run = started(client, name)
    (rollout,) = claimed(client, run)
    with pytest.raises(KeyboardInterrupt), rollout:
        raise KeyboardInterrupt
    again = next(client.claims(run=run, wait_seconds=1))
    assert (again.id, again.attempt) == (rollout.id, 2)
    again.release()


def test_a_trainer_plays_its_own_rollouts(client: Client, name: str) -> None:
    run = started(client, name)
    stage = run.stage("train_step", 0)
    stage.start()
    with stage.rollout(0, 1, input={"seed": 7}) as rollout:
        assert (rollout.input, rollout.number, rollout.attempt) == ({"seed": 7}, 1, 1)
        rollout.reset(observation="a")
    with pytest.raises(RolloutConflict):
        stage.rollout(0, 1, input={"seed": 7})
    stage.rollouts([{"group": 0, "number": 2}])
    with stage.rollout(0, 2) as pending:
        pending.reset(observation="b")
    (group,) = stage.groups(complete=True)
    assert [played.episode.steps[0].observation for played in group.rollouts] == ["a", "b"]


def points(server: Server, run: Run) -> list[tuple[str, int, float]]:
    """Returns all points of a run's series."""
    from anabranch.v1.run_service_pb2 import ReadMetricsRequest

    series = server.stubs().runs.ReadMetrics(ReadMetricsRequest(run_ids=[run.id]))
    found = [(each.key, each) for message in series for each in message.series]
    return sorted((key, step, value) for key, each in found for step, value in zip(each.metric_steps, each.values))


def test_log_waits_for_no_server_and_a_trainer_outlasts_an_outage(
    own_server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.start()
    client = connect(own_server.address)
    run = started(client, name)
    stage = run.stage("train_step", 0)
    stage.start()
    own_server.kill()
    receipts = [run.log(number, loss=1.0 / (number + 1)) for number in range(20)]
    receipts.append(stage.log(kl=0.5))
    assert not any(receipt.durable for receipt in receipts)
    created: list[str] = []
    trainer = threading.Thread(target=lambda: created.extend(stage.rollouts([(0, 0, "")])))
    trainer.start()
    # The calls have found out that the server is away, and wait.
    while not any("unreachable" in each.message for each in caplog.records):
        trainer.join(0.05)
        assert trainer.is_alive()
    own_server.start()
    trainer.join(60)
    assert len(created) == 1
    stage.complete()
    assert receipts[-1].durable
    run.complete()
    found = points(own_server, run)
    assert found == [("kl", 0, 0.5), *(("loss", number, 1.0 / (number + 1)) for number in range(20))]
    lines = [each.message.split(own_server.address)[1] for each in caplog.records]
    assert [line.split(" (")[0].split(" after")[0] for line in lines] == [" is unreachable", " is reachable again"]


def test_a_server_that_never_answered_is_not_waited_for() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match=f"^no server answers at {address}: .*ANABRANCH_ADDRESS"):
        connect(address).run("a run")


def test_a_call_ends_after_a_limit(own_server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own_server.start()
    client = connect(own_server.address)
    run = started(client, name)
    own_server.kill()
    monkeypatch.setenv("ANABRANCH_CALL_SECONDS", "0.5")
    with pytest.raises(Unreachable, match="has not answered for"):
        run.refresh()
    run.log(0, loss=0.5)
    with pytest.raises(Unreachable, match="are not durable after"):
        run.complete()


def test_metrics_that_are_no_numbers_are_left_out(client: Client, server: Server, name: str) -> None:
    import numpy as np

    run = started(client, name)
    run.log(3, loss=np.float32(0.5), count=np.array([7]), found=True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r'^metrics\["model"\] is \'large\': expected a number$'):
        run.log(4, model="large")  # type: ignore[arg-type]
    lenient = connect(server.address)
    receipt = lenient.run(name).log(4, model="large", loss=0.25)  # type: ignore[arg-type]
    receipt.wait(30)
    assert lenient.stats.unstored == {"metrics": 1}
    assert lenient.run(name).log(5).durable
    run.complete()
    assert points(server, run) == [("count", 3, 7.0), ("found", 3, 1.0), ("loss", 3, 0.5), ("loss", 4, 0.25)]


def test_metrics_can_have_any_name(client: Client, server: Server, name: str) -> None:
    names = ("step", "self", "metrics", "more", "number", "stage_id", "step.self")
    run = started(client, name)
    stage = run.stage("train_step", 0)
    run.log(1, {"step": 1.0, "loss": 1.0}, loss=2.0, self=3.0, metrics=4.0)
    run.log(2, **dict.fromkeys(names, 5.0))
    stage.log(dict.fromkeys(names, 6.0))
    stage.log(**dict.fromkeys(names, 7.0))
    rollout = stage.rollout(0, 0)
    rollout.log({"a": 1.0}, **dict.fromkeys(names, 8.0))
    with rollout:
        rollout.reward, rollout.success = [0.5], 1  # type: ignore[assignment]
    ((played,),) = ((each.rollouts[0],) for each in stage.groups(complete=True))
    assert dict(played.message.metrics) == {"a": 1.0, **dict.fromkeys(names, 8.0)}
    assert (played.reward, played.success) == (0.5, True)
    run.complete()
    logged = points(server, run)
    assert [point for point in logged if point[1] == 1] == [
        ("loss", 1, 2.0),
        ("metrics", 1, 4.0),
        ("self", 1, 3.0),
        ("step", 1, 1.0),
    ]
    assert [point for point in logged if point[1] == 2] == [(key, 2, 5.0) for key in sorted(names)]
    assert {point[2] for point in logged if point[1] == 0} == {7.0}


def test_a_step_of_log_is_a_whole_number_or_costs_the_points_of_the_call(
    client: Client, server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    import decimal

    import numpy as np

    run = started(client, name)
    whole = (2.0, np.int64(3), np.float32(4), np.array([5]), decimal.Decimal(6), -7, 2**63 - 1, -(2**63), True)
    others = (2.5, 2**63, -(2**63) - 1, 10**400, float("nan"), float("inf"), "3", None, object(), {"loss": 1.0}, [1, 2])
    for step in whole:
        run.log(step, loss=1.0)  # type: ignore[arg-type]
    for step in others:
        with pytest.raises(TypeError, match=r"^the step of log\(\) is .*: expected a whole number of 64 bits$"):
            run.log(step, loss=1.0)  # type: ignore[arg-type]
    lenient = connect(server.address).run(name)
    receipts = [lenient.log(step, loss=1.0) for step in others]  # type: ignore[arg-type]
    assert {receipt.wait(30).number for receipt in receipts} == {-1}
    run.complete()
    assert sorted(point[1] for point in points(server, run)) == sorted([2, 3, 4, 5, 6, -7, 2**63 - 1, -(2**63), 1])
    assert [record.getMessage() for record in caplog.records] == [
        "anabranch: the step of log() is 2.5: expected a whole number of 64 bits. The points of the call are left out."
    ]


def test_configs_can_have_values_with_a_plain_form(client: Client, name: str) -> None:
    import argparse
    import enum
    from pathlib import PurePosixPath

    import numpy as np

    class Color(enum.Enum):
        RED = "red"

    config = argparse.Namespace(
        seed=np.int64(3),
        lr=np.float32(0.5),
        out=PurePosixPath("/x"),
        color=Color.RED,
        tags={"b", "a"},
        betas=np.array([0.5, 0.25]),
        shape=np.arange(4).reshape(2, 2),
    )
    plain = {
        "seed": 3,
        "lr": 0.5,
        "out": "/x",
        "color": "red",
        "tags": ["a", "b"],
        "betas": [0.5, 0.25],
        "shape": [[0, 1], [2, 3]],
    }
    assert client.run(name, experiment=name, config=config).config == plain
    # The same config again is no other one.
    assert client.run(name, experiment=name, config=config).refresh().config == plain


def test_metrics_that_the_server_rejects_cost_no_others(
    client: Client, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The rules of this version keep such names from the server.
    monkeypatch.setattr("anabranch._training.metrics.fits", lambda *_: True)
    run = started(client, name)
    for number, key in enumerate(("a", "x" * 300, "b")):
        run.log(number, **{key: 1.0})
    run.complete()
    assert points(server, run) == [("a", 0, 1.0), ("b", 2, 1.0)]
    assert client.stats.unstored["rejected"] >= 1
