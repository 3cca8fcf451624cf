"""Random order within a bounded buffer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def shuffled(items: Iterable[Item], size: int, source: random.Random) -> Iterator[Item]:
    """Yields the items in random order, from a buffer of `size`."""
    buffer: list[Item] = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        at = source.randrange(size)
        yield buffer[at]
        buffer[at] = item
    source.shuffle(buffer)
    yield from buffer
