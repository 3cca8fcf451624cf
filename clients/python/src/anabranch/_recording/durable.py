"""Waits until the server has what this process has recorded: before a read, or when the program asks for it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anabranch._recording.recorder import Recorder, Unsent, recorders_of
from anabranch._wire.failures import error_from_failure

if TYPE_CHECKING:
    from anabranch._wire.recorded import Selects

log = logging.getLogger("anabranch")

_READ_SECONDS = 5.0
#: How many trajectories a message names.
_NAMED = 3


def await_selected(address: str, selects: Selects) -> None:
    """Waits before a read, for at most ANABRANCH_READ_SECONDS. Then warns."""
    seconds = float(os.environ.get("ANABRANCH_READ_SECONDS") or _READ_SECONDS)
    if left := await_records(address, selects, time.monotonic() + seconds):
        text = "anabranch: a read begins after %g s (ANABRANCH_READ_SECONDS) and may lack what is recorded and not sent of %s"
        log.warning(text, seconds, left)


def await_records(address: str, selects: Selects, deadline: float) -> str:
    """Waits for the records of the trajectories that a read may select, and for those that dead processes left. Returns
    what still waits at the deadline; empty if nothing does."""
    recorders = recorders_of(address)
    unsent = _wait([(each, each.unsent(selects)) for each in recorders], deadline)
    left = [_names(unsent)] if unsent else []
    left += ["dead processes" for each in recorders if not each.adopt(_left(deadline), selects)]
    return " and ".join(left)


def await_all(address: str, timeout: float | None) -> None:
    """Waits for all records, then for those that dead processes left. Errors: see `Client.flush`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    recorded = [(each, each.unsent()) for each in recorders_of(address)]
    if left := _wait(recorded, deadline):
        raise TimeoutError(f"after {timeout} s, records are not durable, and kept, of {_names(left)}")
    for recorder, _ in recorded:
        if not recorder.adopt(_left(deadline)):
            folders = [str(each.owner.folder) for each in list(recorder.sender.adopted) if not each.done]
            raise TimeoutError(f"after {timeout} s, records of dead processes are not durable: {', '.join(folders)}")
    for _, unsent in recorded:
        for each in unsent:
            if each.transfer.failure is not None and each.transfer.settled < each.end:
                raise error_from_failure(each.transfer.failure, f"{_names([each])}: {each.transfer.failure}")


def _wait(recorded: Sequence[tuple[Recorder, Sequence[Unsent]]], deadline: float | None) -> list[Unsent]:
    """Waits until records are durable or cannot be sent. Returns those that still wait at the deadline."""
    left: list[Unsent] = []
    for recorder, unsent in recorded:
        sent: Callable[[], bool] = lambda unsent=unsent: not any(each.waits for each in unsent)
        what: Callable[[], str] = lambda unsent=unsent: f"records of {_names([each for each in unsent if each.waits])}"
        if unsent and not recorder.sender.wait(sent, _left(deadline), what):
            left += [each for each in unsent if each.waits]
    return left


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _names(unsent: Sequence[Unsent]) -> str:
    ids = ", ".join(each.transfer.trajectory_id for each in unsent[:_NAMED])
    return f"trajectory {ids}" + (f" and {len(unsent) - _NAMED} others" if len(unsent) > _NAMED else "")
