"""What a server says about itself: its version, which must be compatible with this package, and its limits, by the names of
docs/limitations.md. Limits are the defaults of this version until it has answered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from anabranch._wire.connection import UNARY_SECONDS, Connection
from anabranch._wire.errors import IncompatibleVersion
from anabranch._wire.failures import raising_reasons
from anabranch._wire.scope import scope
from anabranch._wire.version import __version__
from anabranch.v1.limits import LIMITS
from anabranch.v1.server_service_pb2 import GetServerInfoRequest

if TYPE_CHECKING:
    from anabranch.v1.server_service_pb2 import GetServerInfoResponse


class Limits:
    """The limits of one server. Clients and recorders ask for them before their first call."""

    def __init__(self) -> None:
        #: Replaced as a whole, so that any thread can read it.
        self.values: Mapping[str, int] = LIMITS
        #: Whether the server has answered, and its version is compatible.
        self.known = False

    def __getitem__(self, name: str) -> int:
        return self.values[name]

    def take(self, info: GetServerInfoResponse) -> None:
        """Takes the response of the server. Raises IncompatibleVersion."""
        if _series_of(info.version) != _series_of(__version__):
            raise IncompatibleVersion(
                f"client version {__version__} cannot use server version {info.version}: install the same major version "
                "of both (below 1.0, the same minor version)",
                reason="INCOMPATIBLE_VERSION",
                metadata={"version": info.version},
            )
        self.values = {**LIMITS, **info.limits}
        self.known = True


def check_version(connection: Connection) -> None:
    """Asks a server for its version and limits, unless it has answered this process. Raises IncompatibleVersion."""
    with raising_reasons():
        ask(connection, UNARY_SECONDS)


def ask(connection: Connection, timeout: float) -> None:
    """Like `check_version`, with a deadline in seconds. If the call fails, raises the error of gRPC."""
    limits = limits_of(connection.address)
    if limits.known:
        return

    future = connection.stubs.server.GetServerInfo.future(GetServerInfoRequest(), timeout=timeout)
    with scope().waiting(future.cancel):
        limits.take(future.result())


def _series_of(version: str) -> str:
    """Returns the part of a version that client and server must share: the major version, below 1.0 also the minor one."""
    found = re.match(r"(0\.\d+|[1-9]\d*)\.", version)
    return found[1] if found else ""


_known: dict[str, Limits] = {}


def limits_of(address: str) -> Limits:
    """Returns what this process knows of the limits of a server."""
    return _known.get(address) or _known.setdefault(address, Limits())
