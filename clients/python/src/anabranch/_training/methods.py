"""What clients offer for runs and rollouts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from anabranch import rollouts
from anabranch._reading.listing import Listing
from anabranch._reading.read import HasId, WorkStatus, id_of, statuses_of
from anabranch._recording.creation import Creation
from anabranch._training.client import TrainingClient
from anabranch._training.leases import Leases
from anabranch._wire.outage import call
from anabranch._wire.scope import sleep
from anabranch.errors import RunNotFound
from anabranch.rollouts import RolloutRecord, list_rollouts
from anabranch.runs import Experiment, Run, find_run, list_experiments, list_runs, open_run
from anabranch.tasks import Tasks
from anabranch.v1 import records
from anabranch.v1.rollout_service_pb2 import ListRolloutsRequest
from anabranch.v1.run_service_pb2 import ListExperimentsRequest, ListRunsRequest, SummarizeRequest, SummaryKey

if TYPE_CHECKING:
    from anabranch.rollouts import Rollout
    from anabranch.runs import Plan


class ClientRuns(TrainingClient):
    """Runs, tasks and rollouts of a client."""

    def run(
        self,
        name: str,
        *,
        config: object = None,
        plan: Plan | None = None,
        experiment: str = "",
        labels: Mapping[str, str] | None = None,
        main: bool = False,
    ) -> Run:
        """Returns the run with this name in the experiment.

        With a config or a plan (which may be empty), creates the experiment (default: `default`) and the run, and
        starts the run, if they do not exist; raises ConfigMismatch if the run has another config or plan. Without
        both, raises RunNotFound if the run does not exist. With `main`, a new run has a main trajectory, which
        `Run.main_trajectory` records and `Run.branch` continues. Raises TypeError or ValueError, which name the argument,
        for a name or labels that the server would refuse.
        """
        given = Creation.checked(name=name, labels=labels)
        return open_run(self, given.name, config, plan, experiment, given.labels, main=main)

    def runs(
        self,
        *,
        experiment: HasId | str | None = None,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        status: WorkStatus | Iterable[WorkStatus] = (),
        text: str = "",
        stale: bool = False,
    ) -> Listing[Run]:
        """Lists the runs that match all filters that are set, newest first.

        `name` is the whole name; `text` is a part of it, or of the value of a label. With `stale`, those whose heartbeats
        are late.
        """
        request = ListRunsRequest(
            experiment_id=id_of(experiment),
            name=name,
            labels=labels,
            statuses=statuses_of(status),
            text=text,
            stale_only=stale,
        )
        return list_runs(self, request)

    def experiments(self, *, environment: str = "", agent: str = "", tags: Iterable[str] = ()) -> Listing[Experiment]:
        """Lists the experiments with this name of an environment, this type of an agent, and all of these tags."""
        return list_experiments(self, ListExperimentsRequest(environment_name=environment, agent_type=agent, tags=tags))

    def rollouts(
        self,
        *,
        run: HasId | str | None = None,
        stage: HasId | str | None = None,
        task: str = "",
        labels: Mapping[str, str] | None = None,
        status: WorkStatus | Iterable[WorkStatus] = (),
        success: bool | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        worker: str = "",
    ) -> Listing[RolloutRecord]:
        """Lists the rollouts that match all filters that are set: those of a run or of a stage by group and number, others
        newest first. `run` and `stage` exclude each other. The bounds of the reward are inclusive."""
        request = ListRolloutsRequest(
            run_id=id_of(run),
            stage_id=id_of(stage),
            task_id=task,
            labels=labels,
            statuses=statuses_of(status),
            success=success,
            min_reward=min_reward,
            max_reward=max_reward,
            worker_id=worker,
        )
        return list_rollouts(self.connection, request)

    @property
    def tasks(self) -> Tasks:
        """The catalogue of tasks."""
        return Tasks(self.connection)

    def claims(
        self,
        *,
        run: HasId | str | None = None,
        stage: HasId | str | None = None,
        tasks: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        lease_seconds: int = 60,
        wait_seconds: int = 20,
        worker: str = "",
    ) -> Iterator[Rollout]:
        """Claims rollouts one by one and yields them, until the run has ended or nothing more can come.

        `run` is a run, its id or its name; the worker waits until a run of this name exists. The leases are renewed until a rollout has ended. `worker` names this worker;
        the default has the host and the process.
        """
        leases = Leases(self.connection, lease_seconds, wait_seconds)
        filters = rollouts.filters_of(worker or rollouts.worker_name(), _run_id(self, run), id_of(stage), tasks, labels)
        return rollouts.claims(self, leases, filters)

    def work(
        self,
        play: Callable[[Rollout], object],
        *,
        run: HasId | str | None = None,
        stage: HasId | str | None = None,
        tasks: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        concurrency: int = 1,
        lease_seconds: int = 60,
        wait_seconds: int = 20,
        worker: str = "",
    ) -> None:
        """Claims rollouts and plays each with `play(rollout)`, in `concurrency` threads. Returns when the run has ended.

        A rollout is completed when `play` returns, and failed with the text of the exception if it raises.
        """
        leases = Leases(self.connection, lease_seconds, wait_seconds)
        filters = rollouts.filters_of(worker or rollouts.worker_name(), _run_id(self, run), id_of(stage), tasks, labels)
        rollouts.work(self, leases, play, filters, concurrency)

    def summarize(
        self, *, runs: Iterable[HasId | str] = (), by: Iterable[str] = (), **filters: Any
    ) -> list[records.Summary]:
        """Returns statistics of rollouts: one summary for each combination of `by` (any of `task`, `run`, `stage_kind`,
        `model_uri`, `number`, `experiment`). `filters` are further fields of SummarizeRequest, for example `pass_at`."""
        request = SummarizeRequest(run_ids=[id_of(run) for run in runs], **filters)
        for key in by:
            request.dimensions.add(key=SummaryKey.Value(f"SUMMARY_KEY_{key.upper()}"))
        found = call(self.connection, lambda stubs: stubs.runs.Summarize, request)
        return [records.Summary(summary) for summary in found.summaries]


def _run_id(client: ClientRuns, run: HasId | str | None) -> str:
    """Returns the id of a run: of an object, an id, or a name."""
    if not isinstance(run, str):
        return id_of(run)
    try:
        return str(uuid.UUID(run))
    except ValueError:
        return _wait_for_run(client, run)


def _wait_for_run(client: ClientRuns, name: str) -> str:
    """Returns the id of the run with this name. Waits until it exists: workers may start before their trainer."""
    while True:
        try:
            return find_run(client, name).id
        except RunNotFound:
            sleep(1)
