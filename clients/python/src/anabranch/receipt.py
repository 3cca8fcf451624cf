"""`Receipt`: what calls that record return."""

from __future__ import annotations

from typing import Protocol

from anabranch._wire.shown import Shown


class Recording(Protocol):
    """What a receipt belongs to: a trajectory, or the metrics of a run."""

    @property
    def settled(self) -> int:
        """Number of records that are durable on the server."""
        ...

    def wait_for(self, position: int, timeout: float | None) -> None: ...


class Receipt(Shown):
    """A recorded step, or a point of metrics. It survives the end of this process; `wait` returns when the server has it."""

    __slots__ = ("_position", "_recording", "number")

    def __init__(self, recording: Recording, number: int, position: int) -> None:
        self._recording = recording
        #: Number of the step. -1 if the step was not recorded.
        self.number = number
        self._position = position

    def wait(self, timeout: float | None = None) -> Receipt:
        """Returns when the record is durable on the server.

        `timeout` is in seconds. Raises TimeoutError when it has passed, and AnabranchError if the step is not recorded
        or the server will not accept it.
        """
        self._recording.wait_for(self._position, timeout)
        return self

    @property
    def durable(self) -> bool:
        """Whether the record is durable on the server."""
        return self._position < self._recording.settled

    def __repr__(self) -> str:
        return f"Receipt(step {self.number}, {'durable' if self.durable else 'waits'})"
