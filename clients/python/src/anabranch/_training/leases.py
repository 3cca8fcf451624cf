"""The leases of this process: one thread renews them all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from google.protobuf.duration_pb2 import Duration

from anabranch._reading.read import status_name
from anabranch._wire.errors import AnabranchError, Unreachable
from anabranch._wire.failures import raising_reasons
from anabranch._wire.outage import call
from anabranch._wire.scope import sleep
from anabranch.v1.rollout_service_pb2 import HeartbeatRolloutsRequest
from anabranch.v1.run_service_pb2 import GetRunRequest

if TYPE_CHECKING:
    from anabranch._wire.connection import Connection

_BATCH = 1000
_ENDED = ("completed", "failed", "cancelled")
_logger = logging.getLogger("anabranch")


class Lease(Protocol):
    """A rollout that a worker holds."""

    cancelled: bool
    ended: bool

    @property
    def id(self) -> str: ...
    @property
    def attempt(self) -> int: ...


class Leases:
    """Renews the leases of the rollouts that a worker holds, every third of their duration."""

    def __init__(self, connection: Connection, seconds: int = 60, wait_seconds: int = 20) -> None:
        self._connection = connection
        self.seconds = seconds
        self.wait_seconds = wait_seconds
        self._held: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        connection.leases.add(self)

    def add(self, rollouts: Iterable[Lease]) -> None:
        with self._lock:
            for rollout in rollouts:
                self._held[rollout.id] = rollout
            if self._held and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="anabranch-leases", daemon=True)
                self._thread.start()

    def drop(self, rollout: Lease) -> None:
        with self._lock:
            if self._held.get(rollout.id) is rollout:
                del self._held[rollout.id]

    @property
    def held(self) -> list[Lease]:
        """The rollouts whose leases are renewed."""
        with self._lock:
            return list(self._held.values())

    def close(self) -> None:
        """Ends the renewals. The server gives the rollouts to others when their leases have expired."""
        with self._lock:
            self._held.clear()

    def has_ended(self, run_id: str) -> bool:
        """Returns whether a worker of this run can end. Waits a second if not: further stages may follow."""
        if not run_id:
            return True
        run = call(self._connection, lambda stubs: stubs.runs.GetRun, GetRunRequest(run_id=run_id)).run
        if status_name(run.status) in _ENDED:
            return True
        sleep(1)
        return False

    def renew(self) -> None:
        """Renews all leases once, and marks rollouts whose lease is lost or whose run has ended as cancelled."""
        held = self.held
        for start in range(0, len(held), _BATCH):
            batch = held[start : start + _BATCH]
            request = HeartbeatRolloutsRequest(lease_duration=Duration(seconds=self.seconds))
            for rollout in batch:
                request.leases.add(rollout_id=rollout.id, attempt=rollout.attempt)
            with raising_reasons():
                answer = self._connection.stubs.rollouts.HeartbeatRollouts(request, timeout=self.seconds)
            self._connection.reach.found()
            for rollout, lease in zip(batch, answer.leases, strict=True):
                if not lease.kept or status_name(lease.run_status) in _ENDED:
                    rollout.cancelled = not rollout.ended
                    self.drop(rollout)

    def _run(self) -> None:
        while not self._wake.wait(self.seconds / 3):
            with self._lock:
                if not self._held:
                    self._thread = None
                    return
            try:
                self.renew()
            except Unreachable as error:
                self._connection.reach.lost(str(error), "leases are renewed when it is back")
            except AnabranchError as error:
                # The next attempt follows in a third of the lease.
                _logger.warning("Leases could not be renewed: %s", error)
