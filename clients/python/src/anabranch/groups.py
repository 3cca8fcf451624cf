"""Groups of rollouts that have ended, as a trainer reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch._wire.decode import token_digests_of
from anabranch.episodes import Episode
from anabranch.tokens import tokens_of
from anabranch.v1.trajectory_pb2 import Trajectory as TrajectoryMessage

if TYPE_CHECKING:
    from anabranch._reading.read import OwnedStep
    from anabranch._wire.connection import Connection
    from anabranch.tokens import Tokens
    from anabranch.v1.rollout_pb2 import Rollout as RolloutMessage


@dataclass(frozen=True)
class PlayedRollout:
    """A rollout that has ended, with the trajectory of its last attempt."""

    message: RolloutMessage
    episode: Episode

    @property
    def reward(self) -> float | None:
        return self.message.reward if self.message.HasField("reward") else None

    @property
    def success(self) -> bool | None:
        """The verdict; None if the rollout is not judged."""
        return self.message.success if self.message.HasField("success") else None

    def __repr__(self) -> str:
        return f"PlayedRollout({self.message.number}, reward {self.reward}, {self.episode!r})"


@dataclass(frozen=True)
class Group:
    """The rollouts of a group, by their number."""

    number: int
    rollouts: Sequence[PlayedRollout]

    def __repr__(self) -> str:
        return f"Group({self.number}, {len(self.rollouts)} rollouts, rewards {self.rewards})"

    @property
    def rewards(self) -> list[float | None]:
        """The reward of each rollout; None for one without."""
        return [rollout.reward for rollout in self.rollouts]

    def prefetch(self) -> None:
        """Reads the tokens that are not within the steps. Otherwise `tokens` reads them."""
        for rollout in self.rollouts:
            rollout.episode.prefetch_states(token_digests_of)

    def tokens(self) -> Tokens:
        """Returns the token rows of all rollouts."""
        return tokens_of(rollout.episode for rollout in self.rollouts)


def group_of(connection: Connection, rollouts: list[tuple[RolloutMessage, list[OwnedStep]]]) -> Group:
    played: list[PlayedRollout] = []
    for message, steps in rollouts:
        trajectory = TrajectoryMessage(
            id=message.trajectory_id,
            task_id=message.task_id,
            run_id=message.run_id,
            labels=message.labels,
            status=message.status,
            reward_sum=steps[-1].message.reward_sum if steps else 0.0,
            next_step_number=len(steps),
        )
        played.append(PlayedRollout(message, Episode(trajectory, steps, connection)))
    return Group(rollouts[0][0].group_number, played)
