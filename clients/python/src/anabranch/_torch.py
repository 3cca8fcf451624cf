"""Episodes as a dataset of PyTorch. This module needs torch to be installed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anabranch._shuffle import shuffled
from anabranch._tensors import optional

if TYPE_CHECKING:
    from anabranch.episodes import Episodes

_torch_data: Any = optional("torch.utils.data", "for datasets of PyTorch")


class EpisodeDataset(_torch_data.IterableDataset):
    """Yields each episode once across all workers and ranks, as a dict of arrays."""

    def __init__(self, episodes: Episodes, *, shuffle: int, seed: int) -> None:
        self._episodes = episodes
        self._shuffle = shuffle
        self._seed = seed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        index, count = _shard()
        own = self._episodes.shard(index, count)
        episodes = shuffled(own, self._shuffle, random.Random(self._seed)) if self._shuffle else iter(own)
        return (episode.to_numpy() for episode in episodes)


def _shard() -> tuple[int, int]:
    """Returns the number of this worker among all workers of all ranks, and their count."""
    distributed = optional("torch.distributed", "for datasets of PyTorch")
    ready = distributed.is_available() and distributed.is_initialized()
    rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if ready else (0, 1)
    worker = _torch_data.get_worker_info()
    return (rank, ranks) if worker is None else (rank * worker.num_workers + worker.id, ranks * worker.num_workers)
