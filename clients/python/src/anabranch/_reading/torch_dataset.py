"""Episodes as a dataset of PyTorch. This module needs torch to be installed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from anabranch._reading.shuffle import shuffled
from anabranch._wire.tensors import optional

if TYPE_CHECKING:
    from anabranch._reading.episode import RecordedEpisode

_torch_data: Any = optional("torch.utils.data", "for datasets of PyTorch")


class EpisodeDataset(_torch_data.IterableDataset):
    """Yields each episode once across all workers and ranks, as a dict of arrays."""

    def __init__(self, shard: Callable[[int, int], Iterable[RecordedEpisode]], *, shuffle: int, seed: int) -> None:
        self._shard = shard
        self._shuffle = shuffle
        self._seed = seed
        self._rank = _rank()

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned gets a pickle, and does not know the process group of its rank.
        return {**self.__dict__, "_rank": _rank() or self._rank}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        own = self._shard(*self._part())
        episodes = shuffled(own, self._shuffle, random.Random(self._seed)) if self._shuffle else iter(own)
        return (episode.to_numpy() for episode in episodes)

    def _part(self) -> tuple[int, int]:
        """Returns the number of this worker among all workers of all ranks, and their count."""
        rank, ranks = _rank() or self._rank or (0, 1)
        worker = _torch_data.get_worker_info()
        return (rank, ranks) if worker is None else (rank * worker.num_workers + worker.id, ranks * worker.num_workers)


def _rank() -> tuple[int, int] | None:
    """Returns the rank of this process and the number of ranks. None without a process group."""
    distributed = optional("torch.distributed", "for datasets of PyTorch")
    ready = distributed.is_available() and distributed.is_initialized()
    return (distributed.get_rank(), distributed.get_world_size()) if ready else None
