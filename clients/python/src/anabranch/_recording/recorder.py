"""The recorder of a process for one server: its spool, its sender, and what happens at fork and exit."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch._recording.abandoned import Abandoned, Owner, folder_of, note_move, note_refusal, resolved, spool_root
from anabranch._recording.batch import StepGroup
from anabranch._recording.held import HeldStep, records_of
from anabranch._recording.segment import STEPS, Kind
from anabranch._recording.sender import Sender
from anabranch._recording.sending import DEFAULT_SENDING, Sending
from anabranch._recording.spool import Identity, MemorySpool, Spool, SpooledTrajectory, SpoolFullError, spool_bytes
from anabranch._recording.transfer import Transfer
from anabranch._wire.recorded import Recorded

if TYPE_CHECKING:
    from anabranch._wire.recorded import Selects

log = logging.getLogger("anabranch")

_MEMORY_BYTES = 64 * 1024 * 1024
_EXIT_SECONDS = 10.0
#: After this time without a connection, because nothing listens at the address, the end of a process stops waiting.
_REFUSED_SECONDS = 1.0
#: Records that end what is held. After a seal, there is no further step.
_REPLACING = (*STEPS, Kind.SEAL)


@dataclass(frozen=True)
class Stats:
    """What happened to the steps of this process."""

    #: Steps whose `step()` or `reset()` returned.
    recorded: int
    #: Steps that are durable on the server, with those of earlier processes that this one sent.
    durable: int
    #: Steps that wait in the spool.
    spooled: int
    #: Values that could not be stored, by type, and arguments that were left out, by name.
    unstored: dict[str, int]
    #: Steps that are not recorded: the spool was full, or their trajectory was deleted, or a lease was lost.
    dropped: int


@dataclass(frozen=True)
class Unsent:
    """The records of one trajectory, or of the calls of a run, up to a position."""

    transfer: Transfer
    end: int

    @property
    def waits(self) -> bool:
        """Whether some are not durable yet, and can still be sent."""
        return self.transfer.settled < self.end and self.transfer.failure is None


class Recorder:
    """Records trajectories for one server, and sends what dead processes left for it.

    `parent` is the folder of the spools for the server. None keeps records in memory.
    """

    def __init__(self, address: str, parent: Path | None, sending: Sending = DEFAULT_SENDING) -> None:
        self.address = address
        #: False in a forked child, whose parent owns spool and sender.
        self.alive = True
        self.sender = Sender(address, parent, sending)
        self._parent = parent
        self._owner: Owner | None = None
        #: Created with the first trajectory.
        self._spool: Spool | MemorySpool | None = None
        self._dropped = 0
        #: Held steps, by the number of their trajectory.
        self._held: dict[int, HeldStep] = {}
        self._groups: weakref.WeakSet[StepGroup] = weakref.WeakSet()
        #: Where calls that concern a run are recorded, by the run's id.
        self._calls: dict[str, tuple[Transfer, SpooledTrajectory]] = {}
        self._lock = threading.RLock()
        #: What was recorded for each transfer that exists. Those that have something to send exist.
        self._opened: weakref.WeakKeyDictionary[Transfer, tuple[SpooledTrajectory, Recorded | None]]
        self._opened = weakref.WeakKeyDictionary()
        self._opened_lock = threading.Lock()
        self.sender.start()

    @property
    def spool(self) -> Spool | MemorySpool:
        """The log of this process."""
        with self._lock:
            if self._spool is None:
                self._spool = self.sender.spool = self._open()
                _process.end_with_multiprocessing()
            return self._spool

    def _open(self) -> Spool | MemorySpool:
        if self._parent is None:
            return MemorySpool(_MEMORY_BYTES)
        try:
            self._owner = Owner.create(self._parent)
            self.sender.own.add(self._owner.folder)
            return Spool(self._owner.folder, spool_bytes())
        except (OSError, SpoolFullError) as error:
            text = "anabranch: no spool in %s (%s); steps are kept in memory until they are sent"
            log.warning(text, self._parent, error)
            return MemorySpool(_MEMORY_BYTES)

    def group(self) -> StepGroup:
        """Returns a new group of trajectories that step together."""
        group = StepGroup(self.sender.deliver)
        self._groups.add(group)
        return group

    def open(
        self, identity: Identity, group: StepGroup | None = None, recorded: Recorded | None = None
    ) -> tuple[Transfer, SpooledTrajectory]:
        """Adds a trajectory. `recorded` is what reads need to know of it; None if they do not select it."""
        spool = self.spool
        spooled = spool.add(identity.to_bytes())
        transfer = Transfer(self.sender, spool, spool.marks, spooled.number, identity)
        owner = self._owner
        if owner is not None:
            transfer.moving = lambda moved: note_move(owner.folder, spooled.number, moved)
            transfer.refusing = lambda problem: note_refusal(
                owner.folder, spooled.number, identity.trajectory_id, problem
            )
        if group is not None:
            transfer.shares, transfer.deliver = True, group.add
        with self._opened_lock:
            self._opened[transfer] = spooled, recorded
        return transfer, spooled

    def unsent(self, selects: Selects | None = None) -> list[Unsent]:
        """Returns what is recorded now and not sent: of the trajectories that a read selects, or of all and of runs."""
        with self._opened_lock:
            opened = list(self._opened.items())
        return [
            Unsent(transfer, spooled.position)
            for transfer, (spooled, recorded) in opened
            if transfer.settled < spooled.position
            and (selects is None or (recorded is not None and selects(replace(recorded, id=transfer.trajectory_id))))
        ]

    def record(self, transfer: Transfer, spooled: SpooledTrajectory, kind: Kind, number: int, payload: bytes) -> int:
        """Appends a record, tells the sender, and returns its position. Raises SpoolFullError."""
        assert self._spool is not None
        held = self._held.get(spooled.number)
        replaces = held is not None and kind in _REPLACING
        if held is not None and not replaces:
            self.hold(transfer, spooled, held.number, held.content, ahead=1)
        entry = self._spool.append(spooled, kind, number, payload)
        if replaces:
            entry.replaced = self._held.pop(spooled.number).entry
        if transfer.deliver is None:
            transfer.add(entry)
            self.sender.notify(transfer)
        else:
            transfer.deliver(transfer, entry)
        return entry.position

    def hold(
        self, transfer: Transfer, spooled: SpooledTrajectory, number: int, content: bytes, *, ahead: int = 0
    ) -> None:
        """Keeps a step that the next recorded step replaces. Without one, the end of the process records it. Raises
        SpoolFullError."""
        entry = self.spool.append(spooled, Kind.HELD_STEP, number, content, ahead=ahead)
        before = self._held.get(spooled.number)
        entry.replaced = None if before is None else before.entry
        self._held[spooled.number] = HeldStep(transfer, spooled, number, content, entry)

    def _record_held(self) -> None:
        for held in list(self._held.values()):
            try:
                for kind, content in records_of(held.content, self.sender.connections.limits):
                    if held.transfer.failure is None:
                        self.record(held.transfer, held.spooled, kind, held.number, content)
            except SpoolFullError as error:
                log.warning("anabranch: what was said last to %s is lost: %s", held.transfer.trajectory_id, error)

    def calls(self, run_id: str) -> tuple[Transfer, int]:
        """Returns the transfer of the calls that concern a run, and how many were recorded."""
        with self._lock:
            transfer, spooled = self._calls_of(run_id)
            return transfer, spooled.position

    def has_calls(self, run_id: str) -> bool:
        """Returns whether calls that concern a run were recorded."""
        return run_id in self._calls

    def record_call(self, run_id: str, method: str, request: bytes) -> tuple[Transfer, int]:
        """Records a call that concerns a run, and returns its position. Calls are made in order. Raises SpoolFullError."""
        with self._lock:
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
        recorded = 0 if self._spool is None else self._spool.steps
        durable = self.sender.durable
        spooled = max(0, self.sender.steps - durable - self.sender.dropped_steps)
        counts = dict(unstored)
        if self.sender.unstored_values:
            counts["rejected"] = self.sender.unstored_values
        return Stats(recorded, durable, spooled, counts, self._dropped + self.sender.dropped_steps)

    def adopt(self, seconds: float | None = None, selects: Selects | None = None) -> bool:
        """Takes over what dead processes left for this server, and waits until it is sent: all, or what a read selects.

        Returns whether nothing of it waits any more, apart from what cannot be sent.
        """
        if not self.alive or not self._has_neighbours():
            return True
        scanned = self.sender.scan()

        def waits() -> bool:
            return any(
                transfer.waiting
                and transfer.failure is None
                and (selects is None or selects(Recorded(transfer.trajectory_id)))
                for each in list(self.sender.adopted)
                for transfer in each.transfers
            )

        what = "what dead processes left"
        return self.sender.wait(lambda: scanned() and not waits(), seconds, lambda: what) or not waits()

    def _has_neighbours(self) -> bool:
        """Whether other processes have spools for this server. Most reads find none, and need not wait for a scan."""
        if self._parent is None:
            return False
        own = None if self._owner is None else self._owner.folder.name
        try:
            return any(name != own for name in os.listdir(self._parent))
        except OSError:
            # No process has recorded for this server; the sender reports other reasons.
            return False

    def close(self, seconds: float) -> None:
        """Sends what waits, for a time, or until connections are refused for a second. Reports what is kept."""
        sender = self.sender
        self._record_held()
        try:
            if seconds > 0:
                # Children that were terminated have left their records.
                scanned = sender.scan()
                sender.hurry()
                sent: Callable[[], bool] = lambda: scanned() and not (self._recording or sender.busy)
                sender.wait(lambda: sent() or sender.refuses(_REFUSED_SECONDS), seconds)
        except KeyboardInterrupt:
            pass
        self.alive = False
        ended = sender.stop()
        for problem, count in sender.refusals.items():
            if count > 1:
                log.error("anabranch: %d trajectories were refused: %s", count, problem)
        if self._spool is not None:
            self._close_spool(self._spool, ended=ended)

    def _close_spool(self, spool: Spool | MemorySpool, *, ended: bool) -> None:
        """Deletes the folder if all is sent. Refused trajectories are kept. Reports what is kept to be sent."""
        spool.close()
        own = self.sender.waiting_in(spool)
        waiting = [transfer for transfer in own if not transfer.refused]
        calls = sum(spooled.position - transfer.settled for transfer, spooled in self._calls.values())
        counts = {"steps": sum(transfer.waiting_steps for transfer in waiting), "logs of metrics": calls}
        left = " and ".join(f"{count} {what}" for what, count in counts.items() if count)
        if self._owner is None:
            if left:
                log.warning("anabranch: %s were kept in memory only and are lost", left)
        elif waiting or self._recording or not ended:
            text = "anabranch: %s are kept in %s; the next process sends them"
            log.warning(text, left or "ends of trajectories", self._owner.folder)
        elif own:
            Abandoned(self._owner).finish()
        else:
            self._owner.delete()

    @property
    def _recording(self) -> bool:
        """Whether a thread records a vector step."""
        return any(group.waiting for group in list(self._groups))

    def forget(self) -> None:
        """In a forked child: the parent owns everything."""
        self.alive = False


_Key = tuple[str, "Path | None", Sending]


class _Process:
    """The recorders of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recorders: dict[_Key, Recorder] = {}
        # Two threads may fork at the same time.
        self._held = threading.local()
        self._ends_with_multiprocessing = False

    def forking(self) -> None:
        """Before a fork: gRPC can be copied only while no thread is within it. It holds its own threads."""
        self._held.recorders = [each for each in list(self.recorders.values()) if each.sender.hold()]

    def parent_continues(self) -> None:
        for recorder in self._held.recorders:
            recorder.sender.release()

    def recorder(self, address: str, spool: object, sending: Sending) -> Recorder:
        root = _folder_from(spool)
        key = (address, root, sending)
        with self.lock:
            recorder = self.recorders.get(key)
            if recorder is None or not recorder.alive:
                parent = None if root is None else folder_of(root, address)
                recorder = self.recorders[key] = Recorder(address, parent, sending)
            return recorder

    def end_with_multiprocessing(self) -> None:
        """Lets a child of `multiprocessing` call `exit` at its end, which has no `atexit`.

        To be called when it records: at its beginning, it clears what was to be called.
        """
        for name in () if self._ends_with_multiprocessing else ("multiprocessing", "multiprocess"):
            util, process = sys.modules.get(f"{name}.util"), sys.modules.get(f"{name}.process")
            if util is not None and process is not None and process.parent_process() is not None:
                self._ends_with_multiprocessing = True
                # After the queues of the child have ended, whose priority is -5.
                util.Finalize(None, self.exit, exitpriority=-50)

    def forked(self) -> None:
        for recorder in self.recorders.values():
            recorder.forget()
        self.lock = threading.Lock()
        self.recorders, self._held = {}, threading.local()
        self._ends_with_multiprocessing = False

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
    try:
        return resolved(os.fspath(spool)) if isinstance(spool, (str, os.PathLike)) else spool_root()
    except RuntimeError as error:
        _warn_of(str(error))
        return None


