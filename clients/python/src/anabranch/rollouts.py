"""Rollouts as a worker claims and plays them."""

from __future__ import annotations

import functools
import logging
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Semaphore
from types import TracebackType
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration

from anabranch._reading.listing import Listing
from anabranch._reading.trajectories import read_history
from anabranch._recording.arguments import flag_of, reward_of, write_metrics
from anabranch._recording.fitting import fit, fitted_text, text_of
from anabranch._wire.connection import UNARY_SECONDS
from anabranch._wire.decode import decode_json
from anabranch._wire.errors import AnabranchError
from anabranch._wire.failures import raising_reasons
from anabranch._wire.outage import call, pages, result_of, retried
from anabranch._wire.plain import text_of_error
from anabranch._wire.scope import Interrupted, is_interrupt
from anabranch._wire.shown import Shown
from anabranch._wire.termination import blocks
from anabranch.episodes import episode_of
from anabranch.errors import LeaseLost, RolloutConflict
from anabranch.tasks import Task, json_text
from anabranch.v1 import records
from anabranch.v1.rollout_service_pb2 import (
    CancelRolloutRequest,
    ClaimRolloutsRequest,
    CompleteRolloutRequest,
    FailRolloutRequest,
    GetRolloutRequest,
    ListValidationOverridesRequest,
    NewValidation,
    OverrideValidationRequest,
    ReleaseRolloutRequest,
    RetryRolloutRequest,
    StartRolloutRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from anabranch._recording.turns import Turn
    from anabranch._training.client import TrainingClient
    from anabranch._training.leases import Leases
    from anabranch._wire.connection import Connection, Stubs
    from anabranch.episodes import Episode
    from anabranch.receipt import Receipt
    from anabranch.trajectory import Trajectory
    from anabranch.v1.rollout_pb2 import Rollout as RolloutMessage
    from anabranch.v1.rollout_service_pb2 import Claim, ClaimRolloutsResponse, GetRolloutResponse, ListRolloutsRequest

_REPLAY_SECONDS = 1
_logger = logging.getLogger("anabranch")


class Rollout(Shown):
    """A rollout that this worker holds: one attempt at a task, recorded as a trajectory.

    As a context manager, a normal exit completes it, an exception fails it with its text, KeyboardInterrupt, SIGTERM
    (as in `Trajectory`) and the cancellation of a task return it to the queue. If the lease is lost or the run is
    cancelled, `cancelled` is true, the next call raises LeaseLost, and the context ends without an error.
    """

    _internal = frozenset({"drop_lease", "ended", "give_back", "message", "open", "opened"})

    def __init__(self, client: TrainingClient, claim: Claim, leases: Leases) -> None:
        self._client = client
        self._leases = leases
        self.message: RolloutMessage = claim.rollout
        self.task = Task(claim.task)
        self.max_turns: int | None = claim.max_turns if claim.HasField("max_turns") else None
        self.cancelled = False
        self.ended = False
        #: Values of the result; unset ones are left to the server.
        self.reward: float | None = None
        self.success: bool | None = None
        self._started = False
        self._trajectory: Trajectory | None = None
        self._metrics: dict[str, float] = {}
        self._validations: dict[str, NewValidation] = {}

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def attempt(self) -> int:
        """Number of this attempt: 1, 2, 3, …"""
        return self.message.attempt

    @property
    def group(self) -> int:
        """Number of the group."""
        return self.message.group_number

    @property
    def number(self) -> int:
        """Number in the group."""
        return self.message.number

    @property
    def labels(self) -> Mapping[str, str]:
        return self.message.labels

    @property
    def input(self) -> Any:
        """Input besides the task; None if there is none."""
        return decode_json(self.message.input_json) if self.message.input_json else None

    @property
    def model_uri(self) -> str:
        return self.message.model_uri

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory of this attempt."""
        if self._trajectory is None:
            self._trajectory = self._client.attempt(self.message.trajectory_id)
        return self._trajectory

    @property
    def messages(self) -> list[dict[str, object]]:
        return self.trajectory.messages

    def reset(self, **values: Any) -> Receipt:
        """Starts the rollout and records step 0. The arguments are those of `Trajectory.reset`."""
        self.start()
        return self.trajectory.reset(**values)

    def step(self, **values: Any) -> Receipt:
        """Records a step. The arguments are those of `Trajectory.step`."""
        self.start()
        return self.trajectory.step(**values)

    def turn(self, reply: object) -> Turn:
        """Records a reply of a model. See `Trajectory.turn`."""
        self.start()
        return self.trajectory.turn(reply)

    def say(self, messages: Iterable[Mapping[str, object]] | str) -> None:
        """Adds messages to the conversation. See `Trajectory.say`."""
        self.start()
        self.trajectory.say(messages)

    def log(self, metrics: Mapping[str, float] | None = None, /, **more: float) -> None:
        """Adds metrics, which are stored with the result. The arguments are those of `Run.log`."""
        self.check()
        request = CompleteRolloutRequest()
        write_metrics(self._client.values, request, metrics, more)
        fit(request, self._client.values)
        self._metrics.update(request.metrics)

    def validate(
        self, name: str, *, success: bool, advisory: bool = False, details: object = None, error: str = ""
    ) -> None:
        """Adds the result of a check, which is stored with the result. `name` is the type of a validator of the task,
        or a free name. At most 16 names; of several results of one name, the last counts."""
        self.check()
        validation = NewValidation(
            name=text_of(name),
            success=flag_of(self._client.values, success, "success"),
            advisory=advisory,
            details_json=json_text(details, "details"),
            error_message=text_of(error or ""),
        )
        fit(validation, self._client.values)
        self._validations[validation.name] = validation

    def start(self) -> None:
        """Marks the rollout as running. Without this call, the first step does."""
        self.check()
        if not self._started:
            self._started = True
            request = StartRolloutRequest(rollout_id=self.id, attempt=self.attempt)
            self._call(lambda stubs: stubs.rollouts.StartRollout, request)

    @property
    def opened(self) -> bool:
        """Whether the rollout is started and its trajectory known, so that recording waits for nothing."""
        return self._started and self._trajectory is not None

    def open(self) -> None:
        """Starts the rollout, and reads what its trajectory has."""
        self.start()
        self.trajectory.load()

    def complete(self, message: str = "") -> None:
        """Completes the rollout with its result, after all of its steps are durable."""
        self.start()
        self._flush()
        request = CompleteRolloutRequest(
            rollout_id=self.id,
            attempt=self.attempt,
            message=self._message(message),
            metrics=self._metrics,
            expected_next_step_number=self.trajectory.next_step,
        )
        self._set_result(request)
        self._end(lambda stubs: stubs.rollouts.CompleteRollout, request)

    def fail(self, message: str = "") -> None:
        """Fails the rollout permanently."""
        self.check()
        if self._trajectory is not None:
            self._flush()
        request = FailRolloutRequest(
            rollout_id=self.id,
            attempt=self.attempt,
            message=self._message(message),
            metrics=self._metrics,
        )
        self._set_result(request)
        self._end(lambda stubs: stubs.rollouts.FailRollout, request)

    def release(self, message: str = "", *, refund_attempt: bool = False) -> None:
        """Returns the rollout to the queue, for another attempt."""
        self.check()
        request = ReleaseRolloutRequest(
            rollout_id=self.id,
            attempt=self.attempt,
            message=self._message(message),
            refund_attempt=refund_attempt,
        )
        self._end(lambda stubs: stubs.rollouts.ReleaseRollout, request)

    def give_back(self) -> None:
        """Returns a rollout that will not be played to the queue. If that fails, the lease expires."""
        self.drop_lease()
        with suppress(AnabranchError):
            self.release("cancelled", refund_attempt=True)

    def drop_lease(self) -> None:
        """Renews the lease no longer."""
        self._leases.drop(self)

    def __enter__(self) -> Self:
        blocks.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            if self.ended or isinstance(error, LeaseLost):
                pass
            elif error is None:
                self.complete()
            elif is_interrupt(error):
                self.release(type(error).__name__, refund_attempt=True)
            else:
                self.fail(text_of_error(error))
        except Interrupted:
            # The steps may not have arrived: another attempt plays the rollout again.
            self.release("cancelled", refund_attempt=True)
            raise
        except LeaseLost:
            self.cancelled = True
        finally:
            self._leases.drop(self)
            blocks.leave(self)
        return isinstance(error, LeaseLost)

    def __repr__(self) -> str:
        return f"Rollout(group {self.group}, number {self.number}, attempt {self.attempt})"

    @property
    def _connection(self) -> Connection:
        return self._client.connection

    def _flush(self) -> None:
        """Waits until the steps are durable. Raises LeaseLost if the server refuses them for this reason."""
        self.trajectory.record_said()
        try:
            self.trajectory.flush()
        except AnabranchError:
            self._leases.renew()
            self.check()
            raise
        self.check()

    def check(self) -> None:
        """Raises LeaseLost if the lease is lost or the run is cancelled."""
        if self._trajectory is not None and self._trajectory.dropped and not self.ended:
            self.cancelled = True
            self.drop_lease()
        if self.cancelled:
            message = f"attempt {self.attempt} no longer holds rollout {self.id}: stop working on it"
            metadata = {"rollout": self.id, "attempt": str(self.attempt)}
            raise LeaseLost(message, reason="LEASE_LOST", metadata=metadata)

    def _call(self, method: Callable[[Stubs], Any], request: Any) -> None:
        try:
            call(self._connection, method, request)
        except LeaseLost:
            self.cancelled = True
            self._leases.drop(self)
            raise

    def _message(self, message: str) -> str:
        """Returns a message without its end if it is too long."""
        return fitted_text("CompleteRolloutRequest.message", message, self._client.values.limits)

    def _end(self, method: Callable[[Stubs], Any], request: Any) -> None:
        self._call(method, request)
        self.ended = True
        self._leases.drop(self)

    def _set_result(self, request: CompleteRolloutRequest | FailRolloutRequest) -> None:
        request.validations.extend(self._validations.values())
        values = self._client.values
        reward = reward_of(values, self.reward)
        if reward is not None:
            request.result.reward = reward
        if self.success is not None:
            request.result.success = flag_of(values, self.success, "success")
        fit(request, values)


class RolloutRecord(records.Rollout):
    """A rollout as the server returned it last: for trainers and tools that look at it, not for the worker that plays it."""

    def __init__(self, connection: Connection, message: RolloutMessage) -> None:
        super().__init__(message)
        self._connection = connection

    def refresh(self) -> RolloutRecord:
        """Reads the rollout again, and returns it."""
        self._proto = self._read().rollout
        return self

    def episode(self) -> Episode:
        """Reads the steps of the last attempt. Raises TrajectoryNotFound if no attempt has begun."""
        return episode_of(self._connection, self.trajectory_id)

    def attempts(self) -> list[records.Attempt]:
        """Reads the attempts, the first first: their workers, results, validations and messages."""
        return [records.Attempt(attempt) for attempt in self._read().attempts]

    def history(self) -> list[records.StatusChange]:
        """Returns the changes of the status, the oldest first."""
        return read_history(self._connection, rollout_id=self.id)

    def override_verdict(
        self, success: bool | None, reason: str, *, actor: str = "", attempt: int | None = None
    ) -> None:
        """Sets the verdict of an attempt (default: the last one that began), whatever its validations say. None withdraws
        earlier overrides of it. `reason` has at most 4 KiB; `actor` is who judges, default: the caller."""
        request = OverrideValidationRequest(
            rollout_id=self.id, success=success, reason=reason, actor=actor, attempt=attempt
        )
        self._proto = call(self._connection, lambda stubs: stubs.rollouts.OverrideValidation, request).rollout

    def overrides(self) -> list[records.ValidationOverride]:
        """Returns the overrides of all attempts, the newest first."""
        request = ListValidationOverridesRequest(rollout_id=self.id)
        found = pages(self._connection, lambda stubs: stubs.rollouts.ListValidationOverrides, request)
        return [records.ValidationOverride(each) for page in found for each in page.overrides]

    def cancel(self, message: str = "") -> None:
        """Cancels the rollout. Its worker loses the lease."""
        request = CancelRolloutRequest(rollout_id=self.id, message=message)
        self._proto = call(self._connection, lambda stubs: stubs.rollouts.CancelRollout, request).rollout

    def retry(self, message: str = "") -> None:
        """Returns a rollout that failed or was cancelled to the queue, for another attempt."""
        request = RetryRolloutRequest(rollout_id=self.id, attempt=self.attempt, message=message)
        self._proto = call(self._connection, lambda stubs: stubs.rollouts.RetryRollout, request).rollout

    def _read(self) -> GetRolloutResponse:
        request = GetRolloutRequest(rollout_id=self.id)
        return call(self._connection, lambda stubs: stubs.rollouts.GetRollout, request)


def list_rollouts(connection: Connection, request: ListRolloutsRequest) -> Listing[RolloutRecord]:
    return Listing(
        connection,
        lambda stubs: stubs.rollouts.ListRollouts,
        request,
        lambda page: (RolloutRecord(connection, each) for each in page.rollouts),
    )


def claims(client: TrainingClient, leases: Leases, filters: Mapping[str, Any]) -> Iterator[Rollout]:
    """Yields rollouts as they can be claimed, one by one, until nothing more can come."""
    while True:
        request = ClaimRolloutsRequest(
            **filters,
            max_rollouts=1,
            lease_duration=Duration(seconds=leases.seconds),
            wait=Duration(seconds=leases.wait_seconds),
            request_id=str(uuid.uuid4()),
        )
        try:
            found = retried(client.connection, functools.partial(_claim, client.connection, request))
        except Interrupted:
            _give_back_claims(client, leases, request)
            raise
        claimed = [Rollout(client, claim, leases) for claim in found.claims]
        leases.add(claimed)
        yield from claimed
        if found.drained and not claimed and leases.has_ended(request.run_id):
            return


def _claim(connection: Connection, request: ClaimRolloutsRequest) -> ClaimRolloutsResponse:
    """Waits for claims. The scope of the thread can end it."""
    with raising_reasons():
        return result_of(connection.stubs.rollouts.ClaimRollouts.future(request, timeout=UNARY_SECONDS))


def _give_back_claims(client: TrainingClient, leases: Leases, request: ClaimRolloutsRequest) -> None:
    """Returns what an interrupted call may have claimed to the queue: the same request returns the same claims."""
    with suppress(AnabranchError), raising_reasons():
        for claim in client.connection.stubs.rollouts.ClaimRollouts(request, timeout=_REPLAY_SECONDS).claims:
            Rollout(client, claim, leases).give_back()


def claim_by_id(client: TrainingClient, leases: Leases, worker_id: str, rollout_id: str) -> Rollout:
    """Claims one rollout. Raises RolloutConflict if it is not pending."""
    request = ClaimRolloutsRequest(
        worker_id=worker_id,
        rollout_ids=[rollout_id],
        lease_duration=Duration(seconds=leases.seconds),
        request_id=str(uuid.uuid4()),
    )
    found = call(client.connection, lambda stubs: stubs.rollouts.ClaimRollouts, request).claims
    if not found:
        message, metadata = f"rollout {rollout_id} is held by a worker, or has ended", {"rollout": rollout_id}
        raise RolloutConflict(message, reason="ROLLOUT_CONFLICT", metadata=metadata)
    rollout = Rollout(client, found[0], leases)
    leases.add([rollout])
    return rollout


def work(
    client: TrainingClient,
    leases: Leases,
    play: Callable[[Rollout], object],
    filters: Mapping[str, Any],
    concurrency: int,
) -> None:
    """Plays rollouts in `concurrency` threads until nothing more can come."""
    free = Semaphore(concurrency - 1)

    def run(rollout: Rollout) -> None:
        try:
            _play(rollout, play)
        finally:
            free.release()

    with ThreadPoolExecutor(concurrency, thread_name_prefix="anabranch-worker") as threads:
        for rollout in claims(client, leases, filters):
            threads.submit(run, rollout)
            free.acquire()


def _play(rollout: Rollout, play: Callable[[Rollout], object]) -> None:
    """Plays one rollout. What `play` raises fails it, and is logged; the worker continues with others."""
    try:
        with rollout:
            play(rollout)
    except Exception:
        _logger.exception("Rollout %s has failed.", rollout.id)


def filters_of(
    worker_id: str, run_id: str, stage_id: str, tasks: Iterable[str], labels: Mapping[str, str] | None
) -> dict[str, Any]:
    return {
        "worker_id": worker_id,
        "run_id": run_id,
        "stage_id": stage_id,
        "task_ids": list(tasks),
        "labels": dict(labels or {}),
    }


def worker_name() -> str:
    """Returns a name that says where this worker runs."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
