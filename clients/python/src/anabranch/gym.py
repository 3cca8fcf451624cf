"""Gymnasium: records every episode of an environment as a trajectory, and resumes environments at recorded steps."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch._reading.read import id_of
from anabranch._recording.creation import Creation
from anabranch._training.replay import Replay
from anabranch._training.snapshots import Restore, Snapshot, Snapshots, random_state
from anabranch._wire.kinds import is_a
from anabranch._wire.tensors import optional

if TYPE_CHECKING:
    from anabranch._recording.batch import StepGroup
    from anabranch._recording.recorder import Recorder
    from anabranch.client import Client
    from anabranch.trajectory import Trajectory

_gymnasium: Any = optional("gymnasium", "for anabranch.gym")

_logger = logging.getLogger("anabranch")

STATE = "env"
_FINAL = frozenset({"final_obs", "final_info", "final_observation"})


class Record(_gymnasium.Wrapper):
    """Records each episode as a trajectory. No call waits for the server.

    `reset()` starts a trajectory, whose metadata has the seed and the options; step 0 is its result. Without a seed, the
    metadata has the state of the environment's random numbers before the reset, from which `resume` begins as well. The
    end of the episode seals it as completed. A `reset()` or `close()` before the end seals it as cancelled.

    A snapshot of the environment is stored with the reset and with every `snapshot_every`-th step: by `snapshot(env)`
    and `restore(env, state)`, else by what the environment offers (ALE's `clone_state`, MuJoCo's positions and
    velocities, `get_state` and `set_state`), else not at all. It has the state of the wrappers and of the random
    numbers too.
    """

    def __init__(
        self,
        env: Any,
        client: Client,
        *,
        task: str = "",
        name: str = "",
        labels: Mapping[str, str] | None = None,
        run: Any = None,
        snapshot: Snapshot | None = None,
        restore: Restore | None = None,
        snapshot_every: int = 100,
    ) -> None:
        _gymnasium.Wrapper.__init__(self, env)
        self._client = client
        self._creation = client.creation(task=task, name=name, labels=labels, run=run)
        self._snapshots = Snapshots(env, snapshot, restore)
        self._every = snapshot_every
        self._trajectory: Trajectory | None = None

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory of the current episode. Raises ValueError before the first reset."""
        if self._trajectory is None:
            raise ValueError("there is no trajectory before the first reset()")
        return self._trajectory

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.trajectory.done

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._cancel("reset")
        random = random_state(self.env) if seed is None else None
        observation, info = self.env.reset(seed=seed, options=options)
        metadata = episode_metadata(self._client, self.env, seed, random, options)
        self._trajectory = self._client.create(str(uuid.uuid4()), self._creation, metadata)
        self._trajectory.reset(observation=observation, info=info, states=self._states(0))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        trajectory = self.trajectory
        observation, reward, terminated, truncated, info = self.env.step(action)
        trajectory.step(
            action=action,
            observation=observation,
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            info=info,
            states=self._states(trajectory.next_step),
        )
        if terminated or truncated:
            trajectory.seal("completed")
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        self._cancel("close")
        self.env.close()

    def continue_as(self, trajectory: Trajectory) -> None:
        """Records the next steps into a trajectory whose last step is the present state of the environment."""
        self._trajectory = trajectory

    def _states(self, number: int) -> dict[str, Any] | None:
        if number % self._every or not self._snapshots.available:
            return None
        state = self._snapshots.take()
        return None if state is None else {STATE: state}

    def _cancel(self, cause: str) -> None:
        if self._trajectory is not None and not self._trajectory.done:
            self._trajectory.seal("cancelled", f"{cause}() before the end of the episode")


class Resets(_gymnasium.Wrapper):
    """Keeps the state of the random numbers before a reset without a seed. Vector environments reset within `step()`."""

    def __init__(self, env: Any) -> None:
        _gymnasium.Wrapper.__init__(self, env)
        self._before: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._before = random_state(self.env) if seed is None else None
        return self.env.reset(seed=seed, options=options)

    def take(self) -> Any:
        """Returns the state before the last reset, once."""
        state, self._before = self._before, None
        return state


