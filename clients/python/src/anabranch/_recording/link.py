"""The stream of a transfer, and since when the server owes it an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from anabranch._recording.rpc import Connections, Stream
from anabranch._wire.failures import Failure

if TYPE_CHECKING:
    from anabranch.v1.trajectory_service_pb2 import AppendStepsResponse

Take = Callable[["AppendStepsResponse | Failure | None"], None]


class Link:
    """At most one stream at a time. What an earlier one still reports is ignored."""

    def __init__(
        self, connections: Connections, now: Callable[[], float], later: Callable[[Callable[[], None]], None]
    ) -> None:
        #: Whether the server has granted the stream.
        self.opened = False
        self._connections = connections
        self._now = now
        self._later = later
        self._stream: Stream | None = None
        self._awaits_since: float | None = None
        self._used = 0.0

    @property
    def exists(self) -> bool:
        return self._stream is not None

    def open(self, opening: bytes, take: Take) -> bool:
        """Opens a stream. `take` gets its responses in the sender's thread. Returns False if no thread can start."""
        holder: list[Stream] = []

        def report(response: AppendStepsResponse | Failure | None) -> None:
            self._later(lambda: take(response) if holder and holder[0] is self._stream else None)

        try:
            self._stream = self._connections.open_stream(opening, report)
        except RuntimeError:
            return False
        holder.append(self._stream)
        self.opened = False
        self._awaits_since = self._used = self._now()
        return True

    def send(self, frame: bytes) -> None:
        if self._stream is not None:
            self._stream.send(frame)
            if self._awaits_since is None:
                self._awaits_since = self._now()

    def heard(self, *, owed: bool) -> None:
        """Records a response. `owed` says whether the server owes another one."""
        self._used = self._now()
        self._awaits_since = self._used if owed or (self._stream is not None and not self.opened) else None

    def silent(self, seconds: float) -> bool:
        return self._awaits_since is not None and self._now() - self._awaits_since > seconds

    def idle(self, seconds: float) -> bool:
        return self._stream is not None and self._now() - self._used > seconds

    def close(self, *, cancel: bool = False) -> None:
        """Ends the stream after its frames, or at once."""
        if self._stream is None:
            return
        if cancel:
            self._stream.cancel()
        else:
            self._stream.finish()
        self._connections.release(self._stream)
        self._stream = None
        self.opened = False
        self._awaits_since = None
