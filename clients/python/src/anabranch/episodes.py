"""Recorded trajectories as episodes: their steps, and arrays of their observations, actions and rewards."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from anabranch._reading.blobs import Blobs
from anabranch._reading.read import OwnedStep, Selection, read_steps, read_trajectories
from anabranch._reading.stack import stack
from anabranch._wire.decode import decode_items, decode_json, digests_of
from anabranch.errors import StateNotFound, TrajectoryNotFound

if TYPE_CHECKING:
    import pandas as pd

    from anabranch._wire.connection import Connection
    from anabranch.tokens import Tokens
    from anabranch.v1.trajectory_pb2 import Step as StepMessage
    from anabranch.v1.trajectory_pb2 import Trajectory


INFO_STATE = "info"


class Step:
    """A recorded step. Its values are decoded when they are read. `message` is the step as the server returned it."""

    def __init__(self, trajectory_id: str, owned: OwnedStep, blobs: Blobs) -> None:
        self.trajectory_id = trajectory_id
        self.owner_id = owned.owner_id
        self.message: StepMessage = owned.message
        self._owned = owned
        self._blobs = blobs
        self._held: dict[str, bytes] = {}

    @property
    def number(self) -> int:
        return self.message.step_number

    @functools.cached_property
    def observation(self) -> Any:
        """The observation after the actions; None if there is none. Several are a dict or tuple by their types."""
        return decode_items(self.message.observations, self.blob)

    @functools.cached_property
    def action(self) -> Any:
        """The action that led to the observation; None for a reset."""
        return decode_items(self.message.actions, self.blob)

    @property
    def reward(self) -> float | None:
        return self.message.reward if self.message.HasField("reward") else None

    @property
    def terminated(self) -> bool:
        return self.message.terminated

    @property
    def truncated(self) -> bool:
        return self.message.truncated

    @functools.cached_property
    def info(self) -> Any:
        """The info of the environment; None if there is none."""
        return None if self.info_text is None else decode_json(self.info_text)

    @functools.cached_property
    def info_text(self) -> str | None:
        """The info as JSON text. Info that is too large for a step is stored as its state `info`."""
        if self.message.info_json:
            return self.message.info_json
        data = self._blobs.state_of(self._owned, INFO_STATE)
        return None if data is None else data.decode()

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.message.metrics

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states after the step."""
        return tuple(state.name for state in self.message.states if state.name != INFO_STATE)

    def state(self, name: str = "env") -> bytes:
        """Returns the bytes of a state. Raises StateNotFound if the step has none of this name."""
        data = self._blobs.state_of(self._owned, name)
        if data is None:
            message = f"step {self.number} of trajectory {self.owner_id} has no state {name!r}"
            raise StateNotFound(message, reason="STATE_NOT_FOUND")
        return data

    def blob(self, digest: str) -> bytes:
        """Returns the bytes of a state that the actions or observations name by its digest."""
        found = self._held.get(digest)
        return self._blobs.get(digest) if found is None else found

    def prefetch(self) -> None:
        """Reads what `observation`, `action` and `info` need. Otherwise they read it at their first use."""
        self._held = {digest: self._blobs.get(digest) for digest in digests_of(self.message)}
        _ = self.info_text

    @property
    def commit_time(self) -> datetime.datetime:
        return self.message.commit_time.ToDatetime(datetime.timezone.utc)

    def __repr__(self) -> str:
        return f"Step({self.number}, action={self.action!r}, observation={self.observation!r}, reward={self.reward})"


