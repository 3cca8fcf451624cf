"""Gymnasium: records every episode of an environment as a trajectory, and resumes environments at recorded steps."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch._reading.read import id_of
from anabranch._recording.arguments import flag_of, objectives_of, unbroken
from anabranch._recording.creation import Creation
from anabranch._recording.steps import UNSET
from anabranch._training.replay import Replay
from anabranch._training.snapshots import Restore, Snapshot, Snapshots, random_state
from anabranch._training.spaces import spaces_of
from anabranch._wire.decode import decode_json
from anabranch._wire.kinds import is_a
from anabranch._wire.tensors import optional

if TYPE_CHECKING:
    from anabranch._recording.batch import StepGroup
    from anabranch._recording.recorder import Recorder
    from anabranch._wire.values import ValueEncoder
    from anabranch.client import Client
    from anabranch.trajectory import Trajectory

_gymnasium: Any = optional("gymnasium", "for anabranch.gym")

_logger = logging.getLogger("anabranch")

STATE = "env"
Scalarize = Callable[[Any], float]
"""Returns the reward of a step from its rewards of several objectives."""
_FINAL = frozenset({"final_obs", "final_info", "final_observation"})


class Record(_gymnasium.Wrapper):
    """Records each episode as a trajectory. No call waits for the server, and none raises because of what is recorded,
    unless the client is strict: what cannot be recorded is left out, with a warning.

    `reset()` starts a trajectory, whose metadata has the seed and the options; step 0 is its result. Without a seed, the
    metadata has the state of the environment's random numbers before the reset, from which `resume` begins as well. The
    end of the episode seals it as completed. A `reset()` or `close()` before the end seals it as cancelled.

    A snapshot of the environment is stored with the reset and with every `snapshot_every`-th step: by `snapshot(env)`
    and `restore(env, state)`, else by what the environment offers (ALE's `clone_state`, MuJoCo's positions and
    velocities, `get_state` and `set_state`), else not at all. It has the state of the wrappers and of the random
    numbers too.

    Rewards of several objectives are stored as the metrics `reward/0`, `reward/1`, … of their step, and `scalarize`
    returns its reward from them; without `scalarize`, the step has no reward.
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
        scalarize: Scalarize | None = None,
    ) -> None:
        _gymnasium.Wrapper.__init__(self, env)
        self._client = client
        self._creation = client.creation(task=task, name=name, labels=labels, run=run)
        self._snapshots = Snapshots(env, snapshot, restore)
        self._every = _interval(snapshot_every)
        self._scalarize = scalarize
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
        result = self.env.reset(seed=seed, options=options)
        with unbroken(self._client.values, "Record.reset"):
            observation, info = result
            metadata = episode_metadata(self._client, self.env, seed, random, options)
            self._trajectory = self._client.create(str(uuid.uuid4()), self._creation, metadata)
            self._trajectory.reset(observation=observation, info=info, states=self._states(0))
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        with unbroken(self._client.values, "Record.step"):
            trajectory = self.trajectory
            observation, reward, terminated, truncated, info = result
            values = self._client.values
            ends = _ends(values, terminated, truncated)
            trajectory.step(
                action=action,
                observation=observation,
                info=info,
                states=self._states(trajectory.next_step),
                **ends,
                **_reward_of(values, reward, self._scalarize),
            )
            if any(ends.values()):
                trajectory.seal("completed")
        return result

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
    null. Raises ValueError for `snapshot` without such sub-environments. Rewards of several objectives are stored as in
    `Record`.
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
        scalarize: Scalarize | None = None,
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
        self._every = _interval(snapshot_every)
        self._scalarize = scalarize
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
        result = self.env.reset(seed=seed, options=options)
        with unbroken(self._values, "RecordVector.reset"), self._together() as group:
            observations, infos = result
            rows = self._rows(self.single_observation_space, observations)
            for index in range(self.num_envs):
                if mask is None or mask[index]:
                    with unbroken(self._values, "RecordVector.reset"):
                        info = info_of(infos, index, self.num_envs)
                        self._begin(group, index, rows[index], info, _seed_of(seed, index), options)
        return result

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = self.env.step(actions)
        with unbroken(self._values, "RecordVector.step"), self._together() as group:
            observations, rewards, terminations, truncations, infos = result
            observed = self._rows(self.single_observation_space, observations)
            acted = self._rows(self.single_action_space, actions)
            for index in range(self.num_envs):
                with unbroken(self._values, "RecordVector.step"):
                    reward, terminated, truncated = (
                        row_of(batch, index, self.num_envs) for batch in (rewards, terminations, truncations)
                    )
                    ends = _ends(self._values, terminated, truncated)
                    self._step(group, index, acted[index], observed[index], reward, ends, infos)
        return result

    def _step(
        self,
        group: StepGroup,
        index: int,
        action: Any,
        observation: Any,
        reward: Any,
        ends: dict[str, bool],
        infos: Any,
    ) -> None:
        """Records the step of one sub-environment."""
        trajectory = self._trajectories[index]
        if trajectory is None:
            return
        info = info_of(infos, index, self.num_envs)
        if self._ended[index]:
            if self._mode == "NEXT_STEP":  # the action was ignored: this is the result of a reset
                self._begin(group, index, observation, info, None, None)
            return
        ended = self._ended[index] = any(ends.values())
        at_once = ended and self._mode == "SAME_STEP"
        final: dict[str, Any] = infos if at_once and is_a(infos, dict) else {}
        trajectory.step(
            action=action,
            observation=row_of(final.get("final_obs", UNSET), index, self.num_envs) if at_once else observation,
            info=info_of(final.get("final_info", {}), index, self.num_envs) if at_once else info,
            # After a reset within the step, the environment is in the next episode.
            states=None if at_once else self._states(index, trajectory.next_step),
            **ends,
            **_reward_of(self._values, reward, self._scalarize),
        )
        if ended:
            trajectory.seal("completed")
        if at_once:
            self._begin(group, index, observation, info, None, None)

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

    @property
    def _values(self) -> ValueEncoder:
        return self._client.values

    def _rows(self, space: Any, batch: Any) -> list[Any]:
        """Splits a batch of observations or actions. One that cannot be split is recorded by none."""
        rows: list[Any] = [UNSET] * self.num_envs
        with unbroken(self._values, "RecordVector"):
            rows = _split(space, batch, self.num_envs)
        return rows

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
    scalarize: Scalarize | None = None,
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
        scalarize=scalarize,
    )
    metadata = decode_json(episode.trajectory.metadata_json or "null")
    recording.continue_as(client.branch(trajectory, at=at, name=name, labels=labels, metadata=metadata))
    return recording, observation


