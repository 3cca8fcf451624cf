"""Reads trajectories, steps and states. The only module with read calls of these, so that a better call changes it
alone."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from anabranch._errors import AnabranchError, Unreachable, raising_reasons
from anabranch._scope import scope, sleep

if TYPE_CHECKING:
    from anabranch._connection import Connection, Stubs
    from anabranch.v1.rollout_pb2 import Rollout
    from anabranch.v1.state_pb2 import Blob
    from anabranch.v1.status_pb2 import Status as StatusEnum
    from anabranch.v1.trajectory_pb2 import Step, Trajectory
    from anabranch.v1.trajectory_service_pb2 import ReadTrajectoriesRequest

_logger = logging.getLogger("anabranch")

Status = Literal["running", "completed", "failed", "cancelled"]
Message = TypeVar("Message")
Message_co = TypeVar("Message_co", covariant=True)

_PAGE_SIZE = 200
_DIGESTS = 1000
#: States up to this size come with the steps that name them.
INLINE_BYTES = 32 * 1024
_WINDOW_BYTES = 16 * 1024 * 1024
_BATCH = 50
_UNARY_SECONDS = 60.0
#: Attempts to reach a server that has never answered this process.
_ATTEMPTS = 5
#: How long calls and reads wait for a server that has answered before. An outage must not end a training run.
CALL_SECONDS = 3600.0
_RETRIED = frozenset({"SERVER_DRAINING", "DATABASE_UNAVAILABLE", "SLOW_READER", "TOO_MANY_CONNECTIONS"})


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which trajectories to read. A trajectory must match all filters that are set."""

    ids: tuple[str, ...] | None = None
    task: str = ""
    run: str = ""
    experiment: str = ""
    name: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    statuses: tuple[Status, ...] = ()
    min_reward: float | None = None
    max_reward: float | None = None
    #: Part of the selection and count of parts. A trajectory belongs to one part for ever, by its id.
    shard: tuple[int, int] = (0, 1)

    def has_id(self, trajectory_id: str) -> bool:
        """Returns whether a trajectory belongs to the part."""
        index, count = self.shard
        return uuid.UUID(trajectory_id).int % count == index


class Stream(Protocol[Message_co]):
    """A call whose answer is a stream."""

    def __iter__(self) -> Iterator[Message_co]: ...

    def cancel(self) -> object: ...


class Future(Protocol[Message_co]):
    """A call whose answer is one message."""

    def result(self) -> Message_co: ...

    def cancel(self) -> object: ...


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
        from anabranch._decode import digests_of

        if not self._data:
            return {}
        digests = (*digests_of(step), *(state.digest for state in step.states))
        return {digest: self._data[digest] for digest in digests if digest in self._data}


def read_trajectories(connection: Connection, selection: Selection) -> Iterator[tuple[Trajectory, list[OwnedStep]]]:
    """Yields the trajectories that match, newest first, or in the order of the ids, each with all of its steps.
    Trajectories that are deleted meanwhile and ids that do not exist are left out."""
    ids = selection.ids
    if ids is None and not selection.name and selection.shard == (0, 1):
        yield from _stream(connection, _request_of(selection))
        return
    if ids is None:
        ids = [trajectory.id for trajectory in _listed(connection, selection)]
    own = [trajectory_id for trajectory_id in ids if selection.has_id(trajectory_id)]
    for start in range(0, len(own), _BATCH):
        request = _request_of(selection)
        request.trajectory_ids.extend(own[start : start + _BATCH])
        found = {trajectory.id: (trajectory, steps) for trajectory, steps in _stream(connection, request)}
        yield from (found[trajectory_id] for trajectory_id in request.trajectory_ids if trajectory_id in found)


