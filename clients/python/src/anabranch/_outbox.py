"""What is not durable yet of one trajectory, and the calls that send it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from anabranch import _wire
from anabranch._office import Identity, Moved, Office, Records
from anabranch._queue import Queue
from anabranch._retry import Failure, Patience, Situation, judge, protocol_error
from anabranch._segment import Entry, Kind, Marks

if TYPE_CHECKING:
    from anabranch.v1.trajectory_service_pb2 import AppendOpened, AppendStepsResponse

#: How often a branch checks whether its branch point is durable.
_BRANCH_POINT_SECONDS = 0.05
_BEFORE_BRANCH = ("BRANCH_POINT_BEYOND_END", "TRAJECTORY_NOT_FOUND")
#: How often the creation of a branch is tried whose branch point another outbox has to send first.
_BRANCH_TRIES = 60


class Outbox:
    """The records of one trajectory, in order. Everything but `add` and the read-only state belongs to the sender."""

    def __init__(self, office: Office, records: Records, marks: Marks | None, track: int, identity: Identity) -> None:
        self.trajectory_id = identity.trajectory_id
        self.queued = False
        #: Number of records that are acked or given up.
        self.settled = 0
        #: All steps below this number are durable.
        self.durable = 0
        #: Set when the rest of the records cannot be sent.
        self.failure: Failure | None = None
        #: Position of the first record that cannot be sent.
        self.failed_at = 0
        self.moving: Callable[[Moved], None] = lambda moved: None
        #: Whether this trajectory can be created: its branch point is durable. Unset if it needs none.
        self.waits_for: Callable[[], bool] | None = None
        #: A call that is made after all records: its method, and its request as a function of the trajectory's id.
        self.last_call: tuple[str, Callable[[str], bytes]] | None = None
        self._office = office
        self._records = records
        self._marks = marks
        self._track = track
        self._identity = identity
        self._queue = Queue()
        self._replaced: dict[int, bytes] = {}
        self._stream: _wire.Stream | None = None
        self._opened = False
        self._ever_opened = False
        self._awaits_since: float | None = None
        self._used = 0.0
        self._busy = False
        self._unary = False
        self._one_by_one = False
        self._comparing = False
        self._moved: Moved | None = None
        self._uid = ""
        self._epoch: int | None = None
        self._refused_by: int | None = None
        self._reopenings = 0
        self._branch_tries = 0
        self._patience = Patience()
        self.retry_at = 0.0

    def add(self, entry: Entry) -> None:
        """Adds a record. Threads that record call this, the sender everything else."""
        self._queue.add(entry)

    def restore(self, moved: Moved) -> None:
        """Continues where a dead process ended: its rest was to become another trajectory."""
        self._moved = moved

    @property
    def streaming(self) -> bool:
        return self._stream is not None

    @property
    def waiting(self) -> bool:
        """Whether records are not settled."""
        return self._queue.waiting or self.last_call is not None

    def pump(self) -> None:
        """Sends what can be sent now."""
        self._queue.collect()
        if self.failure is not None or self._busy or self._office.now() < self.retry_at:
            return
        if self.waits_for is not None:
            if not self.waits_for():
                self.retry_at = self._office.now() + _BRANCH_POINT_SECONDS
                return
            self.waits_for = None
        if self._moved is not None:
            self._create_rest(self._moved)
        elif self._stream is not None:
            self._use_stream()
        elif (head := self._queue.head) is not None:
            if head.kind != Kind.STEP or self._comparing or self._unary:
                self._act(head)
            else:
                self._open()
        elif self.last_call is not None:
            self._make_last_call(*self.last_call)

    def _use_stream(self) -> None:
        if self._opened:
            self._send_frames()
        head = self._queue.head
        if self._queue.sent > 0:
            return
        if head is not None and head.kind != Kind.STEP:
            self._act(head)
        elif head is None and self.last_call is not None:
            self._make_last_call(*self.last_call)

    def check_silence(self, silence: float, idle: float) -> None:
        """Ends a stream on which the server owes an answer for too long, or that is not used."""
        if self._stream is None:
            return
        now = self._office.now()
        if self._awaits_since is not None and now - self._awaits_since > silence:
            self._ended(Failure("UNAVAILABLE", f"the server sent nothing for {silence:g} s"))
        elif not self.waiting and now - self._used > idle:
            self.finish()

    def finish(self) -> None:
        """Ends the stream if there is one. A later record opens another one."""
        if self._stream is not None:
            self._stream.finish()
            self._close_stream()

    # Streams

    def _open(self) -> None:
        epoch = self._epoch if self._epoch is not None else self._refused_by
        opening = _wire.opening_of(self.trajectory_id, self._uid, self._identity.writer_id, epoch)
        holder: list[_wire.Stream] = []

        def report(response: AppendStepsResponse | Failure | None) -> None:
            self._office.later(lambda: self._take(holder[0] if holder else None, response))

        try:
            self._stream = self._office.connections.open_stream(opening, report)
        except RuntimeError:
            # The interpreter is exiting and starts no threads any more.
            self._unary = True
            self._office.later(self.pump)
            return
        holder.append(self._stream)
        self._opened = False
        self._awaits_since = self._used = self._office.now()

    def _send_frames(self) -> None:
        while self._stream is not None and (steps := self._queue.frame(one_by_one=self._one_by_one)):
            self._stream.send(_wire.frame_of([self._load(entry) for entry in steps]))
            if self._awaits_since is None:
                self._awaits_since = self._office.now()

    def _take(self, stream: _wire.Stream | None, response: AppendStepsResponse | Failure | None) -> None:
        if stream is None or stream is not self._stream:
            return
        if response is None:
            self._ended(Failure("UNAVAILABLE", "the server ended the stream"))
        elif isinstance(response, Failure):
            self._ended(response)
        elif response.HasField("opened"):
            self._take_grant(response.opened)
        elif response.HasField("ack"):
            self._take_ack(response.ack.next_step_number)
        self._used = self._office.now()
        self._awaits_since = self._used if self._queue.sent or (self._stream and not self._opened) else None
        self.pump()

    def _take_grant(self, opened: AppendOpened) -> None:
        if opened.next_step_number < self.durable:
            self._fail(protocol_error(f"has only steps below {opened.next_step_number}, but acked {self.durable}"))
            return
        self._opened = self._ever_opened = True
        self._uid, self._epoch = opened.uid, opened.epoch
        self._reopenings = 0

    def _take_ack(self, next_step_number: int) -> None:
        if self._queue.covers(next_step_number):
            self._settle(self._queue.acked(next_step_number))
        elif next_step_number > self.durable:
            self._fail(protocol_error(f"acked steps below {next_step_number}, which were not sent"))

    def _ended(self, failure: Failure) -> None:
        """Continues after the end of a stream."""
        stream = self._stream
        self._close_stream()
        if stream is not None:
            stream.cancel()
        if not self.waiting and failure.transient:
            return
        situation = Situation(
            self._identity.writer_id,
            self._ever_opened,
            self._identity.take_over,
            not self._one_by_one and self._queue.sent > 1,
        )
        self._queue.unsend()
        verdict = judge(failure, situation)
        if verdict in ("take_over", "reopen"):
            self._refused_by = int((failure.metadata or {}).get("writer_epoch", "0"))
            if verdict == "reopen":
                self._epoch = self._refused_by
            self._retry_after_refusal(failure)
        elif verdict == "isolate":
            self._one_by_one = True
        elif verdict == "replace":
            self._replace_first(failure)
        elif verdict == "branch":
            self._comparing = True
        elif verdict == "fail" or self._patience.useless(failure):
            self._fail(failure)
        else:
            self._retry(failure)

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._office.connections.release(self._stream)
        self._stream = None
        self._opened = False
        self._awaits_since = None

    def _retry_after_refusal(self, failure: Failure) -> None:
        """The first refusal in a row is retried without delay."""
        self._reopenings += 1
        if self._reopenings > 1:
            self.retry_at = self._patience.retry_at(failure)

    def _retry(self, failure: Failure) -> None:
        self._office.failed(failure)
        self.retry_at = self._patience.retry_at(failure)

    # Unary calls

    def _act(self, entry: Entry) -> None:
        """Starts the call of a record. Those after it wait for its end."""
        self._busy = True
        content = self._load(entry)
        connections = self._office.connections

        def done(result: bytes | Failure) -> None:
            self._office.later(lambda: self._acted(entry, result))

        if entry.kind == Kind.UPLOAD:
            connections.put_state(content, done)
            return
        addressee = _wire.Addressee(self.trajectory_id, self._uid, self._epoch)
        if entry.kind == Kind.STEP and self._comparing:
            method, request = _wire.GET_STEP, _wire.get_step_of(self.trajectory_id, entry.number)
        else:
            method, request = _wire.call_of(entry.kind, content, addressee)
        connections.call(method, request, done)

    def _acted(self, entry: Entry, result: bytes | Failure) -> None:
        self._busy = False
        if self.failure is None and self._queue.head is entry:
            if entry.kind == Kind.STEP and self._comparing:
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
            self.retry_at = self._patience.retry_at(failure)
        elif entry.kind == Kind.CREATE and failure.reason in ("TRAJECTORY_EXISTS", "REQUEST_ID_REUSED"):
            self._settle([self._queue.take_head()])
        elif entry.kind == Kind.STEP and failure.reason in ("WRITER_FENCED", "TRAJECTORY_SEALED", "STEP_CONFLICT"):
            self._comparing = True
        elif entry.kind in (Kind.CREATE, Kind.STEP):
            self._fail(failure)
        else:
            self._office.unstored(f"{entry.kind.name.lower()} of trajectory {self.trajectory_id} failed: {failure}")
            self._settle([self._queue.take_head()])

    def _make_last_call(self, method: str, request_of: Callable[[str], bytes]) -> None:
        self._busy = True

        def ended(result: bytes | Failure) -> None:
            self._busy = False
            if isinstance(result, Failure) and not self._patience.useless(result):
                self._retry(result)
            else:
                self.last_call = None
                self._office.acked(0)

        request = request_of(self.trajectory_id)
        self._office.connections.call(method, request, lambda result: self._office.later(lambda: ended(result)))

    # Steps that the trajectory does not take

    def _replace_first(self, failure: Failure) -> None:
        self._one_by_one = False
        entry = self._queue.head
        assert entry is not None
        if entry.number in self._replaced:
            self._fail(failure)
            return
        self._replaced[entry.number] = _wire.marker_of(entry.number, str(failure))
        self._office.unstored(f"step {entry.number} of trajectory {self.trajectory_id} was rejected: {failure}")

    def _compared(self, entry: Entry, result: bytes | Failure) -> None:
        """Finds the last step that this process and the server have in common; the rest becomes a branch."""
        if isinstance(result, bytes) and _wire.is_stored(self._load(entry), result):
            self._settle([self._queue.take_head()])
            return
        if isinstance(result, Failure) and result.reason != "STEP_NOT_FOUND":
            if self._patience.useless(result):
                self._fail(result)
            else:
                self._retry(result)
            return
        self._comparing = False
        self._moved = Moved(str(uuid.uuid4()), self.trajectory_id, entry.number)
        self.moving(self._moved)

    def _create_rest(self, moved: Moved) -> None:
        self._busy = True
        method, request = _wire.rest_of(moved.source, moved.shared, moved.trajectory_id, self._identity.name)
        done: _wire.Done = lambda result: self._office.later(lambda: self._moved_to(moved, result))
        self._office.connections.call(method, request, done)

    def _moved_to(self, moved: Moved, result: bytes | Failure) -> None:
        self._busy = False
        if isinstance(result, Failure):
            if self._patience.useless(result):
                self._fail(result)
            else:
                self._retry(result)
        else:
            self._moved = None
            self.trajectory_id, self._uid, self._epoch, self._refused_by = moved.trajectory_id, "", None, None
            self._ever_opened = False
            self._office.report(
                f"trajectory {moved.source} was continued or sealed by another writer: "
                f"steps from {moved.shared} on are in its branch {moved.trajectory_id}"
            )
        self.pump()

    # The end of records

    def _settle(self, entries: list[Entry]) -> None:
        steps = 0
        for entry in entries:
            self._records.release(entry)
            if entry.kind == Kind.STEP:
                steps += 1
                self.durable = entry.number + 1
                if self._replaced:
                    self._replaced.pop(entry.number, None)
        if not entries:
            return
        self._mark(entries[-1])
        self._patience.progress()
        self._office.acked(steps)

    def _fail(self, failure: Failure) -> None:
        """Gives the rest up. A deleted trajectory needs it no more; otherwise the spool keeps it."""
        self._close_stream()
        self._queue.collect()
        self._queue.unsend()
        steps = self._queue.steps()
        self.failed_at = self.settled
        if failure.reason == "TRAJECTORY_NOT_FOUND":
            self._drop()
            self._office.dropped(steps, f"trajectory {self.trajectory_id} was deleted")
        else:
            self._office.report(
                f"trajectory {self.trajectory_id}: {steps} steps cannot be sent and stay in the spool: {failure}"
            )
        self.failure = failure

    def _drop(self) -> None:
        entries = self._queue.clear()
        for entry in entries:
            self._records.release(entry)
        if entries:
            self._mark(entries[-1])

    def _mark(self, entry: Entry) -> None:
        self.settled = entry.position + 1
        if self._marks is not None:
            self._marks.set(self._track, self.settled)

    def _load(self, entry: Entry) -> bytes:
        replaced = self._replaced.get(entry.number) if self._replaced and entry.kind == Kind.STEP else None
        return replaced if replaced is not None else self._records.load(entry)
