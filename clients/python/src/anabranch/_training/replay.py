"""Brings an environment to a recorded step, and checks that it repeats its recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anabranch._recording.arguments import numbers_of, objectives_of, reward_of
from anabranch._training.snapshots import set_random_state
from anabranch._training.spaces import member_of
from anabranch._wire.decode import decode_content, decode_json, no_states, state_of, undecodable_in
from anabranch._wire.errors import Diverged
from anabranch._wire.kinds import is_a
from anabranch._wire.paths import format_path
from anabranch._wire.tensors import optional
from anabranch._wire.values import ValueEncoder
from anabranch.v1.trajectory_pb2 import Content

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anabranch._training.snapshots import Snapshots
    from anabranch.episodes import Episode, Step

_STATE = "env"


class Replay:
    """The replay of one episode in one environment."""

    def __init__(self, episode: Episode, env: Any, snapshots: Snapshots) -> None:
        self._episode = episode
        self._env = env
        self._snapshots = snapshots
        self._start = start_of(episode)

    def run_to(self, at: int) -> Any:
        """Returns the observation of step `at`, after the environment has reached it."""
        steps = self._episode.steps
        if not 0 <= at < len(steps):
            raise ValueError(f"`at` is {at}: trajectory {self._episode.id} has steps 0 to {len(steps) - 1}")
        self._episode.prefetch()
        start = self._restore(at)
        observation = steps[start].observation
        for step in steps[start + 1 : at + 1]:
            observation, reward, terminated, truncated, _ = self._env.step(self._action_of(step))
            _check(step, "", step.observation, observation)
            for path, stored, got in _rewards(step, reward):
                _check(step, path, stored, got)
            _check(step, "terminated", step.terminated, bool(terminated))
            _check(step, "truncated", step.truncated, bool(truncated))
        return observation

    def _action_of(self, step: Step) -> Any:
        """Returns an action of the type that was recorded."""
        found = undecodable_in(step.action)
        if found is not None:
            raise ValueError(f"{_place(step)} has an action that cannot be replayed: {found.reason}")
        return member_of(getattr(self._env, "action_space", None), step.action)

    def _restore(self, at: int) -> int:
        """Restores the nearest snapshot at or before a step, or resets. Returns the number of the reached step."""
        seed, random = self._start.get("seed"), self._start.get("random")
        if seed is None and random is not None:
            set_random_state(self._env, random)
        first, _ = self._env.reset(seed=seed, options=self._start.get("options"))
        if self._snapshots.available:
            for step in reversed(self._episode.steps[: at + 1]):
                if _STATE in step.states:
                    self._snapshots.restore(_snapshot_of(step))
                    return step.number
        if seed is None and random is None:
            missing = "neither a seed, nor a state of random numbers, nor a snapshot that can be restored"
            raise ValueError(f"trajectory {self._episode.id} has {missing}")
        _check(self._episode.steps[0], "", self._episode.steps[0].observation, first)
        return 0


def start_of(episode: Episode) -> dict[str, Any]:
    """Returns what the recorder knew before the reset: `seed`, `random` and `options`. Their media type is beside them if
    plain JSON cannot hold them."""
    text = episode.trajectory.metadata_json or "{}"
    found = decode_json(text)
    media_type = str(found.get("media_type", "")) if is_a(found, dict) else ""
    start = decode_content(Content(json=text, media_type=media_type), no_states)
    return start if is_a(start, dict) else {}


def _snapshot_of(step: Step) -> Any:
    stored = state_of(step.message, _STATE)
    media_type = "" if stored is None else stored.media_type
    value = decode_content(Content(data=step.state(_STATE), media_type=media_type), no_states)
    if not is_a(value, dict):
        raise ValueError(f"{_place(step)} has a state {_STATE!r} that is no snapshot of an environment")
    return value


def _place(step: Step) -> str:
    return f"step {step.number} of trajectory {step.trajectory_id}"


def _check(step: Step, path: str, stored: Any, got: Any) -> None:
    difference = first_difference(stored, got)
    if difference is not None:
        inner, stored, got = difference
        raise Diverged(step.number, path or format_path(inner), stored, got)


def _rewards(step: Step, reward: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields the rewards of a step to compare, as `Record` has stored them: path, stored and new value."""
    values = ValueEncoder()
    objectives = objectives_of(reward)
    if objectives:
        for name, number in numbers_of(values, objectives).items():
            yield name, step.metrics.get(name), number
    else:
        yield "reward", step.reward, reward_of(values, reward)


Difference = tuple[tuple[str | int, ...], Any, Any]


def first_difference(stored: Any, got: Any, path: tuple[str | int, ...] = ()) -> Difference | None:
    """Returns the path to the first difference of two values, and both values there; None if they are equal. Arrays
    are equal if their dtypes, shapes and items are; NaN equals NaN."""
    if is_a(stored, dict) and is_a(got, dict) and stored.keys() == got.keys():
        keys: list[Any] = list(stored)
    elif is_a(stored, (list, tuple)) and is_a(got, (list, tuple)) and len(stored) == len(got):
        keys = list(range(len(stored)))
    else:
        return None if _equal(stored, got) else _difference_of(stored, got, path)
    found = (first_difference(stored[key], got[key], (*path, key)) for key in keys)
    return next((difference for difference in found if difference is not None), None)


def _equal(stored: Any, got: Any) -> bool:
    numpy = optional("numpy", "to compare observations")
    one, other = numpy.asarray(stored), numpy.asarray(got)
    if one.shape != other.shape:
        return False
    is_float = one.dtype.kind in "fc" and other.dtype.kind in "fc"
    return bool(numpy.array_equal(one, other, equal_nan=is_float))


def _difference_of(stored: Any, got: Any, path: tuple[str | int, ...]) -> Difference:
    """Names the first item that differs, if both are arrays of the same shape."""
    numpy = optional("numpy", "to compare observations")
    one, other = numpy.asarray(stored), numpy.asarray(got)
    if one.shape and one.shape == other.shape and one.dtype.kind in "biuf" and other.dtype.kind in "biuf":
        differs = ~numpy.isclose(one, other, rtol=0, atol=0, equal_nan=True)
        index = tuple(int(part) for part in numpy.argwhere(differs)[0])
        return (*path, *index), one[index].item(), other[index].item()
    return path, stored, got
