"""Reads trajectories, steps and states. The only module with read calls of these, so that a better call changes it
alone."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from anabranch._wire.decode import digests_of
from anabranch._wire.outage import call, pages, received, resumed, retried
from anabranch.errors import StateNotFound
from anabranch.v1.rollout_service_pb2 import ListRolloutsRequest, ReadRolloutsRequest
from anabranch.v1.run_pb2 import StageKind
from anabranch.v1.run_service_pb2 import GetStageRequest
from anabranch.v1.status_pb2 import Status as StatusEnum
from anabranch.v1.trajectory_pb2 import VIEW_FULL
from anabranch.v1.trajectory_service_pb2 import TRAJECTORY_ORDER_REQUESTED, ReadStepsRequest, ReadTrajectoriesRequest

if TYPE_CHECKING:
    from anabranch._wire.connection import Connection
    from anabranch._wire.outage import Stream
    from anabranch._wire.recorded import Recorded
    from anabranch.v1.rollout_pb2 import Rollout
    from anabranch.v1.rollout_service_pb2 import ReadRolloutsResponse
    from anabranch.v1.state_pb2 import Blob
    from anabranch.v1.trajectory_pb2 import Step, Trajectory, View

_logger = logging.getLogger("anabranch")

#: Statuses of trajectories, and of everything else.
Status = Literal["running", "completed", "failed", "cancelled"]
WorkStatus = Literal["pending", "initializing", "running", "paused", "completed", "failed", "cancelled"]
_DIGESTS = 1000
#: Ids in one request of ReadTrajectories.
_IDS = 1000
#: States up to this size come with the steps that name them.
INLINE_BYTES = 32 * 1024
_WINDOW_BYTES = 16 * 1024 * 1024


class HasId(Protocol):
    """A resource of the server."""

    @property
    def id(self) -> str: ...


def id_of(resource: HasId | str | None) -> str:
    """Returns the id of a resource, or the id itself; empty for None."""
    return "" if resource is None else resource if isinstance(resource, str) else resource.id


@dataclasses.dataclass(frozen=True)
class OfRollouts:
    """Selects the trajectories of rollouts, of their last attempts."""

    run: str
    task: str = ""
    success: bool | None = None
    #: Kind and number of a stage of the run. Default: all stages.
    stage: tuple[str, int] | None = None


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which trajectories to read. A trajectory must match all filters that are set."""

    ids: tuple[str, ...] | None = None
    #: Replaces all filters below but `shard`.
    rollouts: OfRollouts | None = None
    task: str = ""
    run: str = ""
    experiment: str = ""
    name: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    step_labels: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    statuses: tuple[Status, ...] = ()
    min_reward: float | None = None
    max_reward: float | None = None
    #: Part of the selection and count of parts. A trajectory belongs to one part for ever, by its id.
    shard: tuple[int, int] = (0, 1)

    def may_include(self, recorded: Recorded) -> bool:
        """Returns whether a trajectory can match when all that was recorded of it is stored. What unsent records can
        change (status, rewards, steps), and what the recorder does not know, excludes none."""
        if self.ids is not None:
            return recorded.id in self.ids
        if self.rollouts is not None:
            return _may_be(self.rollouts.run, recorded.run) and _may_be(self.rollouts.task, recorded.task)
        return (
            _may_be(self.task, recorded.task)
            and _may_be(self.run, recorded.run)
            and _may_be(self.name, recorded.name)
            and (recorded.labels is None or self.labels.items() <= recorded.labels.items())
        )


def _may_be(wanted: str, known: str | None) -> bool:
    """Returns whether a value can match. An empty filter matches all, and None is not known."""
    return not wanted or known is None or known == wanted


@dataclasses.dataclass(frozen=True)
class OwnedStep:
    """A step with the id of the trajectory that owns it. Branches share the steps of their parents."""

    owner_id: str
    message: Step
    #: States of the step that came with it, by digest.
    blobs: Mapping[str, bytes] = dataclasses.field(default_factory=dict[str, bytes])


class _Window:
    """The latest states of a stream, which the server does not send again. What is not here is fetched by its digest."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}
        self._size = 0

    def add(self, blobs: Iterable[Blob]) -> None:
        for blob in blobs:
            self._size += len(blob.data) - len(self._data.pop(blob.digest, b""))
            self._data[blob.digest] = blob.data
        while self._size > _WINDOW_BYTES:
            self._size -= len(self._data.pop(next(iter(self._data))))

    def own(self, owner_id: str, steps: Iterable[Step]) -> list[OwnedStep]:
        return [OwnedStep(owner_id, step, self._of(step)) for step in steps]

    def _of(self, step: Step) -> Mapping[str, bytes]:
        return blobs_of(step, self._data) if self._data else {}


def blobs_of(step: Step, data: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns those of the states that a step names."""
    digests = (*digests_of(step), *(state.digest for state in step.states))
    return {digest: data[digest] for digest in digests if digest in data}


