"""SIGTERM ends the `with` block of a trajectory as KeyboardInterrupt does, if the program has no handler of its own."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType


class Terminated(SystemExit):
    """SIGTERM ended the program. The exit code is 143, as shells report the signal."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Blocks:
    """The `with` blocks of the main thread that SIGTERM ends. Python runs handlers of signals in that thread only."""

    def __init__(self) -> None:
        self._open: list[object] = []

    def enter(self, owner: object) -> None:
        """Begins the block of an object. The first one sets the handler."""
        if threading.current_thread() is not threading.main_thread():
            return
        with suppress(ValueError):  # an interpreter beside the main one has no handlers
            if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._terminate)
        self._open.append(owner)

    def leave(self, owner: object) -> None:
        """Ends the block of an object, if one has begun. The last one takes the handler away."""
        if owner in self._open:
            self._open.remove(owner)
        if not self._open:
            self._restore()

    def forked(self) -> None:
        """In a forked child: the blocks are those of its parent."""
        self._open.clear()
        self._restore()

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """Handles the signal. A second one ends the process at once, as does one outside of all blocks.

        The exception is lost, as that of an interrupt, where Python ignores exceptions: in `__del__`, or around a fork.
        """
        self._restore()
        if self._open:
            raise Terminated
        os.kill(os.getpid(), number)

    def _restore(self) -> None:
        """Takes the handler away, unless the program has set another one meanwhile."""
        with suppress(ValueError):  # in another thread: the handler stays, and finds no block
            if signal.getsignal(signal.SIGTERM) == self._terminate:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


#: One for the process, whose handlers are one each.
blocks = Blocks()
os.register_at_fork(after_in_child=blocks.forked)
