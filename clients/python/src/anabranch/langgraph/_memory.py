"""What a process remembers of threads, so that a put needs one call. It is bounded, and may be forgotten at any time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from anabranch.langgraph._steps import Layout

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True)
class Place:
    """Where a checkpoint is stored."""

    trajectory_id: str
    number: int
    #: A trajectory of the thread that has the step in its lineage. Another one than the owner if the thread is a copy.
    heir_id: str
    #: When it was committed, in nanoseconds.
    time: int

    @property
    def is_own(self) -> bool:
        """Whether the trajectory of the step belongs to the thread."""
        return self.trajectory_id == self.heir_id


#: A thread, a namespace and a checkpoint id.
CheckpointKey = tuple[str, str, str]


class Memory:
    """Threads can share it."""

    def __init__(self) -> None:
        self.places: Recent[CheckpointKey, Place] = Recent(20_000)
        #: The number of the next step of trajectories, as far as this process has seen.
        self.ends: Recent[str, int] = Recent(5_000)
        #: The checkpoint at a number of a trajectory.
        self.taken: Recent[tuple[str, int], CheckpointKey] = Recent(20_000)
        self._layouts: Recent[tuple[str, str], Layout] = Recent(1_000)

    def layout(self, thread_id: str, ns: str) -> Layout:
        found = self._layouts.get((thread_id, ns))
        if found is None:
            found = Layout()
            self._layouts.put((thread_id, ns), found)
        return found

    def learn(self, key: CheckpointKey, place: Place) -> None:
        self.places.put(key, place)
        if place.is_own:
            # Before the end: who finds that a number is taken finds by which checkpoint.
            self.taken.put((place.trajectory_id, place.number), key)
            self.ends.put(place.trajectory_id, max(place.number + 1, self.ends.get(place.trajectory_id) or 0))


class Recent(Generic[K, V]):
    """The values that were put last. Single operations of an OrderedDict are atomic."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        self._values[key] = value
        while len(self._values) > self._most:
            try:
                self._values.popitem(last=False)
            except KeyError:
                # Another thread was faster.
                return

    def forget(self, key: K) -> None:
        self._values.pop(key, None)
