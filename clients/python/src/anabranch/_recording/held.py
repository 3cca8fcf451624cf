"""Held steps: what was said since the last step, which the next step has, or becomes a step of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch._recording.rpc import marker_of
from anabranch._recording.segment import Entry, Kind
from anabranch._recording.steps import TooLargeError, encode
from anabranch.v1.trajectory_pb2 import Step

if TYPE_CHECKING:
    from anabranch._recording.spool import SpooledTrajectory
    from anabranch._recording.transfer import Transfer
    from anabranch._wire.limits import Limits


@dataclass(frozen=True)
class HeldStep:
    """A held step of this process."""

    transfer: Transfer
    spooled: SpooledTrajectory
    number: int
    content: bytes
    entry: Entry


def records_of(content: bytes, limits: Limits) -> list[tuple[Kind, bytes]]:
    """Returns the records of a held step that becomes a step of its own."""
    step = Step.FromString(content)
    try:
        data, uploads = encode(step, limits)
    except TooLargeError as error:
        data, uploads = marker_of(step, str(error)).SerializeToString(), []
    return [*((Kind.UPLOAD, upload) for upload in uploads), (Kind.STEP, data)]


def entries_of(held: Entry, content: bytes, limits: Limits) -> list[Entry]:
    """Returns the entries that send a held step of a dead process.

    The step has its position. The uploads have the one before, so that their acks do not count as that of the step.
    """
    entries: list[Entry] = []
    for kind, data in records_of(content, limits):
        entry = Entry(kind, held.position - (kind is not Kind.STEP), held.number, None, len(data))
        entry.segment, entry.replacement = held.segment, data
        entries.append(entry)
    return entries
