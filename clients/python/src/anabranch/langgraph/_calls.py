"""Operations as generators that yield calls and are sent their answers, so that threads and asyncio share them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from anabranch._wire.access import NAMESPACE_HEADER, access_of
from anabranch._wire.connection import UNARY_SECONDS, Connection, channel_settings
from anabranch._wire.errors import AnabranchError, Unreachable
from anabranch._wire.failures import error_from_failure, failure_of_part, raising_reasons
from anabranch._wire.limits import limits_of
from anabranch._wire.local import SCHEME, Place, found
from anabranch._wire.outage import Outage, retried
from anabranch._wire.reach import reach_of
from anabranch.v1.server_service_pb2 import GetServerInfoRequest
from anabranch.v1.server_service_pb2_grpc import ServerServiceStub
from anabranch.v1.state_service_pb2 import PutStateRequest
from anabranch.v1.state_service_pb2_grpc import StateServiceStub
from anabranch.v1.trajectory_service_pb2 import AppendBatchResponse
from anabranch.v1.trajectory_service_pb2_grpc import TrajectoryServiceStub

if TYPE_CHECKING:
    import grpc.aio

T = TypeVar("T")
_STREAM_SECONDS = 300.0


@dataclass(frozen=True)
class Call:
    """A call whose answer is one message, or the list of the messages of a stream. It may be repeated."""

    #: A method of one of the three services.
    method: str
    request: Any
    streams: bool = False

    @property
    def service(self) -> str:
        return _SERVICES.get(self.method, "trajectories")


#: The service of each method that is not one of the trajectory service.
_SERVICES = {"ReadStates": "states", "GetServerInfo": "server"}


@dataclass(frozen=True)
class Upload:
    """Stores a state."""

    data: bytes


Operation = Generator[Call | Upload, Any, T]


def run(connection: Connection, operation: Operation[T]) -> T:
    """Makes the calls of an operation, each as often as it takes while the server is away. Returns its result."""

    def perform(call: Call | Upload) -> Any:
        with raising_reasons():
            if isinstance(call, Upload):
                return connection.stubs.states.PutState(
                    iter(_chunks(connection.address, call)), timeout=_STREAM_SECONDS
                )
            method = getattr(getattr(connection.stubs, call.service), call.method)
            if call.streams:
                return list(method(call.request, timeout=_STREAM_SECONDS))
            return _checked(method(call.request, timeout=UNARY_SECONDS))

    return _driven(operation, lambda call: retried(connection, lambda: perform(call)))


def _driven(operation: Operation[T], perform: Callable[[Call | Upload], Any]) -> T:
    try:
        call = next(operation)
        while True:
            try:
                answer = perform(call)
            except AnabranchError as error:
                call = operation.throw(error)
            else:
                call = operation.send(answer)
    except StopIteration as stopped:
        return stopped.value


def _checked(answer: Any) -> Any:
    """Returns an answer. Raises the error of the first entry of a batch that has failed."""
    if isinstance(answer, AppendBatchResponse):
        for result in answer.results:
            if result.HasField("error"):
                failure = failure_of_part(result.error)
                raise error_from_failure(failure, failure.message)
    return answer


def _chunks(address: str, upload: Upload) -> list[PutStateRequest]:
    size, data = limits_of(address)["chunkBytes"], upload.data
    return [PutStateRequest(chunk=data[offset : offset + size]) for offset in range(0, max(len(data), 1), size)]


class AsyncConnection:
    """A connection for coroutines: calls are made in their event loop, without threads and locks."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.reach = reach_of(address)
        self._channel: grpc.aio.Channel | None = None
        self._opened: tuple[Place, asyncio.AbstractEventLoop, int] | None = None
        self._services: dict[str, Any] = {}
        self._place: Place | None = None

    async def run(self, operation: Operation[T]) -> T:
        """Like `run` of threads."""
        try:
            call = next(operation)
            while True:
                try:
                    answer = await self._retried(call)
                except AnabranchError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(answer)
        except StopIteration as stopped:
            return stopped.value

    async def close(self) -> None:
        """Closes the channel. The next call opens another one."""
        channel, self._channel, self._opened = self._channel, None, None
        if channel is not None:
            await channel.close()

    async def _retried(self, call: Call | Upload) -> Any:
        outage = Outage(self)
        while True:
            try:
                await self._open()
                await self._check_version()
                answer = await self._perform(call)
                outage.over()
                return answer
            except Unreachable as error:
                # The server of a file may have ended: it is looked for again.
                self._place = None
                await asyncio.sleep(outage.pause(error))
            except AnabranchError as error:
                await asyncio.sleep(outage.pause(error))

    async def _open(self) -> None:
        """Opens the channel for this event loop and process, unless it is open. Finds the server of a file in a thread,
        because that can start it."""
        if self._place is None:
            is_file = self.address.startswith(SCHEME)
            self._place = await asyncio.to_thread(found, self.address) if is_file else found(self.address)
        opened = (self._place, asyncio.get_running_loop(), os.getpid())
        if self._opened == opened:
            return
        import grpc.aio

        target, credentials, options = channel_settings(self.address, self._place)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options=options)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options=options)
        self._opened = opened
        self._services = {
            "trajectories": TrajectoryServiceStub(self._channel),
            "states": StateServiceStub(self._channel),
            "server": ServerServiceStub(self._channel),
        }

    async def _check_version(self) -> None:
        limits = limits_of(self.address)
        if not limits.known:
            limits.take(await self._awaited("server", "GetServerInfo", GetServerInfoRequest()))

    async def _perform(self, call: Call | Upload) -> Any:
        if isinstance(call, Upload):
            return await self._awaited("states", "PutState", iter(_chunks(self.address, call)), _STREAM_SECONDS)
        if not call.streams:
            return _checked(await self._awaited(call.service, call.method, call.request))
        with raising_reasons():
            method = getattr(self._services[call.service], call.method)
            stream = method(call.request, timeout=_STREAM_SECONDS, metadata=self._metadata())
            return [message async for message in stream]

    def _awaited(self, service: str, method: str, request: Any, timeout: float = UNARY_SECONDS) -> Awaitable[Any]:
        call: Awaitable[Any] = getattr(self._services[service], method)(
            request, timeout=timeout, metadata=self._metadata()
        )
        return _reasoned(call)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        authorization, namespace = access_of(self.address).authorization(), self.address.partition("#")[2]
        who = () if authorization is None else (("authorization", authorization),)
        return (*who, (NAMESPACE_HEADER, namespace)) if namespace else who


async def _reasoned(call: Awaitable[Any]) -> Any:
    with raising_reasons():
        return await call
