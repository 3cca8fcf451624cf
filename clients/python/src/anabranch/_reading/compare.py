"""Comparison of two trajectories."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch._reading.tree import short_number
from anabranch._wire.outage import call
from anabranch.v1.trajectory_service_pb2 import CompareTrajectoriesRequest

if TYPE_CHECKING:
    from anabranch._wire.connection import Connection


@dataclass(frozen=True)
class Difference:
    """The first difference of two trajectories: the step, the path of the field (empty if one trajectory ends there),
    and both values as JSON text (empty where there is none)."""

    step: int
    field: str
    value_json: str
    other_json: str


@dataclass(frozen=True)
class Comparison:
    """How a trajectory differs from another one. `reward_difference` is its reward sum minus that of the other."""

    shared_steps: int
    first_difference: Difference | None
    reward_sum: float
    other_reward_sum: float

    @property
    def reward_difference(self) -> float:
        return self.reward_sum - self.other_reward_sum

    def __str__(self) -> str:
        sign = "+" if self.reward_difference > 0 else ""
        reward = f"reward {sign}{short_number(self.reward_difference)}"
        return f"{self.shared_steps} shared steps, {self._where()}, {reward}"

    def _where(self) -> str:
        if self.first_difference is None:
            return "no difference"
        where = f"first difference at {self.first_difference.step}"
        if not self.first_difference.field:
            return f"{where}, where one of them ends"
        item = re.match(r"[^.]*", self.first_difference.field)
        return f"{where} in {item[0] if item else ''}"


def compare(connection: Connection, trajectory_id: str, other_id: str) -> Comparison:
    """Compares a trajectory with another one."""
    # The server compares the second trajectory with the first.
    request = CompareTrajectoriesRequest(trajectory_id=other_id, other_trajectory_id=trajectory_id)
    found = call(connection, lambda stubs: stubs.trajectories.CompareTrajectories, request)
    difference = None
    if found.HasField("first_difference"):
        first = found.first_difference
        difference = Difference(first.step_number, first.field, first.other_value_json, first.value_json)
    return Comparison(found.shared_steps, difference, found.other_reward_sum, found.reward_sum)
