"""The channel to one server, and the stubs of its services."""

from __future__ import annotations

import os
import re
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from anabranch._wire.access import access_of
from anabranch._wire.forks import prepare_forks
from anabranch._wire.local import SCHEME, Place, found, last_found, path_from
from anabranch._wire.proxies import may_use_proxy
from anabranch._wire.reach import reach_of
from anabranch._wire.recorded import Selects, not_recorded
from anabranch.v1.limits import LIMITS

if TYPE_CHECKING:
    import grpc

    from anabranch.v1.rollout_service_pb2_grpc import RolloutServiceStub
    from anabranch.v1.run_service_pb2_grpc import RunServiceStub
    from anabranch.v1.server_service_pb2_grpc import ServerServiceStub
    from anabranch.v1.state_service_pb2_grpc import StateServiceStub
    from anabranch.v1.trajectory_service_pb2_grpc import TrajectoryServiceStub

DEFAULT_ADDRESS = "127.0.0.1:50051"

#: Default deadline of a unary call, in seconds. A call without a deadline can hang when its connection is lost.
UNARY_SECONDS = 60.0

_OPTIONS: list[tuple[str, int]] = [
    # Leaves room for servers with a larger limit than this version.
    ("grpc.max_receive_message_length", 4 * LIMITS["messageBytes"]),
    # Pings detect a dead peer or path within 45 seconds, also while an open stream is idle.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The callers retry by themselves and decide how long to wait.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # An attempt to connect may take this long: a busy server answers late, and TLS needs several round trips.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Each channel has its own connection.
    ("grpc.use_local_subchannel_pool", 1),
]

