"""What runs and rollouts need of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from anabranch._training.metrics import Metrics
    from anabranch._wire.connection import Connection
    from anabranch._wire.values import ValueEncoder
    from anabranch.trajectory import Trajectory


class TrainingClient:
    """The base of a client that records the attempts of rollouts and the metrics of runs."""

    connection: Connection

    if TYPE_CHECKING:

        @property
        def values(self) -> ValueEncoder: ...
        def attempt(self, trajectory_id: str) -> Trajectory: ...
        def trajectory(self, *, id: str, resume: Literal["must"]) -> Trajectory: ...
        def metrics(self, run_id: str) -> Metrics: ...
        def flush_metrics(self, run_id: str) -> None: ...
