"""Runs of a training, their stages, and the rollouts of a stage as a trainer sees them."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from google.protobuf.duration_pb2 import Duration

from anabranch._reading.listing import Listing
from anabranch._reading.queries import read_metrics, watch_run
from anabranch._reading.read import (
    HasId,
    OfRollouts,
    Selection,
    WorkStatus,
    id_of,
    read_stage,
    require_word,
    status_name,
    statuses_of,
)
from anabranch._reading.trajectories import on_branches, read_history
from anabranch._reading.tree import name_in_tree, short_number, table, walk
from anabranch._recording.fitting import fitted_text
from anabranch._training.leases import Leases
from anabranch._wire.kinds import is_a
from anabranch._wire.outage import call, pages
from anabranch._wire.shown import Text, html_table
from anabranch.episodes import Episodes
from anabranch.errors import ExperimentNotFound, NoMainTrajectory
from anabranch.groups import group_of
from anabranch.rollouts import Rollout, claim_by_id, worker_name
from anabranch.tasks import Task, json_text
from anabranch.v1 import records
from anabranch.v1.rollout_service_pb2 import CreateRolloutsRequest, NewClaim, NewRollout
from anabranch.v1.run_pb2 import STAGE_KIND_TRAIN_STEP, StageKind
from anabranch.v1.run_pb2 import Plan as PlanMessage
from anabranch.v1.run_service_pb2 import (
    STAGE_ORDER_NUMBER,
    BranchRunRequest,
    CancelRunRequest,
    CancelStageRequest,
    CloseQueueRequest,
    CompareRunsRequest,
    CompleteRunRequest,
    CompleteStageRequest,
    CreateExperimentRequest,
    CreateRunRequest,
    DeleteExperimentRequest,
    DeleteRunRequest,
    FailRunRequest,
    FailStageRequest,
    GetOrCreateStageRequest,
    GetRunRequest,
    GetRunTreeRequest,
    ListExperimentsRequest,
    ListRunsRequest,
    ListStagesRequest,
    NewMainTrajectory,
    PauseRunRequest,
    ReopenRunRequest,
    ResumeRunRequest,
    StartStageRequest,
    UpdateStageRequest,
)
from anabranch.v1.status_pb2 import STATUS_COMPLETED, STATUS_RUNNING
from anabranch.v1.trajectory_pb2 import IF_EXISTS_RETURN_EXISTING

if TYPE_CHECKING:
    from anabranch._reading.queries import Series
    from anabranch._training.client import TrainingClient
    from anabranch._wire.connection import Connection
    from anabranch.groups import Group
    from anabranch.receipt import Receipt
    from anabranch.trajectory import Trajectory
    from anabranch.v1.run_pb2 import Experiment as ExperimentMessage
    from anabranch.v1.run_pb2 import Run as RunMessage
    from anabranch.v1.run_pb2 import Stage as StageMessage
    from anabranch.v1.server_service_pb2 import RunChanges

Kind = Literal["train_step", "eval", "baseline"]

_BATCH = 500
_TREE_HEADING = ("run", "id", "steps", "reward", "status")


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


class Experiment(records.Experiment):
    """A folder of runs, with the config on which theirs are based."""

    def __init__(self, client: TrainingClient, message: ExperimentMessage) -> None:
        super().__init__(message)
        self._client = client

    def runs(
        self, *, labels: Mapping[str, str] | None = None, status: WorkStatus | Iterable[WorkStatus] = (), text: str = ""
    ) -> Listing[Run]:
        """Lists the runs of the experiment, newest first. `text` is part of a name or of the value of a label."""
        request = ListRunsRequest(experiment_id=self.id, labels=labels, statuses=statuses_of(status), text=text)
        return list_runs(self._client, request)

    def tree(self) -> Text:
        """Returns the runs of the experiment as text, branches below the runs that they were made from."""
        return _tree_of_runs(self._client.connection, GetRunTreeRequest(experiment_id=self.id))

    def delete(self, *, branches: Literal["refuse", "cascade"] = "refuse", cancel_live: bool = False) -> int:
        """Deletes the experiment with its runs and trajectories, and returns how many runs were deleted. `branches` says
        what happens if runs elsewhere were branched from them. Raises HasBranches, or RunActive without `cancel_live`."""
        request = DeleteExperimentRequest(
            experiment_id=self.id, on_branches=on_branches(branches), cancel_live=cancel_live
        )
        return call(self._client.connection, lambda stubs: stubs.runs.DeleteExperiment, request).deleted_runs


class Run(records.Run):
    """A run, as the server returned it last. Its config is the effective one: that of the experiment, merged with its own."""

    def __init__(self, client: TrainingClient, message: RunMessage) -> None:
        super().__init__(message)
        self._client = client
        self._connection = client.connection

    def refresh(self) -> Run:
        """Reads the run again, and returns it."""
        request = GetRunRequest(run_id=self.id)
        self._proto = call(self._connection, lambda stubs: stubs.runs.GetRun, request).run
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
        request = GetOrCreateStageRequest(run_id=self.id, kind=_kind_of(kind), number=number)
        found = call(self._connection, lambda stubs: stubs.runs.GetOrCreateStage, request)
        return Stage(self._client, found.stage)

    def rollouts(
        self, *, stage: int | None = None, kind: Kind = "train_step", success: bool | None = None, task: str = ""
    ) -> Episodes:
        """Selects the trajectories of the rollouts that match, of their last attempts. `stage` is a number. Nothing is read
        before the iteration, which raises StageNotFound if there is no such stage."""
        rollouts = OfRollouts(self.id, task, success, None if stage is None else (kind, stage))
        return Episodes(self._connection, Selection(rollouts=rollouts))

    def log(self, step: int, metrics: Mapping[str, float] | None = None, /, **more: float) -> Receipt:
        """Records a point of each named series of the run at `step`, and returns without waiting for the server.

        The series are those of `metrics` and of the keywords, of which any name is free. Values are numbers, or arrays and
        tensors of one number. Others are left out with a warning, as is the call if `step` is no whole number of 64 bits;
        with `strict`, both raise TypeError. `wait()` of the receipt returns when the server has the points. The end of the
        run waits for them too.
        """
        return self._client.metrics(self.id).log("", step, metrics, more)

    def metrics(  # pyright: ignore[reportIncompatibleVariableOverride] - the named numbers are those of `proto`
        self, *keys: str
    ) -> dict[str, Series]:
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
        self._proto = call(self._connection, lambda stubs: stubs.runs.CompleteRun, request).run

    def fail(self, message: str = "") -> None:
        """Fails the run. Its workers end."""
        request = FailRunRequest(run_id=self.id, message=self._message(message))
        self._client.flush_metrics(self.id)
        self._proto = call(self._connection, lambda stubs: stubs.runs.FailRun, request).run

    def cancel(self, message: str = "") -> None:
        """Cancels the run and its rollouts."""
        request = CancelRunRequest(run_id=self.id, message=self._message(message), cancel_rollouts=True)
        self._client.flush_metrics(self.id)
        self._proto = call(self._connection, lambda stubs: stubs.runs.CancelRun, request).run

    def pause(self, message: str = "") -> None:
        """Pauses the run: its rollouts are not claimed until `resume`. Workers keep what they hold."""
        request = PauseRunRequest(run_id=self.id, message=message)
        self._proto = call(self._connection, lambda stubs: stubs.runs.PauseRun, request).run

    def resume(self, message: str = "") -> None:
        """Continues a paused run."""
        request = ResumeRunRequest(run_id=self.id, message=message)
        self._proto = call(self._connection, lambda stubs: stubs.runs.ResumeRun, request).run

    def reopen(self, message: str = "") -> None:
        """Continues a run that has ended."""
        request = ReopenRunRequest(run_id=self.id, message=message)
        self._proto = call(self._connection, lambda stubs: stubs.runs.ReopenRun, request).run

    def delete(self, *, branches: Literal["refuse", "cascade"] = "refuse", cancel_live: bool = False) -> int:
        """Deletes the run with its stages, rollouts and trajectories, and returns how many runs were deleted. `branches` says
        what happens to the runs that were branched from it. Raises HasBranches, or RunActive without `cancel_live`."""
        request = DeleteRunRequest(run_id=self.id, on_branches=on_branches(branches), cancel_live=cancel_live)
        return call(self._connection, lambda stubs: stubs.runs.DeleteRun, request).deleted_runs

    def progress(self) -> records.Progress:
        """Reads how far the run is: percent and remaining time by its plan, turns, stages."""
        request = GetRunRequest(run_id=self.id, progress=True)
        found = call(self._connection, lambda stubs: stubs.runs.GetRun, request)
        self._proto = found.run
        return records.Progress(found.progress)

    def history(self) -> list[records.StatusChange]:
        """Returns the changes of the status, the oldest first."""
        return read_history(self._connection, run_id=self.id)

    def stages(self, *, kind: Kind | None = None, status: WorkStatus | Iterable[WorkStatus] = ()) -> Listing[Stage]:
        """Lists the stages of the run, by kind and number."""
        kinds = [] if kind is None else [_kind_of(kind)]
        request = ListStagesRequest(run_id=self.id, kinds=kinds, statuses=statuses_of(status), order=STAGE_ORDER_NUMBER)
        client = self._client
        return Listing(
            self._connection,
            lambda stubs: stubs.runs.ListStages,
            request,
            lambda page: (Stage(client, stage) for stage in page.stages),
        )

    def branch(
        self,
        *,
        at: int | None = None,
        tag: str | None = None,
        name: str = "",
        config: object = None,
        remove: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
    ) -> Run:
        """Creates and starts a run that continues this one after a step of its main trajectory.

        `at` is the last step that both share, or `tag` names it; the default is the last step. `config` is merged over
        the config of this run, after the keys at the JSON Pointers `remove` are taken out. Raises NoMainTrajectory if this
        run has none.
        """
        if at is None and tag is None:
            at = max(0, (self.refresh().next_step_number or 0) - 1)
        request = BranchRunRequest(
            run_id=self.id,
            step_number=at,
            tag=tag,
            name=name,
            config_overrides_json=json_text(config, "config"),
            removed_config_paths=remove,
            labels=labels,
            initial_status=STATUS_RUNNING,
            request_id=str(uuid.uuid4()),
        )
        return Run(self._client, call(self._connection, lambda stubs: stubs.runs.BranchRun, request).run)

    def tree(self) -> Text:
        """Returns the tree of the run as text: the run that all of its runs were branched from, and their branches."""
        return _tree_of_runs(self._connection, GetRunTreeRequest(run_id=self.id))

    def main_trajectory(self) -> Trajectory:
        """Returns the main trajectory, to record into it: its first steps, or further ones after those that it shares with
        the run that this one was branched from. Raises NoMainTrajectory if the run was created without `main`."""
        if not self.main_trajectory_id:
            message, metadata = (
                f"run {self.name!r} has no main trajectory: create it with `main=True`",
                {"run_id": self.id},
            )
            raise NoMainTrajectory(message, reason="NO_MAIN_TRAJECTORY", metadata=metadata)
        return self._client.trajectory(id=self.main_trajectory_id, resume="must")

    def compare(self, *others: HasId | str) -> list[records.RunComparison]:
        """Compares this run with others, at most 19: for each, the differences of the configs and of the main trajectories."""
        request = CompareRunsRequest(run_ids=[self.id, *map(id_of, others)])
        found = call(self._connection, lambda stubs: stubs.runs.CompareRuns, request)
        return [records.RunComparison(comparison) for comparison in found.comparisons]

    def __repr__(self) -> str:
        return f"Run({self.name or self.id!r}, {self.status})"

    def _repr_html_(self) -> str:
        progress = self.progress()
        done = "" if progress.percent is None else f", {progress.percent:.0f} %"
        rows = [("run", f"{self.name}, {self.status}{done}"), ("experiment", self.experiment_name)]
        rows += [(key, short_number(value)) for key, value in sorted(self.proto.metrics.items())]
        return html_table(rows)

    def _message(self, message: str) -> str:
        """Returns a message without its end if it is too long."""
        return fitted_text("FailRunRequest.message", message, self._client.values.limits)

    def _planned_stages(self) -> int:
        planned = [plan.stages for plan in self.proto.plan.stage_plans if plan.kind == STAGE_KIND_TRAIN_STEP]
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


class Stage(records.Stage):
    """A stage of a run: a training step, an evaluation or a baseline."""

    def __init__(self, client: TrainingClient, message: StageMessage) -> None:
        super().__init__(message)
        self._client = client
        self._connection = client.connection

    def history(self) -> list[records.StatusChange]:
        """Returns the changes of the status, the oldest first."""
        return read_history(self._connection, stage_id=self.id)

    def fail(self, message: str = "") -> None:
        """Fails the stage."""
        request = FailStageRequest(stage_id=self.id, message=message)
        self._proto = call(self._connection, lambda stubs: stubs.runs.FailStage, request).stage

    def cancel(self, message: str = "") -> None:
        """Cancels the stage."""
        request = CancelStageRequest(stage_id=self.id, message=message)
        self._proto = call(self._connection, lambda stubs: stubs.runs.CancelStage, request).stage

    def start(self) -> None:
        """Starts the stage: its rollouts can be claimed. No effect if it is running."""
        request = StartStageRequest(stage_id=self.id)
        self._proto = call(self._connection, lambda stubs: stubs.runs.StartStage, request).stage

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

    def log(self, metrics: Mapping[str, float] | None = None, /, **more: float) -> Receipt:
        """Records a point of each named series of this stage, at its number, and returns without waiting for the server.

        The arguments are those of `Run.log`. `complete()` waits for the points too.
        """
        return self._client.metrics(self.proto.run_id).log(self.id, self.number, metrics, more)

    def checkpoint(self, uri: str) -> None:
        """Names the model that this stage has saved. A restarted trainer continues after the latest such stage that
        is completed."""
        request = UpdateStageRequest(stage_id=self.id, model_checkpoint_uri=uri)
        request.update_mask.paths.append("model_checkpoint_uri")
        self._proto = call(self._connection, lambda stubs: stubs.runs.UpdateStage, request).stage

    def complete(self) -> None:
        """Completes the stage, when its metrics are durable. Its queue is closed."""
        self._client.flush_metrics(self.proto.run_id)

        request = CompleteStageRequest(stage_id=self.id)
        self._proto = call(self._connection, lambda stubs: stubs.runs.CompleteStage, request).stage

    def __repr__(self) -> str:
        return f"Stage({self.number}, {self.status})"


def open_run(
    client: TrainingClient,
    name: str,
    config: object,
    plan: Plan | None,
    experiment: str,
    labels: Mapping[str, str],
    *,
    main: bool = False,
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
        main_trajectory=NewMainTrajectory() if main else None,
    )

    def create() -> Run:
        return Run(client, call(client.connection, lambda stubs: stubs.runs.CreateRun, request).run)

    try:
        return create()
    except ExperimentNotFound:
        new = CreateExperimentRequest(name=experiment, if_exists=IF_EXISTS_RETURN_EXISTING)
        call(client.connection, lambda stubs: stubs.runs.CreateExperiment, new)
        return create()


def list_runs(client: TrainingClient, request: ListRunsRequest) -> Listing[Run]:
    return Listing(
        client.connection,
        lambda stubs: stubs.runs.ListRuns,
        request,
        lambda page: (Run(client, each.run) for each in page.runs),
    )


def list_experiments(client: TrainingClient, request: ListExperimentsRequest) -> Listing[Experiment]:
    return Listing(
        client.connection,
        lambda stubs: stubs.runs.ListExperiments,
        request,
        lambda page: (Experiment(client, each) for each in page.experiments),
    )


def _tree_of_runs(connection: Connection, request: GetRunTreeRequest) -> Text:
    found = pages(connection, lambda stubs: stubs.runs.GetRunTree, request)
    rows: list[tuple[str, ...]] = [_TREE_HEADING]
    for stem, run in walk(run for page in found for run in page.runs):
        reward = short_number(run.reward_sum) if run.HasField("reward_sum") else "–"
        rows.append((name_in_tree(stem, run), run.id, str(run.next_step_number), reward, status_name(run.status)))
    return table(rows)


def _kind_of(kind: Kind) -> StageKind.ValueType:
    """Returns a kind of stage as the protos have it. Raises ValueError, which names the valid words."""
    require_word("kind", kind, get_args(Kind))
    return StageKind.Value(f"STAGE_KIND_{kind.upper()}")


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
