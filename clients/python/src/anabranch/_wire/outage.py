"""Calls and streams that wait for a server that is away, and continue when it is back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

from anabranch._wire.connection import UNARY_SECONDS, Connection, Stubs
from anabranch._wire.errors import AnabranchError, NoLocalServer, Unreachable
from anabranch._wire.failures import raising_reasons
from anabranch._wire.limits import check_version
from anabranch._wire.proxies import via_proxy
from anabranch._wire.reach import Reach
from anabranch._wire.scope import scope, sleep

if TYPE_CHECKING:
    from grpc import UnaryUnaryMultiCallable

Request = TypeVar("Request")
Message = TypeVar("Message")
Message_co = TypeVar("Message_co", covariant=True)

#: Attempts to reach a server that has never answered this process.
_ATTEMPTS = 5
#: How long calls and reads wait for a server that has answered before. An outage must not end a training run.
CALL_SECONDS = 3600.0
_RETRIED = frozenset(
    {
        "SERVER_DRAINING",
        "DATABASE_UNAVAILABLE",
        "DATABASE_READ_ONLY",
        "STORAGE_LOST",
        "SLOW_READER",
        "TOO_MANY_CONNECTIONS",
        "CALLER_LIMIT",
    }
)


class Stream(Protocol[Message_co]):
    """A call whose answer is a stream."""

    def __iter__(self) -> Iterator[Message_co]: ...

    def cancel(self) -> object: ...


class Reaching(Protocol):
    """A connection, as far as it is about whether the server answers."""

    @property
    def address(self) -> str: ...

    @property
    def reach(self) -> Reach: ...


class _Listing(Protocol):
    page_token: str


class _Page(Protocol):
    next_page_token: str


Listing = TypeVar("Listing", bound=_Listing)
Page = TypeVar("Page", bound=_Page)


class Future(Protocol[Message_co]):
    """A call whose answer is one message."""

    def result(self) -> Message_co: ...

    def cancel(self) -> object: ...


def call(
    connection: Connection, method: Callable[[Stubs], UnaryUnaryMultiCallable[Request, Message]], request: Request
) -> Message:
    """Makes a unary call that may be repeated. Waits for a server that is away (see `Outage`)."""

    def once() -> Message:
        with raising_reasons():
            return method(connection.stubs)(request, timeout=UNARY_SECONDS)

    return retried(connection, once)


def pages(
    connection: Connection, method: Callable[[Stubs], UnaryUnaryMultiCallable[Listing, Page]], request: Listing
) -> Iterator[Page]:
    """Yields the pages of a list. The token of the next page is written into the request."""
    while True:
        page = call(connection, method, request)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def received(stream: Stream[Message]) -> Iterator[Message]:
    """Yields the messages of a stream. The scope of the thread can end it."""
    with raising_reasons(), scope().waiting(stream.cancel):
        try:
            yield from stream
        finally:
            stream.cancel()


def result_of(future: Future[Message]) -> Message:
    """Waits for the answer of a unary call. The scope of the thread can end it."""
    with scope().waiting(future.cancel):
        return future.result()


def resumed(
    connection: Connection, begin: Callable[[], Stream[Message]], *, endless: bool = False
) -> Iterator[Message]:
    """Yields the messages of a stream. After a lost connection, `begin` is called again: it continues after the last
    message, for example by a token. With `endless`, waits for the server without a limit."""
    outage = Outage(connection, endless=endless)
    while True:
        try:
            check_version(connection)
            for message in received(begin()):
                outage.over()
                yield message
            return
        except AnabranchError as error:
            outage.wait(error)


def retried(connection: Connection, once: Callable[[], Message]) -> Message:
    """Returns the result of a call that may be repeated. Waits for a server that is away."""
    outage = Outage(connection)
    while True:
        try:
            check_version(connection)
            answer = once()
            outage.over()
            return answer
        except AnabranchError as error:
            outage.wait(error)


class Outage:
    """Waits between the attempts of a call or a stream while the server is away.

    A server that has answered this process before is waited for, for at most ANABRANCH_CALL_SECONDS, so that its outage
    does not end the program. One that never did is tried five times: the address may be wrong.
    """

    def __init__(self, connection: Reaching, *, endless: bool = False) -> None:
        self._connection = connection
        self._endless = endless
        self._failures = 0
        self._since = 0.0
        self._was_unauthenticated = False

    def over(self) -> None:
        """Records that the server has answered."""
        self._failures = 0
        self._was_unauthenticated = False
        self._connection.reach.found()

    def wait(self, error: AnabranchError) -> None:
        """Waits before the next attempt. Raises the error if no further attempt follows."""
        sleep(self.pause(error))

    def pause(self, error: AnabranchError) -> float:
        """Returns how long to wait before the next attempt, in seconds. Raises the error if no further attempt follows."""
        away = isinstance(error, Unreachable)
        reach, now = self._connection.reach, time.monotonic()
        if not away and not isinstance(error, NoLocalServer):
            reach.found()
        if error.reason == "UNAUTHENTICATED" and not self._was_unauthenticated:
            # The next call may have another token.
            self._was_unauthenticated = True
            return 0.0
        if not away and error.reason not in _RETRIED:
            raise error
        pause = error.retry_after or min(0.1 * 2**self._failures, 5.0)
        if self._failures == 0:
            self._since = now
        self._failures += 1
        limit = float(os.environ.get("ANABRANCH_CALL_SECONDS") or CALL_SECONDS)
        useless = now + pause - self._since > limit if reach.known else self._failures >= _ATTEMPTS
        if useless and not self._endless:
            raise self._given_up(error, now - self._since) if away else error
        if away and reach.known:
            reach.lost(str(error), "calls wait for it")
        return pause

    def _given_up(self, error: AnabranchError, seconds: float) -> Unreachable:
        address = f"{self._connection.address}{via_proxy(self._connection.address)}"
        if self._connection.reach.known:
            text = f"the server at {address} has not answered for {seconds:.0f} s (ANABRANCH_CALL_SECONDS): {error}"
        else:
            text = (
                f"no server answers at {address}: {error}. Start one with `anabranch serve`, or name another address "
                "with ANABRANCH_ADDRESS or connect(address)"
            )
        raised = Unreachable(text)
        raised.__cause__ = error.__cause__
        return raised
