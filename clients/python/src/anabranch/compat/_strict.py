"""Writes that are durable when they return."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from anabranch._recording.steps import TooLargeError, encode
from anabranch._wire.connection import UNARY_SECONDS, Connection
from anabranch._wire.errors import StepTooLarge
from anabranch._wire.failures import error_from_failure, failure_of_part, raising_reasons
from anabranch._wire.limits import Limits, limits_of
from anabranch._wire.outage import call, retried
from anabranch._wire.values import ValueEncoder
from anabranch.v1.state_service_pb2 import PutStateRequest
from anabranch.v1.trajectory_pb2 import Step
from anabranch.v1.trajectory_service_pb2 import (
    AppendBatchRequest,
    AppendEntry,
    AppendResult,
    AppendStepRequest,
    BranchTrajectoryRequest,
    TrajectoryCreation,
)

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

_UPLOAD_SECONDS = 300.0
#: Most bytes of the steps in a message. Leaves room for its other fields.
_STEP_BYTES = 960 * 1024
#: Bytes before a step in a message.
_FRAME_BYTES = 4
#: Most steps in a message.
_BATCH = 1000
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def put_state(connection: Connection, data: bytes) -> None:
    """Stores a state of any size up to the limit of the server."""
    size = limits_of(connection.address)["chunkBytes"]

    def put() -> None:
        chunks = (PutStateRequest(chunk=data[offset : offset + size]) for offset in range(0, len(data), size))
        with raising_reasons():
            connection.stubs.states.PutState(chunks, timeout=_UPLOAD_SECONDS)

    retried(connection, put)


def store_large_parts(connection: Connection, step: Step, most: int = _STEP_BYTES) -> None:
    """Stores the parts of a step that are too large for it, and names them in it, until it has at most so many bytes.
    Raises StepTooLarge."""
    known, limits = limits_of(connection.address), Limits()
    limits.values = {**known.values, "stepBytes": min(known["stepBytes"], most)}
    try:
        _, uploads = encode(step, limits)
    except TooLargeError as error:
        raise StepTooLarge(f"step {step.step_number} is too large: {error}", reason="STEP_TOO_LARGE") from None
    for upload in uploads:
        put_state(connection, upload)


def store_large_parts_of(connection: Connection, steps: Sequence[Step]) -> None:
    """Stores large parts of steps until all of them fit into one message. Raises StepTooLarge."""
    fits = sum(step.ByteSize() + _FRAME_BYTES for step in steps) <= _STEP_BYTES
    for step in steps:
        store_large_parts(connection, step, _STEP_BYTES if fits else _STEP_BYTES // len(steps) - _FRAME_BYTES)


def append_step(connection: Connection, trajectory_id: str, step: Step) -> Timestamp:
    """Appends a step, and returns when it was committed. No effect if the same step is stored at its number. Raises
    StepConflict if another one is, StepGap, TrajectoryNotFound, TrajectorySealed, WriterFenced and StepTooLarge;
    nothing is stored then."""
    store_large_parts(connection, step)
    request = AppendStepRequest(trajectory_id=trajectory_id, step=step)
    return call(connection, lambda stubs: stubs.trajectories.AppendStep, request).commit_time


def state_of_value(values: ValueEncoder, value: object, name: str) -> tuple[bytes, str]:
    """Returns the bytes and the media type of a state. Bytes are stored as they are. Raises TypeError for a value that
    cannot be stored, and StepTooLarge for one that is too large."""
    data, media_type = (bytes(value), "") if isinstance(value, (bytes, bytearray)) else values.state(value, name)
    values.is_state(data, name)
    return data, media_type


def integer_of(value: Any, argument: str) -> int:
    """Returns an integer of any type. Raises TypeError, which names the argument."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"`{argument}` is {value!r}: expected an integer") from None


def float_of(value: Any, argument: str) -> float:
    """Returns a number of any type. Raises TypeError, which names the argument."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"`{argument}` is {value!r}: expected a number") from None


def is_uuid(id: object) -> bool:
    """Returns whether a resource can have this id: the server refuses others."""
    return isinstance(id, str) and _UUID.fullmatch(id) is not None


def append_branch(connection: Connection, branch: BranchTrajectoryRequest, step: Step) -> Timestamp:
    """Creates a branch with its first own step, both or neither, and returns when they were committed. Repeating the
    call has no effect."""
    store_large_parts(connection, step)
    entry = AppendEntry(trajectory_id=branch.branch_id, create=TrajectoryCreation(branch=branch), steps=[step])
    return append_entry(connection, entry).commit_time


def append_all(
    connection: Connection, trajectory_id: str, steps: Iterable[Step], writer_epoch: int = 0
) -> Iterator[int]:
    """Appends steps whose large parts are stored, many with each call. Yields how many are durable. Steps that are
    stored already are not stored again."""
    for batch in messages_of(steps):
        entry = AppendEntry(trajectory_id=trajectory_id, steps=batch, writer_epoch=writer_epoch or None)
        append_entry(connection, entry)
        yield len(batch)


def messages_of(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Yields steps whose large parts are stored, as many together as a message can have."""
    batch: list[Step] = []
    size = 0
    for step in steps:
        size += step.ByteSize()
        if batch and (size > _STEP_BYTES or len(batch) == _BATCH):
            yield batch
            batch, size = [], step.ByteSize()
        batch.append(step)
    if batch:
        yield batch


def append_entry(connection: Connection, entry: AppendEntry) -> AppendResult:
    """Writes to one trajectory, all or nothing. Large parts of its steps must be stored. Raises the error of the entry."""
    request = AppendBatchRequest(entries=[entry])

    def once() -> AppendResult:
        with raising_reasons():
            (result,) = connection.stubs.trajectories.AppendBatch(request, timeout=UNARY_SECONDS).results
        if result.HasField("error"):
            failure = failure_of_part(result.error)
            raise error_from_failure(failure, failure.message)
        return result

    return retried(connection, once)
