"""Vector environments of Gymnasium: each episode of each sub-environment is a trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anabranch._kinds import is_a
from anabranch._tensors import optional

if TYPE_CHECKING:
    from anabranch.client import Client
    from anabranch.trajectory import Trajectory

_vector: Any = optional("gymnasium.vector", "for anabranch.gym")
_FINAL = frozenset({"final_obs", "final_info", "final_observation"})


class RecordVector(_vector.VectorWrapper):
    """Records a vector environment. Handles the autoreset modes next-step, same-step and disabled.

    Each trajectory has the label `env_index`, the number of its sub-environment. Episodes that end are sealed as
    completed; those that a reset or `close()` cuts off as cancelled.
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
    ) -> None:
        _vector.VectorWrapper.__init__(self, env)
        self._client = client
        self._fields: dict[str, Any] = {"task": task, "name": name, "run": run}
        self._labels = dict(labels or {})
        mode = self.env.metadata.get("autoreset_mode")
        self._mode = str(getattr(mode, "name", mode or "NEXT_STEP"))
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
        for index in range(self.num_envs):
            if mask is None or mask[index]:
                self._begin(index, rows[index], info_of(infos, index), _seed_of(seed, index), options)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = observations, rewards, terminations, truncations, infos = self.env.step(actions)
        observed = _rows(self.single_observation_space, observations, self.num_envs)
        acted = _rows(self.single_action_space, actions, self.num_envs)
        for index in range(self.num_envs):
            trajectory = self._trajectories[index]
            if trajectory is None:
                continue
            info = info_of(infos, index)
            if self._ended[index]:
                if self._mode == "NEXT_STEP":  # the action was ignored: this is the result of a reset
                    self._begin(index, observed[index], info, None, None)
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
            )
            self._ended[index] = ended
            if ended:
                trajectory.seal("completed")
            if at_once:
                self._begin(index, observed[index], info, None, None)
        return result

    def close(self, **fields: Any) -> None:
        for index in range(self.num_envs):
            self._cancel(index, "close")
        self.env.close(**fields)

    def _begin(
        self, index: int, observation: Any, info: dict[str, Any], seed: int | None, options: dict[str, Any] | None
    ) -> None:
        self._cancel(index, "reset")
        spec = getattr(self.env, "spec", None)
        kept = None if options is None else {name: value for name, value in options.items() if name != "reset_mask"}
        trajectory = self._client.trajectory(
            **self._fields,
            labels={**self._labels, "env_index": str(index)},
            metadata={"env": None if spec is None else spec.id, "seed": seed, "options": kept},
        )
        trajectory.reset(observation=observation, info=info)
        self._trajectories[index] = trajectory
        self._ended[index] = False

    def _cancel(self, index: int, cause: str) -> None:
        trajectory = self._trajectories[index]
        if trajectory is not None and not self._ended[index]:
            trajectory.seal("cancelled", f"{cause}() before the end of the episode")


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
