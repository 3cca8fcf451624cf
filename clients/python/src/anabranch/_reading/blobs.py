"""The bytes of states that steps name: those that came with the steps, and others in batches of digests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from anabranch._reading.read import OwnedStep, fetch_state_of, fetch_stored, not_stored
from anabranch._wire.decode import digests_of, state_of

if TYPE_CHECKING:
    from anabranch._wire.connection import Connection

#: Number of states that are fetched together when one of them is looked at.
_AHEAD = 32


class Blobs:
    """The states of steps that follow each other. Kept as long as the steps are, except those that are fetched ahead."""

    def __init__(self, connection: Connection, steps: Sequence[OwnedStep]) -> None:
        self._connection = connection
        self._steps = steps
        self._data: dict[str, bytes] = {}
        for step in steps:
            if step.blobs:
                self._data.update(step.blobs)
        self._order: list[str] = []
        self._ahead: dict[str, bytes] = {}
        #: States that were pruned after the steps were read. They are not asked for again.
        self._missing: set[str] = set()

    def get(self, digest: str) -> bytes:
        """Returns a state. If it is not there, the next ones that contents name are fetched with it. Raises
        StateNotFound."""
        found = self._data.get(digest, self._ahead.get(digest))
        if found is None and digest not in self._missing:
            self._ahead = self._fetch(self._from(digest))
            found = self._ahead.get(digest)
        if found is None:
            raise not_stored(digest)
        return found

    def state_of(self, step: OwnedStep, name: str) -> bytes | None:
        """Returns a state of a step by its name. None if the step has none.

        Small states are stored with their steps, where their digests do not find them.
        """
        state = state_of(step.message, name)
        if state is None:
            return None
        found = self._data.get(state.digest, self._ahead.get(state.digest))
        if found is None:
            found = fetch_state_of(self._connection, step.owner_id, step.message.step_number, name)
        return found

    def prefetch(self, digests: Iterable[str]) -> None:
        """Reads states that are stored. Others raise when they are used."""
        self._data.update(self._fetch([digest for digest in digests if digest not in self._data]))

    def _fetch(self, digests: list[str]) -> dict[str, bytes]:
        found = fetch_stored(self._connection, digests)
        self._missing.update(digest for digest in digests if digest not in found)
        return found

    def _from(self, digest: str) -> list[str]:
        if not self._order:
            self._order = list(dict.fromkeys(each for step in self._steps for each in digests_of(step.message)))
        if digest not in self._order:
            return [digest]
        start = self._order.index(digest)
        missing = (each for each in self._order[start:] if each not in self._data)
        return [each for each, _ in zip(missing, range(_AHEAD), strict=False)]
