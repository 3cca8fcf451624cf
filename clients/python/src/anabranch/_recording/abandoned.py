"""Folders of spools and their owners: the lock of a live process, and the records that a dead one left."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from anabranch._recording.held import entries_of
from anabranch._recording.rpc import step_of
from anabranch._recording.segment import STEPS, Entry, Kind, Marks, Record, read_segment
from anabranch._recording.spool import Identity, Moved
from anabranch._recording.transfer import SenderInterface, Transfer
from anabranch.v1.trajectory_pb2 import Step

if TYPE_CHECKING:
    from anabranch._wire.limits import Limits

_LOCK = "lock"
_MOVED = "moved"
_REFUSED = "refused"
#: Ends the names of folders that have only what the server has refused. No sender looks into them.
_SETTLED = ".refused"
#: Begins the names of folders that are being deleted.
_DELETED = ".deleted-"
SET_ASIDE = "set-aside"
#: Length of the name of a folder that every file system allows.
_NAME_BYTES = 255


def spool_root() -> Path:
    """Returns the default folder of all spools."""
    chosen = os.environ.get("ANABRANCH_SPOOL")
    if chosen:
        return resolved(chosen)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return resolved(state) / "anabranch/spool"


def resolved(path: str | os.PathLike[str]) -> Path:
    """Returns the one absolute path of a folder, so that the working directory and the spelling do not matter."""
    return Path(path).expanduser().resolve()


def folders_of(root: Path) -> Iterator[Path]:
    """Yields the folders of all processes, for all servers."""
    for folder in sorted(root.glob("*/[!.]*")) if root.exists() else ():
        if folder.is_dir() and folder.parent.name != SET_ASIDE:
            yield folder


def folder_of(root: Path, address: str) -> Path:
    """Returns the folder of the spools for one server. Its name is the address, shortened if it is too long for one."""
    name = quote(address, safe="")
    digest = hashlib.sha256(address.encode()).hexdigest()[:32]
    return root / (name if len(name) <= _NAME_BYTES else f"{name[: _NAME_BYTES - 33]}~{digest}")


class _Locked:
    """The lock files that this process has locked.

    `fcntl.lockf` excludes other processes only, and the lock ends when the process closes any descriptor of its file.
    """

    def __init__(self) -> None:
        self.guard = threading.Lock()
        #: Device and inode of each file. A folder can have several paths.
        self.files: set[tuple[int, int]] = set()

    def forked(self) -> None:
        self.__init__()


_locked = _Locked()
os.register_at_fork(after_in_child=_locked.forked)


class Owner:
    """The lock on a folder. It ends with the process, also after `kill -9`, and is not inherited by a fork."""

    def __init__(self, folder: Path, file: int) -> None:
        self.folder = folder
        self._file = file

    @staticmethod
    def create(parent: Path) -> Owner:
        """Creates a folder that this process owns."""
        if not parent.parent.exists():
            # Another process may create it meanwhile.
            parent.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        parent.mkdir(mode=0o700, exist_ok=True)
        name = f"{time.time_ns():016x}-{os.getpid()}"
        # Other processes see the folder when it is locked.
        hidden = parent / f".{name}-{uuid.uuid4().hex}"
        hidden.mkdir(mode=0o700)
        owner = Owner.lock(hidden)
        assert owner is not None
        owner.folder = hidden.rename(parent / name)
        return owner

    @staticmethod
    def lock(folder: Path) -> Owner | None:
        """Locks a folder. Returns None if a process owns it, also this one, or if it does not exist any more."""
        path = folder / _LOCK
        with _locked.guard:
            try:
                if path.exists() and _key(path.stat()) in _locked.files:
                    return None
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                return None
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                key = _key(os.fstat(file))
                if _key(path.stat()) == key:
                    _locked.files.add(key)
                    return Owner(folder, file)
            except OSError:
                pass
            os.close(file)
            return None

    def delete(self) -> None:
        # Under its name, another process could lock a folder whose lock file is deleted already, and read the rest.
        hidden = self.folder.with_name(f"{_DELETED}{self.folder.name}")
        try:
            self.folder.rename(hidden)
        except OSError:
            hidden = self.folder
        shutil.rmtree(hidden, ignore_errors=True)
        self.release()

    def release(self) -> None:
        with _locked.guard:
            _locked.files.discard(_key(os.fstat(self._file)))
            os.close(self._file)


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def note_move(folder: Path, number: int, moved: Moved) -> None:
    """Records durably that the rest of a trajectory becomes another one, so that a restart creates only one."""
    _note(folder / _MOVED, [number, moved.trajectory_id, moved.source, moved.shared])


def _moves(folder: Path) -> dict[int, Moved]:
    return {
        number: Moved(trajectory_id, source, shared)
        for number, trajectory_id, source, shared in _notes(folder / _MOVED)
    }


def note_refusal(folder: Path, number: int, trajectory_id: str, problem: str) -> None:
    """Records durably that the server has refused a trajectory, so that no process sends it again."""
    _note(folder / _REFUSED, [number, trajectory_id, problem])


def refusals_of(folder: Path) -> dict[int, tuple[str, str]]:
    """Returns the ids of the trajectories that the server has refused, and why, by their numbers."""
    return {number: (trajectory_id, problem) for number, trajectory_id, problem in _notes(folder / _REFUSED)}


def _note(path: Path, values: list[Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")


def _notes(path: Path) -> Iterator[Any]:
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            yield json.loads(line)


@dataclass
class Left:
    """What a folder has of one trajectory."""

    number: int
    identity: Identity
    settled: int
    entries: list[Entry]
    #: Steps after a damaged record. They cannot be sent, because steps have no gaps.
    unusable: int
    #: Why the server has refused it. Empty if it has not.
    refused: str = ""

    @property
    def steps(self) -> int:
        return sum(1 for entry in self.entries if entry.has_step)

    @property
    def calls(self) -> int:
        """Number of calls that concern a run."""
        return sum(1 for entry in self.entries if entry.kind == Kind.VERB)

    def load(self, entry: Entry) -> bytes:
        """Returns the content of a record."""
        return _Files().load(entry)


class _Files:
    """Contents of entries in files that no process writes any more."""

    def load(self, entry: Entry) -> bytes:
        assert entry.segment is not None
        return entry.segment.read(entry.offset, entry.length)

    def release(self, entry: Entry) -> None:
        """The folder is deleted as a whole."""


class Abandoned:
    """A folder whose owner is dead. This process owns it now."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.marks = Marks(owner.folder / "marks")
        self.damaged: list[Path] = []
        self.left = list(self._read())
        self.transfers: list[Transfer] = []

    @staticmethod
    def is_settled(folder: Path) -> bool:
        """Returns whether a folder has nothing but what the server has refused."""
        return folder.suffix == _SETTLED

    @property
    def steps(self) -> int:
        """Number of steps that are to be sent."""
        return sum(each.steps for each in self.left if not each.refused)

    def begin(self, sender: SenderInterface) -> list[Transfer]:
        """Returns the transfers that send what is left, but not what the server has refused."""
        moves = _moves(self.owner.folder)
        for each in [each for each in self.left if not each.refused]:
            transfer = Transfer(sender, _Files(), self.marks, each.number, each.identity)
            transfer.moving = lambda moved, number=each.number: note_move(self.owner.folder, number, moved)
            transfer.refusing = lambda problem, left=each: self._refuse(left, problem)
            transfer.settled = each.settled
            moved = moves.get(each.number)
            if moved is not None and each.entries:
                transfer.moved = moved
            for entry in each.entries:
                for part in _sent_as(entry, sender.connections.limits):
                    transfer.add(part)
            self.transfers.append(transfer)
        return self.transfers

    @property
    def done(self) -> bool:
        """Whether nothing is left to send."""
        return not any(transfer.waiting and not transfer.refused for transfer in self.transfers)

    def drop(self, left: Left) -> None:
        """Removes a trajectory."""
        self.marks.set(left.number, left.settled + len(left.entries))
        self.left.remove(left)

    def finish(self) -> None:
        """Deletes the folder, unless it has refused trajectories. Damaged segments are set aside."""
        kept = self._segments_of_refused()
        for path in set(self.damaged) - set(kept):
            aside = self.owner.folder.parent.parent / SET_ASIDE
            aside.mkdir(mode=0o700, exist_ok=True)
            path.rename(aside / f"{self.owner.folder.name}-{path.name}")
        if not kept:
            self.marks.close()
            self.owner.delete()
            return
        for path in self.owner.folder.glob("*.seg"):
            if path in kept:
                os.truncate(path, kept[path])
            else:
                path.unlink()
        folder = self.owner.folder
        if not self.is_settled(folder):
            self.owner.folder = folder.rename(folder.with_name(folder.name + _SETTLED))
        self.release()

    def leave(self) -> None:
        """Leaves what is to be sent to the next process."""
        if any(left.entries and not left.refused for left in self.left):
            self.release()
        else:
            self.finish()

    def release(self) -> None:
        """Leaves the folder as it is."""
        self.marks.close()
        self.owner.release()

    def _refuse(self, left: Left, problem: str) -> None:
        note_refusal(self.owner.folder, left.number, left.identity.trajectory_id, problem)
        left.refused = problem

    def _segments_of_refused(self) -> dict[Path, int]:
        """Returns the segments with records of refused trajectories, and where the last one ends."""
        ends: dict[Path, int] = {}
        for entry in [entry for left in self.left if left.refused for entry in left.entries]:
            assert entry.segment is not None
            path = entry.segment.path
            ends[path] = max(ends.get(path, 0), entry.offset + entry.length)
        return ends

    def _read(self) -> Iterator[Left]:
        refusals = refusals_of(self.owner.folder)
        records: dict[int, dict[int, Record]] = {}
        #: The last held step of each trajectory.
        held: dict[int, Record] = {}
        identities: dict[int, Identity] = {}
        for path in sorted(self.owner.folder.glob("*.seg")):
            found, damaged = read_segment(path)
            if damaged:
                self.damaged.append(path)
            for record in found:
                if record.kind == Kind.TRAJECTORY:
                    content = record.segment.read(record.offset, record.length)
                    identities[record.trajectory] = Identity.from_bytes(content)
                elif record.kind == Kind.HELD_STEP:
                    held[record.trajectory] = record
                    records.setdefault(record.trajectory, {})
                else:
                    records.setdefault(record.trajectory, {})[record.position] = record
        for number, by_position in records.items():
            settled = self.marks.get(number)
            entries: list[Entry] = []
            while number in identities and (record := by_position.get(settled + len(entries))) is not None:
                entries.append(_entry_of(record))
            waiting = sum(1 for position, each in by_position.items() if position >= settled and each.kind in STEPS)
            identity = identities.get(number, Identity("unknown", ""))
            used = sum(1 for entry in entries if entry.is_step)
            last = held.get(number)
            if last is not None and waiting == used and _is_held(last, settled, by_position):
                entries.append(_entry_of(last))
            if entries or waiting > used:
                yield Left(number, identity, settled, entries, waiting - used, refusals.get(number, ("", ""))[1])


