"""What clients offer for runs and rollouts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from anabranch import rollouts
from anabranch._reading.read import HasId, id_of
from anabranch._training.client import TrainingClient
from anabranch._training.leases import Leases
from anabranch._wire.outage import call
from anabranch._wire.scope import sleep
from anabranch.errors import RunNotFound
from anabranch.runs import find_run, open_run
from anabranch.tasks import Tasks
from anabranch.v1.run_service_pb2 import SummarizeRequest, SummaryKey

if TYPE_CHECKING:
    from anabranch.rollouts import Rollout
    from anabranch.runs import Plan, Run
    from anabranch.v1.run_service_pb2 import Summary


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
    ) -> Run:
        """Returns the run with this name in the experiment.

        With a config or a plan (which may be empty), creates the experiment (default: `default`) and the run, and
        starts the run, if they do not exist; raises ConfigMismatch if the run has another config or plan. Without
        both, raises RunNotFound if the run does not exist.
        """
        return open_run(self, name, config, plan, experiment, labels or {})

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

    def summarize(self, *, runs: Iterable[HasId | str] = (), by: Iterable[str] = (), **filters: Any) -> list[Summary]:
        """Returns statistics of rollouts: one summary for each combination of `by` (any of `task`, `run`, `stage_kind`,
        `model_uri`, `number`, `experiment`). `filters` are further fields of SummarizeRequest, for example `pass_at`."""
        request = SummarizeRequest(run_ids=[id_of(run) for run in runs], **filters)
        for key in by:
            request.dimensions.add(key=SummaryKey.Value(f"SUMMARY_KEY_{key.upper()}"))
        return list(call(self.connection, lambda stubs: stubs.runs.Summarize, request).summaries)


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
