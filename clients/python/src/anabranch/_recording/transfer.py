"""What is not durable yet of one trajectory, and the calls that send it."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from anabranch._recording import rpc
from anabranch._recording.link import Link
from anabranch._recording.queue import Queue
from anabranch._recording.rpc import Connections
from anabranch._recording.segment import STEPS, Entry, Kind, Marks
from anabranch._recording.spool import Identity, Moved
from anabranch._wire.failures import Failure, failure_of_part
from anabranch._wire.retry import Patience, Situation, judge, protocol_error

if TYPE_CHECKING:
    from anabranch.v1.trajectory_service_pb2 import AppendOpened, AppendResult, AppendStepsResponse

#: How often a branch checks whether its branch point is durable.
_BRANCH_POINT_SECONDS = 0.05
_NO_THREAD_SECONDS = 0.05
_BEFORE_BRANCH = ("BRANCH_POINT_BEYOND_END", "TRAJECTORY_NOT_FOUND")
#: How often the creation of a branch is tried whose branch point another transfer has to send first.
_BRANCH_TRIES = 60
#: Size of a share. Leaves room for those of others.
_SHARE_BYTES = 64 * 1024


class Records(Protocol):
    """Where the contents of entries are."""

    def load(self, entry: Entry) -> bytes: ...
    def release(self, entry: Entry) -> None: ...


class SenderInterface(Protocol):
    """What a transfer needs of the sender. `later` runs a function in the sender's thread, and `ask` asks the server for
    its version and limits, and calls a function there: with None if they are known and compatible. `refused` returns
    the failure with what to do about it."""

    connections: Connections
    #: Retry limit: how many seconds after the first failure without progress a transfer stops sending.
    give_up_after: float
    #: Whether the records were made for this server. Only then its refusals are final.
    is_home: bool

    @property
    def place(self) -> str: ...

    def now(self) -> float: ...
    def notify(self, transfer: Transfer) -> None: ...
    def ask(self, answered: Callable[[Failure | None], None]) -> None: ...
    def later(self, work: Callable[[], None]) -> None: ...
    def acked(self, steps: int) -> None: ...
    def dropped(self, steps: int, problem: str) -> None: ...
    def unstored(self, problem: str) -> None: ...
    def failed(self, failure: Failure) -> None: ...
    def report(self, message: str) -> None: ...
    def refused(self, what: str, failure: Failure) -> Failure: ...


@dataclass(frozen=True)
class Share:
    """What a message has of one trajectory."""

    content: bytes
    entries: Sequence[Entry]


class Transfer:
    """The records of one trajectory, in order. Everything but `add` and the read-only state belongs to the sender."""

    def __init__(
        self, sender: SenderInterface, records: Records, marks: Marks | None, number: int, identity: Identity
    ) -> None:
        self.trajectory_id = identity.trajectory_id
        self.queued = False
        #: Whether records are sent in batches, as long as that works: those of a group, and others after their first
        #: one.
        self.shares = False
        #: Number of records that are acked or given up.
        self.settled = 0
        #: All steps below this number are durable.
        self.durable = 0
        #: Set when the rest of the records cannot be sent.
        self.failure: Failure | None = None
        #: Why the rest of the records was removed from the spool. Empty if it was not.
        self.dropped = ""
        #: Whether that is final: no other process sends them either.
        self.refused = False
        #: Position of the first record that cannot be sent.
        self.failed_at = 0
        self.moving: Callable[[Moved], None] = lambda moved: None
        #: Keeps durably that the server has refused this trajectory, and why.
        self.refusing: Callable[[str], None] = lambda problem: None
        #: Takes the records of trajectories that step together. Unset if this one steps alone.
        self.deliver: Callable[[Transfer, Entry], None] | None = None
        #: Whether this trajectory can be created: its branch point is durable. Unset if it needs none.
        self.waits_for: Callable[[], bool] | None = None
        #: A call that is made after all records: its method, and its request as a function of the trajectory's id.
        self.last_call: tuple[str, Callable[[str], bytes]] | None = None
        self._sender = sender
        self._records = records
        self._marks = marks
        #: Number of the trajectory in its folder.
        self.number = number
        self._identity = identity
        self._queue = Queue()
        self._link = Link(sender.connections, sender.now, sender.later)
        self._ever_opened = False
        self._busy = False
        #: Steps below this number are sent one by one, because one of them was rejected.
        self._isolated_below = 0
        self._batches = True
        self._comparing = False
        #: Where the rest of the records goes, until that trajectory is created.
        self.moved: Moved | None = None
        self._uid = ""
        self._epoch: int | None = None
        #: End of the trajectory when the server last granted a writer, or took a batch.
        self._known_end = 0
        self._refused_by = identity.epoch
        self._reopenings = 0
        self._branch_tries = 0
        #: The record of the creation, while the stream that creates the trajectory opens.
        self._creating: Entry | None = None
        #: False after a creation by open was rejected: a call of its own follows, whose errors have remedies.
        self._creates_by_open = True
        self._rejected_step: Entry | None = None
        #: What can still be sent in place of the rejected step.
        self._remedies: Iterator[bytes] = iter(())
        self._patience = Patience(sender.give_up_after, sender.now)
        self.retry_at = 0.0
        #: Adds a record. Threads that record call this, the sender everything else.
        self.add = self._queue.add

    @property
    def streaming(self) -> bool:
        return self._link.exists

    @property
    def waiting(self) -> bool:
        """Whether records are not settled."""
        return self._queue.waiting or self.last_call is not None

    def is_in(self, records: Records) -> bool:
        """Returns whether these are its records."""
        return self._records is records

    @property
    def waiting_steps(self) -> int:
        """Number of steps that are not settled. For the sender's thread, and after its end."""
        self._queue.collect()
        return self._queue.count(STEPS) + self._queue.sent

    @property
    def _isolating(self) -> bool:
        return self.durable < self._isolated_below

    @property
    def _can_share(self) -> bool:
        known = self._sender.connections.limits.known
        return known and self._batches and not self._comparing and not self._isolating

    def pump(self) -> None:
        """Sends what can be sent now."""
        self._queue.collect()
        if self.failure is not None or self._busy or self._sender.now() < self.retry_at:
            return
        if self.waiting and not self._sender.connections.limits.known:
            self._ask()
            return
        if self.waits_for is not None:
            if not self.waits_for():
                self.retry_at = self._sender.now() + _BRANCH_POINT_SECONDS
                return
            self.waits_for = None
        if self.moved is not None:
            self._create_rest(self.moved)
        elif self._link.exists:
            self._use_stream()
        elif (head := self._queue.head) is not None:
            creates = head.kind == Kind.CREATE and self._creates_by_open
            # A seal needs the epoch of the writer, and a stream is granted it.
            seals = head.kind == Kind.SEAL and self._epoch is None
            if self.shares and self._can_share and (creates or head.is_step or head.kind == Kind.SEAL):
                self._sender.notify(self)
            elif self._comparing or not (creates or seals or head.is_step):
                self._act(head)
            else:
                self._open(head if creates else None)
        elif self.last_call is not None:
            self._make_last_call(*self.last_call)

    def _ask(self) -> None:
        """Asks the server for its version and limits before the first call."""
        self._busy = True

        def answered(failure: Failure | None) -> None:
            self._busy = False
            if failure is not None and self._patience.useless(failure):
                self._fail(failure)
            elif failure is not None:
                self._retry(failure)
            self.pump()

        self._sender.ask(answered)

    def _use_stream(self) -> None:
        if not self._link.opened:
            return
        self._send_frames()
        head = self._queue.head
        if self._queue.sent > 0:
            return
        if head is not None and not head.is_step:
            self._act(head)
        elif head is None and self.last_call is not None:
            self._make_last_call(*self.last_call)

    def check_silence(self, silence: float, idle: float) -> None:
        """Ends a stream on which the server owes an answer for too long, or that is not used."""
        if self._link.silent(silence):
            self._ended(Failure("UNAVAILABLE", f"the server sent nothing for {silence:g} s"))
        elif self._link.idle(idle):
            self.rest()

    def rest(self) -> None:
        """Ends a stream that has nothing to send."""
        if not self.waiting:
            self._link.close()

    def share(self) -> Share | None:
        """Returns what a message of AppendBatch has of this trajectory. None if it needs a stream or a call of its own."""
        self._queue.collect()
        unfit = self._busy or self._link.exists or not self._can_share
        if unfit or self.failure or self.moved or self.waits_for or self._sender.now() < self.retry_at:
            return None
        entries = self._queue.share(_SHARE_BYTES)
        if not entries or (entries[0].kind == Kind.CREATE and not self._creates_by_open):
            return None
        self._busy = self.shares = True
        contents = [(entry.kind, self._load(entry)) for entry in entries]
        writer_id = None if self._ever_opened else self._identity.writer_id
        return Share(rpc.entry_of(self._addressee(), writer_id, contents), entries)

    def shared(self, share: Share, result: AppendResult | Failure) -> None:
        """Takes the result of a batch. A stream has the remedies for what a batch cannot do."""
        self._busy = False
        if isinstance(result, Failure) or result.HasField("error"):
            failure = result if isinstance(result, Failure) else failure_of_part(result.error)
            if failure.transient:
                self._retry(failure)
            else:
                self._batches = False
        elif self.failure is None:
            self._uid, self._ever_opened, self._known_end = result.uid, True, result.next_step_number
            if result.HasField("epoch"):
                self._epoch = result.epoch
            self._settle([self._queue.take_head() for _ in share.entries])
        self.pump()

    def _open(self, creation: Entry | None) -> None:
        """Opens a stream, which also creates the trajectory if its creation is the next record."""
        create = None if creation is None else self._load(creation)
        opening = rpc.opening_of(self._addressee(), self._identity.writer_id, create)
        self._creating = creation
        if not self._link.open(opening, self._take):
            # The interpreter starts no threads any more: a batch needs none.
            self._creating = None
            self.shares = True
            self.retry_at = self._sender.now() + _NO_THREAD_SECONDS

    def _send_frames(self) -> None:
        step_bytes = self._sender.connections.limits["stepBytes"]
        while self._link.exists and (steps := self._queue.frame(one_by_one=self._isolating, step_bytes=step_bytes)):
            self._link.send(rpc.frame_of([(entry.kind, self._load(entry)) for entry in steps]))

    def _take(self, response: AppendStepsResponse | Failure | None) -> None:
        if response is None:
            self._ended(Failure("UNAVAILABLE", "the server ended the stream"))
        elif isinstance(response, Failure):
            self._ended(response)
        else:
            self._take_response(response)
        self._link.heard(owed=self._queue.sent > 0)
        self.pump()

    def _take_response(self, response: AppendStepsResponse) -> None:
        if response.HasField("opened"):
            self._take_grant(response.opened)
        elif not self._link.opened:
            self._fail(protocol_error("answered before it accepted the stream"))
        if response.HasField("ack") and self.failure is None:
            self._take_ack(response.ack.next_step_number)
        if response.HasField("sealed") and self.failure is None:
            self._fail(protocol_error("reported a seal that this writer did not request"))

    def _take_grant(self, opened: AppendOpened) -> None:
        """Accepts a grant only if it is consistent with what was sent and received (rule W12)."""
        end = opened.next_step_number
        if self._link.opened:
            problem = "accepted one stream twice"
        elif end < self.durable:
            problem = f"has only steps below {end}, but acked those below {self.durable}"
        elif self._ever_opened and end > (recorded := max(self._known_end, self._queue.end(self.durable))):
            problem = f"has steps below {end}, but only those below {recorded} were recorded"
        elif self._epoch is not None and opened.epoch <= self._epoch:
            problem = f"granted epoch {opened.epoch} after epoch {self._epoch}"
        else:
            problem = ""
        if problem:
            self._fail(protocol_error(problem))
            return
        self._link.opened = self._ever_opened = True
        self._uid, self._epoch, self._known_end = opened.uid, opened.epoch, end
        creation, self._creating = self._creating, None
        if creation is not None and self._queue.head is creation:
            self._settle([self._queue.take_head()])
        self._reopenings = 0

    def _take_ack(self, end: int) -> None:
        acked, sent = self._queue.bounds(self.durable)
        if end < acked:
            self._fail(protocol_error(f"acked steps below {end} after it had acked those below {acked}"))
        elif end > sent:
            self._fail(protocol_error(f"acked steps below {end}, but the stream sent only those below {sent}"))
        else:
            self._settle(self._queue.acked(end))

    def _ended(self, failure: Failure) -> None:
        """Continues after the end of a stream."""
        self._link.close(cancel=True)
        if not self.waiting and failure.transient:
            return
        situation = self._situation()
        sent_below = self._queue.bounds(self.durable)[1]
        self._queue.unsend()
        creating, self._creating = self._creating, None
        if creating is not None and not failure.transient and self._create_apart(creating, failure):
            return
        verdict = judge(failure, situation)
        if verdict in ("take_over", "reopen"):
            if verdict == "take_over":
                self._refused_by = int((failure.metadata or {}).get("writer_epoch", "0"))
            # The first refusal in a row is retried without delay.
            self._reopenings += 1
            self._wait(failure, at_once=self._reopenings == 1)
        elif verdict == "isolate":
            self._isolated_below = sent_below
        elif verdict == "replace":
            self._replace_first(failure)
        elif verdict == "branch":
            self._cut_off(failure)
        elif verdict == "fail" or self._patience.useless(failure):
            self._fail(failure)
        else:
            self._retry(failure)

    def _situation(self) -> Situation:
        shared = not self._isolating and self._queue.sent > 1
        return Situation(self._identity.writer_id, self._ever_opened, self._identity.take_over, shared)

    def _create_apart(self, creation: Entry, failure: Failure) -> bool:
        """Returns whether a call of its own creates the trajectory. It must not create a deleted one again."""
        is_branch = self._load(creation).startswith(rpc.BRANCH.encode())
        self._creates_by_open = failure.reason == "TRAJECTORY_NOT_FOUND" and not is_branch
        return not self._creates_by_open

    def _retry(self, failure: Failure) -> None:
        self._sender.failed(failure)
        self._wait(failure)

    def _wait(self, failure: Failure, *, at_once: bool = False) -> None:
        retry_at = self._patience.retry_at(failure)
        if retry_at == math.inf:
            self._fail(self._patience.gave_up(failure))
        else:
            self.retry_at = 0.0 if at_once else retry_at

    def _act(self, entry: Entry) -> None:
        """Starts the call of a record. Those after it wait for its end."""
        self._busy = True
        content = self._load(entry)
        connections = self._sender.connections

        def done(result: bytes | Failure) -> None:
            self._sender.later(lambda: self._acted(entry, result))

        if entry.kind == Kind.UPLOAD:
            connections.put_state(content, done)
            return
        if entry.is_step:
            method, request = rpc.GET_STEP, rpc.get_step_of(self.trajectory_id, entry.number)
        else:
            method, request = rpc.call_of(entry.kind, content, self._addressee())
        connections.call(method, request, done)

    def _acted(self, entry: Entry, result: bytes | Failure) -> None:
        self._busy = False
        if self.failure is None and self._queue.head is entry:
            if entry.is_step:
                self._compared(entry, result)
            elif isinstance(result, Failure):
                self._rejected(entry, result)
            else:
                self._settle([self._queue.take_head()])
        self.pump()

    def _rejected(self, entry: Entry, failure: Failure) -> None:
        """Continues after a record's call has failed."""
        if not self._patience.useless(failure):
            self._retry(failure)
        elif entry.kind == Kind.CREATE and failure.reason in _BEFORE_BRANCH and self._branch_tries < _BRANCH_TRIES:
            self._branch_tries += 1
            self._wait(failure)
        elif entry.kind == Kind.CREATE and failure.reason in ("TRAJECTORY_EXISTS", "REQUEST_ID_REUSED"):
            self._settle([self._queue.take_head()])
        elif entry.kind == Kind.CREATE:
            self._fail(failure)
        elif entry.kind == Kind.SEAL and judge(failure, self._situation()) == "reopen":
            self._link.close(cancel=True)
            self._epoch = None
        else:
            what = "metrics of run" if entry.kind == Kind.VERB else f"{entry.kind.name.lower()} of trajectory"
            self._sender.unstored(f"{what} {self.trajectory_id} failed: {failure}")
            self._settle([self._queue.take_head()])

    def _make_last_call(self, method: str, request_of: Callable[[str], bytes]) -> None:
        self._busy = True

        def ended(result: bytes | Failure) -> None:
            self._busy = False
            if isinstance(result, Failure) and not self._patience.useless(result):
                return self._retry(result)
            self.last_call = None
            self._sender.acked(0)

        done: rpc.Done = lambda result: self._sender.later(lambda: ended(result))
        self._sender.connections.call(method, request_of(self.trajectory_id), done)

    def _replace_first(self, failure: Failure) -> None:
        self._isolated_below = 0
        entry = self._queue.head
        assert entry is not None
        if self._rejected_step is not entry:
            self._rejected_step = entry
            self._remedies = rpc.remedies_of(entry.kind, self._load(entry), str(failure))
        replacement = next(self._remedies, None)
        if replacement is None:
            self._fail(failure)
            return
        entry.replacement, entry.kind = replacement, Kind.STEP
        self._sender.unstored(f"step {entry.number} of trajectory {self.trajectory_id} was rejected: {failure}")

    def _cut_off(self, failure: Failure) -> None:
        """Another writer has continued the trajectory, or sealed it: the rest becomes a branch, or is dropped."""
        if self._identity.is_attempt:
            self._fail(failure, f"the attempt with trajectory {self.trajectory_id} has lost its lease")
        else:
            self._isolated_below = 0
            self._comparing = True

    def _compared(self, entry: Entry, result: bytes | Failure) -> None:
        """Finds the last step that this process and the server have in common; the rest becomes a branch."""
        moved_bytes = self._sender.connections.limits["contentStateBytes"]
        step = rpc.step_of(entry.kind, self._load(entry))
        if isinstance(result, bytes) and rpc.is_stored(step, result, moved_bytes):
            self._settle([self._queue.take_head()])
            return
        if isinstance(result, Failure) and result.reason != "STEP_NOT_FOUND":
            if self._patience.useless(result):
                self._fail(result)
            else:
                self._retry(result)
            return
        self._comparing = False
        self.moved = Moved(str(uuid.uuid4()), self.trajectory_id, entry.number)
        self.moving(self.moved)

    def _create_rest(self, moved: Moved) -> None:
        self._busy = True
        method, request = rpc.rest_of(moved.source, moved.shared, moved.trajectory_id, self._identity.name)
        done: rpc.Done = lambda result: self._sender.later(lambda: self._moved_to(moved, result))
        self._sender.connections.call(method, request, done)

    def _moved_to(self, moved: Moved, result: bytes | Failure) -> None:
        self._busy = False
        if isinstance(result, Failure):
            if self._patience.useless(result):
                self._fail(result)
            else:
                self._retry(result)
        else:
            self.moved = None
            self.trajectory_id, self._uid, self._epoch, self._refused_by = moved.trajectory_id, "", None, None
            self._ever_opened = False
            self._sender.report(
                f"trajectory {moved.source} was continued or sealed by another writer: "
                f"steps from {moved.shared} on are in its branch {moved.trajectory_id}"
            )
        self.pump()

    def _settle(self, entries: list[Entry]) -> None:
        steps = 0
        for entry in entries:
            self._records.release(entry)
            if entry.kind == Kind.SEAL:
                self._link.close()
            elif entry.is_step:
                steps += 1
                self.durable = entry.number + 1
        if not entries:
            return
        self._mark(entries[-1])
        self._patience.progress()
        self._sender.acked(steps)

    def _fail(self, failure: Failure, dropped: str = "") -> None:
        """Gives the rest up. With a reason to drop it, and if the trajectory was deleted, removes it from the spool."""
        self._link.close(cancel=True)
        self._queue.collect()
        self._queue.unsend()
        steps = self._queue.count(STEPS)
        self.failed_at = self.settled
        if self._is_deleted(failure):
            dropped = f"trajectory {self.trajectory_id} was deleted"
        calls = self._queue.count((Kind.VERB,))
        what = f"run {self.trajectory_id}: {calls} logs" if calls else f"trajectory {self.trajectory_id}: {steps} steps"
        if dropped:
            # Before the queue is empty: who waits for that must find why. Threads that record look at `dropped` first.
            self.dropped, self.failure = dropped, failure
            entries = self._queue.clear()
            for entry in entries:
                self._records.release(entry)
            if entries:
                self._mark(entries[-1])
            self._sender.dropped(steps, dropped)
        elif failure.final and self._sender.is_home:
            self.refused = True
            self.refusing(str(failure))
            failure = self._sender.refused(what, failure)
        else:
            self._sender.report(f"{what} cannot be sent and are kept {self._sender.place}: {failure}")
        self.failure = failure

    def _is_deleted(self, failure: Failure) -> bool:
        """Whether a failure says that this trajectory was deleted: not its branch point, and not on another server."""
        missing = (failure.metadata or {}).get("trajectory_id", "")
        is_own = missing in ("", self.trajectory_id.lower())
        return failure.reason == "TRAJECTORY_NOT_FOUND" and is_own and self._sender.is_home

    def _mark(self, entry: Entry) -> None:
        self.settled = entry.position + 1
        if self._marks is not None:
            self._marks.set(self.number, self.settled)

    def _addressee(self) -> rpc.Addressee:
        epoch = self._epoch if self._epoch is not None else self._refused_by
        return rpc.Addressee(self.trajectory_id, self._uid, epoch)

    def _load(self, entry: Entry) -> bytes:
        return self._records.load(entry) if entry.replacement is None else entry.replacement
