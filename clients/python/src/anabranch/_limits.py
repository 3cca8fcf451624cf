"""What a server says about itself: its limits, by the names of docs/limitations.md, its version, and its features, by the
names of docs/clients.md. Limits are the defaults of this version until it has answered."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from anabranch._retry import Failure
from anabranch.v1.limits import LIMITS

if TYPE_CHECKING:
    from anabranch._connection import Connection
    from anabranch.v1.server_service_pb2 import GetServerInfoResponse

#: What recorders rely on. Older servers ignore the fields of a request that they do not know, so steps would be stored
#: without their tensors, tokens or tags.
RECORDING = ("append_batch", "create_by_open", "prompt_tokens", "step_labels", "step_tags", "tensors")


class Limits:
    """The limits of one server. The sender of a recorder asks for them when it connects."""

    def __init__(self) -> None:
        #: Replaced as a whole, so that any thread can read it.
        self.values: Mapping[str, int] = LIMITS
        self.version = ""
        self.features: frozenset[str] = frozenset()
        #: Why recorders cannot use the server. Empty if they can, and before it has answered.
        self.too_old = ""
        #: Whether the server has answered.
        self.known = False
        #: Whether it was asked, and has answered or can still answer.
        self.asked = False

    def __getitem__(self, name: str) -> int:
        return self.values[name]

    @property
    def awaited(self) -> bool:
        """Whether the server was asked and can still answer."""
        return self.asked and not self.known

    def take(self, answer: bytes | Failure) -> None:
        """Takes the response of GetServerInfo. After a transient failure the server is to be asked again."""
        from anabranch.v1.server_service_pb2 import GetServerInfoResponse

        if not isinstance(answer, Failure):
            self.take_info(GetServerInfoResponse.FromString(answer))
        elif answer.reason == "UNIMPLEMENTED":
            # A server that does not know the method has the defaults, and no feature.
            self.take_info(GetServerInfoResponse(version=(answer.metadata or {}).get("version", "")))
        else:
            self.asked = self.known = not answer.transient and answer.code != "CANCELLED"

    def take_info(self, info: GetServerInfoResponse) -> None:
        self.values = {**LIMITS, **info.limits}
        self.version = info.version
        self.features = frozenset(info.features)
        missing = [name for name in RECORDING if name not in self.features]
        self.too_old = missing_feature(self.version, f"`{missing[0]}`") if missing else ""
        self.asked = self.known = True


def missing_feature(version: str, what: str) -> str:
    """Returns the message of an error: the server is older than this package, and lacks something."""
    from anabranch import __version__

    return f"server {version or 'of an early version'} has no {what}: upgrade it to {__version__}"


def require(connection: Connection, feature: str, what: str) -> None:
    """Raises Unimplemented if the server lacks a feature. Asks it, unless it is known to have the feature.

    For fields that an older server would ignore. A missing RPC has an error of its own.
    """
    limits = limits_of(connection.address)
    if feature in limits.features:
        return
    from anabranch._outage import call
    from anabranch.errors import Unimplemented
    from anabranch.v1.server_service_pb2 import GetServerInfoRequest, GetServerInfoResponse

    try:
        # Asked again, because it may have been upgraded since.
        limits.take_info(call(connection, lambda stubs: stubs.server.GetServerInfo(GetServerInfoRequest(), timeout=60)))
    except Unimplemented as error:
        limits.take_info(GetServerInfoResponse(version=error.metadata.get("version", "")))
    if feature not in limits.features:
        metadata = {"version": limits.version, "feature": feature}
        raise Unimplemented(missing_feature(limits.version, what), reason="UNIMPLEMENTED", metadata=metadata)


_known: dict[str, Limits] = {}


def limits_of(address: str) -> Limits:
    """Returns what this process knows of the limits of a server."""
    return _known.get(address) or _known.setdefault(address, Limits())


def _ask_again() -> None:
    for limits in _known.values():
        limits.asked = limits.known


# The answer to a call of the parent does not reach the child.
os.register_at_fork(after_in_child=_ask_again)
