"""The recorder of a process for one server: its spool, its sender, and what happens at fork and exit."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import uuid
import weakref
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from anabranch._recording.abandoned import Owner, folder_of, note_move, resolved, spool_root
from anabranch._recording.batch import StepGroup
from anabranch._recording.segment import Kind
from anabranch._recording.sender import Sender
from anabranch._recording.sending import DEFAULT_SENDING, Sending
from anabranch._recording.spool import Identity, MemorySpool, Moved, Spool, SpooledTrajectory, SpoolFullError
from anabranch._recording.transfer import Transfer

log = logging.getLogger("anabranch")

_SPOOL_BYTES = 10 * 1024**3
_MEMORY_BYTES = 64 * 1024 * 1024
_EXIT_SECONDS = 10.0


@dataclass(frozen=True)
class Stats:
    """What happened to the steps of this process."""

    #: Steps whose `step()` or `reset()` returned.
    recorded: int
    #: Steps that are durable on the server, with those of earlier processes that this one sent.
    durable: int
    #: Steps that wait in the spool.
    spooled: int
    #: Values that could not be stored, by type.
    unstored: dict[str, int]
    #: Steps that are not recorded: the spool was full, or their trajectory was deleted, or a lease was lost.
    dropped: int


class Recorder:
    """Records trajectories for one server."""

    def __init__(self, address: str, folder: Path | None, sending: Sending = DEFAULT_SENDING) -> None:
        self.address = address
        #: False in a forked child, whose parent owns spool and sender.
        self.alive = True
        parent = None if folder is None else folder_of(folder, address)
        self.sender = Sender(address, parent, sending)
        self._owner: Owner | None = None
        self.spool = self._open(parent)
        self.sender.spool = self.spool
        self._dropped = 0
        self._groups: weakref.WeakSet[StepGroup] = weakref.WeakSet()
        #: Where calls that concern a run are recorded, by the run's id.
        self._calls: dict[str, tuple[Transfer, SpooledTrajectory]] = {}
        self._calls_lock = threading.Lock()
        self.sender.start()

    def _open(self, parent: Path | None) -> Spool | MemorySpool:
        if parent is None:
            return MemorySpool(_MEMORY_BYTES)
        limit = int(os.environ.get("ANABRANCH_SPOOL_BYTES") or _SPOOL_BYTES)
        try:
            self._owner = Owner.create(parent)
            self.sender.own.add(self._owner.folder)
            return Spool(self._owner.folder, limit)
        except (OSError, SpoolFullError) as error:
            log.warning("anabranch: no spool in %s (%s); steps are kept in memory until they are sent", parent, error)
            return MemorySpool(_MEMORY_BYTES)

    def group(self) -> StepGroup:
        """Returns a new group of trajectories that step together."""
        group = StepGroup(self.sender.deliver)
        self._groups.add(group)
        return group

    def open(self, identity: Identity, group: StepGroup | None = None) -> tuple[Transfer, SpooledTrajectory]:
        """Adds a trajectory."""
        spooled = self.spool.add(identity.to_bytes())
        transfer = Transfer(self.sender, self.spool, self.spool.marks, spooled.number, identity)
        transfer.moving = lambda moved: self._note_move(spooled.number, moved)
        if group is not None:
            transfer.shares, transfer.deliver = True, group.add
        return transfer, spooled

    def record(self, transfer: Transfer, spooled: SpooledTrajectory, kind: Kind, number: int, payload: bytes) -> int:
        """Appends a record, tells the sender, and returns its position. Raises SpoolFullError."""
        entry = self.spool.append(spooled, kind, number, payload)
        if transfer.deliver is None:
            transfer.add(entry)
            self.sender.notify(transfer)
        else:
            transfer.deliver(transfer, entry)
        return entry.position

    def calls(self, run_id: str) -> tuple[Transfer, int]:
        """Returns the transfer of the calls that concern a run, and how many were recorded."""
        with self._calls_lock:
            transfer, spooled = self._calls_of(run_id)
            return transfer, spooled.position

    def record_call(self, run_id: str, method: str, request: bytes) -> tuple[Transfer, int]:
        """Records a call that concerns a run, and returns its position. Calls are made in order. Raises SpoolFullError."""
        with self._calls_lock:
            transfer, spooled = self._calls_of(run_id)
            return transfer, self.record(transfer, spooled, Kind.VERB, 0, method.encode() + b"\0" + request)

    def _calls_of(self, run_id: str) -> tuple[Transfer, SpooledTrajectory]:
        if run_id not in self._calls:
            self._calls[run_id] = self.open(Identity(run_id, str(uuid.uuid4())))
        return self._calls[run_id]

    def drop(self, steps: int = 1) -> None:
        """Counts steps that are not recorded."""
        self._dropped += steps

    def stats(self, unstored: Counter[str]) -> Stats:
        durable = self.sender.durable
        adopted = sum(each.steps for each in self.sender.adopted)
        spooled = max(0, self.spool.steps + adopted - durable - self.sender.dropped_steps)
        counts = dict(unstored)
        if self.sender.unstored_values:
            counts["rejected"] = self.sender.unstored_values
        return Stats(self.spool.steps, durable, spooled, counts, self._dropped + self.sender.dropped_steps)

    def settle(self, trajectory_id: str, seconds: float) -> bool:
        """Sends what dead processes left of a trajectory. Returns whether nothing of it waits any more."""
        wanted = self.sender.scan()

        def settled() -> bool:
            transfers = [transfer for each in list(self.sender.adopted) for transfer in each.transfers]
            return self.sender.scans >= wanted and not any(
                transfer.waiting and transfer.failure is None and transfer.trajectory_id == trajectory_id
                for transfer in transfers
            )

        return self.sender.wait(settled, seconds)

    def send_abandoned(self, seconds: float) -> bool:
        """Sends everything that dead processes left. Returns whether nothing is left."""
        wanted = self.sender.scan()

        def settled() -> bool:
            adopted = list(self.sender.adopted)
            return self.sender.scans >= wanted and all(each.stuck for each in adopted)

        return self.sender.wait(settled, seconds) and not self.sender.adopted

    def close(self, seconds: float) -> None:
        """Sends what waits, for a time. Reports what is kept."""
        try:
            done = self.sender.wait(lambda: not (self._recording or self.sender.busy), seconds)
        except KeyboardInterrupt:
            done = False
        self.alive = False
        self.sender.stop()
        if self._owner is not None:
            self.spool.close(delete=False)
        calls = sum(spooled.position - transfer.settled for transfer, spooled in self._calls.values())
        counts = {"steps": self.stats(Counter()).spooled, "logs of metrics": calls}
        left = " and ".join(f"{count} {what}" for what, count in counts.items() if count)
        if done and not self.sender.keeps and not self.sender.adopted:
            if self._owner is not None:
                self._owner.delete()
        elif self._owner is not None:
            # What only other processes have left is sent by the next process, and is no news of this one.
            if left or self.sender.keeps:
                text = "anabranch: %s are kept in %s; the next process sends them"
                log.warning(text, left or "ends of trajectories", self._owner.folder)
        elif left:
            log.warning("anabranch: %s were kept in memory only and are lost", left)

    @property
    def _recording(self) -> bool:
        """Whether a thread records a vector step."""
        return any(group.waiting for group in list(self._groups))

    def forget(self) -> None:
        """In a forked child: the parent owns everything."""
        self.alive = False

    def _note_move(self, number: int, moved: Moved) -> None:
        if self._owner is not None:
            note_move(self._owner.folder, number, moved)


_Key = tuple[str, "Path | None", Sending]


class _Process:
    """The recorders of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recorders: dict[_Key, Recorder] = {}
        # Two threads may fork at the same time.
        self._held = threading.local()

    def forking(self) -> None:
        """Before a fork: gRPC can be copied only while no thread is within it. It holds its own threads."""
        self._held.recorders = [each for each in list(self.recorders.values()) if each.sender.hold()]

    def parent_continues(self) -> None:
        for recorder in self._held.recorders:
            recorder.sender.release()

    def recorder(self, address: str, spool: object, sending: Sending) -> Recorder:
        key = (address, _folder_from(spool), sending)
        with self.lock:
            recorder = self.recorders.get(key)
            if recorder is None or not recorder.alive:
                recorder = self.recorders[key] = Recorder(*key)
            return recorder

    def existing(self, address: str, spool: object, sending: Sending) -> Recorder | None:
        return self.recorders.get((address, _folder_from(spool), sending))

    def forked(self) -> None:
        for recorder in self.recorders.values():
            recorder.forget()
        self.lock = threading.Lock()
        self.recorders, self._held = {}, threading.local()

    def exit(self) -> None:
        end = time.monotonic() + float(os.environ.get("ANABRANCH_EXIT_SECONDS") or _EXIT_SECONDS)
        for recorder in list(self.recorders.values()):
            recorder.close(max(0.0, end - time.monotonic()))
        self.recorders = {}


# One for the process: fork and exit concern all of it.
_process = _Process()
os.register_at_fork(before=_process.forking, after_in_parent=_process.parent_continues, after_in_child=_process.forked)
atexit.register(_process.exit)


def _folder_from(spool: object) -> Path | None:
    if spool is False:
        return None
    return resolved(os.fspath(spool)) if isinstance(spool, (str, os.PathLike)) else spool_root()


def recorder_for(address: str, spool: object, sending: Sending = DEFAULT_SENDING) -> Recorder:
    """Returns the recorder of this process for a server. `spool` is a folder, None for the default, False for memory."""
    return _process.recorder(address, spool, sending)


def recorder_if_any(address: str, spool: object, sending: Sending) -> Recorder | None:
    """Returns the recorder of this process for a server, if something was recorded for it."""
    return _process.existing(address, spool, sending)
