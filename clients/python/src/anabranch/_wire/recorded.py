"""What this process records, as far as reads need to know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Recorded:
    """A trajectory that this process records. None means that a value is not known."""

    id: str
    name: str | None = None
    task: str | None = None
    run: str | None = None
    labels: Mapping[str, str] | None = None


#: Whether a read may select a trajectory.
Selects = Callable[[Recorded], bool]


def not_recorded(selects: Selects) -> None:
    """Does not wait: nothing is recorded."""
