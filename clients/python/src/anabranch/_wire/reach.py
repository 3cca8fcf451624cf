"""Whether the server at an address answers, as far as this process knows. Each change is reported once."""

from __future__ import annotations

import logging
import os
import threading
import time

from anabranch._wire.proxies import via_proxy

log = logging.getLogger("anabranch")


class Reach:
    """What the calls and the senders of this process know of one server."""

    def __init__(self, address: str) -> None:
        self.address = address
        #: Whether the server has ever answered.
        self.known = False
        self._lock = threading.Lock()
        self._away_since: float | None = None
        #: Those that keep steps until the server is back, and report it then.
        self._keepers: set[object] = set()
        self._sent = 0

    def lost(self, problem: str, consequence: str, keeper: object = None) -> None:
        """Reports that the server does not answer. A `keeper` reports that it is back, with what it has sent."""
        with self._lock:
            if keeper is not None:
                self._keepers.add(keeper)
            if self._away_since is not None:
                return
            self._away_since, self._sent = time.monotonic(), 0
        text = "anabranch: the server at %s is unreachable%s (%s); %s"
        log.warning(text, self.address, via_proxy(self.address), problem, consequence)

    def found(self, keeper: object = None, sent: int = 0) -> None:
        """Reports that the server answers again, unless others still send what they kept."""
        self.known = True
        if self._away_since is None:
            return
        with self._lock:
            self._keepers.discard(keeper)
            self._sent += sent
            since = self._end_outage()
        if since is not None:
            text = "anabranch: the server at %s is reachable again after %.0f s; %d steps that were kept were sent"
            log.warning(text, self.address, time.monotonic() - since, self._sent)

    def _end_outage(self) -> float | None:
        """Returns when the outage began. None while others keep steps, and if another thread has ended it."""
        since = self._away_since
        if self._keepers:
            return None
        self._away_since = None
        return since


_known: dict[str, Reach] = {}


def reach_of(address: str) -> Reach:
    """Returns what this process knows of a server."""
    return _known.get(address) or _known.setdefault(address, Reach(address))


# A lock of the parent may be held by a thread that the child does not have.
os.register_at_fork(after_in_child=_known.clear)
