"""AppendBatch: the records of many trajectories in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch import _wire
from anabranch._office import Office
from anabranch._retry import Failure
from anabranch._segment import Entry

if TYPE_CHECKING:
    from anabranch._outbox import Outbox
    from anabranch.v1.trajectory_service_pb2 import AppendResult

#: From this number of trajectories without a stream on, one message is cheaper than their streams.
BATCH_FROM = 16
#: Part of `messageBytes` that the entries of a message may take, in percent.
_MESSAGE_SHARE = 95
#: Leaves room for the records of others.
ENTRY_BYTES = 64 * 1024


@dataclass(frozen=True)
class Share:
    """What a message has of one trajectory."""

    content: bytes
    entries: Sequence[Entry]


def send_batches(office: Office, boxes: Sequence[Outbox]) -> None:
    """Sends the first records of each trajectory. What cannot be sent in this way goes over a stream or its own call."""
    shares: list[tuple[Outbox, Share]] = []
    size = 0
    limits = office.connections.limits
    most_bytes = limits["messageBytes"] * _MESSAGE_SHARE // 100
    for box in boxes:
        share = box.share()
        if share is None:
            box.pump()
            continue
        if shares and (size + len(share.content) > most_bytes or len(shares) == limits["batchEntries"]):
            _send(office, shares)
            shares, size = [], 0
        shares.append((box, share))
        size += len(share.content)
    if shares:
        _send(office, shares)


def _send(office: Office, shares: list[tuple[Outbox, Share]]) -> None:
    def done(response: bytes | Failure) -> None:
        office.later(lambda: _take(shares, response))

    office.connections.call(_wire.APPEND_BATCH, _wire.batch_of([share.content for _, share in shares]), done)


def _take(shares: list[tuple[Outbox, Share]], response: bytes | Failure) -> None:
    from anabranch.v1.trajectory_service_pb2 import AppendBatchResponse

    results: Sequence[AppendResult | Failure]
    if isinstance(response, Failure):
        results = [response] * len(shares)
    else:
        results = AppendBatchResponse.FromString(response).results
    for (box, share), result in zip(shares, results, strict=True):
        box.shared(share, result)