class RecordVector(_gymnasium.vector.VectorWrapper):
    """Records a vector environment. Handles the autoreset modes next-step, same-step and disabled.

    Each episode of each sub-environment is a trajectory with the label `env_index`, the number of its sub-environment.
    Episodes that end are sealed as completed; those that a reset or `close()` cuts off as cancelled. What one call
    records is sent in one message. No call waits for the server.

    The metadata of an episode has the seed and the options of `reset()`. An episode that begins without a seed, as those
    after an automatic reset, has the state of its random numbers before that. Snapshots are taken as in `Record`;
    `snapshot(env)` and `restore(env, state)` get a sub-environment. Both need sub-environments in this process, as those
    of SyncVectorEnv, which a wrapper then observes: otherwise there are no snapshots, and `random` of the metadata is
    null. Raises ValueError for `snapshot` without such sub-environments.
    """

    def __init__(
        self,
        env: Any,
        client: Client,
        *,
        task: str = "",
        name: str = "",
        labels: Mapping[str, str] | None = None,
        run: Any = None,
        snapshot: Snapshot | None = None,
        restore: Restore | None = None,
        snapshot_every: int = 100,
    ) -> None:
        _gymnasium.vector.VectorWrapper.__init__(self, env)
        self._client = client
        own = client.creation(task=task, name=name, labels=labels, run=run)
        self._creations = [
            replace(own, labels=Creation.checked(labels={**own.labels, "env_index": str(index)}).labels)
            for index in range(self.num_envs)
        ]
        mode = self.env.metadata.get("autoreset_mode")
        self._mode = str(getattr(mode, "name", mode or "NEXT_STEP"))
        self._resets = _observe_resets(env.unwrapped)
        if snapshot is not None and not self._resets:
            raise ValueError("`snapshot` needs sub-environments in this process, as those of SyncVectorEnv")
        self._snapshots = [Snapshots(each.env, snapshot, restore) for each in self._resets]
        self._every = snapshot_every
        self._recorder: Recorder | None = None
        self._group: StepGroup | None = None
        self._trajectories: list[Trajectory | None] = [None] * self.num_envs
        self._ended = [False] * self.num_envs

    @property
    def trajectories(self) -> list[Trajectory | None]:
        """The trajectory of the current episode of each sub-environment. None before the first reset."""
        return list(self._trajectories)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        # The environment removes the mask from the options.
        mask = None if options is None else options.get("reset_mask")
        observations, infos = self.env.reset(seed=seed, options=options)
        rows = _rows(self.single_observation_space, observations, self.num_envs)
        with self._together() as group:
            for index in range(self.num_envs):
                if mask is None or mask[index]:
                    self._begin(group, index, rows[index], info_of(infos, index), _seed_of(seed, index), options)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = observations, rewards, terminations, truncations, infos = self.env.step(actions)
        observed = _rows(self.single_observation_space, observations, self.num_envs)
        acted = _rows(self.single_action_space, actions, self.num_envs)
        with self._together() as group:
            for index in range(self.num_envs):
                trajectory = self._trajectories[index]
                if trajectory is None:
                    continue
                info = info_of(infos, index)
                if self._ended[index]:
                    if self._mode == "NEXT_STEP":  # the action was ignored: this is the result of a reset
                        self._begin(group, index, observed[index], info, None, None)
                    continue
                ended = bool(terminations[index] or truncations[index])
                at_once = ended and self._mode == "SAME_STEP"
                trajectory.step(
                    action=acted[index],
                    observation=infos["final_obs"][index] if at_once else observed[index],
                    reward=float(rewards[index]),
                    terminated=bool(terminations[index]),
                    truncated=bool(truncations[index]),
                    info=info_of(infos["final_info"], index) if at_once else info,
                    # After a reset within the step, the environment is in the next episode.
                    states=None if at_once else self._states(index, trajectory.next_step),
                )
                self._ended[index] = ended
                if ended:
                    trajectory.seal("completed")
                if at_once:
                    self._begin(group, index, observed[index], info, None, None)
        return result

    def close(self, **fields: Any) -> None:
        with self._together():
            for index in range(self.num_envs):
                self._cancel(index, "close")
        self.env.close(**fields)

    def _begin(
        self,
        group: StepGroup,
        index: int,
        observation: Any,
        info: dict[str, Any],
        seed: int | None,
        options: dict[str, Any] | None,
    ) -> None:
        self._cancel(index, "reset")
        kept = None if options is None else {name: value for name, value in options.items() if name != "reset_mask"}
        random = self._resets[index].take() if self._resets else None
        metadata = episode_metadata(self._client, self.env, seed, random, kept)
        trajectory = self._client.create(str(uuid.uuid4()), self._creations[index], metadata, group)
        trajectory.reset(observation=observation, info=info, states=self._states(index, 0))
        self._trajectories[index] = trajectory
        self._ended[index] = False

    def _cancel(self, index: int, cause: str) -> None:
        trajectory = self._trajectories[index]
        if trajectory is not None and not self._ended[index]:
            trajectory.seal("cancelled", f"{cause}() before the end of the episode")

    def _states(self, index: int, number: int) -> dict[str, Any] | None:
        if not self._snapshots or number % self._every:
            return None
        state = self._snapshots[index].take()
        return None if state is None else {STATE: state}

    @contextmanager
    def _together(self) -> Generator[StepGroup, None, None]:
        """Lets what is recorded in the block be sent together. A forked child has a recorder of its own."""
        if self._group is None or self._recorder is None or not self._recorder.alive:
            self._recorder = self._client.recorder
            self._group = self._recorder.group()
        with self._group:
            yield self._group


