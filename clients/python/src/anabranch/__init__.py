"""Anabranch: the trajectory store for agents.

Importing this package loads neither grpc nor NumPy: each name loads its module at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch._history import Checkpoint as Checkpoint
    from anabranch._recorder import Stats as Stats
    from anabranch._turns import Turn as Turn
    from anabranch.client import Client as Client
    from anabranch.client import connect as connect
    from anabranch.receipt import Receipt as Receipt
    from anabranch.trajectory import Trajectory as Trajectory

__version__ = "0.1.0"

#: The module that has each name.
_MODULES = {
    "Checkpoint": "anabranch._history",
    "Client": "anabranch.client",
    "Receipt": "anabranch.receipt",
    "Stats": "anabranch._recorder",
    "Trajectory": "anabranch.trajectory",
    "Turn": "anabranch._turns",
    "connect": "anabranch.client",
}

__all__ = ["Checkpoint", "Client", "Receipt", "Stats", "Trajectory", "Turn", "connect"]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'anabranch' has no attribute {name!r}")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
