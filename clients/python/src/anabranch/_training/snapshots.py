"""Snapshots of environments: the state of the environment, of its wrappers and of its random numbers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from anabranch._wire.kinds import is_a
from anabranch._wire.tensors import optional
from anabranch._wire.values import ValueEncoder

Snapshot = Callable[[Any], Any]
"""Returns the state of an environment: a value that can be stored."""
Restore = Callable[[Any, Any], None]
"""Sets the state of an environment."""

_logger = logging.getLogger("anabranch")


class Snapshots:
    """Takes and restores snapshots of one environment with its wrappers."""

    def __init__(self, env: Any, snapshot: Snapshot | None = None, restore: Restore | None = None) -> None:
        if (snapshot is None) != (restore is None):
            raise ValueError("`snapshot` and `restore` are required together")
        self._env = env
        found = (snapshot, restore) if snapshot and restore else offered(env.unwrapped)
        self._snapshot, self._restore = found or (None, None)
        self._unstorable = False

    @property
    def available(self) -> bool:
        """Whether snapshots of this environment can be taken and restored."""
        return self._snapshot is not None and not self._unstorable

    def take(self) -> dict[str, Any] | None:
        """Returns the state as a value that can be stored. None, with one warning, if it cannot be."""
        if self._snapshot is None or self._unstorable:
            return None
        try:
            state = {
                "env": self._snapshot(self._env.unwrapped),
                "random": random_state(self._env),
                "wrappers": [_wrapper_state(wrapper) for wrapper in _wrappers(self._env)],
            }
            ValueEncoder(strict=True).value_json(state, "snapshot")
        except Exception as error:  # noqa: BLE001 - the environment's own code fails
            self._unstorable = True
            _logger.warning("The environment has no snapshots: %s. It resumes by replaying its actions.", error)
            return None
        return state

    def restore(self, state: Any) -> None:
        """Sets the environment to a snapshot. It must have been reset before."""
        if self._restore is None:
            raise ValueError("the environment cannot restore snapshots: give `snapshot` and `restore`")
        wrappers = list(_wrappers(self._env))
        if len(wrappers) != len(state["wrappers"]):
            raise ValueError(f"the snapshot has {len(state['wrappers'])} wrappers, the environment {len(wrappers)}")
        self._restore(self._env.unwrapped, state["env"])
        if state["random"] is not None:
            set_random_state(self._env, state["random"])
        for wrapper, members in zip(wrappers, state["wrappers"], strict=True):
            _restore_wrapper(wrapper, members)


def offered(env: Any) -> tuple[Snapshot, Restore] | None:
    """Returns how an environment itself saves and restores its state; None if it does not."""
    if hasattr(env, "clone_state") and hasattr(env, "restore_state"):
        return _clone_ale, _restore_ale
    if hasattr(env, "set_state") and hasattr(env, "data") and hasattr(env.data, "qpos"):
        return _mujoco_state, _restore_mujoco
    if hasattr(env, "get_state") and hasattr(env, "set_state"):
        return (lambda env: env.get_state()), (lambda env, state: env.set_state(state))
    return None


def _clone_ale(env: Any) -> Any:
    return env.clone_state(include_rng=True).serialize()


def _restore_ale(env: Any, state: Any) -> None:
    env.restore_state(optional("ale_py", "to restore environments of ALE").ALEState(state))


def _mujoco_state(env: Any) -> Any:
    return {"qpos": env.data.qpos.copy(), "qvel": env.data.qvel.copy(), "time": float(env.data.time)}


def _restore_mujoco(env: Any, state: Any) -> None:
    env.set_state(state["qpos"], state["qvel"])
    env.data.time = state["time"]


def random_state(env: Any) -> Any:
    """Returns the state of an environment's random numbers, as a value that can be stored. None if it has none."""
    try:
        return env.unwrapped.np_random.bit_generator.state
    except Exception:  # noqa: BLE001 - the environment has none, or others than Gymnasium's
        return None


def set_random_state(env: Any, state: Any) -> None:
    env.unwrapped.np_random.bit_generator.state = state


def _wrappers(env: Any) -> Any:
    while env is not env.unwrapped:
        yield env
        env = env.env


def _wrapper_state(wrapper: Any) -> dict[str, Any]:
    """Returns the members of a wrapper that can change."""
    members: dict[str, Any] = wrapper.__dict__
    return {name: _described(member) for name, member in members.items() if not _is_fixed(member)}


def _described(member: Any) -> dict[str, Any]:
    return {"deque": list(member), "maxlen": member.maxlen} if is_a(member, deque) else {"value": member}


def _restore_wrapper(wrapper: Any, members: dict[str, Any]) -> None:
    for name, member in members.items():
        is_deque = "deque" in member
        setattr(wrapper, name, deque(member["deque"], maxlen=member["maxlen"]) if is_deque else member["value"])


def _is_fixed(member: Any) -> bool:
    """Returns whether a member of a wrapper is part of its construction."""
    module = type(member).__module__
    is_environment = hasattr(member, "unwrapped") or module.startswith("gymnasium.spaces")
    return callable(member) or is_environment or module.startswith("gymnasium.envs.registration")
