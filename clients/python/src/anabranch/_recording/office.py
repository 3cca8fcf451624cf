"""What an outbox is made of and what it needs of the sender."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from anabranch._recording.rpc import Connections
from anabranch._recording.segment import Entry
from anabranch._wire.retry import Failure

if TYPE_CHECKING:
    from anabranch._recording.outbox import Outbox


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


class Records(Protocol):
    """Where the contents of entries are."""

    def load(self, entry: Entry) -> bytes: ...
    def release(self, entry: Entry) -> None: ...


class Office(Protocol):
    """What an outbox needs of the sender. `later` runs a function in the sender's thread, and `ask` asks the server for
    its version and limits, and calls a function there: with None if they are known and compatible."""

    connections: Connections
    #: Retry limit: how many seconds after the first failure without progress an outbox stops sending.
    give_up_after: float

    @property
    def place(self) -> str: ...

    def now(self) -> float: ...
    def notify(self, box: Outbox) -> None: ...
    def ask(self, answered: Callable[[Failure | None], None]) -> None: ...
    def later(self, work: Callable[[], None]) -> None: ...
    def acked(self, steps: int) -> None: ...
    def dropped(self, steps: int, problem: str) -> None: ...
    def unstored(self, problem: str) -> None: ...
    def failed(self, failure: Failure) -> None: ...
    def report(self, message: str) -> None: ...


@dataclass(frozen=True)
class Moved:
    """The rest of a trajectory that became a trajectory of its own."""

    trajectory_id: str
    source: str
    #: Number of steps that both share.
    shared: int
