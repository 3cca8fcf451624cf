"""Lets one thread end what another one waits for. `anabranch.aio` cancels with it the calls of a cancelled task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from anabranch._wire.termination import Terminated


class Interrupted(BaseException):
    """The scope of this thread was cancelled while it waited."""


class Scope:
    """What one thread does for another one. Each wait of the thread is a `waiting` block, or a `sleep`."""

    def __init__(self) -> None:
        self.cancelled = False
        self._lock = threading.Lock()
        self._wakes: list[Callable[[], object]] = []

    def cancel(self) -> None:
        """Ends the waits of the scope, now and later."""
        with self._lock:
            self.cancelled = True
            wakes = list(self._wakes)
        for wake in wakes:
            wake()

    def deliver(self, result: Callable[[], object]) -> bool:
        """Calls a function unless the scope was cancelled. Returns whether it was called."""
        with self._lock:
            if not self.cancelled:
                result()
            return not self.cancelled

    @contextmanager
    def waiting(self, wake: Callable[[], object]) -> Generator[None, None, None]:
        """Calls `wake`, which must end the wait of the block, if the scope is cancelled. If the wait then fails, and if
        the scope was cancelled before, raises Interrupted."""
        with self._lock:
            self._wakes.append(wake)
        try:
            if self.cancelled:
                wake()
            self.check()
            yield
        except Exception:
            self.check()
            raise
        finally:
            self._wakes.remove(wake)

    def check(self) -> None:
        """Raises Interrupted if the scope was cancelled."""
        if self.cancelled:
            raise Interrupted


def is_interrupt(error: BaseException | None) -> bool:
    """Returns whether an error ends the program or the task on purpose: an interrupt, SIGTERM, or a cancelled task."""
    import asyncio

    return isinstance(error, (KeyboardInterrupt, Terminated, asyncio.CancelledError, Interrupted))


def sleep(seconds: float) -> None:
    """Sleeps. Raises Interrupted when the scope of this thread is cancelled."""
    woken = threading.Event()
    own = scope()
    with own.waiting(woken.set):
        woken.wait(seconds)
        own.check()


def scope() -> Scope:
    """Returns the scope of this thread. A thread without one cannot be cancelled."""
    return current.get() or Scope()


#: The scope of each thread.
current: ContextVar[Scope | None] = ContextVar("anabranch.scope", default=None)