def read_trajectories(
    connection: Connection, selection: Selection, *, inline_bytes: int = INLINE_BYTES
) -> Iterator[tuple[Trajectory, list[OwnedStep]]]:
    """Yields the trajectories that match, newest first, or in the order of the ids, each with all of its steps.

    Uses one stream, or one for each 1,000 ids. Trajectories that are deleted meanwhile and ids that do not exist are left
    out.
    """
    request = _request_of(selection, inline_bytes)
    if selection.ids is not None:
        pages: Iterable[Sequence[str]]
        pages = (selection.ids[start : start + _IDS] for start in range(0, len(selection.ids), _IDS))
    elif selection.rollouts is not None:
        pages = _pages_of(connection, selection.rollouts)
    else:
        yield from _stream(connection, request)
        return
    for page in pages:
        own = _request_of(selection, inline_bytes)
        own.trajectory_ids.extend(page)
        if len(own.trajectory_ids) > 1:
            own.order, own.descending = TRAJECTORY_ORDER_REQUESTED, False
        yield from _stream(connection, own)


def _pages_of(connection: Connection, rollouts: OfRollouts) -> Iterator[list[str]]:
    """Yields the ids of the trajectories of rollouts, page by page. Raises StageNotFound."""
    request = ListRolloutsRequest(page_size=_IDS, task_id=rollouts.task, success=rollouts.success)
    if rollouts.stage is None:
        request.run_id = rollouts.run
    else:
        kind, number = rollouts.stage
        of = GetStageRequest(run_id=rollouts.run, kind=StageKind.Value(f"STAGE_KIND_{kind.upper()}"), number=number)
        request.stage_id = call(connection, lambda stubs: stubs.runs.GetStage, of).stage.id
    for page in pages(connection, lambda stubs: stubs.rollouts.ListRollouts, request):
        ids = [rollout.trajectory_id for rollout in page.rollouts if rollout.trajectory_id]
        if ids:
            yield ids


def read_steps(
    connection: Connection,
    trajectory_id: str,
    start: int = 0,
    stop: int | None = None,
    *,
    follow: bool = False,
    inline_bytes: int = INLINE_BYTES,
    view: View.ValueType = VIEW_FULL,
) -> Iterator[list[OwnedStep]]:
    """Yields the steps [start, stop), as many together as came together. With `follow`, waits for further steps until the trajectory is sealed. A lost
    connection is opened again where it ended."""
    window = _Window()
    request = ReadStepsRequest(
        trajectory_id=trajectory_id,
        start_step_number=start,
        end_step_number=stop,
        follow=follow,
        inline_bytes=inline_bytes,
        view=view,
    )
    for response in resumed(connection, lambda: connection.stubs.trajectories.ReadSteps(request), endless=follow):
        window.add(response.blobs)
        if response.steps:
            request.start_step_number = response.steps[-1].step_number + 1
            yield window.own(response.trajectory_id, response.steps)


def fetch_states(connection: Connection, digests: Iterable[str]) -> dict[str, bytes]:
    """Returns the bytes of states by their digests. Raises StateNotFound if one is not stored."""
    wanted = list(dict.fromkeys(digests))
    found = fetch_stored(connection, wanted)
    for digest in wanted:
        if digest not in found:
            raise not_stored(digest)
    return found


def fetch_stored(connection: Connection, digests: Iterable[str]) -> dict[str, bytes]:
    """Returns the bytes of those states that are stored, by their digests."""
    wanted = list(dict.fromkeys(digests))
    found: dict[str, bytes] = {}
    for start in range(0, len(wanted), _DIGESTS):
        batch = wanted[start : start + _DIGESTS]
        found |= retried(connection, lambda batch=batch: _read_states(connection, batch))
    return found


def not_stored(digest: str) -> StateNotFound:
    return StateNotFound(f"no state {digest} is stored", reason="STATE_NOT_FOUND", metadata={"digest": digest})


