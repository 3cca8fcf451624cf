"""AppendBatch: the records of many trajectories in one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anabranch._recording import rpc
from anabranch._recording.segment import Entry
from anabranch._recording.transfer import SenderInterface, Share, Transfer
from anabranch._wire.failures import Failure
from anabranch.v1.trajectory_service_pb2 import AppendBatchResponse

if TYPE_CHECKING:
    from anabranch.v1.trajectory_service_pb2 import AppendResult

#: From this number of trajectories without a stream on, one message is cheaper than their streams.
BATCH_FROM = 16
#: Part of `messageBytes` that the entries of a message may take, in percent.
_MESSAGE_SHARE = 95

Recorded = list[tuple[Transfer, Entry]]


class StepGroup:
    """Trajectories that step together. What is recorded in a `with` block reaches the sender at once, so that a vector
    step is not divided among messages."""

    def __init__(self, deliver: Callable[[Recorded], None]) -> None:
        self._deliver = deliver
        #: Held while a list is changed, never during I/O.
        self._lock = threading.Lock()
        self._open = False
        self._recorded: Recorded = []

    def add(self, transfer: Transfer, entry: Entry) -> None:
        """Adds a record. Outside of a `with` block, it reaches the sender alone."""
        with self._lock:
            self._recorded.append((transfer, entry))
            if not self._open:
                self._publish()

    @property
    def waiting(self) -> bool:
        """Whether records have not reached the sender."""
        return bool(self._recorded)

    def __enter__(self) -> None:
        with self._lock:
            self._open = True

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._open = False
            if self._recorded:
                self._publish()

    def _publish(self) -> None:
        self._deliver(self._recorded)
        self._recorded = []


class Batches:
    """Sends messages of AppendBatch. What is recorded before they are answered is gathered for the next ones."""

    def __init__(self, sender: SenderInterface) -> None:
        self._sender = sender
        self._unanswered = 0
        self._gathered: dict[Transfer, None] = {}

    def send(self, transfers: Sequence[Transfer]) -> None:
        """Sends the first records of each trajectory. What a message cannot have goes over a stream or its own call."""
        if self._unanswered > 0:
            self._gathered.update(dict.fromkeys(transfers))
            return
        shares: list[tuple[Transfer, Share]] = []
        size = 0
        limits = self._sender.connections.limits
        most_bytes = limits["messageBytes"] * _MESSAGE_SHARE // 100
        for transfer in transfers:
            share = transfer.share()
            if share is None:
                transfer.pump()
                continue
            if shares and (size + len(share.content) > most_bytes or len(shares) == limits["batchEntries"]):
                self._send(shares)
                shares, size = [], 0
            shares.append((transfer, share))
            size += len(share.content)
        if shares:
            self._send(shares)

    def _send(self, shares: list[tuple[Transfer, Share]]) -> None:
        def done(response: bytes | Failure) -> None:
            self._sender.later(lambda: self._take(shares, response))

        self._unanswered += 1
        request = rpc.batch_of([share.content for _, share in shares])
        self._sender.connections.call(rpc.APPEND_BATCH, request, done)

    def _take(self, shares: list[tuple[Transfer, Share]], response: bytes | Failure) -> None:
        self._unanswered -= 1
        results: Sequence[AppendResult | Failure]
        if isinstance(response, Failure):
            results = [response] * len(shares)
        else:
            results = AppendBatchResponse.FromString(response).results
        for (transfer, share), result in zip(shares, results, strict=True):
            transfer.shared(share, result)
        if self._unanswered == 0:
            gathered, self._gathered = self._gathered, {}
            for transfer in gathered:
                self._sender.notify(transfer)
