"""Recorded trajectories as episodes: selections of them, and datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anabranch._reading.blobs import Blobs
from anabranch._reading.columns import Columns
from anabranch._reading.episode import RecordedEpisode, Step
from anabranch._reading.minari_dataset import create_dataset
from anabranch._reading.read import Selection, read_steps, read_trajectories
from anabranch._wire.access import Access, give, given_for
from anabranch._wire.connection import Connection
from anabranch._wire.shown import Shown
from anabranch.arrow import frame_of, hugging_face_of, reader_of
from anabranch.errors import TrajectoryNotFound
from anabranch.tokens import Tokens, shared_tokens_of, tokens_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Episode", "Episodes", "Step", "Steps", "episode_of", "steps_of"]


class Episode(RecordedEpisode):
    """A recorded trajectory with all of its steps, inherited ones included."""

    def tokens(self) -> Tokens:
        """Returns the token ids of the model's context, with masks, logprobs and rewards."""
        return tokens_of([self])


class Episodes(Shown):
    """A selection of trajectories. Nothing is read before the iteration; each iteration reads again, after it has waited
    for what this process has recorded of them, for at most ANABRANCH_READ_SECONDS (5)."""

    def __init__(self, connection: Connection, selection: Selection) -> None:
        self.connection = connection
        self.selection = selection

    def __reduce__(self) -> tuple[object, ...]:
        address = self.connection.address
        return (_episodes_at, (address, self.selection, given_for(address)))

    def __iter__(self) -> Iterator[Episode]:
        self.connection.before_read(self.selection.may_include)
        for trajectory, steps in read_trajectories(self.connection, self.selection):
            yield Episode(trajectory, steps, self.connection)

    def __repr__(self) -> str:
        empty = Selection()
        fields = (field.name for field in dataclasses.fields(empty))
        filters = {name: getattr(self.selection, name) for name in fields}
        shown = ", ".join(f"{name}={value!r}" for name, value in filters.items() if value != getattr(empty, name))
        return f"Episodes({shown or 'all'})"

    def shard(self, index: int, count: int) -> Episodes:
        """Returns a part of the selection: each episode is in exactly one of the parts 0 to count - 1."""
        return Episodes(self.connection, dataclasses.replace(self.selection, shard=(index, count)))

    def steps(self) -> Steps:
        """Returns the steps of all episodes as rows."""
        return Steps(self)

    def tokens(self, *, pad_id: int | None = None, max_length: int | None = None, shared: bool = False) -> Any:
        """Returns the token rows of all episodes (see `anabranch.tokens`)."""
        if shared:
            return shared_tokens_of(self)
        rows = tokens_of(self)
        return rows if pad_id is None else rows.pad(pad_id, max_length)

    def to_hf(self) -> Any:
        """Returns a `datasets.IterableDataset` with a row per step, in the schema of `to_arrow`."""
        return self.steps().to_hf()

    def to_torch(self, *, shuffle: int = 0, seed: int = 0) -> Any:
        """Returns a `torch.utils.data.IterableDataset` of episodes: dicts of arrays as in `Episode.to_numpy`. Each
        episode is seen once across all workers and ranks. `shuffle` is the number of episodes of the shuffle buffer."""
        from anabranch._reading.torch_dataset import EpisodeDataset

        return EpisodeDataset(self.shard, shuffle=shuffle, seed=seed)

    def to_minari(self, dataset_id: str, *, env: Any = None, **fields: Any) -> Any:
        """Creates and returns a Minari dataset. `env` is an environment, its spec or its id; `fields` are further
        arguments of `minari.create_dataset_from_buffers`."""
        return create_dataset(self, dataset_id, env, fields)

    def to_arrow(self) -> Any:
        return self.steps().to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        return self.steps().to_pandas()


class Steps(Shown):
    """The steps of a selection of episodes, a row per step."""

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes

    def __repr__(self) -> str:
        return f"Steps of {self.episodes!r}"

    def __iter__(self) -> Iterator[Step]:
        for episode in self.episodes:
            yield from episode.steps

    def to_arrow(self) -> Any:
        """Returns a `pyarrow.RecordBatchReader` with a row per step (see `anabranch.arrow`)."""
        return reader_of(self.episodes, lambda: _columns_of(self.episodes))

    def to_pandas(self) -> pd.DataFrame:
        """Returns a `pandas.DataFrame` with a row per step, in the columns of `to_arrow`. Arrays stay arrays."""
        return frame_of(self.episodes)

    def to_hf(self) -> Any:
        """Returns a `datasets.IterableDataset` with a row per step, in the schema of `to_arrow`."""
        return hugging_face_of(self.episodes, lambda: _columns_of(self.episodes))


def _columns_of(episodes: Episodes) -> Columns:
    """Reads the columns of a selection: its steps, without what states have of them."""
    columns = Columns()
    for trajectory, steps in read_trajectories(episodes.connection, episodes.selection, inline_bytes=0):
        columns.add(trajectory.metadata_json, [step.message for step in steps])
    return columns


def steps_of(
    connection: Connection, trajectory_id: str, start: int = 0, stop: int | None = None, *, follow: bool = False
) -> Iterator[Step]:
    """Yields the steps [start, stop) of a trajectory. With `follow`, waits for further ones until its seal."""
    for together in read_steps(connection, trajectory_id, start, stop, follow=follow):
        blobs = Blobs(connection, together)
        for owned in together:
            yield Step(trajectory_id, owned, blobs)


def episode_of(connection: Connection, trajectory_id: str) -> Episode:
    """Reads one trajectory. Raises TrajectoryNotFound."""
    for trajectory, steps in read_trajectories(connection, Selection(ids=(trajectory_id,))):
        return Episode(trajectory, steps, connection)
    message, metadata = f"trajectory {trajectory_id} does not exist", {"trajectory_id": trajectory_id}
    raise TrajectoryNotFound(message, reason="TRAJECTORY_NOT_FOUND", metadata=metadata)


def _episodes_at(address: str, selection: Selection, access: Access) -> Episodes:
    """Rebuilds a pickled selection. Each process has its own connection."""
    give(address, access)
    return Episodes(Connection(address), selection)
