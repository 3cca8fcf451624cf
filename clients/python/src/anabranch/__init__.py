"""Anabranch: the trajectory store for agents.

Importing this package loads neither grpc nor NumPy: each name loads its module at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from anabranch._wire.version import __version__ as __version__

if TYPE_CHECKING:
    from anabranch import aio as aio
    from anabranch import errors as errors
    from anabranch import gym as gym
    from anabranch._recording.history import Checkpoint as Checkpoint
    from anabranch._recording.recorder import Stats as Stats
    from anabranch._recording.turns import Turn as Turn
    from anabranch._wire.decode import Undecodable as Undecodable
    from anabranch._wire.decode import Unstored as Unstored
    from anabranch._wire.errors import AnabranchError as AnabranchError
    from anabranch.client import Client as Client
    from anabranch.client import connect as connect
    from anabranch.client import local as local
    from anabranch.episodes import Episode as Episode
    from anabranch.episodes import Episodes as Episodes
    from anabranch.episodes import Step as Step
    from anabranch.receipt import Receipt as Receipt
    from anabranch.rollouts import Rollout as Rollout
    from anabranch.runs import Experiment as Experiment
    from anabranch.runs import Plan as Plan
    from anabranch.runs import Run as Run
    from anabranch.runs import Stage as Stage
    from anabranch.trajectory import Trajectory as Trajectory

#: The module that has each name.
_MODULES = {
    "AnabranchError": "anabranch._wire.errors",
    "Checkpoint": "anabranch._recording.history",
    "Client": "anabranch.client",
    "Episode": "anabranch.episodes",
    "Episodes": "anabranch.episodes",
    "Experiment": "anabranch.runs",
    "Plan": "anabranch.runs",
    "Receipt": "anabranch.receipt",
    "Rollout": "anabranch.rollouts",
    "Run": "anabranch.runs",
    "Stage": "anabranch.runs",
    "Stats": "anabranch._recording.recorder",
    "Step": "anabranch.episodes",
    "Trajectory": "anabranch.trajectory",
    "Turn": "anabranch._recording.turns",
    "Undecodable": "anabranch._wire.decode",
    "Unstored": "anabranch._wire.decode",
    "connect": "anabranch.client",
    "local": "anabranch.client",
}

#: Modules that are attributes of the package.
_SUBMODULES = frozenset({"aio", "errors", "gym"})

__all__ = [
    "AnabranchError",
    "Checkpoint",
    "Client",
    "Episode",
    "Episodes",
    "Experiment",
    "Plan",
    "Receipt",
    "Rollout",
    "Run",
    "Stage",
    "Stats",
    "Step",
    "Trajectory",
    "Turn",
    "Undecodable",
    "Unstored",
    "aio",
    "connect",
    "errors",
    "local",
]


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"anabranch.{name}")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'anabranch' has no attribute {name!r}")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_SUBMODULES})
