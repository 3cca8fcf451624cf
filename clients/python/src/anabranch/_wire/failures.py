"""Errors of calls: what gRPC and the server say, and the error that is raised for it."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from anabranch._wire.errors import AnabranchError, IncompatibleVersion, Unreachable
from anabranch.errors import BY_REASON

if TYPE_CHECKING:
    import grpc

    from anabranch.v1.trajectory_service_pb2 import PartError

ERROR_DOMAIN = "anabranch.v1"

#: Names of the peer in messages of gRPC. Behind a proxy that is the proxy; our errors name the server instead.
_PEER = re.compile(
    r"\b(?:ipv4|ipv6|unix):\S+: |\berrors resolving \S+: |(?<=address lookup failed) for \S+(?=: )|"
    r"(?<=DNS resolution failed) for \S+(?=: )|\bname=\S+ "
)

#: Codes of permanent errors. An error without a reason that has such a code comes from a proxy or another service.
_PERMANENT_CODES = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    }
)

#: Reasons after which a retry of the same call can succeed. Data in flight may be stored or not, so callers replay it.
_TRANSIENT_REASONS = frozenset(
    {
        "STORAGE_FULL",
        "BACKUP_IN_PROGRESS",
        "MEMORY_FULL",
        "CALLER_LIMIT",
        "DATABASE_UNAVAILABLE",
        "DATABASE_READ_ONLY",
        "STORAGE_LOST",
        "SERVER_DRAINING",
        "TOO_MANY_CONNECTIONS",
        "SLOW_READER",
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "MESSAGE_TIMEOUT",
        "INTERNAL",
    }
)


@dataclass(frozen=True)
class Failure:
    """An error of a call."""

    #: Name of the gRPC status code.
    code: str
    message: str
    #: Reason of an Anabranch server, such as `STEP_CONFLICT`. Empty for other errors.
    reason: str = ""
    metadata: Mapping[str, str] | None = None
    #: Delay that the server asks for before the next retry, in seconds.
    retry_after: float = 0.0
    #: The gRPC error. None if the failure is an entry of a batch, or was found by this package.
    cause: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def transient(self) -> bool:
        """Whether a retry of the same call can succeed."""
        if self.reason:
            return self.reason in _TRANSIENT_REASONS or self.code == "UNAVAILABLE"
        return self.code not in _PERMANENT_CODES

    @property
    def final(self) -> bool:
        """Whether a server has decided for good: the same call never succeeds. A damaged database can be restored,
        servers of other versions can be replaced, and keys can be given more."""
        mended = (
            self.code in ("DATA_LOSS", "UNIMPLEMENTED", "UNAUTHENTICATED", "PERMISSION_DENIED")
            or self.reason == "INCOMPATIBLE_VERSION"
        )
        return bool(self.reason) and not self.transient and not mended

    @property
    def unreachable(self) -> bool:
        """Whether no Anabranch server answered."""
        return not self.reason and self.transient

    def __str__(self) -> str:
        return f"{self.reason or self.code}: {self.message}"


def failure_of(error: grpc.RpcError) -> Failure:
    """Returns what an error of gRPC says."""
    import grpc
    from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
    from google.rpc.status_pb2 import Status

    # Errors of grpc.aio are no calls, and have the same methods.
    if not isinstance(error, grpc.Call) and not hasattr(error, "trailing_metadata"):
        return Failure("UNKNOWN", str(error), cause=error)
    call = cast("grpc.Call", error)
    reason, retry_after = "", 0.0
    metadata: Mapping[str, str] | None = None
    for key, value in call.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        for detail in Status.FromString(cast("bytes", value)).details:
            info, retry = ErrorInfo(), RetryInfo()
            if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Unpack(retry):
                retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    message = call.details() or ""
    return Failure(
        call.code().name, message if reason else _PEER.sub("", message), reason, metadata, retry_after, error
    )


@contextmanager
def raising_reasons() -> Generator[None, None, None]:
    """Translates gRPC errors of the block into AnabranchError."""
    import grpc

    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error) from error


def error_from_rpc(error: grpc.RpcError) -> AnabranchError:
    """Returns the error of a failed call, as the class of its reason. The caller raises it from `error`."""
    failure = failure_of(error)
    message = failure.message or failure.code
    if not failure.reason and failure.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        return Unreachable(message)
    return error_from_failure(failure, message)


def error_from_failure(failure: Failure, message: str) -> AnabranchError:
    """Returns the error of a failure, as the class of its reason, with the gRPC error as its cause."""
    own = IncompatibleVersion if failure.reason == "INCOMPATIBLE_VERSION" else AnabranchError
    cls = BY_REASON.get(failure.reason, own)
    retry_after = failure.retry_after or None
    error = cls(message, reason=failure.reason, metadata=failure.metadata, retry_after=retry_after)
    error.__cause__ = failure.cause
    return error


def failure_of_part(error: PartError) -> Failure:
    """Returns what the error of an entry or of a watched subject says."""
    import grpc

    code = next((code.name for code in grpc.StatusCode if code.value[0] == error.code), "UNKNOWN")
    delay = error.retry_delay.seconds + error.retry_delay.nanos / 1e9
    return Failure(code, error.message, error.reason, dict(error.metadata), delay)