class Episode:
    """A recorded trajectory with all of its steps, inherited ones included."""

    def __init__(self, trajectory: Trajectory, owned: list[OwnedStep], connection: Connection) -> None:
        self.trajectory = trajectory
        self._blobs = Blobs(connection, owned)
        self._has_contents = False
        self.steps = [Step(trajectory.id, step, self._blobs) for step in owned]

    @property
    def id(self) -> str:
        return self.trajectory.id

    @property
    def name(self) -> str:
        return self.trajectory.name

    @property
    def task(self) -> str:
        return self.trajectory.task_id

    @property
    def labels(self) -> Mapping[str, str]:
        return self.trajectory.labels

    @property
    def status(self) -> str:
        """`running`, `completed`, `failed` or `cancelled`."""
        from anabranch.v1.status_pb2 import Status

        return Status.Name(self.trajectory.status).removeprefix("STATUS_").lower()

    @property
    def reward_sum(self) -> float:
        return self.trajectory.reward_sum

    @property
    def terminated(self) -> bool:
        return bool(self.steps) and self.steps[-1].terminated

    @property
    def truncated(self) -> bool:
        return bool(self.steps) and self.steps[-1].truncated

    def __len__(self) -> int:
        """Number of steps T, without the reset."""
        return len(self.moves)

    @property
    def has_reset(self) -> bool:
        """True if step 0 is the result of a reset: it has no action and no reward."""
        return bool(self.steps) and not self.steps[0].message.actions and self.steps[0].reward is None

    @property
    def moves(self) -> list[Step]:
        """The steps without the reset."""
        return self.steps[1:] if self.has_reset else self.steps

    @functools.cached_property
    def observations(self) -> Any:
        """All observations, of length T + 1: the reset's first. Without a reset, of length T.

        An array whose first axis is the step if all observations agree in dtype and shape; a dict or tuple of such
        arrays for values of Dict and Tuple spaces; otherwise an array of objects.
        """
        self.prefetch()
        return stack([step.observation for step in self.steps])

    @functools.cached_property
    def actions(self) -> Any:
        """All actions, of length T, in the forms of `observations`."""
        self.prefetch()
        return stack([step.action for step in self.moves])

    @functools.cached_property
    def rewards(self) -> Any:
        """All rewards, a float64 array of length T. NaN for a step without a reward."""
        from anabranch._wire.tensors import optional

        rewards = [float("nan") if step.reward is None else step.reward for step in self.moves]
        return optional("numpy", "to read arrays").array(rewards, "float64")

    @property
    def infos(self) -> list[Any]:
        """The info of each step, the reset's first."""
        return [step.info for step in self.steps]

    def tokens(self) -> Tokens:
        """Returns the token ids of the model's context, with masks, logprobs and rewards."""
        from anabranch.tokens import tokens_of

        return tokens_of([self])

    def to_numpy(self) -> dict[str, Any]:
        """Returns `observations`, `actions`, `rewards`, `terminated` and `truncated` as arrays."""
        terminated = [step.terminated for step in self.moves]
        truncated = [step.truncated for step in self.moves]
        return {
            "observations": self.observations,
            "actions": self.actions,
            "rewards": self.rewards,
            "terminated": stack(terminated),
            "truncated": stack(truncated),
        }

    def __repr__(self) -> str:
        return f"Episode({self.name or self.id!r}, {len(self)} steps, reward {self.reward_sum:g}, {self.status})"

    def prefetch(self) -> None:
        """Reads the large contents of all steps in one call. `observations` and `actions` do so too."""
        if not self._has_contents:
            self.prefetch_states(digests_of)
            self._has_contents = True

    def prefetch_states(self, digests: Callable[[StepMessage], Iterable[str]]) -> None:
        """Reads the states whose digests a function returns for each step, in one call."""
        self._blobs.prefetch([digest for step in self.steps for digest in digests(step.message)])


class Episodes:
    """A selection of trajectories. Nothing is read before the iteration; each iteration reads again."""

    def __init__(self, connection: Connection, selection: Selection) -> None:
        self.connection = connection
        self.selection = selection

    def __reduce__(self) -> tuple[object, ...]:
        return (_episodes_at, (self.connection.address, self.selection))

    def __iter__(self) -> Iterator[Episode]:
        for trajectory, steps in read_trajectories(self.connection, self.selection):
            yield Episode(trajectory, steps, self.connection)

    def shard(self, index: int, count: int) -> Episodes:
        """Returns a part of the selection: each episode is in exactly one of the parts 0 to count - 1."""
        return Episodes(self.connection, dataclasses.replace(self.selection, shard=(index, count)))

    def steps(self) -> Steps:
        """Returns the steps of all episodes as rows."""
        return Steps(self)

    def tokens(self, *, pad_id: int | None = None, max_length: int | None = None, shared: bool = False) -> Any:
        """Returns the token rows of all episodes (see `anabranch.tokens`)."""
        from anabranch.tokens import shared_tokens_of, tokens_of

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

        return EpisodeDataset(self, shuffle=shuffle, seed=seed)

    def to_minari(self, dataset_id: str, *, env: Any = None, **fields: Any) -> Any:
        """Creates and returns a Minari dataset. `env` is an environment, its spec or its id; `fields` are further
        arguments of `minari.create_dataset_from_buffers`."""
        from anabranch._reading.minari_dataset import create_dataset

        return create_dataset(self, dataset_id, env, fields)

    def to_arrow(self) -> Any:
        return self.steps().to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        return self.steps().to_pandas()


class Steps:
    """The steps of a selection of episodes, a row per step."""

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes

    def __iter__(self) -> Iterator[Step]:
        for episode in self.episodes:
            yield from episode.steps

    def to_arrow(self) -> Any:
        """Returns a `pyarrow.RecordBatchReader` with a row per step (see `anabranch.arrow`)."""
        from anabranch.arrow import reader_of

        return reader_of(self.episodes)

    def to_pandas(self) -> pd.DataFrame:
        """Returns a `pandas.DataFrame` with a row per step, in the columns of `to_arrow`. Arrays stay arrays."""
        from anabranch.arrow import frame_of

        return frame_of(self.episodes)

    def to_hf(self) -> Any:
        """Returns a `datasets.IterableDataset` with a row per step, in the schema of `to_arrow`."""
        from anabranch.arrow import hugging_face_of

        return hugging_face_of(self.episodes)


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
    for episode in Episodes(connection, Selection(ids=(trajectory_id,))):
        return episode
    message, metadata = f"trajectory {trajectory_id} does not exist", {"trajectory_id": trajectory_id}
    raise TrajectoryNotFound(message, reason="TRAJECTORY_NOT_FOUND", metadata=metadata)


def _episodes_at(address: str, selection: Selection) -> Episodes:
    """Rebuilds a pickled selection. Each process has its own connection."""
    from anabranch._wire.connection import Connection

    return Episodes(Connection(address), selection)
