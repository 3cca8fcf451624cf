"""Runs of a training, their stages, and the rollouts of a stage as a trainer sees them."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from google.protobuf.duration_pb2 import Duration

from anabranch._reading.queries import read_metrics, watch_run
from anabranch._reading.read import OfRollouts, Selection, read_stage, status_name
from anabranch._training.leases import Leases
from anabranch._wire.decode import decode_json
from anabranch._wire.kinds import is_a
from anabranch._wire.outage import call
from anabranch.episodes import Episodes
from anabranch.errors import ExperimentNotFound
from anabranch.groups import group_of
from anabranch.rollouts import Rollout, claim_by_id, worker_name
from anabranch.tasks import Task, json_text
from anabranch.v1.rollout_service_pb2 import CreateRolloutsRequest, NewClaim, NewRollout
from anabranch.v1.run_pb2 import STAGE_KIND_TRAIN_STEP, StageKind
from anabranch.v1.run_pb2 import Plan as PlanMessage
from anabranch.v1.run_service_pb2 import (
    STAGE_ORDER_NUMBER,
    CancelRunRequest,
    CloseQueueRequest,
    CompleteRunRequest,
    CompleteStageRequest,
    CreateExperimentRequest,
    CreateRunRequest,
    FailRunRequest,
    GetOrCreateStageRequest,
    GetRunRequest,
    ListStagesRequest,
    StartStageRequest,
    UpdateStageRequest,
)
from anabranch.v1.status_pb2 import STATUS_COMPLETED, STATUS_RUNNING
from anabranch.v1.trajectory_pb2 import IF_EXISTS_RETURN_EXISTING

if TYPE_CHECKING:
    from anabranch._reading.queries import Series
    from anabranch._training.client import TrainingClient
    from anabranch.groups import Group
    from anabranch.receipt import Receipt
    from anabranch.v1.run_pb2 import Run as RunMessage
    from anabranch.v1.run_pb2 import Stage as StageMessage
    from anabranch.v1.server_service_pb2 import RunChanges

Kind = Literal["train_step", "eval", "baseline"]

_BATCH = 500


@dataclass(frozen=True)
class Plan:
    """What a run is expected to do. Progress is estimated from it; `train_steps` bounds `Run.train_steps`.

    `train_steps` training steps, each with `groups` groups of `group_size` rollouts of at most `max_turns` turns, and
    `substeps` optimizer steps. 0 means unknown. `concurrency` is the number of rollouts that are played at once.
    """

    train_steps: int = 0
    groups: int = 0
    group_size: int = 0
    max_turns: int = 0
    substeps: int = 0
    concurrency: int = 0


class Run:
    """A run. `message` is the run as the server returned it last."""

    def __init__(self, client: TrainingClient, message: RunMessage) -> None:
        self._client = client
        self._connection = client.connection
        self.message = message

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def name(self) -> str:
        return self.message.name

    @property
    def experiment_id(self) -> str:
        """Id of the experiment that the run belongs to."""
        return self.message.experiment_id

    @property
    def config(self) -> Any:
        """The effective config: that of the experiment, merged with the run's own."""
        return decode_json(self.message.config_json) if self.message.config_json else {}

    @property
    def labels(self) -> Mapping[str, str]:
        return self.message.labels

    @property
    def status(self) -> str:
        """The status when the run was last read, for example `running`."""
        return status_name(self.message.status)

    def refresh(self) -> Run:
        """Reads the run again, and returns it."""
        request = GetRunRequest(run_id=self.id)
        self.message = call(self._connection, lambda stubs: stubs.runs.GetRun, request).run
        return self

    def train_steps(self, stop: int | None = None) -> Generator[Stage, None, None]:
        """Yields the training steps that are left, and completes each when the next one is asked for.

        Begins after the latest completed stage that has a model checkpoint, or with number 0. Ends before `stop` (default: the number
        of training steps in the plan); then the run is completed. If the loop ends early, by an exception or `break`,
        its stage and the run stay open, and the next process continues.
        """
        end = self._planned_stages() if stop is None else stop
        for number in range(self._first_open(), end):
            stage = self.stage("train_step", number)
            stage.start()
            yield stage
            stage.complete()
        self.complete()

    def stage(self, kind: Kind, number: int) -> Stage:
        """Returns the stage of this kind and number. Creates it if it does not exist."""
        request = GetOrCreateStageRequest(
            run_id=self.id, kind=StageKind.Value(f"STAGE_KIND_{kind.upper()}"), number=number
        )
        found = call(self._connection, lambda stubs: stubs.runs.GetOrCreateStage, request)
        return Stage(self._client, found.stage)

    def rollouts(
        self, *, stage: int | None = None, kind: Kind = "train_step", success: bool | None = None, task: str = ""
    ) -> Episodes:
        """Selects the trajectories of the rollouts that match, of their last attempts. `stage` is a number. Nothing is read
        before the iteration, which raises StageNotFound if there is no such stage."""
        rollouts = OfRollouts(self.id, task, success, None if stage is None else (kind, stage))
        return Episodes(self._connection, Selection(rollouts=rollouts))

    def log(self, step: int, **metrics: float) -> Receipt:
        """Records a point of each named series of the run at `step`, and returns without waiting for the server.

        Values are numbers, or arrays and tensors of one number. `wait()` of the receipt returns when the server has the
        points. The end of the run waits for them too.
        """
        return self._client.metrics(self.id).log("", step, metrics)

    def metrics(self, *keys: str) -> dict[str, Series]:
        """Reads the series that `log` has recorded, of the run and of its stages, by their names. Default: all.

        Waits until the metrics that this process has logged are durable.
        """
        self._client.flush_metrics(self.id)
        return read_metrics(self._connection, self.id, keys)

    def watch(self) -> Iterator[RunChanges]:
        """Yields the run, its open stages and its progress whenever they change, until the run has ended. Continues after a
        lost connection, with all of them."""
        return watch_run(self._connection, self.id)

    def complete(self, result: object = None) -> None:
        """Completes the run. Its workers end."""
        request = CompleteRunRequest(run_id=self.id, result_json=json_text(result, "result"))
        self._client.flush_metrics(self.id)
        self.message = call(self._connection, lambda stubs: stubs.runs.CompleteRun, request).run

    def fail(self, message: str = "") -> None:
        """Fails the run. Its workers end."""
        request = FailRunRequest(run_id=self.id, message=message)
        self._client.flush_metrics(self.id)
        self.message = call(self._connection, lambda stubs: stubs.runs.FailRun, request).run

    def cancel(self, message: str = "") -> None:
        """Cancels the run and its rollouts."""
        request = CancelRunRequest(run_id=self.id, message=message, cancel_rollouts=True)
        self._client.flush_metrics(self.id)
        self.message = call(self._connection, lambda stubs: stubs.runs.CancelRun, request).run

    def __repr__(self) -> str:
        return f"Run({self.name or self.id!r}, {self.status})"

    def _planned_stages(self) -> int:
        planned = [plan.stages for plan in self.message.plan.stage_plans if plan.kind == STAGE_KIND_TRAIN_STEP]
        if not planned or not planned[0]:
            raise ValueError(f"run {self.name!r} has no plan of training steps: give `stop`, or Plan(train_steps=…)")
        return planned[0]

    def _first_open(self) -> int:
        request = ListStagesRequest(
            run_id=self.id,
            kinds=[STAGE_KIND_TRAIN_STEP],
            statuses=[STATUS_COMPLETED],
            has_checkpoint=True,
            order=STAGE_ORDER_NUMBER,
            descending=True,
            page_size=1,
        )
        found = call(self._connection, lambda stubs: stubs.runs.ListStages, request)
        return found.stages[0].number + 1 if found.stages else 0


