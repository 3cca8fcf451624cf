"""What clients and trajectories offer for reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from anabranch._read import Selection, Status

if TYPE_CHECKING:
    from anabranch._compare import Comparison
    from anabranch._connection import Connection
    from anabranch.client import Client
    from anabranch.episodes import Episode, Episodes, Step
    from anabranch.tokens import Tokens


class HasId(Protocol):
    """A resource of the server."""

    @property
    def id(self) -> str: ...


def id_of(resource: HasId | str | None) -> str:
    """Returns the id of a resource, or the id itself; empty for None."""
    return "" if resource is None else resource if isinstance(resource, str) else resource.id


class ClientReading:
    """The reading half of a client."""

    connection: Connection

    def episodes(
        self,
        *,
        task: str = "",
        run: HasId | str | None = None,
        experiment: HasId | str | None = None,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        status: Status | Iterable[Status] = (),
        min_reward: float | None = None,
        max_reward: float | None = None,
        ids: Iterable[HasId | str] | None = None,
    ) -> Episodes:
        """Selects trajectories. A trajectory must match all filters that are set.

        `status` is one or several of `running`, `completed`, `failed`, `cancelled`. `min_reward` and `max_reward` bound
        the sum of the rewards, both inclusive. The episodes are read newest first; `ids` are read in their order, and those that do not exist are left out.
        """
        from anabranch.episodes import Episodes

        selection = Selection(
            ids=None if ids is None else tuple(id_of(resource) for resource in ids),
            task=task,
            run=id_of(run),
            experiment=id_of(experiment),
            name=name,
            labels=dict(labels or {}),
            statuses=(status,) if isinstance(status, str) else tuple(status),
            min_reward=min_reward,
            max_reward=max_reward,
        )
        return Episodes(self.connection, selection)

    def episode(self, trajectory: HasId | str) -> Episode:
        """Reads a trajectory with all of its steps. Raises TrajectoryNotFound."""
        from anabranch.episodes import episode_of

        return episode_of(self.connection, id_of(trajectory))


class TrajectoryReading:
    """The reading half of a trajectory. Reads wait until the server has the steps that were recorded."""

    client: Client

    if TYPE_CHECKING:

        @property
        def id(self) -> str: ...

        def flush(self, timeout: float | None = None) -> None: ...

    def steps(self, start: int = 0, stop: int | None = None, *, follow: bool = False) -> Iterator[Step]:
        """Yields the steps [start, stop), inherited ones included. With `follow`, waits for further steps until the
        trajectory is sealed."""
        from anabranch.episodes import steps_of

        return steps_of(self._durable(), self.id, start, stop, follow=follow)

    def episode(self) -> Episode:
        """Reads all steps."""
        from anabranch.episodes import episode_of

        return episode_of(self._durable(), self.id)

    def to_numpy(self) -> dict[str, Any]:
        """Returns `observations`, `actions`, `rewards`, `terminated` and `truncated` as arrays (see Episode)."""
        return self.episode().to_numpy()

    def tokens(self) -> Tokens:
        """Returns input_ids, loss_mask, logprobs and rewards of all steps."""
        return self.episode().tokens()

    def compare(self, other: HasId | str) -> Comparison:
        """Compares this trajectory with another one: shared steps, first difference, rewards."""
        from anabranch._compare import compare

        connection = self._durable()
        if isinstance(other, TrajectoryReading):
            other.flush()
        return compare(connection, self.id, id_of(other))

    def tree(self) -> str:
        """Returns the tree of this trajectory as text, as `anabranch tree` draws it."""
        from anabranch._tree import tree_text

        return tree_text(self._durable(), self.id)

    def _durable(self) -> Connection:
        self.flush()
        return self.client.connection
