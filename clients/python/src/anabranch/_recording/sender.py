"""The sender: the one background thread of a recorder."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from anabranch._recording.abandoned import Abandoned, abandoned, folder_of
from anabranch._recording.batch import BATCH_FROM, Batches, Recorded
from anabranch._recording.rpc import Connections
from anabranch._recording.sending import DEFAULT_SENDING, Sending
from anabranch._recording.spool import MemorySpool, Spool
from anabranch._recording.transfer import Transfer
from anabranch._wire.connection import is_refused
from anabranch._wire.failures import Failure
from anabranch._wire.reach import reach_of
from anabranch._wire.scope import scope

log = logging.getLogger("anabranch")

_IDLE_SECONDS = 60.0
#: How often the sender looks for spools of dead processes.
_SCAN_SECONDS = 2.0
#: After this time, a thread that waits for records says what it waits for.
_PATIENT_SECONDS = 10.0
#: What gRPC says of a connection that was refused.
_REFUSED = "Connection refused"
#: Records that arrive within this time share a frame. Short bursts of the sender delay the threads that record less.
_GATHER_SECONDS = 0.002


class Sender:
    """Sends the records of this process, and those that dead processes left for the same server."""

    def __init__(self, address: str, parent: Path | None, sending: Sending = DEFAULT_SENDING) -> None:
        self.address = address
        self.give_up_after = sending.give_up_after
        self.is_home = parent is None or parent == folder_of(parent.parent, address)
        self.connections = Connections(address)
        self.spool: Spool | MemorySpool | None = None
        #: Folders of this process.
        self.own: set[Path] = set()
        self.durable = 0
        self.dropped_steps = 0
        self.unstored_values = 0
        #: How many trajectories the server has refused, by its answer.
        self.refusals: Counter[str] = Counter()
        #: What dead processes left, and this one sends.
        self.adopted: list[Abandoned] = []
        self._adopted_steps = 0
        #: Notified when records were settled or a scan has ended.
        self.progress = threading.Condition()
        #: Number of threads that wait for progress.
        self.waiters = 0
        #: The last failure since the server answered. Empty while it answers.
        self._problem = ""
        #: Since when each connection was refused. None if the last one was not.
        self._refused_since: float | None = None
        self._parent = parent
        self._silence = sending.silence
        self._events: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ready: deque[Transfer] = deque()
        #: Records of groups that their transfers do not have yet.
        self._delivered: deque[Recorded] = deque()
        self._batches = Batches(self)
        self._transfers: set[Transfer] = set()
        #: What waits for the version and the limits of the server.
        self._asking: list[Callable[[Failure | None], None]] = []
        self._sleeping = False
        self._moved = False
        self._reach = reach_of(address)
        #: Number of durable steps when the server became unreachable. None while it answers.
        self._durable_before: int | None = None
        #: Number of steps that are durable, or dropped, when all is sent that was kept meanwhile. None before it
        #: answers again.
        self._kept_until: int | None = None
        self._next_scan = 0.0
        self._next_check = 0.0
        self._thread: threading.Thread | None = None
        self._stopped = False
        #: Held while the thread may call gRPC.
        self._turn = threading.Lock()

    # What other threads call

    def start(self) -> None:
        thread = threading.Thread(target=self._run, name="anabranch-sender", daemon=True)
        # At the end of the interpreter no thread starts: what is recorded stays in the spool.
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def notify(self, transfer: Transfer) -> None:
        """Tells the sender that a transfer has a new record."""
        if not transfer.queued:
            transfer.queued = True
            self._ready.append(transfer)
            self._wake()

    def deliver(self, recorded: Recorded) -> None:
        """Takes records that are to be sent together. Their transfers get them in the sender's thread."""
        self._delivered.append(recorded)
        self._wake()

    def _wake(self) -> None:
        if self._sleeping:
            self._sleeping = False
            self._events.put(None)

    def later(self, work: Callable[[], None]) -> None:
        """Runs a function in the sender's thread."""
        self._events.put(work)

    def hold(self) -> bool:
        """Keeps the thread from calling gRPC until `release`. Returns False if that takes longer than a second."""
        return self._turn.acquire(timeout=1)

    def release(self) -> None:
        self._turn.release()

    def scan(self) -> Callable[[], bool]:
        """Takes over what dead processes left, soon. Returns a function that says whether this has happened."""
        done = threading.Event()

        def work() -> None:
            try:
                self._scan_now()
            finally:
                done.set()

        self.later(work)
        return done.is_set

    def hurry(self) -> None:
        """Tries again now what waits for its next try."""
        self.later(self._retry_now)

    def refuses(self, seconds: float) -> bool:
        """Whether connections were refused for some time, and still are: nothing listens at the address.

        Between its attempts, gRPC repeats its last failure.
        """
        since = self._refused_since
        return since is not None and self.now() - since >= seconds and is_refused(self.address)

    def wait(self, condition: Callable[[], bool], seconds: float | None, what: Callable[[], str] | None = None) -> bool:
        """Waits until a condition of transfers holds. Returns whether it does.

        `what` describes what it waits for. After ten seconds, a warning says so.
        """
        begun = time.monotonic()
        deadline = None if seconds is None else begun + seconds
        own = scope()
        self.waiters += 1
        try:
            self._events.put(None)
            with own.waiting(self._notify_waiters), self.progress:
                while not condition():
                    own.check()
                    now = time.monotonic()
                    left = 1.0 if deadline is None else min(1.0, deadline - now)
                    if left <= 0:
                        return False
                    if what is not None and now - begun >= _PATIENT_SECONDS:
                        text = "anabranch: still waiting for %s after %.0f s: %s. They are kept %s"
                        log.warning(text, what(), now - begun, self.problem, self.place)
                        what = None
                    self.progress.wait(left)
            return True
        finally:
            self.waiters -= 1

    @property
    def problem(self) -> str:
        """Why records may still wait."""
        return f"the server at {self.address} {self._problem or 'has not stored them yet'}"

    @property
    def steps(self) -> int:
        """Number of steps that were recorded by this process, or adopted."""
        return self._adopted_steps + (0 if self.spool is None else self.spool.steps)

    @property
    def busy(self) -> bool:
        """Whether records wait that can still be sent."""
        return bool(self._delivered or self._ready) or any(
            transfer.waiting and transfer.failure is None for transfer in list(self._transfers)
        )

    def waiting_in(self, spool: Spool | MemorySpool) -> list[Transfer]:
        """Returns the transfers of a spool with records that wait, also those that cannot be sent. After the end."""
        return [transfer for transfer in list(self._transfers) if transfer.waiting and transfer.is_in(spool)]

    def disconnect(self) -> None:
        """Closes the connections soon, unless something is to be sent. What is recorded later opens others."""
        self.later(self._disconnect)

    def _disconnect(self) -> None:
        if not self.busy:
            for transfer in self._transfers:
                transfer.rest()
            self.connections.close()

    def stop(self) -> bool:
        """Ends the thread and the connections. What is not sent stays in the spool.

        Returns whether the thread has ended.
        """
        self._stopped = True
        self._events.put(None)
        if self._thread is not None:
            self._thread.join(2)
        ended = self._thread is None or not self._thread.is_alive()
        if ended:
            self._collect()
            self._finish_adopted()
        self.connections.close()
        return ended

    # What transfers call

    def now(self) -> float:
        return time.monotonic()

    def ask(self, answered: Callable[[Failure | None], None]) -> None:
        """Asks the server for its version and limits, once for all that wait."""
        self._asking.append(answered)
        if len(self._asking) == 1:
            self.connections.ask(lambda failure: self.later(lambda: self._answered(failure)))

    def _answered(self, failure: Failure | None) -> None:
        if failure is None:
            self._problem, self._refused_since = "", None
        asking, self._asking = self._asking, []
        for answered in asking:
            answered(failure)

    def acked(self, steps: int) -> None:
        self.durable += steps
        self._moved = True
        self._problem, self._refused_since = "", None
        self._reach.known = True
        if self._durable_before is not None and self._kept_until is None:
            self._kept_until = self.steps

    def dropped(self, steps: int, problem: str) -> None:
        self.dropped_steps += steps
        self._moved = True
        log.warning("anabranch: %s; %d steps that were not sent are dropped", problem, steps)

    def unstored(self, problem: str) -> None:
        self.unstored_values += 1
        log.warning("anabranch: %s", problem)

    @property
    def place(self) -> str:
        """Where steps are kept."""
        in_memory = self._parent is None or (self.spool is not None and self.spool.folder is None)
        return "in memory" if in_memory else f"in {self._parent}"

    def failed(self, failure: Failure) -> None:
        self._problem = f"{'does not answer' if failure.unreachable else 'fails'} ({failure})"
        if not failure.unreachable:
            return
        if _REFUSED not in failure.message:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = self.now()
        self._kept_until = None
        if self._durable_before is None:
            self._durable_before = self.durable
            self._reach.lost(failure.message, f"steps are kept {self.place} and sent when it is back", self)

    def report_return(self) -> None:
        """Reports that the server is back, when all is sent that was kept meanwhile."""
        if self._durable_before is None or self._kept_until is None:
            return
        if self.durable + self.dropped_steps >= self._kept_until or not self.busy:
            sent, self._durable_before, self._kept_until = self.durable - self._durable_before, None, None
            self._reach.found(self, sent)

    def report(self, message: str) -> None:
        self._moved = True
        log.warning("anabranch: %s", message)

    def refused(self, what: str, failure: Failure) -> Failure:
        self._moved = True
        kept = f"Its steps are kept {self.place} and not sent again"
        if self.place != "in memory":
            kept += ": `python -m anabranch spool` lists, renames, drops or exports them"
        # A run that was deleted refuses each episode of its workers.
        level = logging.INFO if str(failure) in self.refusals else logging.ERROR
        self.refusals[str(failure)] += 1
        explained = replace(failure, message=f"{failure.message.rstrip('.')}. {kept}")
        log.log(level, "anabranch: %s are refused: %s", what, explained)
        return explained

    # The thread

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._round()
            except Exception:
                log.exception("anabranch: the sender failed and continues")
                time.sleep(1)

    def _round(self) -> None:
        self._sleeping = True
        if not self._delivered and not self._ready:
            try:
                event = self._events.get(timeout=self._pause())
            except Empty:
                event = None
        else:
            event = None
        self._sleeping = False
        if self.waiters == 0:
            time.sleep(_GATHER_SECONDS)
        with self._turn:
            self._work(event)

    def _work(self, event: Callable[[], None] | None) -> None:
        while True:
            if event is not None:
                event()
            try:
                event = self._events.get_nowait()
            except Empty:
                break
        ready = self._collect()
        many = sum(not transfer.streaming for transfer in ready) >= BATCH_FROM
        self._batches.send([transfer for transfer in ready if many or transfer.shares])
        for transfer in ready:
            if not (many or transfer.shares):
                transfer.pump()
        self._check()
        if self.spool is not None:
            self.spool.maintain()
        self.report_return()
        if self._moved or self.waiters:
            self._moved = False
            self._notify_waiters()

    def _collect(self) -> list[Transfer]:
        """Returns the transfers that have new records."""
        while self._delivered:
            for transfer, entry in self._delivered[0]:
                transfer.add(entry)
                self.notify(transfer)
            # Other threads look at `busy`: the records must be in one of the lists.
            self._delivered.popleft()
        ready: list[Transfer] = []
        while self._ready:
            transfer = self._ready.popleft()
            transfer.queued = False
            self._transfers.add(transfer)
            ready.append(transfer)
        return ready

    def _notify_waiters(self) -> None:
        with self.progress:
            self.progress.notify_all()

    def _pause(self) -> float:
        now = self.now()
        if not self._transfers:
            return max(0.0, self._next_scan - now)
        return min(0.5, *(transfer.retry_at - now for transfer in self._transfers if transfer.retry_at > now), 0.5)

    def _check(self) -> None:
        """Does what is due by time."""
        now = self.now()
        for transfer in [transfer for transfer in self._transfers if 0 < transfer.retry_at <= now]:
            transfer.retry_at = 0.0
            transfer.pump()
        if now >= self._next_check:
            self._next_check = now + 0.5
            for transfer in list(self._transfers):
                transfer.check_silence(self._silence, _IDLE_SECONDS)
                if not transfer.waiting and not transfer.streaming:
                    self._transfers.discard(transfer)
            self._finish_adopted()
        if now >= self._next_scan:
            self._scan_now()

    def _finish_adopted(self) -> None:
        for each in [each for each in self.adopted if each.done]:
            self.adopted.remove(each)
            each.finish()
            self._moved = True

    def _retry_now(self) -> None:
        self._refused_since = None
        for transfer in list(self._transfers):
            transfer.retry_at = 0.0
            transfer.pump()

    def _scan_now(self) -> None:
        self._next_scan = self.now() + _SCAN_SECONDS
        if self._parent is not None:
            own = self.own | {each.owner.folder for each in self.adopted}
            for each in abandoned(self._parent, own):
                self._adopt(each)
        self._moved = True

    def _adopt(self, found: Abandoned) -> None:
        self.adopted.append(found)
        self._adopted_steps += found.steps
        for transfer in found.begin(self):
            self._transfers.add(transfer)
            transfer.pump()
        unusable = sum(left.unusable for left in found.left)
        if unusable or found.damaged:
            self.dropped_steps += unusable
            text = "anabranch: the spool %s is damaged: %d steps after the damage cannot be sent; its segments are set aside"
            log.warning(text, found.owner.folder, unusable)
        if found.steps:
            text = "anabranch: sending %d steps that an earlier process left in %s"
            log.info(text, found.steps, found.owner.folder)
