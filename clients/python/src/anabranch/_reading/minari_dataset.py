"""Minari datasets of episodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from anabranch._wire.decode import undecodable_in
from anabranch._wire.kinds import is_a
from anabranch._wire.tensors import optional

if TYPE_CHECKING:
    from anabranch._reading.episode import RecordedEpisode


def create_dataset(episodes: Iterable[RecordedEpisode], dataset_id: str, env: Any, fields: dict[str, Any]) -> Any:
    """Creates a dataset from all episodes that have steps. Rewards that are missing become NaN."""
    minari = optional("minari", "for Minari datasets")
    optional("minari.data_collector", "for Minari datasets")
    optional("h5py", "for Minari datasets")
    buffers = [_buffer_of(episode, minari) for episode in episodes if len(episode)]
    if not buffers:
        raise ValueError("no episode with steps is selected: a Minari dataset needs at least one")
    try:
        return minari.create_dataset_from_buffers(dataset_id, buffer=buffers, env=env, **fields)
    except AssertionError as error:
        text = "an episode does not fit the spaces of the environment: select episodes of one environment, and name it"
        raise ValueError(f"{text} (`env` is {env!r})") from error


def _buffer_of(episode: RecordedEpisode, minari: Any) -> Any:
    if not episode.has_reset:
        raise ValueError(f"trajectory {episode.id} does not begin with a reset: its step 0 has an action")
    for step in episode.steps:
        found = undecodable_in((step.observation, step.action))
        if found is not None:
            place = f"step {step.number} of trajectory {episode.id}"
            raise ValueError(f"{place} has a value that Minari cannot hold: {found.reason}")
    arrays = episode.to_numpy()
    return minari.data_collector.EpisodeBuffer(
        observations=_as_lists(arrays["observations"]),
        actions=_as_lists(arrays["actions"]),
        rewards=arrays["rewards"].tolist(),
        terminations=arrays["terminated"].tolist(),
        truncations=arrays["truncated"].tolist(),
    )


def _as_lists(value: Any) -> Any:
    if is_a(value, dict):
        return {key: _as_lists(member) for key, member in value.items()}
    if is_a(value, tuple):
        return tuple(_as_lists(part) for part in value)
    return list(value)
