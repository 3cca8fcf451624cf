"""The records of one trajectory that are not settled: new, pending, or sent on the current stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from anabranch._recording.segment import STEPS, Entry, Kind

#: Target size of a frame, unless the server's `stepBytes` is less.
_FRAME_BYTES = 256 * 1024
_FRAME_STEPS = 1024
_WINDOW_STEPS = 10_000
_WINDOW_BYTES = 16 * 1024 * 1024
#: What an entry of AppendBatch can have, in this order.
_SHARED = (Kind.CREATE, *STEPS, Kind.SEAL)


class Queue:
    """Threads that record call `add`; everything else belongs to the sender.

    A record that moves on is in two lists for a moment rather than in none, because other threads look at `waiting`.
    """

    def __init__(self) -> None:
        self._added: deque[Entry] = deque()
        self._pending: deque[Entry] = deque()
        self._sent: deque[Entry] = deque()
        self._sent_bytes = 0

    def add(self, entry: Entry) -> None:
        self._added.append(entry)

    @property
    def waiting(self) -> bool:
        return bool(self._added or self._pending or self._sent)

    @property
    def head(self) -> Entry | None:
        """The first record that is not sent."""
        return self._pending[0] if self._pending else None

    @property
    def sent(self) -> int:
        """Number of steps that are sent and not acked."""
        return len(self._sent)

    def collect(self) -> None:
        """Takes the new records over."""
        while self._added:
            self._pending.append(self._added[0])
            self._added.popleft()

    def frame(self, *, one_by_one: bool, step_bytes: int) -> list[Entry]:
        """Returns the next steps that fit into a frame and the window, and counts them as sent."""
        steps: list[Entry] = []
        size = 0
        frame_bytes = min(_FRAME_BYTES, step_bytes)
        limit = 1 if one_by_one else _FRAME_STEPS
        while self._pending and len(steps) < limit:
            entry = self._pending[0]
            length = entry.length
            if not entry.is_step or (one_by_one and self._sent) or (steps and size + length > frame_bytes):
                break
            if len(self._sent) >= _WINDOW_STEPS or (self._sent and self._sent_bytes + length > _WINDOW_BYTES):
                break
            self._sent.append(entry)
            self._pending.popleft()
            self._sent_bytes += length
            size += length
            steps.append(entry)
        return steps

    def share(self, size: int) -> list[Entry]:
        """Returns the next records that one entry of a message can have. They stay pending."""
        entries: list[Entry] = []
        for entry in self._pending:
            size -= entry.length
            if entry.kind not in _SHARED or (entries and size < 0) or len(entries) > _FRAME_STEPS:
                break
            entries.append(entry)
        return entries

    def bounds(self, durable: int) -> tuple[int, int]:
        """Returns the lowest and the highest end that an ack can name. `durable` is the end of what was acked before."""
        return (self._sent[0].number, self._sent[-1].number + 1) if self._sent else (durable, durable)

    def end(self, durable: int) -> int:
        """Returns the number after the last recorded step. `durable` is the end of what was acked before."""
        self.collect()
        last = next((entry for entry in (*reversed(self._pending), *reversed(self._sent)) if entry.is_step), None)
        return durable if last is None else last.number + 1

    def acked(self, next_step_number: int) -> list[Entry]:
        """Removes the sent steps below a number and returns them."""
        settled: list[Entry] = []
        while self._sent and self._sent[0].number < next_step_number:
            entry = self._sent.popleft()
            self._sent_bytes -= entry.length
            settled.append(entry)
        return settled

    def unsend(self) -> None:
        """The stream has ended: everything on it is sent again."""
        self._pending.extendleft(reversed(self._sent))
        self._sent.clear()
        self._sent_bytes = 0

    def take_head(self) -> Entry:
        return self._pending.popleft()

    def clear(self) -> list[Entry]:
        """Removes everything."""
        self.collect()
        self.unsend()
        entries = list(self._pending)
        self._pending.clear()
        return entries

    def count(self, kinds: Collection[Kind]) -> int:
        """Returns the number of pending records of some kinds."""
        return sum(1 for entry in self._pending if entry.kind in kinds)
