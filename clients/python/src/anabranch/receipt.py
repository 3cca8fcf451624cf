"""`Receipt`: what `step()` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.trajectory import Trajectory


class Receipt:
    """A recorded step. It survives the end of this process; `wait` returns when the server has it."""

    __slots__ = ("_position", "_trajectory", "number")

    def __init__(self, trajectory: Trajectory, number: int, position: int) -> None:
        self._trajectory = trajectory
        #: Number of the step. -1 if the step was not recorded.
        self.number = number
        self._position = position

    def wait(self, timeout: float | None = None) -> Receipt:
        """Returns when the step is durable on the server.

        `timeout` is in seconds. Raises TimeoutError when it has passed, and AnabranchError if the step is not recorded
        or the server will not accept it.
        """
        self._trajectory.wait_for(self._position, timeout)
        return self

    @property
    def durable(self) -> bool:
        """Whether the step is durable on the server."""
        return 0 <= self._position < self._trajectory.settled
