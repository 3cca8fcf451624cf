"""The connection to a server: `connect()` and `Client`."""

from __future__ import annotations

import os
from typing import Literal

from anabranch._connection import Connection, address_from

Spool = str | os.PathLike[str] | Literal[False] | None


def connect(address: str | None = None, *, strict: bool = False, spool: Spool = None) -> Client:
    """Returns a client. It connects at its first call.

    `address` is HOST:PORT; the default is ANABRANCH_ADDRESS, else 127.0.0.1:50051. With `strict`, values that cannot be
    stored raise; otherwise a marker replaces them. `spool` is the folder for steps that are not on the server yet; the
    default is ANABRANCH_SPOOL, else $XDG_STATE_HOME/anabranch/spool. False keeps them in memory.
    """
    return Client(address_from(address), strict=strict, spool=spool)


class Client:
    """A client of one server. Threads can share it, and it can be pickled: the pickle has the address."""

    def __init__(self, address: str, *, strict: bool = False, spool: Spool = None) -> None:
        self.address = address
        self.strict = strict
        self._spool: Spool = spool
        self.connection = Connection(address)

    def __reduce__(self) -> tuple[object, ...]:
        return (_unpickle, (self.address, self.strict, self._spool))

    def __repr__(self) -> str:
        return f"Client({self.address!r})"


def _unpickle(address: str, strict: bool, spool: Spool) -> Client:
    return Client(address, strict=strict, spool=spool)