def client_of(trajectory: Any, client: Client | None) -> Client:
    if client is not None:
        return client
    if isinstance(trajectory, str):
        raise TypeError("`client` is required with the id of a trajectory")
    return trajectory.client


def episode_metadata(client: Client, env: Any, seed: int | None, random: Any, options: dict[str, Any] | None) -> str:
    """Returns what a replay needs to begin an episode again, and the spaces, which decide the columns of tables, as JSON
    text. `random` is the state of the random numbers before a reset without a seed; None if it is not known. What is too
    large is left out, with a warning.

    Metadata is plain JSON. If that cannot hold the options or the random numbers, `media_type` is the form that has them.
    """
    start = {"env": getattr(getattr(env, "spec", None), "id", None), "seed": None if seed is None else int(seed)}
    parts = {"options": options, "random": random, "spaces": spaces_of(env)}
    for part in parts:
        try:
            return _metadata_json(client, start, parts)
        except ValueError as error:
            if not client.values.unstored[part]:
                _logger.warning(
                    "anabranch: `%s` of an episode is not recorded, so it cannot be resumed: %s", part, error
                )
            client.values.unstored[part] += 1
            parts[part] = None
    return _metadata_json(client, start, parts)


def _metadata_json(client: Client, start: dict[str, Any], parts: dict[str, Any]) -> str:
    state = {**start, "random": parts["random"], "options": parts["options"]}
    text, media_type = client.values.value_json(state, "metadata")
    typed = {"media_type": media_type} if media_type else {}
    return client.metadata_json({**json.loads(text), **typed, "spaces": parts["spaces"]})


