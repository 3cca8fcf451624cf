"""The proxies that gRPC takes from the environment. Servers of this machine are reached without one."""

from __future__ import annotations

import os
import re

#: Hosts of this machine. 0.0.0.0 and [::] are addresses to listen on, with which connecting reaches it, too.
_THIS_MACHINE = re.compile(r"(?:.+\.)?localhost|127(?:\.[0-9]+){3}|0\.0\.0\.0|\[(?:0*:)+0*[01]?\]", re.IGNORECASE)
#: gRPC takes the first one that is set.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXEMPTIONS = ("no_grpc_proxy", "no_proxy")


def may_use_proxy(address: str) -> bool:
    """Returns whether a proxy of the environment may lead to a server."""
    return _THIS_MACHINE.fullmatch(_host_of(address)) is None


def via_proxy(address: str) -> str:
    """Returns what an error says of a proxy before the server. The proxy's own address can contain a password."""
    proxy, exempt = _first_set(_PROXIES), os.environ.get(_first_set(_EXEMPTIONS), "")
    suffixes = tuple(each.strip() for each in exempt.split(",") if each.strip())
    if not proxy or not may_use_proxy(address) or _host_of(address).endswith(suffixes):
        return ""
    return f" through the proxy of `{proxy}`"


def _first_set(variables: tuple[str, ...]) -> str:
    return next((name for name in variables if os.environ.get(name)), "")


def place_of(address: str) -> str:
    """Returns an address without its namespace."""
    return address.partition("#")[0]


def _host_of(address: str) -> str:
    place = place_of(address)
    return "localhost" if place.startswith(("unix:", "sqlite:")) else place.removeprefix("https://").rpartition(":")[0]
