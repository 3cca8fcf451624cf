"""The base of all errors, and those that the server does not send."""

from __future__ import annotations

from collections.abc import Mapping


class AnabranchError(Exception):
    """A call failed, or a value cannot be stored. For errors of calls, the cause is the gRPC error. A failure to send
    recorded steps has no cause if the server rejected one entry of a batch.

    `reason` is a name of docs/errors.md, for example `STEP_GAP`, or of this module; it is empty if there is none. `metadata` has
    the values that the reason promises. `retry_after` is the time in seconds after which a retry can succeed; None if
    the server named none.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


class Unreachable(AnabranchError):
    """No server answers at the address, or the connection was lost. A write may have been stored: send it again."""


class IncompatibleVersion(AnabranchError):
    """The server has another major version than this package, or below 1.0 another minor version. `reason` is
    INCOMPATIBLE_VERSION. Metadata: `version` (of the server)."""


class NoLocalServer(AnabranchError):
    """The server of a database file cannot be started, or the process that has the file open does not answer. `reason`
    is NO_LOCAL_SERVER."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="NO_LOCAL_SERVER")


class StepTooLarge(AnabranchError):
    """A step exceeds a limit of the server although its large values are stored as states. `reason` is STEP_TOO_LARGE."""


class SpoolFull(AnabranchError):
    """The spool has no room, so the recording has ended. `reason` is SPOOL_FULL."""


class RecorderClosed(AnabranchError):
    """A forked child records nothing into a trajectory of its parent, and a process that exits records nothing more.
    `reason` is RECORDER_CLOSED."""


class Diverged(AnabranchError):
    """A replayed environment does not repeat its recording.

    `step` is the number of the first step whose observation differs, `path` leads to the difference within the
    observation (empty for the whole of it), `stored` and `got` are the two values there.
    """

    def __init__(self, step: int, path: str, stored: object, got: object) -> None:
        where = f"observation{path and ' at '}{path}"
        super().__init__(f"the {where} of step {step} differs from the recording: stored {stored!r}, got {got!r}")
        self.step = step
        self.path = path
        self.stored = stored
        self.got = got


def _rebuild(cls: type[AnabranchError], args: tuple[object, ...], attributes: dict[str, object]) -> AnabranchError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error
