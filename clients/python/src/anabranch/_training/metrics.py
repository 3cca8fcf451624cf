"""Metrics of runs. They are recorded in the spool, as steps are: `log` waits for no server, and loses nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anabranch._recording.arguments import metric_step_of, numbers_of
from anabranch._recording.fitting import fits, shown
from anabranch._recording.spool import SpoolFullError
from anabranch._wire.errors import SpoolFull, Unreachable
from anabranch._wire.failures import error_from_failure
from anabranch._wire.outage import CALL_SECONDS
from anabranch.receipt import Receipt
from anabranch.v1.run_pb2 import MetricPoint
from anabranch.v1.run_service_pb2 import LogMetricsRequest

if TYPE_CHECKING:
    from anabranch._recording.recorder import Recorder
    from anabranch._recording.transfer import Transfer
    from anabranch._wire.values import ValueEncoder

LOG_METRICS = "RunService/LogMetrics"
#: What a request adds to each point: its tag and its length.
_POINT_BYTES = 8
log = logging.getLogger("anabranch")


class Metrics:
    """The metrics of one run, in the order in which this process logs them."""

    def __init__(self, recorder: Recorder, values: ValueEncoder, run_id: str) -> None:
        self._recorder = recorder
        self._values = values
        self._run_id = run_id

    def log(self, stage_id: str, step: Any, metrics: Any, more: Mapping[str, Any]) -> Receipt:
        """Records a point of each series of `metrics` and `more`. Values that are no numbers and names that the server
        rejects are left out, and all points if `step` is no whole number of 64 bits; with `strict`, they raise TypeError and
        ValueError."""
        number = metric_step_of(self._values, step)
        if number is None:
            return Receipt(self, -1, -1)
        points = [
            MetricPoint(key=key, metric_step=number, value=value, stage_id=stage_id)
            for key, value in numbers_of(self._values, metrics, more).items()
            if fits("MetricPoint.key", key, f"metrics[{shown(key)}]", self._values)
        ]
        position = -1
        try:
            for request in self._requests(points):
                _, position = self._recorder.record_call(self._run_id, LOG_METRICS, request.SerializeToString())
        except SpoolFullError as error:
            if self._values.strict:
                raise SpoolFull(str(error), reason="SPOOL_FULL") from error
            if not self._values.unstored["logs"]:
                log.warning("anabranch: metrics of run %s are not recorded: %s", self._run_id, error)
            self._values.unstored["logs"] += len(points)
            return Receipt(self, number, 1 << 62)
        return Receipt(self, number, position)

    def _requests(self, points: Sequence[MetricPoint]) -> Iterator[LogMetricsRequest]:
        """Yields requests with the points, each within the limits of one message."""
        limits = self._values.limits
        most_bytes = limits["messageBytes"] // 2
        request = LogMetricsRequest(run_id=self._run_id)
        size = 0
        for point in points:
            if size > most_bytes or len(request.points) == limits["metricPoints"]:
                yield request
                request, size = LogMetricsRequest(run_id=self._run_id), 0
            request.points.append(point)
            size += point.ByteSize() + _POINT_BYTES
        if points:
            yield request

    def flush(self) -> None:
        """Returns when everything logged so far is durable. Raises Unreachable if the server stays away for too long, and
        AnabranchError after the retry limit of the client."""
        transfer, recorded = self._recorder.calls(self._run_id)
        limit = float(os.environ.get("ANABRANCH_CALL_SECONDS") or CALL_SECONDS)
        if not self._wait(transfer, recorded, limit):
            raise Unreachable(f"metrics of run {self._run_id} are not durable after {limit:.0f} s; they are kept")

    def wait_for(self, position: int, timeout: float | None) -> None:
        """Waits until a record is durable."""
        if position == 1 << 62:
            raise SpoolFull(f"metrics of run {self._run_id} were not recorded: the spool is full", reason="SPOOL_FULL")
        if not self._wait(self._transfer, position + 1, timeout):
            raise TimeoutError(f"metrics of run {self._run_id} are not durable after {timeout} s; they are kept")

    def _wait(self, transfer: Transfer, recorded: int, seconds: float | None) -> bool:
        """Waits until the first records are durable. Returns whether they are."""
        settled: Callable[[], bool] = lambda: transfer.settled >= recorded or transfer.failure is not None
        what: Callable[[], str] = lambda: f"{recorded - transfer.settled} logs of metrics of run {self._run_id}"
        done = self._recorder.sender.wait(settled, seconds, what)
        if transfer.failure is not None and transfer.settled < recorded:
            raise error_from_failure(transfer.failure, str(transfer.failure))
        return done

    @property
    def settled(self) -> int:
        """Number of records that the server has."""
        return self._transfer.settled

    @property
    def _transfer(self) -> Transfer:
        return self._recorder.calls(self._run_id)[0]
