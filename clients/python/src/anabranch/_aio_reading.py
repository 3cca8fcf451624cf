"""What programs with asyncio read: episodes, steps, groups and tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from anabranch import episodes as _episodes
from anabranch import groups as _groups
from anabranch import tasks as _tasks
from anabranch._wire.waiting import Shared, Wrapper, awaited, direct, iterated, same


class Step(Wrapper[_episodes.Step]):
    """A recorded step. Its values are read before the step is returned, those of the steps of groups at first use."""

    trajectory_id = Shared[str]()
    owner_id = Shared[str]()
    message = Shared[Any]()
    number = Shared[int]()
    observation = Shared[Any]()
    action = Shared[Any]()
    reward = Shared[float | None]()
    terminated = Shared[bool]()
    truncated = Shared[bool]()
    info = Shared[Any]()
    info_text = Shared[str | None]()
    metrics = Shared[Mapping[str, float]]()
    states = Shared[tuple[str, ...]]()
    commit_time = Shared[Any]()
    prefetch = awaited(_episodes.Step.prefetch, same)
    state = awaited(_episodes.Step.state, same)
    blob = awaited(_episodes.Step.blob, same)


class Episode(Wrapper[_episodes.Episode]):
    """A recorded trajectory. Its values are read before it is returned; for those of groups, await `prefetch()`."""

    trajectory = Shared[Any]()
    id = Shared[str]()
    name = Shared[str]()
    task = Shared[str]()
    labels = Shared[Mapping[str, str]]()
    status = Shared[str]()
    reward_sum = Shared[float]()
    terminated = Shared[bool]()
    truncated = Shared[bool]()
    has_reset = Shared[bool]()
    observations = Shared[Any]()
    actions = Shared[Any]()
    rewards = Shared[Any]()
    infos = Shared[list[Any]]()
    prefetch = awaited(_episodes.Episode.prefetch, same)
    to_numpy = awaited(_episodes.Episode.to_numpy, same)
    tokens = awaited(_episodes.Episode.tokens, same)

    @property
    def steps(self) -> list[Step]:
        return [Step(self.threads, step) for step in self.sync.steps]

    @property
    def moves(self) -> list[Step]:
        return [Step(self.threads, step) for step in self.sync.moves]

    def __len__(self) -> int:
        return len(self.sync)


class Steps(Wrapper[_episodes.Steps]):
    """The steps of a selection of episodes, a row per step."""

    to_arrow = awaited(_episodes.Steps.to_arrow, same)
    to_pandas = awaited(_episodes.Steps.to_pandas, same)
    to_hf = awaited(_episodes.Steps.to_hf, same)
    _iterate = iterated(_episodes.Steps.__iter__, Step, prepare=_episodes.Step.prefetch)

    @property
    def episodes(self) -> Episodes:
        return Episodes(self.threads, self.sync.episodes)

    def __aiter__(self) -> AsyncIterator[Step]:
        return self._iterate()


class Episodes(Wrapper[_episodes.Episodes]):
    """A selection of trajectories. Nothing is read before the iteration; each iteration reads again."""

    selection = Shared[Any]()
    shard = direct(_episodes.Episodes.shard, lambda threads, part: Episodes(threads, part))
    steps = direct(_episodes.Episodes.steps, Steps)
    tokens = awaited(_episodes.Episodes.tokens, same)
    to_arrow = awaited(_episodes.Episodes.to_arrow, same)
    to_pandas = awaited(_episodes.Episodes.to_pandas, same)
    to_hf = awaited(_episodes.Episodes.to_hf, same)
    to_torch = awaited(_episodes.Episodes.to_torch, same)
    to_minari = awaited(_episodes.Episodes.to_minari, same)
    _iterate = iterated(_episodes.Episodes.__iter__, Episode, prepare=_episodes.Episode.prefetch)

    def __aiter__(self) -> AsyncIterator[Episode]:
        return self._iterate()


class PlayedRollout(Wrapper[_groups.PlayedRollout]):
    """A rollout that has ended, with the trajectory of its last attempt."""

    message = Shared[Any]()
    reward = Shared[float | None]()
    success = Shared[bool | None]()

    @property
    def episode(self) -> Episode:
        return Episode(self.threads, self.sync.episode)


class Group(Wrapper[_groups.Group]):
    """The rollouts of a group, by their number. Its tokens are read before it is returned."""

    number = Shared[int]()
    rewards = Shared[list[float | None]]()
    prefetch = awaited(_groups.Group.prefetch, same)
    tokens = direct(_groups.Group.tokens, same)

    @property
    def rollouts(self) -> list[PlayedRollout]:
        return [PlayedRollout(self.threads, rollout) for rollout in self.sync.rollouts]


class Tasks(Wrapper[_tasks.Tasks]):
    """The catalogue of tasks."""

    put = awaited(_tasks.Tasks.put, same)
    get = awaited(_tasks.Tasks.get, same)
    list = iterated(_tasks.Tasks.list, same)