@functools.cache
def _warn_of(problem: str) -> None:
    log.warning("anabranch: no spool (%s): set ANABRANCH_SPOOL; steps are kept in memory until they are sent", problem)


def recorder_for(address: str, spool: object, sending: Sending = DEFAULT_SENDING) -> Recorder:
    """Returns the recorder of this process for a server. `spool` is a folder, None for the default, False for memory."""
    return _process.recorder(address, spool, sending)


@dataclass(frozen=True)
class Sent:
    """What became of the records that dead processes left."""

    steps: int
    #: Number of trajectories that the server has refused.
    refused: int
    #: What is kept, and why: lines of text.
    kept: list[str]


def send_spool(root: Path, recorded_for: str, address: str, seconds: float) -> Sent:
    """Sends what dead processes recorded for a server, to this server or another one."""
    recorder = Recorder(address, folder_of(root, recorded_for))
    recorder.adopt(seconds)
    kept = [
        f"trajectory {transfer.trajectory_id}: {transfer.failure or recorder.sender.problem}"
        for each in list(recorder.sender.adopted)
        for transfer in each.transfers
        if transfer.waiting and not transfer.refused
    ]
    recorder.close(0)
    return Sent(recorder.sender.durable, recorder.sender.refusals.total(), kept)


def recorders_of(address: str) -> list[Recorder]:
    """Returns the recorders of this process for a server."""
    recorders = list(_process.recorders.values())
    return [recorder for recorder in recorders if recorder.address == address and recorder.alive]
