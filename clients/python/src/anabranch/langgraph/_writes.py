"""Pending writes of a thread, which calls of one process send together: one message is in flight for each thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock

from anabranch.errors import StepConflict, StepGap, TrajectoryExists, TrajectoryNotFound, TrajectorySealed, WriterFenced
from anabranch.langgraph._calls import Call, Operation
from anabranch.langgraph._creation import creation_of
from anabranch.langgraph._names import writes_id
from anabranch.v1.trajectory_pb2 import Step
from anabranch.v1.trajectory_service_pb2 import AppendBatchRequest, AppendEntry

#: Most bytes and steps of a message.
_BATCH_BYTES = 900 * 1024
_BATCH_STEPS = 500
#: Errors of a trajectory that takes no more steps: another one follows it.
_ENDED = (TrajectoryNotFound, TrajectoryExists, TrajectorySealed, WriterFenced)


@dataclass
class Waiting:
    """A step that waits to be stored."""

    step: Step
    #: Ends when the step is stored (True), or when the waiting thread has to send it (False).
    done: Future[bool] = field(default_factory=Future[bool])
    is_over: bool = False
    error: BaseException | None = None

    def check(self) -> None:
        """Raises the error with which the step was refused."""
        if self.error is not None:
            raise self.error

    @staticmethod
    def succeed(some: Sequence[Waiting]) -> None:
        for each in some:
            each.is_over = True
            if not each.done.done():
                each.done.set_result(True)

    @staticmethod
    def fail(some: Sequence[Waiting], error: BaseException) -> None:
        for each in some:
            each.is_over, each.error = True, error
            if not each.done.done():
                each.done.set_exception(error)


class Line:
    """The writes of one thread."""

    def __init__(self, thread_id: str) -> None:
        self._thread_id = thread_id
        self._generation = 0
        #: Number of the next step, as far as is known.
        self._next = 0
        self._lock = Lock()
        self._waiting: list[Waiting] = []
        self._is_sending = False

    def add(self, step: Step) -> tuple[Waiting, bool]:
        """Adds a step, and returns it with whether the caller must send."""
        waiting = Waiting(step)
        with self._lock:
            self._waiting.append(waiting)
            sends, self._is_sending = not self._is_sending, True
        return waiting, sends

    def take(self) -> list[Waiting]:
        """Returns the steps of the next message. Without any, the caller no longer sends."""
        with self._lock:
            count, size = 0, 0
            for waiting in self._waiting[:_BATCH_STEPS]:
                size += waiting.step.ByteSize()
                if count > 0 and size > _BATCH_BYTES:
                    break
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            self._is_sending = count > 0
        return taken

    def hand_over(self) -> None:
        """Lets the thread of the next waiting step send. Without any, nobody sends."""
        with self._lock:
            if self._waiting:
                self._waiting[0].done.set_result(False)
            else:
                self._is_sending = False

    def send(self, steps: Sequence[Step]) -> Operation[None]:
        """Appends steps in order. Steps of other processes come before or after all of them."""
        while True:
            id = writes_id(self._thread_id, self._generation)
            for number, step in enumerate(steps, self._next):
                step.step_number = number
            entry = AppendEntry(trajectory_id=id, create=creation_of(self._thread_id, id), steps=steps)
            try:
                answer = yield Call("AppendBatch", AppendBatchRequest(entries=[entry]))
            except (StepConflict, StepGap) as error:
                self._next = int(error.metadata["next_step_number"])
            except _ENDED:
                self._generation, self._next = self._generation + 1, 0
            else:
                self._next = int(answer.results[0].next_step_number)
                return
