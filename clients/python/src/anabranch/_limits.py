"""The limits of a server, by the names of docs/limitations.md: the defaults of this version until it has answered."""

from __future__ import annotations

import os
from collections.abc import Mapping

from anabranch._retry import Failure
from anabranch.v1.limits import LIMITS


class Limits:
    """The limits of one server. The sender of a recorder asks for them when it connects."""

    def __init__(self) -> None:
        #: Replaced as a whole, so that any thread can read it.
        self.values: Mapping[str, int] = LIMITS
        #: Whether the server has answered.
        self.known = False
        #: Whether it was asked, and has answered or can still answer.
        self.asked = False

    def __getitem__(self, name: str) -> int:
        return self.values[name]

    def take(self, answer: bytes | Failure) -> None:
        """Takes the response of GetServerInfo. After a transient failure the server is to be asked again."""
        if isinstance(answer, Failure):
            # A server that does not know the method has the defaults.
            self.asked = self.known = not answer.transient and answer.code != "CANCELLED"
            return
        from anabranch.v1.server_service_pb2 import GetServerInfoResponse

        self.values = {**LIMITS, **GetServerInfoResponse.FromString(answer).limits}
        self.known = True


_known: dict[str, Limits] = {}


def limits_of(address: str) -> Limits:
    """Returns what this process knows of the limits of a server."""
    return _known.get(address) or _known.setdefault(address, Limits())


def _ask_again() -> None:
    for limits in _known.values():
        limits.asked = limits.known


# The answer to a call of the parent does not reach the child.
os.register_at_fork(after_in_child=_ask_again)