class Stage:
    """A stage of a run: a training step, an evaluation or a baseline."""

    def __init__(self, client: TrainingClient, message: StageMessage) -> None:
        self._client = client
        self._connection = client.connection
        self.message = message

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def number(self) -> int:
        return self.message.number

    @property
    def status(self) -> str:
        return status_name(self.message.status)

    def start(self) -> None:
        """Starts the stage: its rollouts can be claimed. No effect if it is running."""
        request = StartStageRequest(stage_id=self.id)
        self.message = call(self._connection, lambda stubs: stubs.runs.StartStage, request).stage

    def rollouts(self, rollouts: Iterable[tuple[int, int, Task | str] | Mapping[str, Any]]) -> list[str]:
        """Creates rollouts, which workers claim. Returns their ids in order.

        A rollout is (group, number, task), or a dict with `group`, `number` and any of `task`, `labels`, `input`,
        `priority`, `max_turns`, `max_attempts`, `model_uri` and `metadata`. Rollouts that exist with the same values
        are not created again, so that a restarted trainer can repeat the call.
        """
        new = [_new_rollout(rollout) for rollout in rollouts]
        ids: list[str] = []
        for start in range(0, len(new), _BATCH):
            request = CreateRolloutsRequest(stage_id=self.id, rollouts=new[start : start + _BATCH])
            created = call(self._connection, lambda stubs: stubs.rollouts.CreateRollouts, request)
            ids += [rollout.rollout_id for rollout in created.rollouts]
        return ids

    def rollout(self, group: int, number: int, task: Task | str = "", **fields: Any) -> Rollout:
        """Creates a rollout and claims it in the same transaction, for a trainer that plays its own rollouts.

        `fields` are those of `rollouts`. A rollout that exists with the same values is claimed if it is pending; raises
        RolloutConflict if it is not.
        """
        new = _new_rollout({"group": group, "number": number, "task": task, **fields})
        claim = NewClaim(worker_id=self._worker, lease_duration=Duration(seconds=self._leases.seconds))
        request = CreateRolloutsRequest(stage_id=self.id, rollouts=[new], claim=claim, request_id=str(uuid.uuid4()))
        created = call(self._connection, lambda stubs: stubs.rollouts.CreateRollouts, request)
        if not created.claims:
            return claim_by_id(self._client, self._leases, self._worker, created.rollouts[0].rollout_id)
        # The response leaves out what the request has.
        created.claims[0].rollout.input_json = new.input_json
        rollout = Rollout(self._client, created.claims[0], self._leases)
        self._leases.add([rollout])
        return rollout

    @functools.cached_property
    def _leases(self) -> Leases:
        return Leases(self._connection)

    @functools.cached_property
    def _worker(self) -> str:
        return worker_name()

    def close_queue(self) -> None:
        """Declares that no further rollouts follow."""
        request = CloseQueueRequest(stage_id=self.id)
        call(self._connection, lambda stubs: stubs.runs.CloseQueue, request)

    def groups(self, *, complete: bool = False, follow: bool = True) -> Iterator[Group]:
        """Yields the groups with their trajectories, as all rollouts of a group end.

        With `complete`, only groups whose rollouts are all completed. With `follow`, waits until every group has ended;
        the queue is closed first, so all rollouts must have been created.
        """
        if follow:
            self.close_queue()
        for rollouts in read_stage(self._connection, self.id, complete=complete, follow=follow):
            yield group_of(self._connection, rollouts)

    def log(self, **metrics: float) -> Receipt:
        """Records a point of each named series of this stage, at its number, and returns without waiting for the server.

        Values are numbers, or arrays and tensors of one number. `wait()` of the receipt returns when the server has the
        points. `complete()` waits for them too.
        """
        return self._client.metrics(self.message.run_id).log(self.id, self.number, metrics)

    def checkpoint(self, uri: str) -> None:
        """Names the model that this stage has saved. A restarted trainer continues after the latest such stage that
        is completed."""
        request = UpdateStageRequest(stage_id=self.id, model_checkpoint_uri=uri)
        request.update_mask.paths.append("model_checkpoint_uri")
        self.message = call(self._connection, lambda stubs: stubs.runs.UpdateStage, request).stage

    def complete(self) -> None:
        """Completes the stage, when its metrics are durable. Its queue is closed."""
        self._client.flush_metrics(self.message.run_id)

        request = CompleteStageRequest(stage_id=self.id)
        self.message = call(self._connection, lambda stubs: stubs.runs.CompleteStage, request).stage

    def __repr__(self) -> str:
        return f"Stage({self.number}, {self.status})"


