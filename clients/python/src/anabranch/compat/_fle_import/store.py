"""Stores the programs of a source that are not stored yet."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from anabranch._wire.connection import Connection
from anabranch._wire.errors import AnabranchError, StepTooLarge
from anabranch._wire.outage import call, pages
from anabranch.compat._fle_import.plan import Chain, End, Program, StepPosition, Stored, plan_version, read_versions
from anabranch.compat._fle_import.programs import require_programs, rows_of
from anabranch.compat._fle_import.step import PROGRAM_ID, step_of
from anabranch.compat._source import ROWS, Source, SourceError, bounded, text_of
from anabranch.compat._strict import append_all, store_large_parts
from anabranch.errors import ExperimentNotFound, RunNotFound
from anabranch.v1.run_service_pb2 import CreateExperimentRequest, CreateRunRequest, GetRunRequest
from anabranch.v1.status_pb2 import STATUS_RUNNING
from anabranch.v1.trajectory_pb2 import IF_EXISTS_RETURN_EXISTING, Step
from anabranch.v1.trajectory_service_pb2 import (
    STEP_ORDER_NUMBER,
    BranchTrajectoryRequest,
    CreateTrajectoryRequest,
    ListStepsRequest,
    ListTrajectoriesRequest,
)

_PAGE_SIZE = 1000
#: Errors that mean that another import stored something since this one read the run.
_CONFLICTS = ("RUN_EXISTS", "TRAJECTORY_EXISTS", "STEP_GAP", "STEP_CONFLICT", "WRITER_FENCED", "TRAJECTORY_SEALED")


def import_programs(
    connection: Connection,
    source: Source,
    experiment: str,
    *,
    dry_run: bool = False,
    on_progress: Callable[[int, int], object] = lambda imported, total: None,
) -> list[dict[str, Any]]:
    """Imports the programs of a database of FLE that are not stored yet into an experiment, which is created if it does
    not exist. Creates a run for each version, a trajectory for each instance and process, and branches for programs that
    share a parent.

    Returns for each version the name and the id of its run, the numbers of its programs and of those that this import
    stored, and the numbers of trajectories and branches that it created. All ids depend only on the run and the programs, so a second call continues an interrupted import. With `dry_run`,
    compares the source with the store and writes nothing. `on_progress` is called with the numbers of programs that are
    durable and that are to be imported. Raises SourceError if the runs have programs of another source; nothing is
    written then.
    """
    require_programs(source)
    imports = [_Import(connection, source, experiment, *each) for each in read_versions(source).items()]
    imported, total = 0, sum(each.count for each in imports)
    on_progress(0, total)
    for each in [] if dry_run else imports:
        for count in each.store():
            imported += count
            on_progress(imported, total)
    return [each.result(dry_run) for each in imports]


class _Import:
    """The import of one version: its programs, and where those that are not stored yet are stored."""

    def __init__(
        self,
        connection: Connection,
        source: Source,
        experiment: str,
        version: str | None,
        programs: Mapping[int, Program],
    ) -> None:
        self._connection = connection
        self._source = source
        self._experiment = experiment
        self._version = version
        self._programs = programs
        self._run_name = bounded(f"fle-{_named(version)}")
        run_id = self._find_run()
        stored = self._read_stored(run_id) if run_id else Stored()
        self._run_exists = bool(run_id)
        self._run_id = run_id or str(uuid.uuid4())
        self._chains = plan_version(programs, stored, self._run_id)

    @property
    def count(self) -> int:
        """Number of programs to store."""
        return sum(len(chain.ids) for chain in self._chains)

    def result(self, dry_run: bool) -> dict[str, Any]:
        roots = sum(chain.is_root for chain in self._chains)
        return {
            "run_name": self._run_name,
            # The run does not exist after a first import with `dry_run`.
            "run_id": "" if dry_run and not self._run_exists else self._run_id,
            "programs": len(self._programs),
            "imported": self.count,
            "trajectories": roots,
            "branches": sum(chain.start is not None for chain in self._chains) - roots,
        }

    def store(self) -> Iterator[int]:
        """Stores the programs. Yields their numbers when they are durable."""
        try:
            if not self._run_exists:
                self._create_run()
            for chain in self._chains:
                yield from self._store_chain(chain)
        except AnabranchError as error:
            if error.reason not in _CONFLICTS:
                raise
            raise SourceError(
                f'Another import writes to run "{self._run_name}". Run the command again when the other import has ended. '
                "If there is none, a trajectory of an earlier import was deleted while branches need its steps: import "
                "into another --experiment."
            ) from error

    # What is stored

    def _find_run(self) -> str:
        request = GetRunRequest(run_name=self._run_name, experiment_name=self._experiment)
        try:
            return call(self._connection, lambda stubs: stubs.runs.GetRun, request).run.id
        except (RunNotFound, ExperimentNotFound):
            return ""

    def _read_stored(self, run_id: str) -> Stored:
        """Reads trajectories before steps, and uses the steps before the ends that were read. A concurrent import may
        store others meanwhile: to store the same again has no effect, and to store others there fails."""
        stored = Stored()
        listing = ListTrajectoriesRequest(run_id=run_id, page_size=_PAGE_SIZE)
        for page in pages(self._connection, lambda stubs: stubs.trajectories.ListTrajectories, listing):
            for each in page.trajectories:
                stored.ends[each.id] = End(each.next_step_number, each.status != STATUS_RUNNING, each.writer_epoch)
        reading = ListStepsRequest(run_id=run_id, page_size=_PAGE_SIZE, order=STEP_ORDER_NUMBER)
        for page in pages(self._connection, lambda stubs: stubs.trajectories.ListSteps, reading):
            for each in page.steps:
                number, end = each.step.step_number, stored.ends.get(each.trajectory_id)
                if PROGRAM_ID in each.step.metrics and end is not None and number < end.next_step:
                    id = self._same_program(each.step)
                    stored.programs[id] = StepPosition(each.trajectory_id, number)
        return stored

    def _same_program(self, step: Step) -> int:
        """Returns the id of the program that a step stores. Programs of two sources have the same ids. Their times tell
        them apart."""
        id = int(step.metrics[PROGRAM_ID])
        program = self._programs.get(id)
        time = step.end_time if step.HasField("end_time") else None
        if program is not None and program.created != time:
            raise SourceError(
                f'Run "{self._run_name}" of experiment "{self._experiment}" holds program {id} of another database: it '
                f"was created at {_time_text(time)} there, and at {_time_text(program.created)} in "
                f"{self._source.description}. Choose another --experiment."
            )
        return id

    # What is created

    def _create_run(self) -> None:
        experiment = CreateExperimentRequest(name=self._experiment, if_exists=IF_EXISTS_RETURN_EXISTING)
        experiment.environment_name = "Factorio Learning Environment"
        call(self._connection, lambda stubs: stubs.runs.CreateExperiment, experiment)
        first = next(iter(self._programs.values()))
        models = {program.key.model for program in self._programs.values()}
        (row,) = rows_of(self._source, [first.id])
        run = CreateRunRequest(run_id=self._run_id, request_id=self._run_id, experiment_name=self._experiment)
        run.name, run.initial_status = self._run_name, STATUS_RUNNING
        run.description = bounded(
            text_of(row["version_description"]) if "version_description" in row else "", 16 * 1024
        )
        run.labels.update(_labels_of(version=self._version, model=first.key.model if len(models) == 1 else None))
        call(self._connection, lambda stubs: stubs.runs.CreateRun, run)

    def _store_chain(self, chain: Chain) -> Iterator[int]:
        if chain.start is not None:
            self._create_trajectory(chain, chain.start)
        yield from append_all(self._connection, chain.trajectory_id, self._steps_of(chain), chain.epoch)

    def _create_trajectory(self, chain: Chain, start: StepPosition) -> None:
        key = chain.key
        name = f"fle-{_named(key.version)}, instance {_named(key.instance)}"
        name = bounded(name if key.process_id is None else f"{name}, process {key.process_id}")
        labels = _labels_of(model=key.model, version=key.version, instance=key.instance, process_id=key.process_id)
        # Repeats of a call return the same trajectory. Another import has another id.
        request_id = str(uuid.uuid4())
        if chain.is_root:
            root = CreateTrajectoryRequest(trajectory_id=chain.trajectory_id, request_id=request_id, root=Step())
            root.run_id, root.name, root.task_id = self._run_id, name, bounded(key.task_key)
            root.labels.update(labels)
            call(self._connection, lambda stubs: stubs.trajectories.CreateTrajectory, root)
        else:
            branch = BranchTrajectoryRequest(trajectory_id=start.trajectory_id, step_number=start.number)
            branch.branch_id, branch.request_id = chain.trajectory_id, request_id
            branch.name = bounded(f"{name}, program {chain.ids[0]}")
            branch.labels.update(labels)
            call(self._connection, lambda stubs: stubs.trajectories.BranchTrajectory, branch)

    def _steps_of(self, chain: Chain) -> Iterator[Step]:
        """Yields the steps of a chain. Their large values are stored."""
        for start in range(0, len(chain.ids), ROWS):
            rows = rows_of(self._source, chain.ids[start : start + ROWS])
            for number, row in enumerate(rows, chain.first_step + start):
                step = step_of(row)
                step.step_number = number
                try:
                    store_large_parts(self._connection, step)
                except StepTooLarge as error:
                    raise SourceError(f"Program {text_of(row['id'])} is too large for a step: {error}.") from error
                yield step


def _time_text(time: Timestamp | None) -> str:
    return "an unknown time" if time is None else time.ToJsonString()


def _named(value: str | None) -> str:
    return "none" if value is None else value


def _labels_of(**labels: str | None) -> dict[str, str]:
    return {name: bounded(text) for name, text in labels.items() if text is not None}
