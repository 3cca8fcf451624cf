"""Segments: files of records, and their format.

A record is 24 bytes of header and its content, padded to 8 bytes. The checksum covers the number of the segment, so what an
earlier use of the file left behind does not count as a record.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path


class Kind(IntEnum):
    """What a record is."""

    CREATE = 1
    STEP = 2
    UPLOAD = 3
    TAG = 4
    SEAL = 5
    #: A call that concerns a run: its metrics.
    VERB = 6
    #: Names the trajectory of the records that follow. Each segment has one for each of its trajectories.
    TRAJECTORY = 7
    #: A step with tags that are set in the transaction that stores it.
    TAGGED_STEP = 8
    #: A step that counts until the step at its position is recorded: what was said since the last one.
    HELD_STEP = 9


STEPS = (Kind.STEP, Kind.TAGGED_STEP)


#: Length of the content, checksum, number of the trajectory in this folder, position in the trajectory, kind.
_HEADER = struct.Struct("<IIIIB7x")
_CHECKED = struct.Struct("<IIIB")
#: Identifies a segment and its format.
_MAGIC = b"ANABSPL1"
_SEGMENT_HEADER = struct.Struct("<8sQ")
FIRST_RECORD = 16
#: The longest content of which a copy with its header costs less than a second write.
_COPIED_BYTES = 4096
_PIECE_BYTES = 5 * 1024
#: Acked records, trajectory, checksum of both.
_MARK = struct.Struct("<QII")
_MARKED = struct.Struct("<QI")


class Entry:
    """A record that is not acked yet."""

    __slots__ = ("kind", "length", "number", "offset", "payload", "position", "replaced", "replacement", "segment")

    def __init__(self, kind: Kind, position: int, number: int, payload: bytes | None, length: int) -> None:
        self.kind = kind
        #: Index of the record in its trajectory.
        self.position = position
        #: Number of the step; for other records the number of the next step.
        self.number = number
        #: Unset if the content is in the segment only.
        self.payload = payload
        self.length = length
        self.segment: Segment | None = None
        self.offset = 0
        #: What is sent in place of the content, because the server rejected it.
        self.replacement: bytes | None = None
        #: The held step whose place this record takes. It is acked with it.
        self.replaced: Entry | None = None

    @property
    def is_step(self) -> bool:
        return self.kind in STEPS

    @property
    def has_step(self) -> bool:
        """Whether the content is a step, held ones included."""
        return self.kind in STEPS or self.kind == Kind.HELD_STEP

    def with_replaced(self) -> Iterator[Entry]:
        """Yields this record and those whose place it has taken."""
        entry: Entry | None = self
        while entry is not None:
            yield entry
            entry = entry.replaced


class Segment:
    """A file of records."""

    def __init__(self, path: Path, sequence: int, size: int) -> None:
        self.path = path
        self.sequence = sequence
        self.size = size
        self.end = FIRST_RECORD
        #: Number of records, counted by the threads that record.
        self.written = 0
        #: Number of acked records, counted by the sender.
        self.acked = 0
        self.map: mmap.mmap | None = None

    def begin(self) -> None:
        """Makes the file an empty segment."""
        assert self.map is not None
        self.map[:FIRST_RECORD] = _SEGMENT_HEADER.pack(_MAGIC, self.sequence)

    def write(self, trajectory: int, kind: Kind, position: int, content: bytes) -> int:
        """Appends a record and returns the offset of its content. The caller has checked that there is room."""
        length = len(content)
        checksum = _checksum(content, _header_checksum(self.sequence, length, trajectory, position, kind))
        start = self.end
        offset = start + _HEADER.size
        mapped = self.map
        assert mapped is not None
        header = _HEADER.pack(length, checksum, trajectory, position, kind)
        if length < _COPIED_BYTES:
            mapped[start : offset + length] = header + content
        else:
            mapped[offset : offset + length] = content
            mapped[start:offset] = header
        self.end = start + room_of(length)
        return offset

    def read(self, offset: int, length: int) -> bytes:
        """Returns the content of a record."""
        mapped = self.map
        if mapped is not None:
            return mapped[offset : offset + length]
        with self.path.open("rb") as file:
            return os.pread(file.fileno(), length, offset)

    def unmap(self) -> None:
        if self.map is not None:
            self.map.close()
            self.map = None


class Marks:
    """The number of acked records of each trajectory. Only the sender writes them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._map: mmap.mmap | None = None
        self._grow(256)

    def set(self, trajectory: int, acked: int) -> None:
        if self._map is None:
            return
        end = (trajectory + 1) * _MARK.size
        if end > len(self._map):
            self._grow(2 * (trajectory + 1))
        self._map[end - _MARK.size : end] = _MARK.pack(acked, trajectory, zlib.crc32(_MARKED.pack(acked, trajectory)))

    def get(self, trajectory: int) -> int:
        """Returns the number of acked records; 0 if the mark is damaged, so that everything is sent again."""
        end = (trajectory + 1) * _MARK.size
        if self._map is None or end > len(self._map):
            return 0
        acked, number, checksum = _MARK.unpack(self._map[end - _MARK.size : end])
        return acked if number == trajectory and checksum == zlib.crc32(_MARKED.pack(acked, number)) else 0

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
            os.close(self._file)

    def _grow(self, count: int) -> None:
        size = max(os.fstat(self._file).st_size, count * _MARK.size)
        if self._map is not None:
            self._map.close()
        allocate(self._file, size)
        self._map = mmap.mmap(self._file, size)


