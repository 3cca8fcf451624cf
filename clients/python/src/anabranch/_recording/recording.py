"""What receipts belong to: records that a transfer sends, or a record that was not made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch._wire.errors import AnabranchError, RecorderClosed
from anabranch._wire.failures import error_from_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from anabranch._recording.recorder import Recorder
    from anabranch._recording.transfer import Transfer


class TrajectoryRecording:
    """The records of one transfer. A trajectory that rewinds has another transfer then, and its receipts keep theirs."""

    def __init__(self, recorder: Recorder, transfer: Transfer) -> None:
        self._recorder = recorder
        self._transfer = transfer

    @property
    def settled(self) -> int:
        """Number of records that are durable on the server."""
        return self._transfer.settled

    def wait_for(self, position: int, timeout: float | None) -> None:
        """Waits until the record at a position is durable."""
        transfer = self._transfer
        if transfer.settled <= position and not self._recorder.alive:
            raise not_recorded_here(transfer.trajectory_id)
        sender = self._recorder.sender
        settled: Callable[[], bool] = lambda: transfer.settled > position or transfer.failure is not None
        what: Callable[[], str] = lambda: (
            f"{position + 1 - transfer.settled} records of trajectory {transfer.trajectory_id}"
        )
        done = sender.wait(settled, timeout, what)
        if transfer.failure is not None and position >= transfer.failed_at:
            raise error_from_failure(transfer.failure, str(transfer.failure))
        if not done:
            text = f"steps of trajectory {transfer.trajectory_id} are not durable after {timeout} s; they are kept"
            raise TimeoutError(f"{text}: {sender.problem}")


class NoRecording:
    """A record that was not made."""

    settled = 0

    def __init__(self, problem: AnabranchError) -> None:
        self._problem = problem

    def wait_for(self, position: int, timeout: float | None) -> None:
        """Raises the problem."""
        raise self._problem


def not_recorded_here(trajectory_id: str) -> RecorderClosed:
    text = f"trajectory {trajectory_id} belongs to another process, or this process is exiting"
    return RecorderClosed(text, reason="RECORDER_CLOSED")
