"""When to retry a call, and how to continue after an error of a stream (rule W12). The same as in the TypeScript client."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from anabranch._wire.failures import Failure, failure_of
from anabranch._wire.scope import sleep

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0
_LONGEST_ASKED_DELAY = 60.0
#: INTERNAL errors in a row, without progress, after which a retry is considered useless.
_MAX_SERVER_FAULTS = 3

#: Errors that are caused by the content of one step.
_SINGLE_STEP_REASONS = frozenset(
    {"INVALID_REQUEST", "STEP_CONFLICT", "STATE_NOT_FOUND", "DIGEST_MISMATCH", "MESSAGE_TOO_LARGE"}
)


def protocol_error(what: str) -> Failure:
    """Returns an answer that no correct server sends. To continue could lose steps."""
    return Failure("DATA_LOSS", f"the server {what}; sending has ended to avoid losing steps")


class Patience:
    """Decides how long to wait before the next retry, and when to give up. Progress resets it.

    `give_up_after` is in seconds since the first failure without progress.
    """

    def __init__(
        self,
        give_up_after: float = math.inf,
        now: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._give_up_after = give_up_after
        self._now = now
        self._chance = chance
        self._attempt = 0
        self._faults = 0
        self._was_unauthenticated = False
        self._stalled_since: float | None = None

    def progress(self) -> None:
        """Records that something succeeded since the last failure."""
        self._attempt = 0
        self._faults = 0
        self._was_unauthenticated = False
        self._stalled_since = None

    def useless(self, failure: Failure) -> bool:
        """Records a failure and returns whether it is permanent."""
        if failure.code == "UNAUTHENTICATED" and not self._was_unauthenticated:
            # The next call may have another token.
            self._was_unauthenticated = True
            return False
        if failure.reason == "INTERNAL":
            self._faults += 1
        return not failure.transient or self._faults >= _MAX_SERVER_FAULTS

    def retry_at(self, failure: Failure) -> float:
        """Returns the time of the next try. Infinity if that would be too late: `gave_up` says so."""
        now = self._now()
        if self._stalled_since is None:
            self._stalled_since = now
        step = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(self._attempt, 10))
        self._attempt += 1
        at = now + min(failure.retry_after, _LONGEST_ASKED_DELAY) + self._chance() * step
        return at if at - self._stalled_since < self._give_up_after else math.inf

    def gave_up(self, failure: Failure) -> Failure:
        """Returns what ends the retries after a last failure."""
        text = f"gave up after {self._give_up_after:g} s without progress; last error: {failure}"
        return Failure("DEADLINE_EXCEEDED", text, cause=failure.cause)


@dataclass(frozen=True)
class Situation:
    """The state of a trajectory's sender when a stream ends with an error."""

    writer_id: str
    ever_opened: bool
    take_over: bool
    #: True if other steps may have shared a frame with the rejected one.
    shared: bool


#: - `take_over`: open again with the epoch of the other writer.
#: - `reopen`: open again; an older stream of this writer arrived late and fenced the newer one.
#: - `isolate`: open again and send one step per frame, so that a rejection concerns only one step.
#: - `replace`: the first step that is not acked was rejected for its content: send a marker in its place.
#: - `branch`: another writer has continued the trajectory, or sealed it: the rest becomes a branch.
#: - `retry`: wait and open again.
#: - `fail`: no retry can succeed.
Verdict = Literal["take_over", "reopen", "isolate", "replace", "branch", "retry", "fail"]


def judge(failure: Failure, situation: Situation) -> Verdict:
    """Decides how to continue after an error of an append stream."""
    metadata = failure.metadata or {}
    if failure.reason == "WRITER_FENCED":
        if metadata.get("writer_id") == situation.writer_id:
            return "reopen"
        may_take_over = situation.take_over and not situation.ever_opened and metadata.get("writer_epoch", "").isdigit()
        return "take_over" if may_take_over else "branch"
    if failure.reason == "TRAJECTORY_SEALED":
        return "branch"
    if failure.reason in _SINGLE_STEP_REASONS and situation.ever_opened:
        if situation.shared:
            return "isolate"
        return "branch" if failure.reason == "STEP_CONFLICT" else "replace"
    # With UNAUTHENTICATED, `Patience` decides: the next call may have another token.
    return "retry" if failure.transient or failure.code == "UNAUTHENTICATED" else "fail"


_T = TypeVar("_T")


def retrying(call: Callable[[], _T], seconds: float) -> _T:
    """Repeats a call that is safe to repeat, until it succeeds, fails permanently, or the time is up."""
    import grpc

    patience = Patience()
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            failure = failure_of(error)
            pause = patience.retry_at(failure) - time.monotonic()
            if patience.useless(failure) or time.monotonic() + pause > end:
                raise
            sleep(max(0.0, pause))