def read_steps(
    connection: Connection,
    trajectory_id: str,
    start: int = 0,
    stop: int | None = None,
    *,
    follow: bool = False,
    inline_bytes: int = INLINE_BYTES,
) -> Iterator[list[OwnedStep]]:
    """Yields the steps [start, stop), as many together as came together. With `follow`, waits for further steps until the trajectory is sealed. A lost
    connection is opened again where it ended."""
    from anabranch.v1.trajectory_service_pb2 import ReadStepsRequest

    outage = Outage(connection, endless=follow)
    window = _Window()
    while True:
        request = ReadStepsRequest(
            trajectory_id=trajectory_id,
            start_step_number=start,
            end_step_number=stop,
            follow=follow,
            inline_bytes=inline_bytes,
        )
        try:
            for response in received(connection.stubs.trajectories.ReadSteps(request)):
                outage.over()
                window.add(response.blobs)
                if response.steps:
                    start = response.steps[-1].step_number + 1
                    yield window.own(response.trajectory_id, response.steps)
            return
        except AnabranchError as error:
            outage.wait(error)


def fetch_states(connection: Connection, digests: Iterable[str]) -> dict[str, bytes]:
    """Returns the bytes of states by their digests. Raises StateNotFound if one is not stored."""
    wanted = list(dict.fromkeys(digests))
    found: dict[str, bytes] = {}
    for start in range(0, len(wanted), _DIGESTS):
        batch = wanted[start : start + _DIGESTS]
        found |= _retried(connection, lambda batch=batch: _read_states(connection, batch))
    return found


def fetch_state_of(connection: Connection, trajectory_id: str, step_number: int, name: str) -> bytes:
    """Returns the bytes of a state of a step, by its name."""
    from anabranch.v1.state_service_pb2 import GetStateRequest, StateReference

    reference = StateReference(trajectory_id=trajectory_id, step_number=step_number, name=name)

    def fetch() -> bytes:
        parts = received(connection.stubs.states.GetState(GetStateRequest(reference=reference)))
        return b"".join(part.chunk for part in parts)

    return _retried(connection, fetch)


def call(connection: Connection, send: Callable[[Stubs], Message]) -> Message:
    """Makes a unary call that may be repeated. Waits for a server that is away (see `Outage`)."""

    def once() -> Message:
        with raising_reasons():
            return send(connection.stubs)

    return _retried(connection, once)


def received(stream: Stream[Message]) -> Iterator[Message]:
    """Yields the messages of a stream. The scope of the thread can end it."""
    with raising_reasons(), scope().waiting(stream.cancel):
        try:
            yield from stream
        finally:
            stream.cancel()


def result_of(future: Future[Message]) -> Message:
    """Waits for the answer of a unary call. The scope of the thread can end it."""
    with scope().waiting(future.cancel):
        return future.result()


def read_stage(
    connection: Connection, stage_id: str, *, complete: bool, follow: bool
) -> Iterator[list[tuple[Rollout, list[OwnedStep]]]]:
    """Yields the rollouts of a stage group by group, with all steps of their last attempts. After a lost connection,
    groups that were yielded are not yielded again."""
    from anabranch.v1.rollout_service_pb2 import ReadRolloutsRequest

    request = ReadRolloutsRequest(
        stage_id=stage_id, complete_groups_only=complete, follow=follow, inline_bytes=INLINE_BYTES
    )
    window = _Window()
    seen: set[str] = set()
    outage = Outage(connection, endless=follow)
    while True:
        group: list[tuple[Rollout, list[OwnedStep]]] = []
        try:
            for response in received(connection.stubs.rollouts.ReadRollouts(request)):
                outage.over()
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
                        yield group
                    group = []
            return
        except AnabranchError as error:
            outage.wait(error)


def _read_states(connection: Connection, digests: list[str]) -> dict[str, bytes]:
    from anabranch.errors import StateNotFound
    from anabranch.v1.state_service_pb2 import ReadStatesByDigestRequest

    pieces: dict[str, list[bytes]] = {}
    request = ReadStatesByDigestRequest(digests=digests)
    for response in received(connection.stubs.states.ReadStatesByDigest(request)):
        for unknown in response.unknown_digests:
            metadata = {"digest": unknown}
            raise StateNotFound(f"no state {unknown} is stored", reason="STATE_NOT_FOUND", metadata=metadata)
        for piece in response.pieces:
            pieces.setdefault(piece.digest, []).append(piece.data)
    return {digest: b"".join(parts) for digest, parts in pieces.items()}