@dataclass(frozen=True)
class Record:
    """A record that was read from a segment."""

    kind: Kind
    trajectory: int
    position: int
    segment: Segment
    offset: int
    length: int


def read_segment(path: Path) -> tuple[list[Record], bool]:
    """Returns the records of a segment, and whether records before the last one are damaged.

    A torn tail, which a process leaves that is killed while it writes, is not damage.
    """
    data = path.read_bytes()
    magic, sequence = _SEGMENT_HEADER.unpack_from(data) if len(data) >= FIRST_RECORD else (b"", 0)
    if magic != _MAGIC:
        return [], any(data)
    if path.name != name_of(sequence):
        return [], False
    segment = Segment(path, sequence, len(data))
    records: list[Record] = []
    damaged = False
    offset = FIRST_RECORD
    for found in _records_of(data, sequence, segment):
        damaged = damaged or found.offset - _HEADER.size != offset
        offset = found.offset - _HEADER.size + room_of(found.length)
        records.append(found)
    return records, damaged


def _records_of(data: bytes, sequence: int, segment: Segment) -> Iterator[Record]:
    offset = FIRST_RECORD
    searched = False
    while offset + _HEADER.size <= len(data):
        length, checksum, trajectory, position, kind = _HEADER.unpack_from(data, offset)
        content = offset + _HEADER.size
        if 1 <= kind <= Kind.HELD_STEP and content + length <= len(data):
            expected = _header_checksum(sequence, length, trajectory, position, kind)
            if zlib.crc32(memoryview(data)[content : content + length], expected) == checksum:
                yield Record(Kind(kind), trajectory, position, segment, content, length)
                offset += room_of(length)
                searched = False
                continue
        if not searched:
            searched = True
            if data.count(0, offset) == len(data) - offset:
                return
        offset += 8


def allocate(file: int, size: int) -> None:
    """Gives a file blocks for all its bytes."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    zeros = bytes(1024 * 1024)
    for offset in range(os.fstat(file).st_size, size, len(zeros)):
        os.pwrite(file, zeros[: size - offset], offset)


def name_of(sequence: int) -> str:
    return f"{sequence:08d}.seg"


def room_of(length: int) -> int:
    """Returns the size of a record with this much content."""
    return (_HEADER.size + length + 7) & ~7


def _checksum(content: bytes, value: int) -> int:
    """Continues a checksum. `zlib` gives the GIL away for longer pieces, and the sender would take it."""
    if len(content) <= _PIECE_BYTES:
        return zlib.crc32(content, value)
    view = memoryview(content)
    for offset in range(0, len(content), _PIECE_BYTES):
        value = zlib.crc32(view[offset : offset + _PIECE_BYTES], value)
    return value


def _header_checksum(sequence: int, length: int, trajectory: int, position: int, kind: int) -> int:
    return zlib.crc32(_CHECKED.pack(length, trajectory, position, kind), sequence & 0xFFFFFFFF)
