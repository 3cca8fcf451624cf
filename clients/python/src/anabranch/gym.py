"""Gymnasium: records every episode of an environment as a trajectory, and resumes environments at recorded steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anabranch._reading.methods import id_of
from anabranch._training.replay import Replay
from anabranch._training.snapshots import Restore, Snapshot, Snapshots, random_state
from anabranch._wire.tensors import optional

if TYPE_CHECKING:
    from anabranch.client import Client
    from anabranch.trajectory import Trajectory

_gymnasium: Any = optional("gymnasium", "for anabranch.gym")

STATE = "env"


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
        self._fields: dict[str, Any] = {"task": task, "name": name, "labels": labels, "run": run}
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
        metadata = episode_metadata(self.env, seed, random, options)
        self._trajectory = self._client.trajectory(**self._fields, metadata=metadata)
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


def episode_metadata(env: Any, seed: int | None, random: Any, options: dict[str, Any] | None) -> dict[str, Any]:
    """Returns what a replay needs to begin an episode again. `random` is the state of the random numbers before a reset
    without a seed; None if it is not known."""
    spec = getattr(env, "spec", None)
    return {"env": None if spec is None else spec.id, "seed": seed, "random": random, "options": options}


def __getattr__(name: str) -> Any:
    if name == "RecordVector":
        from anabranch._training.vector import RecordVector

        return RecordVector
    raise AttributeError(f"module 'anabranch.gym' has no attribute {name!r}")