def _stream(connection: Connection, request: ReadTrajectoriesRequest) -> Iterator[tuple[Trajectory, list[OwnedStep]]]:
    """Yields whole trajectories. Continues after the last message if the connection is lost."""
    trajectory: Trajectory | None = None
    steps: list[OwnedStep] = []
    window = _Window()
    outage = Outage(connection)
    while True:
        try:
            for response in received(connection.stubs.trajectories.ReadTrajectories(request)):
                outage.over()
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
            return
        except AnabranchError as error:
            outage.wait(error)


def _request_of(selection: Selection) -> ReadTrajectoriesRequest:
    from anabranch.v1.trajectory_service_pb2 import ReadTrajectoriesRequest

    return ReadTrajectoriesRequest(
        task_id=selection.task,
        run_id=selection.run,
        experiment_id=selection.experiment,
        labels=selection.labels,
        statuses=_statuses(selection),
        min_reward_sum=selection.min_reward,
        max_reward_sum=selection.max_reward,
        descending=True,
        inline_bytes=INLINE_BYTES,
    )


def _statuses(selection: Selection) -> list[StatusEnum.ValueType]:
    from anabranch.v1.status_pb2 import Status as StatusEnum

    return [StatusEnum.Value(f"STATUS_{status.upper()}") for status in selection.statuses]


def _listed(connection: Connection, selection: Selection) -> Iterator[Trajectory]:
    from anabranch.v1.trajectory_service_pb2 import ListTrajectoriesRequest

    request = ListTrajectoriesRequest(
        page_size=_PAGE_SIZE,
        task_id=selection.task,
        run_id=selection.run,
        experiment_id=selection.experiment,
        name=selection.name,
        labels=selection.labels,
        statuses=_statuses(selection),
    )
    while True:
        page = call(connection, lambda stubs: stubs.trajectories.ListTrajectories(request, timeout=_UNARY_SECONDS))
        yield from page.trajectories
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def _retried(connection: Connection, once: Callable[[], Message]) -> Message:
    outage = Outage(connection)
    while True:
        try:
            answer = once()
            outage.over()
            return answer
        except AnabranchError as error:
            outage.wait(error)


class Outage:
    """Waits between the attempts of a call or a stream while the server is away.

    A server that has answered this process before is waited for, for at most ANABRANCH_CALL_SECONDS, so that its outage
    does not end the program. One that never did is tried five times: the address may be wrong.
    """

    def __init__(self, connection: Connection, *, endless: bool = False) -> None:
        self._connection = connection
        self._endless = endless
        self._failures = 0
        self._since = 0.0

    def over(self) -> None:
        """Records that the server has answered."""
        self._failures = 0
        self._connection.reach.found()

    def wait(self, error: AnabranchError) -> None:
        """Waits before the next attempt. Raises the error if no further attempt follows."""
        away = isinstance(error, Unreachable)
        reach, now = self._connection.reach, time.monotonic()
        if not away:
            reach.found()
        if not away and error.reason not in _RETRIED:
            raise error
        pause = error.retry_after or min(0.1 * 2**self._failures, 5.0)
        if self._failures == 0:
            self._since = now
        self._failures += 1
        limit = float(os.environ.get("ANABRANCH_CALL_SECONDS") or CALL_SECONDS)
        useless = now + pause - self._since > limit if reach.known else self._failures >= _ATTEMPTS
        if useless and not self._endless:
            raise self._given_up(error, now - self._since) if away else error
        if away and reach.known:
            reach.lost(str(error), "calls wait for it")
        sleep(pause)

    def _given_up(self, error: AnabranchError, seconds: float) -> Unreachable:
        address = self._connection.address
        if self._connection.reach.known:
            text = f"the server at {address} has not answered for {seconds:.0f} s (ANABRANCH_CALL_SECONDS): {error}"
        else:
            text = (
                f"no server answers at {address}: {error}. Start one with `anabranch serve`, or name another address "
                "with ANABRANCH_ADDRESS or connect(address)"
            )
        raised = Unreachable(text)
        raised.__cause__ = error.__cause__
        return raised
