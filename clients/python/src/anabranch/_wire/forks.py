"""gRPC in forked children: without its support of forks, channels of a child fail, or abort it by a signal."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
from typing import Any

log = logging.getLogger("anabranch")

_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
#: What keeps the core of gRPC initialized.
_USERS = frozenset(
    f"grpc.{name}" for name in ("_channel.Channel", "_server._Server", "aio._channel.Channel", "aio._server.Server")
)


class _Forks:
    """What this process knows of gRPC's support."""

    def __init__(self) -> None:
        self.prepared = False
        #: Whether gRPC was in use, without the support, before this package could turn it on.
        self.too_late = False
        self.is_child = False

    def in_child(self) -> None:
        self.is_child = True


_forks = _Forks()
os.register_at_fork(after_in_child=_forks.in_child)


def prepare_forks() -> None:
    """Turns the support on, unless the environment says otherwise. To be called before each channel is opened.

    gRPC reads the environment when it is imported, and again when its first channel is opened. If another package has
    opened one before, the support cannot be turned on any more: then a forked child warns once. A fork beside a live
    channel takes up to a second longer with it.
    """
    if not _forks.prepared:
        _forks.prepared = True
        chosen = _VARIABLE in os.environ
        os.environ.setdefault(_VARIABLE, "1")
        if "grpc" in sys.modules and not chosen:
            _turn_on()
    if _forks.is_child and _forks.too_late:
        _forks.too_late = False
        text = "anabranch: another package used gRPC before this process was forked: calls of this child can fail or abort it; set %s=1 before the program starts"
        log.warning(text, _VARIABLE)


def _turn_on() -> None:
    kinds: set[type] = {type(each) for each in gc.get_objects()}
    if any(f"{getattr(kind, '__module__', '')}.{kind.__qualname__}" in _USERS for kind in kinds):
        # Half of the support would end each child at once.
        _forks.too_late = True
        del os.environ[_VARIABLE]
    else:
        library: Any = importlib.import_module("grpc._cython.cygrpc")
        library._GRPC_ENABLE_FORK_SUPPORT = True