def _sent_as(entry: Entry, limits: Limits) -> list[Entry]:
    """Returns the records that are sent of a record."""
    return entries_of(entry, _Files().load(entry), limits) if entry.kind == Kind.HELD_STEP else [entry]


def _is_held(held: Record, settled: int, by_position: dict[int, Record]) -> bool:
    """Returns whether no step has replaced a held one. Such a step has its position, or a later one."""
    later = any(position >= held.position for position, each in by_position.items() if each.kind in STEPS)
    return held.position >= settled and not later


def _entry_of(record: Record) -> Entry:
    entry = Entry(record.kind, record.position, 0, None, record.length)
    entry.segment = record.segment
    entry.offset = record.offset
    if entry.has_step:
        content = record.segment.read(record.offset, record.length)
        entry.number = Step.FromString(step_of(record.kind, content)).step_number
    return entry


def abandoned(parent: Path, own: set[Path]) -> Iterator[Abandoned]:
    """Takes over the folders of dead processes, the oldest first."""
    try:
        names = sorted(os.listdir(parent))
    except OSError:
        # Nobody has recorded for this server, or this user cannot.
        return
    for folder in [parent / name for name in names]:
        if folder.name.startswith(_DELETED):
            shutil.rmtree(folder, ignore_errors=True)
        if folder.name.startswith(".") or folder in own or Abandoned.is_settled(folder):
            continue
        owner = Owner.lock(folder)
        if owner is not None:
            yield Abandoned(owner)