def open_run(
    client: TrainingClient, name: str, config: object, plan: Plan | None, experiment: str, labels: Mapping[str, str]
) -> Run:
    """Returns the run with this name. With a config or a plan, creates and starts it if it does not exist, and the
    experiment too."""
    if config is None and plan is None:
        return find_run(client, name, experiment)
    request = CreateRunRequest(
        name=name,
        experiment_name=experiment,
        if_exists=IF_EXISTS_RETURN_EXISTING,
        config_json=json_text(config, "config"),
        labels=labels,
        initial_status=STATUS_RUNNING,
        plan=None if plan is None else _plan_message(plan),
    )

    def create() -> Run:
        return Run(client, call(client.connection, lambda stubs: stubs.runs.CreateRun, request).run)

    try:
        return create()
    except ExperimentNotFound:
        new = CreateExperimentRequest(name=experiment, if_exists=IF_EXISTS_RETURN_EXISTING)
        call(client.connection, lambda stubs: stubs.runs.CreateExperiment, new)
        return create()


def find_run(client: TrainingClient, name: str, experiment: str = "") -> Run:
    """Returns the run with this name. Raises RunNotFound."""
    request = GetRunRequest(run_name=name, experiment_name=experiment)
    return Run(client, call(client.connection, lambda stubs: stubs.runs.GetRun, request).run)


def _plan_message(plan: Plan) -> PlanMessage:
    message = PlanMessage(concurrency=plan.concurrency)
    message.stage_plans.add(
        kind=STAGE_KIND_TRAIN_STEP,
        stages=plan.train_steps,
        groups_per_stage=plan.groups,
        group_size=plan.group_size,
        max_turns=plan.max_turns,
        substeps=plan.substeps,
    )
    return message


def _new_rollout(rollout: Any) -> NewRollout:
    """Returns a rollout to create, from a tuple or a dict."""
    fields: dict[str, Any] = dict(
        zip(("group", "number", "task"), rollout, strict=True) if is_a(rollout, tuple) else rollout
    )
    new = NewRollout(group_number=fields.pop("group"), number=fields.pop("number"))
    task = fields.pop("task", "")
    new.task_id = task if is_a(task, str) else task["id"] if is_a(task, dict) else task.id
    for name, value in fields.items():
        if name == "labels":
            new.labels.update(value)
        elif name in ("input", "metadata"):
            setattr(new, f"{name}_json", json_text(value, name))
        elif name in ("priority", "max_turns", "max_attempts", "model_uri"):
            setattr(new, name, value)
        else:
            raise TypeError(f"a rollout has no field {name!r}")
    return new