def fetch_state_of(connection: Connection, trajectory_id: str, step_number: int, name: str) -> bytes:
    """Returns the bytes of a state of a step, by its name."""
    from anabranch.v1.state_service_pb2 import GetStateRequest, StateReference

    reference = StateReference(trajectory_id=trajectory_id, step_number=step_number, name=name)

    def fetch() -> bytes:
        parts = received(connection.stubs.states.GetState(GetStateRequest(reference=reference)))
        return b"".join(part.chunk for part in parts)

    return retried(connection, fetch)


def read_stage(
    connection: Connection, stage_id: str, *, complete: bool, follow: bool
) -> Iterator[list[tuple[Rollout, list[OwnedStep]]]]:
    """Yields the rollouts of a stage group by group, with all steps of their last attempts. After a lost connection,
    groups that were yielded are not yielded again."""
    request = ReadRolloutsRequest(
        stage_id=stage_id, complete_groups_only=complete, follow=follow, inline_bytes=INLINE_BYTES
    )
    window = _Window()
    seen: set[str] = set()
    group: list[tuple[Rollout, list[OwnedStep]]] = []

    def begin() -> Stream[ReadRolloutsResponse]:
        group.clear()
        return connection.stubs.rollouts.ReadRollouts(request)

    for response in resumed(connection, begin, endless=follow):
        window.add(response.blobs)
        if response.HasField("rollout"):
            group.append((response.rollout, []))
        if response.steps:
            rollout, steps = group[-1]
            steps += window.own(rollout.trajectory_id, response.steps)
        if response.group_done:
            group_id = group[0][0].group_id
            if group_id not in seen:
                seen.add(group_id)
                yield list(group)
            group.clear()


def _read_states(connection: Connection, digests: list[str]) -> dict[str, bytes]:
    from anabranch.v1.state_service_pb2 import ReadStatesRequest

    pieces: dict[str, list[bytes]] = {}
    request = ReadStatesRequest(digests=digests)
    for response in received(connection.stubs.states.ReadStates(request)):
        for piece in response.pieces:
            pieces.setdefault(piece.digest, []).append(piece.data)
    return {digest: b"".join(parts) for digest, parts in pieces.items()}


def _stream(connection: Connection, request: ReadTrajectoriesRequest) -> Iterator[tuple[Trajectory, list[OwnedStep]]]:
    """Yields whole trajectories. Continues after the last message if the connection is lost."""
    trajectory: Trajectory | None = None
    steps: list[OwnedStep] = []
    window = _Window()
    for response in resumed(connection, lambda: connection.stubs.trajectories.ReadTrajectories(request)):
        request.resume_token = response.resume_token
        window.add(response.blobs)
        if response.HasField("trajectory"):
            trajectory, steps = response.trajectory, []
        steps += window.own(response.owner_id, response.steps)
        if not response.trajectory_done or trajectory is None or response.deleted:
            continue
        if response.HasField("error"):
            _logger.warning("trajectory %s is left out: %s", trajectory.id, response.error.message)
        else:
            yield trajectory, steps


def _request_of(selection: Selection, inline_bytes: int) -> ReadTrajectoriesRequest:
    request = ReadTrajectoriesRequest(
        task_id=selection.task,
        run_id=selection.run,
        experiment_id=selection.experiment,
        name=selection.name,
        labels=selection.labels,
        step_labels=selection.step_labels,
        statuses=statuses_of(selection.statuses, Status),
        min_reward_sum=selection.min_reward,
        max_reward_sum=selection.max_reward,
        descending=True,
        inline_bytes=inline_bytes,
    )
    index, count = selection.shard
    if count > 1:
        request.shard.index, request.shard.count = index, count
    return request


def require_word(argument: str, value: object, words: Collection[str]) -> None:
    """Raises ValueError, which names the valid words, if the value of an argument is none of them."""
    if value not in words:
        raise ValueError(f"{argument} is {value!r}: expected one of {', '.join(words)}")


def statuses_of(status: WorkStatus | Iterable[WorkStatus], words: object = WorkStatus) -> list[StatusEnum.ValueType]:
    """Returns one or several statuses as the protos have them. Raises ValueError, which names the valid words."""
    statuses = (status,) if isinstance(status, str) else tuple(status)
    for each in statuses:
        require_word("status", each, get_args(words))
    return [StatusEnum.Value(f"STATUS_{each.upper()}") for each in statuses]


def status_name(status: StatusEnum.ValueType) -> str:
    """Returns a status of the protos as clients name it."""
    return StatusEnum.Name(status).removeprefix("STATUS_").lower()
