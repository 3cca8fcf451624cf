"""What clients ask the server across steps and trajectories: texts, series of values, branches compared in pairs."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from anabranch._wire.decode import parse_json
from anabranch._wire.failures import error_from_failure, failure_of_part
from anabranch._wire.outage import call, received, resumed, retried
from anabranch._wire.tensors import optional
from anabranch.v1.run_service_pb2 import ReadMetricsRequest
from anabranch.v1.server_service_pb2 import RunSubject, TreeSubject, WatchRequest, WatchSubject
from anabranch.v1.trajectory_service_pb2 import (
    BranchMeasure,
    CompareBranchesRequest,
    ReadStepSeriesRequest,
    SearchStepsRequest,
    StepScope,
    StepValue,
)

if TYPE_CHECKING:
    from anabranch._reading.read import HasId
    from anabranch._wire.connection import Connection
    from anabranch._wire.outage import Message, Stream
    from anabranch.v1.run_service_pb2 import ListRunsRequest
    from anabranch.v1.server_service_pb2 import RunChanges, RunPageChanges, WatchResponse
    from anabranch.v1.state_service_pb2 import StorageUsage
    from anabranch.v1.trajectory_service_pb2 import BranchPair, TreeNode

Measure = Literal["reward_sum", "reward_mean", "steps"]
#: A state by its digest, or by its trajectory, the number of its step and its name.
StateAt: TypeAlias = "str | tuple[HasId | str, int, str]"

_MOST_HITS = 1000
_REWARDS = ("reward_sum", "reward", "reward_mean")
_OTHER_VALUES = ("metric", "action", "observation", "info", "state")


@dataclass(frozen=True)
class Match:
    """A field of a step that has the text of a search."""

    trajectory_id: str
    step: int
    #: Path of the field, for example `observations[0].content.text`.
    field: str
    #: The text that was found, and what is around it.
    match: str
    before: str
    after: str


@dataclass(frozen=True)
class Series:
    """Values at steps: arrays of int64 and float64 of the same length, in ascending order of the steps."""

    steps: Any
    values: Any

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class BranchComparison:
    """Branches with two values of a label, compared in pairs that have the same parent and branch point."""

    #: The first 1,000 pairs.
    pairs: list[BranchPair]
    pair_count: int
    #: Mean of the differences (the other value minus the value), with the bounds of its interval. None without pairs.
    mean_difference: float | None
    interval: tuple[float, float] | None
    #: Numbers of pairs with a positive and with a negative difference.
    higher: int
    lower: int
    #: p-value of the two-sided sign test.
    p_value: float


@dataclass(frozen=True)
class StateDifference:
    """What differs between two states."""

    identical: bool
    #: JSON Patch (RFC 6902) that makes the other state of the first one. None unless both are JSON.
    patch: list[dict[str, Any]] | None


def search(connection: Connection, text: str, place: Mapping[str, str], limit: int | None) -> Iterator[Match]:
    """Yields the matches, from the newest trajectory to the oldest. Continues after a lost connection."""
    left = limit
    # A resume token is valid only with the same fields.
    request = SearchStepsRequest(text=text, max_hits=_MOST_HITS, **place)
    while True:
        for message in resumed(connection, lambda: connection.stubs.trajectories.SearchSteps(request)):
            request.resume_token = message.resume_token
            for hit in message.hits[:left]:
                left = None if left is None else left - 1
                yield Match(hit.trajectory_id, hit.step_number, hit.field, hit.match, hit.before, hit.after)
            if left == 0:
                return
        if not request.resume_token:
            return


def series_request(
    value: str, *, own: bool = False, start: int = 0, stop: int | None = None, points: int = 1000
) -> ReadStepSeriesRequest:
    """Returns a request without its trajectories. `value` is named as in `Trajectory.series`."""
    kind, _, rest = value.partition(":")
    name = f"STEP_VALUE_{kind.upper()}"
    if (kind not in _REWARDS or rest) and kind not in _OTHER_VALUES:
        raise ValueError(
            f"value is {value!r}: expected reward_sum, reward, reward_mean, metric:KEY, action:POINTER, "
            "observation:POINTER, info:POINTER or state:NAME:POINTER"
        )
    request = ReadStepSeriesRequest(
        value=StepValue.Value(name), start_step_number=start, end_step_number=stop, max_points=points
    )
    if own:
        request.steps = StepScope.Value("STEP_SCOPE_OWN")
    if kind == "metric":
        request.metric_key = rest
    elif kind == "state":
        request.state_name, _, request.pointer = rest.partition(":")
    else:
        request.pointer = rest
    return request


def read_series(connection: Connection, request: ReadStepSeriesRequest) -> dict[str, Series]:
    """Returns the series of each trajectory, by its id, in the order of creation."""
    found: dict[str, Series] = {}
    for message in _repeated(connection, lambda: connection.stubs.trajectories.ReadStepSeries(request)):
        for each in message.series:
            found[each.trajectory_id] = _series(each.step_numbers, each.values)
    return found


def read_metrics(connection: Connection, run_id: str, keys: Iterable[str]) -> dict[str, Series]:
    """Returns the metric series of a run, by their names. Those of its stages are joined."""
    points: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    request = ReadMetricsRequest(run_ids=[run_id], keys=keys)
    for message in _repeated(connection, lambda: connection.stubs.runs.ReadMetrics(request)):
        for each in message.series:
            points[each.key] += zip(each.metric_steps, each.values, strict=True)
    ordered = {key: sorted(found, key=lambda point: point[0]) for key, found in sorted(points.items())}
    return {key: _series([step for step, _ in found], [value for _, value in found]) for key, found in ordered.items()}


def compare_branches(
    connection: Connection,
    tree_id: str,
    label: str,
    value: str,
    other: str,
    measure: Measure,
    confidence: float,
    seed: int,
) -> BranchComparison:
    request = CompareBranchesRequest(
        tree_id=tree_id, label=label, value=value, other_value=other, confidence=confidence, seed=seed
    )
    request.measure = BranchMeasure.Value(f"BRANCH_MEASURE_{measure.upper()}")
    found = call(connection, lambda stubs: stubs.trajectories.CompareBranches, request)
    has_pairs = found.HasField("mean_difference")
    return BranchComparison(
        list(found.pairs),
        found.pair_count,
        found.mean_difference if has_pairs else None,
        (found.interval_low, found.interval_high) if has_pairs else None,
        found.higher,
        found.lower,
        found.sign_test_p,
    )


def watch_run(connection: Connection, run_id: str) -> Iterator[RunChanges]:
    """Yields a run with its open stages, then what changes of it, until the run has ended."""
    subject = WatchSubject(run=RunSubject(run_id=run_id, until_terminal=True))
    return (message.run for message in _watched(connection, subject))


def watch_tree(connection: Connection, tree_id: str) -> Iterator[list[TreeNode]]:
    """Yields the trajectories of a tree, then those that change, as many together as came together."""
    for message in _watched(connection, WatchSubject(tree=TreeSubject(tree_id=tree_id))):
        if message.tree.nodes:
            yield list(message.tree.nodes)


def watch_runs(connection: Connection, request: ListRunsRequest) -> Iterator[RunPageChanges]:
    """Yields a page of runs, then what changes in it."""
    return (message.runs for message in _watched(connection, WatchSubject(runs=request)))


def _watched(connection: Connection, subject: WatchSubject) -> Iterator[WatchResponse]:
    """Yields what changes of a subject. Begins again with a snapshot after a lost connection."""
    request = WatchRequest(subjects={"subject": subject})
    for message in resumed(connection, lambda: connection.stubs.server.Watch(request), endless=True):
        if message.HasField("error"):
            raise error_from_failure(failure_of_part(message.error), message.error.message)
        # A sign of life has no name.
        if message.name:
            yield message


def diff_states(connection: Connection, state: StateAt, other: StateAt) -> StateDifference:
    from anabranch._reading.json_patch import json_patch

    one, two = (_state_bytes(connection, each) for each in (state, other))
    try:
        patch = json_patch(parse_json(one.decode()), parse_json(two.decode()))
    except (RecursionError, ValueError):
        patch = None
    return StateDifference(one == two, patch)


def _state_bytes(connection: Connection, state: StateAt) -> bytes:
    from anabranch._reading.read import fetch_state_of, fetch_states

    if isinstance(state, str):
        return fetch_states(connection, [state])[state]
    trajectory, step_number, name = state
    return fetch_state_of(connection, trajectory if isinstance(trajectory, str) else trajectory.id, step_number, name)


def storage_usage(connection: Connection, trajectory_id: str, run_id: str) -> StorageUsage:
    from anabranch.v1.state_service_pb2 import GetStorageUsageRequest

    request = GetStorageUsageRequest(trajectory_id=trajectory_id, run_id=run_id)
    return _repeated(connection, lambda: connection.stubs.states.GetStorageUsage(request))[-1].usage


def export_archive(connection: Connection, path: str | os.PathLike[str], trajectory_id: str, run_id: str) -> int:
    """Writes an archive into a new file. Returns its size."""
    from anabranch.v1.admin_service_pb2 import ExportArchiveRequest
    from anabranch.v1.admin_service_pb2_grpc import AdminServiceStub

    request = ExportArchiveRequest(trajectory_id=trajectory_id, run_id=run_id)
    target = Path(path)
    if target.exists():
        raise FileExistsError(f"{target} exists: an archive replaces no file")
    part = target.with_name(f"{target.name}.part")

    def write() -> int:
        with part.open("wb") as file:
            for message in received(AdminServiceStub(connection.stubs.channel).ExportArchive(request)):
                file.write(message.chunk)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    try:
        size = retried(connection, write)
        os.link(part, target)
        return size
    finally:
        part.unlink(missing_ok=True)


def _series(steps: Iterable[int], values: Iterable[float]) -> Series:
    numpy = optional("numpy", "to read series")
    return Series(numpy.array(list(steps), "int64"), numpy.array(list(values), "float64"))


def _repeated(connection: Connection, begin: Callable[[], Stream[Message]]) -> list[Message]:
    """Returns all messages of a stream. Begins again after a lost connection."""
    return retried(connection, lambda: list(received(begin())))