#: A name or an IPv4 address, or an IPv6 address in brackets, and a port.
_ADDRESS = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+(?:%[\w.-]+)?\]):(?P<port>[0-9]{1,5})/*"
)
_UNIX = re.compile(r"unix:(?://(?=/))?(?P<path>[^\s#]+)")
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_CREDENTIALS = re.compile(r"(?<=//)[^/]*@|^[^/]*@")


@dataclass(frozen=True)
class Stubs:
    """The stubs of all services on one channel."""

    place: Place
    channel: grpc.Channel
    trajectories: TrajectoryServiceStub
    states: StateServiceStub
    runs: RunServiceStub
    rollouts: RolloutServiceStub
    server: ServerServiceStub


def address_from(address: str | None, namespace: str | None = None) -> str:
    """Returns the given address, else ANABRANCH_ADDRESS, else the default: HOST:PORT, https://HOST:PORT,
    unix:PATH or sqlite:PATH.

    A namespace, else that of ANABRANCH_NAMESPACE, follows after `#`, so that what is recorded for one is never sent to
    another. Raises ValueError.
    """
    named = namespace or os.environ.get("ANABRANCH_NAMESPACE") or ""
    if named and _NAMESPACE.fullmatch(named) is None:
        source = "namespace" if namespace else "ANABRANCH_NAMESPACE"
        expected = "expected 1 to 63 characters, only lower-case letters, digits and -, and not begin with -"
        raise ValueError(f"{source} is {named!r}: {expected}")
    place = _place_from(address)
    return f"{place}#{named}" if named else place


def _place_from(address: str | None) -> str:
    chosen = str(address or os.environ.get("ANABRANCH_ADDRESS") or DEFAULT_ADDRESS)
    unix = _UNIX.fullmatch(chosen)
    if unix is not None:
        return f"unix:{os.path.abspath(unix['path'])}"
    file = path_from(chosen) if chosen.startswith(SCHEME) else None
    if file is not None:
        return f"{SCHEME}{file}"
    named = _ADDRESS.fullmatch(chosen)
    if named is None or not 0 < int(named["port"]) < 65536:
        source, shown = "address" if address else "ANABRANCH_ADDRESS", _CREDENTIALS.sub("…@", chosen)
        expected = "expected HOST:PORT, https://HOST:PORT, http://HOST:PORT, unix:PATH or sqlite:PATH, with a port from 1 to 65535"
        raise ValueError(f"{source} is {shown!r}: {expected} and no blanks")
    scheme = "https://" if named["scheme"] == "https" else ""
    return f"{scheme}{named['host']}:{named['port']}"


def is_refused(address: str) -> bool:
    """Returns whether a connection to an address is refused now."""
    place = last_found(address)
    try:
        if place.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as own:
                own.settimeout(1)
                own.connect(place.removeprefix("unix:"))
        else:
            host, _, port = place.removeprefix("https://").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except (OSError, ValueError):
        pass
    return False


def open_stubs(address: str, place: Place | None = None) -> Stubs:
    """Creates a channel. It connects at its first call, and again after a lost connection. `place` is where the server
    listens; it is found by default. Raises NoLocalServer."""
    prepare_forks()
    import grpc

    from anabranch._wire.identified import identified
    from anabranch.v1.rollout_service_pb2_grpc import RolloutServiceStub
    from anabranch.v1.run_service_pb2_grpc import RunServiceStub
    from anabranch.v1.server_service_pb2_grpc import ServerServiceStub
    from anabranch.v1.state_service_pb2_grpc import StateServiceStub
    from anabranch.v1.trajectory_service_pb2_grpc import TrajectoryServiceStub

    chosen = found(address) if place is None else place
    target, credentials, options = channel_settings(address, chosen)
    if credentials is None:
        channel = grpc.insecure_channel(target, options=options)
    else:
        channel = grpc.secure_channel(target, credentials, options=options)
    access, namespace = access_of(address), address.partition("#")[2]
    if access.token is not None or namespace:
        channel = identified(channel, access, namespace)
    return Stubs(
        chosen,
        channel,
        TrajectoryServiceStub(channel),
        StateServiceStub(channel),
        RunServiceStub(channel),
        RolloutServiceStub(channel),
        ServerServiceStub(channel),
    )


def channel_settings(
    address: str, place: Place
) -> tuple[str, grpc.ChannelCredentials | None, list[tuple[str, int | str]]]:
    """Returns the target, the credentials and the options of a channel. Credentials are None without TLS."""
    import grpc

    target = place.target
    options: list[tuple[str, int | str]] = [*_OPTIONS, ("grpc.enable_http_proxy", int(may_use_proxy(address)))]
    if target.startswith("unix:"):
        # gRPC would name the path, which is no host.
        options.append(("grpc.default_authority", "localhost"))
    if not target.startswith("https://"):
        return target, None, options
    return target.removeprefix("https://"), grpc.ssl_channel_credentials(*access_of(address).certificates()), options


class Renewal(Protocol):
    """What renews leases."""

    def close(self) -> None: ...


class Connection:
    """The connection of a client for reads and unary calls. A forked child opens its own at its first use."""

    def __init__(self, address: str) -> None:
        self.address = address
        #: Whether the server answers.
        self.reach = reach_of(address)
        #: What renews leases over this connection.
        self.leases: weakref.WeakSet[Renewal] = weakref.WeakSet()
        #: Waits, before a read, for what this process has recorded of the trajectories that the read selects.
        self.before_read: Callable[[Selects], None] = not_recorded
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._stubs: Stubs | None = None

    @property
    def stubs(self) -> Stubs:
        """The stubs of all services. The first use loads grpc. Raises NoLocalServer."""
        if self._pid != os.getpid():
            # The inherited channel does not work in a child, and another thread may have held the lock at the fork.
            self._lock = threading.Lock()
            self._stubs = None
            self.reach = reach_of(self.address)
            self._pid = os.getpid()
        place = found(self.address)
        with self._lock:
            if self._stubs is None or self._stubs.place != place:
                self._stubs = open_stubs(self.address, place)
            return self._stubs

    def close(self) -> None:
        """Closes the channel, and ends the renewal of leases. The next call opens another channel."""
        for leases in list(self.leases):
            leases.close()
        with self._lock:
            if self._stubs is not None and self._pid == os.getpid():
                self._stubs.channel.close()
            self._stubs = None