def _observe_resets(env: Any) -> list[Resets]:
    """Wraps the sub-environments of this process. Returns none if they are elsewhere."""
    own: list[Any] | None = getattr(env, "envs", None)
    if own is None or not is_a(own, list):
        return []
    own[:] = [each if is_a(each, Resets) else Resets(each) for each in own]
    return own


def info_of(infos: Any, index: int, count: int) -> Any:
    """Returns the info of one of `count` sub-environments. `infos` has an array for each key, and a mask `_key` of
    those that have a value."""
    if not is_a(infos, dict):
        return row_of(infos, index, count)
    own: dict[Any, Any] = {}
    # A mask has no mask. An info of an environment that is named like the mask of another one has its own.
    masks = {f"_{key}" for key in infos if f"__{key}" not in infos and _is_mask(infos.get(f"_{key}"), count)}
    for key, values in infos.items():
        mask = f"_{key}"
        if key in masks or key in _FINAL or (mask in masks and not infos[mask][index]):
            continue
        own[key] = info_of(values, index, count) if is_a(values, dict) else row_of(values, index, count)
    return own


def row_of(batch: Any, index: int, count: int) -> Any:
    """Returns the part of one of `count` sub-environments. What has no part for each of them belongs to all."""
    if is_a(batch, dict):
        return {key: row_of(member, index, count) for key, member in batch.items()}
    try:
        return batch[index] if len(batch) == count and not is_a(batch, (str, bytes)) else batch
    except Exception:  # noqa: BLE001 - what has neither length nor parts
        return batch


def _is_mask(values: Any, count: int) -> bool:
    return "bool" in str(getattr(values, "dtype", "")) and tuple(getattr(values, "shape", ())) == (count,)


def _split(space: Any, batch: Any, count: int) -> list[Any]:
    """Splits a batch of observations or actions into those of the sub-environments."""
    if is_a(batch, dict):
        parts = {key: _split(space[key], member, count) for key, member in batch.items()}
        return [{key: part[index] for key, part in parts.items()} for index in range(count)]
    is_split = is_a(batch, tuple) and type(space).__name__ == "Tuple"
    if is_split:
        members = [_split(inner, member, count) for inner, member in zip(space.spaces, batch, strict=True)]
        return [tuple(member[index] for member in members) for index in range(count)]
    return [batch[index] for index in range(count)]


def _seed_of(seed: Any, index: int) -> int | None:
    """Returns the seed of a sub-environment: vector environments seed them with consecutive numbers."""
    if seed is None:
        return None
    return seed[index] if hasattr(seed, "__len__") else int(seed) + index


def _ends(values: ValueEncoder, terminated: Any, truncated: Any) -> dict[str, bool]:
    """Returns the flags of a step as arguments of `step()`."""
    return {
        "terminated": flag_of(values, terminated, "terminated"),
        "truncated": flag_of(values, truncated, "truncated"),
    }


def _reward_of(values: ValueEncoder, reward: Any, scalarize: Scalarize | None) -> dict[str, Any]:
    """Returns the reward of a step as arguments of `step()`."""
    objectives = objectives_of(reward) if scalarize is not None else {}
    if scalarize is None or not objectives:
        return {"reward": reward}
    scalar = None
    with unbroken(values, "scalarize"):
        scalar = scalarize(reward)
    return {"reward": scalar, "metrics": objectives}


def _interval(snapshot_every: int) -> int:
    if snapshot_every < 1:
        raise ValueError(f"`snapshot_every` is {snapshot_every}: expected a number of steps, 1 or above")
    return snapshot_every
