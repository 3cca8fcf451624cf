"""Appends to two trajectories until standard input ends: to one by unary calls, to the other over streams.

    python append.py ADDRESS CA UNARY STREAMED

Prints "unary N" and "stream N" when the steps below N are acked, and "drained" when a stream ends because its server
stops. Any other end of a call is an error.
"""

import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from anabranch.v1.trajectory_pb2 import Step
from anabranch.v1.trajectory_service_pb2 import AppendOpen, AppendStepRequest, AppendStepsRequest
from anabranch.v1.trajectory_service_pb2_grpc import TrajectoryServiceStub
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

PAUSE = 0.04
ended = threading.Event()


def numbered(number: int) -> Step:
    return Step(step_number=number, info_json=str(number))


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def append_by_calls(trajectories: TrajectoryServiceStub, trajectory_id: str) -> None:
    number = 0
    while not ended.wait(PAUSE):
        trajectories.AppendStep(AppendStepRequest(trajectory_id=trajectory_id, step=numbered(number)))
        number += 1
        tell(f"unary {number}")


def is_drain(error: grpc.RpcError) -> bool:
    packed = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
    info = ErrorInfo()
    return any(each.Unpack(info) and info.reason == "SERVER_DRAINING" for each in Status.FromString(packed).details)


class Streams:
    def __init__(self, trajectories: TrajectoryServiceStub, trajectory_id: str):
        self._trajectories = trajectories
        self._open = AppendOpen(trajectory_id=trajectory_id, writer_id="python")
        self._number = 0

    def append(self) -> None:
        while not ended.is_set():
            frames: queue.SimpleQueue = queue.SimpleQueue()
            frames.put(AppendStepsRequest(open=self._open))
            call = self._trajectories.AppendSteps(iter(frames.get, None))
            try:
                self._append_over(call, frames)
            except grpc.RpcError as error:
                if not is_drain(error):
                    raise
                tell("drained")
            finally:
                frames.put(None)

    def _append_over(self, call, frames: queue.SimpleQueue) -> None:
        self._open.take_over_epoch = next(call).opened.epoch
        while not ended.wait(PAUSE):
            frames.put(AppendStepsRequest(steps=[numbered(self._number)]))
            acked = next(call).ack.next_step_number
            if acked != self._number + 1:
                raise AssertionError(f"sent step {self._number}, but {acked} were acked")
            self._number = acked
            tell(f"stream {acked}")
        frames.put(None)
        for answer in call:
            raise AssertionError(f"expected the end of the stream, but got {answer}")


def main(address: str, ca: str, unary: str, streamed: str) -> None:
    with open(ca, "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    with grpc.secure_channel(address, credentials) as channel, ThreadPoolExecutor() as threads:
        trajectories = TrajectoryServiceStub(channel)
        work = [
            threads.submit(append_by_calls, trajectories, unary),
            threads.submit(Streams(trajectories, streamed).append),
        ]
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        for each in work:
            each.add_done_callback(lambda done: done.exception() and ended.set())
        for each in work:
            each.result()


main(*sys.argv[1:])
