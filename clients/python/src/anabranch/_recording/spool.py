"""The spool: a log of records in memory-mapped files, which survive `kill -9` of the process.

Each process owns one folder with a lock, segments and marks. A segment has records of all trajectories of the process, in
the order in which they were made.

Threads that record share one lock, which is held while bytes are copied, and never during I/O. The sender releases records
that are acked, and prepares the next segment.
"""

from __future__ import annotations

import errno
import glob
import json
import mmap
import os
import shutil
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from anabranch._recording.segment import (
    FIRST_RECORD,
    STEPS,
    Entry,
    Kind,
    Marks,
    Segment,
    allocate,
    name_of,
    room_of,
)

_SPOOL_BYTES = 10 * 1024**3
SEGMENT_BYTES = 16 * 1024 * 1024
#: Content of records that stays in memory besides the mapped files, until it is sent.
_KEPT_BYTES = 32 * 1024 * 1024
#: Acked segments that are kept for reuse; others are deleted.
_FREE_SEGMENTS = 2
_FREE_DISK = 0.05


class SpoolFullError(Exception):
    """No segment is available."""


@dataclass(frozen=True)
class Identity:
    """What a spool says about a trajectory."""

    trajectory_id: str
    #: Identifies the lifetime of the process that recorded.
    writer_id: str
    name: str = ""
    #: Epoch of the writer that the trajectory had when this process resumed it, which takes over from that writer. None
    #: if the process created the trajectory.
    epoch: int | None = None
    #: Whether to take over from any writer before the first grant. Without it, from none but the writer above.
    take_over: bool = False
    #: Whether the trajectory is an attempt at a rollout: what the end of its lease cuts off is dropped.
    is_attempt: bool = False

    def to_bytes(self) -> bytes:
        return json.dumps([self.trajectory_id, self.writer_id, self.name, self.epoch, self.is_attempt]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Identity:
        trajectory_id, writer_id, name, epoch, is_attempt = json.loads(data)
        return Identity(trajectory_id, writer_id, name, epoch, is_attempt=is_attempt)


@dataclass(frozen=True)
class Moved:
    """The rest of a trajectory that became a trajectory of its own."""

    trajectory_id: str
    source: str
    #: Number of steps that both share.
    shared: int


class SpooledTrajectory:
    """A trajectory in a spool."""

    __slots__ = ("header", "number", "position", "segment")

    def __init__(self, number: int, header: bytes) -> None:
        self.number = number
        #: Content of the record that names the trajectory.
        self.header = header
        #: Position of the next record.
        self.position = 0
        self.segment: Segment | None = None


class Spool:
    """The log of this process in a folder of its own."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self._limit = limit
        self._lock = threading.Lock()
        self._sequence = 0
        self._trajectories = 0
        #: Number of recorded steps.
        self.steps = 0
        self._kept = 0
        self._sent = 0
        self._active = self._create(SEGMENT_BYTES)
        self._standby: Segment | None = None
        self._full: deque[Segment] = deque()
        self._free: list[Segment] = []
        self.marks = Marks(folder / "marks")

    def add(self, header: bytes) -> SpooledTrajectory:
        """Adds a trajectory."""
        with self._lock:
            self._trajectories += 1
            return SpooledTrajectory(self._trajectories - 1, header)

    def append(self, spooled: SpooledTrajectory, kind: Kind, number: int, payload: bytes, *, ahead: int = 0) -> Entry:
        """Appends a record. When this returns, the record survives the end of the process. Raises SpoolFullError.

        A held step has the position that its step will have: `ahead` records precede that.
        """
        length = len(payload)
        needed = room_of(length) + room_of(len(spooled.header))
        while True:
            with self._lock:
                segment = self._active
                if segment.end + needed > segment.size and self._standby is not None:
                    self._full.append(segment)
                    segment = self._active = self._standby
                    self._standby = None
                if segment.end + needed <= segment.size:
                    if spooled.segment is not segment:
                        segment.write(spooled.number, Kind.TRAJECTORY, 0, spooled.header)
                        spooled.segment = segment
                    position = spooled.position + ahead
                    entry = Entry(kind, position, number, None, length)
                    entry.segment = segment
                    entry.offset = segment.write(spooled.number, kind, position, payload)
                    segment.written += 1
                    spooled.position += kind is not Kind.HELD_STEP
                    self.steps += kind in STEPS
                    if self._kept - self._sent + length <= _KEPT_BYTES:
                        self._kept += length
                        entry.payload = payload
                    return entry
            prepared = self._take(needed + FIRST_RECORD)
            with self._lock:
                if self._standby is None or self._standby.size < prepared.size:
                    self._standby, prepared = prepared, self._standby
                if prepared is not None:
                    self._free.append(prepared)

    def load(self, entry: Entry) -> bytes:
        """Returns the content of a record. For the sender."""
        if entry.payload is not None:
            return entry.payload
        assert entry.segment is not None
        return entry.segment.read(entry.offset, entry.length)

    def release(self, entry: Entry) -> None:
        """Counts a record as acked. For the sender."""
        for each in entry.with_replaced():
            if each.payload is not None:
                self._sent += each.length
            assert each.segment is not None
            each.segment.acked += 1

    def maintain(self) -> None:
        """Prepares the next segment, and reuses or deletes acked ones. For the sender."""
        for segment in list(self._full):
            if segment.acked == segment.written:
                self._full.remove(segment)
                # One that was unmapped while it waited is not reused.
                if segment.map is not None and len(self._free) < _FREE_SEGMENTS and segment.size == SEGMENT_BYTES:
                    self._free.append(segment)
                else:
                    segment.unmap()
                    segment.path.unlink(missing_ok=True)
            elif segment.map is not None and len(self._full) > _FREE_SEGMENTS:
                segment.unmap()
        if self._standby is None and self._active.end > self._active.size // 2:
            try:
                prepared = self._take(SEGMENT_BYTES)
            except SpoolFullError:
                return
            with self._lock:
                if self._standby is None:
                    self._standby = prepared
                else:
                    self._free.append(prepared)

    def close(self) -> None:
        """Ends the spool. Its files stay."""
        with self._lock:
            segments = [self._active, *([self._standby] if self._standby else []), *self._full, *self._free]
            for segment in segments:
                segment.unmap()
            self.marks.close()

    def _take(self, size: int) -> Segment:
        """Returns an empty segment: a free one if possible."""
        with self._lock:
            free = next((each for each in self._free if each.size >= size), None)
            if free is not None:
                self._free.remove(free)
        if free is None:
            return self._create(max(size, SEGMENT_BYTES))
        with self._lock:
            self._sequence += 1
            sequence = self._sequence
        path = self.folder / name_of(sequence)
        free.path.rename(path)
        segment = Segment(path, sequence, free.size)
        segment.map = free.map
        segment.begin()
        return segment

    def _create(self, size: int) -> Segment:
        """Creates a segment whose blocks are allocated: a full disk under a mapping would end the process."""
        with self._lock:
            self._sequence += 1
            sequence = self._sequence
        path = self.folder / name_of(sequence)
        try:
            check_room(self.folder, size, self._limit)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                allocate(file, size)
                mapped = mmap.mmap(file, size)
            except OSError:
                path.unlink(missing_ok=True)
                raise
            finally:
                os.close(file)
        except OSError as error:
            raise SpoolFullError(f"no segment of {size} bytes in {self.folder}: {error}") from error
        segment = Segment(path, sequence, size)
        segment.map = mapped
        segment.begin()
        return segment


class MemorySpool:
    """A log in memory, without files. What is not sent is lost with the process."""

    def __init__(self, limit: int) -> None:
        self.folder = None
        self._limit = limit
        self._lock = threading.Lock()
        self._trajectories = 0
        #: Number of recorded steps.
        self.steps = 0
        self._kept = 0
        self._sent = 0
        self.marks = None

    def add(self, header: bytes) -> SpooledTrajectory:
        with self._lock:
            self._trajectories += 1
            return SpooledTrajectory(self._trajectories - 1, header)

    def append(self, spooled: SpooledTrajectory, kind: Kind, number: int, payload: bytes, *, ahead: int = 0) -> Entry:
        length = len(payload)
        with self._lock:
            if self._kept - self._sent + length > self._limit:
                raise SpoolFullError(f"the spool in memory has {self._limit} bytes, and they are in use")
            self._kept += length
            entry = Entry(kind, spooled.position + ahead, number, payload, length)
            spooled.position += kind is not Kind.HELD_STEP
            self.steps += kind in STEPS
            return entry

    def load(self, entry: Entry) -> bytes:
        assert entry.payload is not None
        return entry.payload

    def release(self, entry: Entry) -> None:
        self._sent += sum(each.length for each in entry.with_replaced())

    def maintain(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def spool_bytes() -> int:
    """Returns the bound on all spools in a folder."""
    return int(os.environ.get("ANABRANCH_SPOOL_BYTES") or _SPOOL_BYTES)


def check_room(folder: Path, size: int, limit: int) -> None:
    """Raises OSError if the spool would exceed its limit, or leave less than 5 % of the disk free."""
    root = folder.parent.parent
    used = size_of(root, "*/*/*.seg")
    if used + size > limit:
        raise OSError(errno.ENOSPC, f"the spool has {used} of {limit} bytes (ANABRANCH_SPOOL_BYTES)")
    disk = shutil.disk_usage(folder)
    if disk.free - size < disk.total * _FREE_DISK:
        raise OSError(errno.ENOSPC, f"less than 5 % of the disk would stay free: {disk.free} bytes are")


def size_of(folder: Path, pattern: str) -> int:
    """Returns the bytes of the files that match. Other processes may delete files and folders meanwhile."""
    size = 0
    # `Path.glob` fails if a folder vanishes.
    for path in glob.iglob(os.path.join(glob.escape(os.fspath(folder)), pattern)):
        with suppress(FileNotFoundError):
            size += os.stat(path).st_size
    return size