def resume(
    env: Any,
    trajectory: Any,
    *,
    at: int | None = None,
    name: str = "",
    client: Client | None = None,
    labels: Mapping[str, str] | None = None,
    snapshot: Snapshot | None = None,
    restore: Restore | None = None,
    snapshot_every: int = 100,
) -> tuple[Record, Any]:
    """Brings an environment to a recorded step, and records what follows as a branch at this step.

    Restores the nearest snapshot at or before `at` (default: the last step), or begins with the recorded seed or state
    of random numbers, and replays the recorded actions up to `at`. `trajectory` is a trajectory, or an id together with `client`. Returns the
    recording environment and its observation. Raises Diverged, which names the first step that differs from the
    recording, and ValueError if the recording has none of the three.
    """
    client = client_of(trajectory, client)
    if not isinstance(trajectory, str):
        trajectory.flush()
    episode = client.episode(id_of(trajectory))
    at = len(episode.steps) - 1 if at is None else at
    replay = Replay(episode, env, Snapshots(env, snapshot, restore))
    observation = replay.run_to(at)
    recording = Record(
        env,
        client,
        task=episode.task,
        name=name,
        labels=labels,
        run=episode.trajectory.run_id or None,
        snapshot=snapshot,
        restore=restore,
        snapshot_every=snapshot_every,
    )
    recording.continue_as(client.branch(trajectory, at=at, name=name, labels=labels))
    return recording, observation


def client_of(trajectory: Any, client: Client | None) -> Client:
    if client is not None:
        return client
    if isinstance(trajectory, str):
        raise TypeError("`client` is required with the id of a trajectory")
    return trajectory.client


def episode_metadata(client: Client, env: Any, seed: int | None, random: Any, options: dict[str, Any] | None) -> str:
    """Returns what a replay needs to begin an episode again, as JSON text. `random` is the state of the random numbers
    before a reset without a seed; None if it is not known. What is too large is left out, with a warning."""
    spec = getattr(env, "spec", None)
    metadata = {"env": None if spec is None else spec.id, "seed": seed, "random": random, "options": options}
    for part in "options", "random":
        try:
            return client.metadata_json(metadata)
        except ValueError as error:
            if not client.values.unstored[part]:
                _logger.warning(
                    "anabranch: `%s` of an episode is not recorded, so it cannot be resumed: %s", part, error
                )
            client.values.unstored[part] += 1
            metadata[part] = None
    return client.metadata_json(metadata)


def _observe_resets(env: Any) -> list[Resets]:
    """Wraps the sub-environments of this process. Returns none if they are elsewhere."""
    own: list[Any] | None = getattr(env, "envs", None)
    if own is None or not is_a(own, list):
        return []
    own[:] = [each if is_a(each, Resets) else Resets(each) for each in own]
    return own


def info_of(infos: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Returns the info of one sub-environment. `infos` has an array for each key, and a mask `_key` of those that have
    a value."""
    own: dict[str, Any] = {}
    for key, values in infos.items():
        is_mask = key.startswith("_") and key[1:] in infos
        mask = infos.get(f"_{key}")
        if is_mask or key in _FINAL or (mask is not None and not mask[index]):
            continue
        own[key] = info_of(values, index) if is_a(values, dict) else values[index]
    return own


def _rows(space: Any, batch: Any, count: int) -> list[Any]:
    """Splits a batch of observations or actions."""
    if is_a(batch, dict):
        parts = {key: _rows(space[key], member, count) for key, member in batch.items()}
        return [{key: part[index] for key, part in parts.items()} for index in range(count)]
    is_split = is_a(batch, tuple) and type(space).__name__ == "Tuple"
    if is_split:
        members = [_rows(inner, member, count) for inner, member in zip(space.spaces, batch, strict=True)]
        return [tuple(member[index] for member in members) for index in range(count)]
    return [batch[index] for index in range(count)]


def _seed_of(seed: Any, index: int) -> int | None:
    """Returns the seed of a sub-environment: vector environments seed them with consecutive numbers."""
    return None if seed is None else int(seed) + index if is_a(seed, int) else seed[index]
