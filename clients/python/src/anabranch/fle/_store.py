"""Stores the programs of a source that are not stored yet."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from anabranch._recording.steps import TooLargeError, encode
from anabranch._wire.connection import UNARY_SECONDS, Connection
from anabranch._wire.errors import AnabranchError
from anabranch._wire.failures import error_from_failure, failure_of_part, raising_reasons
from anabranch._wire.limits import Limits
from anabranch._wire.outage import call, pages, retried
from anabranch.errors import ExperimentNotFound, RunNotFound
from anabranch.fle._plan import Chain, End, Program, StepPosition, Stored, plan_version, read_versions
from anabranch.fle._source import FleImportError, Source, bounded, text_of
from anabranch.fle._step import PROGRAM_ID, step_of
from anabranch.v1.run_service_pb2 import CreateExperimentRequest, CreateRunRequest, GetRunRequest
from anabranch.v1.state_service_pb2 import PutStateRequest
from anabranch.v1.status_pb2 import STATUS_RUNNING
from anabranch.v1.trajectory_pb2 import IF_EXISTS_RETURN_EXISTING, Step
from anabranch.v1.trajectory_service_pb2 import (
    STEP_ORDER_NUMBER,
    AppendBatchRequest,
    BranchTrajectoryRequest,
    CreateTrajectoryRequest,
    ListStepsRequest,
    ListTrajectoriesRequest,
)

#: Rows that are read at once. A row can have a megabyte.
_ROWS = 16
_PAGE_SIZE = 1000
_UPLOAD_SECONDS = 300.0
#: Most bytes of steps in a message. Leaves room for its other fields.
_BATCH_BYTES = 960 * 1024
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
    durable and that are to be imported. Raises FleImportError if the runs have programs of another source; nothing is
    written then.
    """
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
            raise FleImportError(
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
            raise FleImportError(
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
        (row,) = self._source.rows([first.id])
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
        batch: list[Step] = []
        for step in self._steps_of(chain):
            if sum(each.ByteSize() for each in (*batch, step)) > _BATCH_BYTES:
                yield self._append(chain, batch)
                batch = []
            batch.append(step)
        yield self._append(chain, batch)

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
        limits = Limits()
        limits.values = {**limits.values, "stepBytes": _BATCH_BYTES}
        for start in range(0, len(chain.ids), _ROWS):
            rows = self._source.rows(chain.ids[start : start + _ROWS])
            for number, row in enumerate(rows, chain.first_step + start):
                step = step_of(row)
                step.step_number = number
                try:
                    _, uploads = encode(step, limits)
                except TooLargeError as error:
                    raise FleImportError(f"Program {text_of(row['id'])} is too large for a step: {error}.") from error
                for data in uploads:
                    self._upload(data, limits["chunkBytes"])
                yield step

    def _upload(self, data: bytes, size: int) -> None:
        def put() -> None:
            chunks = (PutStateRequest(chunk=data[offset : offset + size]) for offset in range(0, len(data), size))
            with raising_reasons():
                self._connection.stubs.states.PutState(chunks, timeout=_UPLOAD_SECONDS)

        retried(self._connection, put)

    def _append(self, chain: Chain, steps: list[Step]) -> int:
        """Appends steps and returns their number. Steps that are stored already are not stored again."""
        request = AppendBatchRequest()
        entry = request.entries.add(trajectory_id=chain.trajectory_id, steps=steps)
        if chain.epoch:
            entry.writer_epoch = chain.epoch

        def once() -> None:
            with raising_reasons():
                (result,) = self._connection.stubs.trajectories.AppendBatch(request, timeout=UNARY_SECONDS).results
            if result.HasField("error"):
                failure = failure_of_part(result.error)
                raise error_from_failure(failure, failure.message)

        retried(self._connection, once)
        return len(steps)


def _time_text(time: Timestamp | None) -> str:
    return "an unknown time" if time is None else time.ToJsonString()


def _named(value: str | None) -> str:
    return "none" if value is None else value


def _labels_of(**labels: str | None) -> dict[str, str]:
    return {name: bounded(text) for name, text in labels.items() if text is not None}
