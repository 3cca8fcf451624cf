"""The limits of sending that a client chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Sending:
    """Times in seconds."""

    #: After this time without an answer that the server owes, a stream is opened again.
    silence: float = 45.0
    #: After this time without progress, counted from the first failure, a trajectory is not sent any more.
    give_up_after: float = math.inf

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"`{name}` is {value}: expected seconds above 0")


DEFAULT_SENDING = Sending()
