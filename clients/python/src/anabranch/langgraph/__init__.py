"""Checkpointers of LangGraph that keep threads in Anabranch: a thread is a trajectory, a checkpoint is a step, and a fork
is a branch.

    with AnabranchSaver("sqlite:runs.db") as saver:
        graph = builder.compile(checkpointer=saver)

`AsyncAnabranchSaver` is the same for asyncio. Both need the package langgraph-checkpoint. A call returns when its data
is durable. While the server is away, calls wait for it, for at most ANABRANCH_CALL_SECONDS.

`python -m anabranch.langgraph import SOURCE` imports the checkpoints of LangGraph's savers for SQLite and Postgres.
"""

from __future__ import annotations

try:
    import langgraph.checkpoint.base as _base
except ImportError as missing:
    raise ImportError(
        "anabranch.langgraph needs the package langgraph-checkpoint: pip install 'anabranch-client[langgraph]'"
    ) from missing

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from anabranch._wire.connection import Connection
from anabranch._wire.errors import AnabranchError, Unreachable
from anabranch.client import Client, connect
from anabranch.langgraph._calls import AsyncConnection, Operation, run
from anabranch.langgraph._memory import Memory
from anabranch.langgraph._operations import Operations, Query
from anabranch.langgraph._steps import thread_of
from anabranch.langgraph._writes import Line, Waiting

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from typing_extensions import Self

__all__ = ["AnabranchSaver", "AsyncAnabranchSaver"]

Server = Client | str | os.PathLike[str] | None


class _Saver(_base.BaseCheckpointSaver[Any]):
    """What both savers share."""

    def __init__(self, server: Server = None, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self.client = server if isinstance(server, Client) else connect(_address_of(server), strict=True, spool=False)
        self._memory = Memory()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._own_operations = Operations(self.client.address, self.serde, self._memory)
        self._operations_of = self.serde

    @property
    def operations(self) -> Operations:
        """What the saver does, as operations on its connection. Internal."""
        # A clone of the saver has another serializer, and a lock of the parent may be held for ever in a forked child.
        if self._operations_of is not self.serde or self._pid != os.getpid():
            self._begin()
        return self._own_operations

    def get_next_version(self, current: str | int | None, channel: None) -> str | int:
        """Returns the version after `current`: a number, or for threads that another saver began a text as it writes."""
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}.{0:016}"
        return 1 if current is None else current + 1


def _address_of(server: str | os.PathLike[str] | None) -> str | None:
    return None if server is None else os.fspath(server)


def _refused(message: str) -> Any:
    """Returns a method that raises NotImplementedError, before anything is awaited."""

    def method(*_: object, **__: object) -> Any:
        raise NotImplementedError(message)

    return method


class AnabranchSaver(_Saver):
    """A checkpointer whose threads are stored by an Anabranch server. Threads of the process can share it.

    `server` is a client, or an address as `anabranch.connect` takes it: HOST:PORT, unix:PATH, or sqlite:PATH for a file
    of this machine. Default: ANABRANCH_ADDRESS, else 127.0.0.1:50051. `serde` serializes values; default: LangGraph's
    serializer, without pickle. As a context manager, the saver closes its connection at the end.
    """

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string: str | None = None) -> Generator[Self]:
        """Returns a saver for the block. `conn_string` is an address as `anabranch.connect` takes it."""
        with cls(conn_string) as saver:
            yield saver

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. The next call opens another one."""
        self.client.connection.close()

    def setup(self) -> None:
        """Has no effect: the server creates its tables itself."""

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint as the child of the one that `config` names. It is durable when the call returns.

        A checkpoint that is stored already is not stored again. One with the same id and another content is replaced, and
        is then the latest.
        Raises TypeError for a value that the serializer refuses, and StepTooLarge; nothing is stored then.
        """
        return self._run(self.operations.put(config, checkpoint, metadata))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores pending writes of a task for the checkpoint that `config` names. A write that is stored for the same
        task and index is kept, or replaced in special channels. Raises as `put`."""
        operations = self.operations
        step = self._run(operations.writes(config, writes, task_id, task_path))
        line = operations.line(thread_of(config))
        waiting, sends = line.add(step)
        if sends or not waiting.done.result():
            self._send(line, waiting)

    def _send(self, line: Line, own: Waiting) -> None:
        """Sends until the own step is stored, with others that wait."""
        try:
            while not own.is_over:
                self._send_some(line, line.take())
        finally:
            line.hand_over()
        own.check()

    def _send_some(self, line: Line, some: Sequence[Waiting]) -> None:
        try:
            self._run(line.send([each.step for each in some]))
        except AnabranchError as error:
            if len(some) == 1 or isinstance(error, Unreachable):
                Waiting.fail(some, error)
                return
            # One of them may be refused, and must not take the others with it.
            for each in some:
                self._send_some(line, [each])
        except BaseException as error:
            Waiting.fail(some, error)
            raise
        else:
            Waiting.succeed(some)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns the checkpoint that `config` names, by default the latest one of the thread. None if there is none."""
        return self._run(self.operations.get(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yields the checkpoints of a thread, those that were committed last first.

        `filter` has values of the metadata; the server selects by `source`, `step` and `run_id`. Without a config, reads
        the checkpoints of all threads, and then yields them in descending order of their ids.
        """
        if limit is not None and limit <= 0:
            return
        operations = self.operations
        if config is None:
            yield from self._run(operations.everything(filter, before, limit))
            return
        if config.get("configurable", {}).get("checkpoint_id"):
            yield from _matching(self.get_tuple(config), filter, before)
            return
        query: Query | None = self._run(operations.query(config, filter, before, limit))
        while query is not None:
            some, query = self._run(operations.listed(query))
            yield from some

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread. Copies of it stay as they are. Needs the role WRITE."""
        self._run(self.operations.delete(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints and writes of runs. Copies of their threads stay as they are. Needs the role WRITE.

        Raises as `prune`, and can be repeated like it.
        """
        self._run(self.operations.delete_runs([str(id) for id in run_ids]))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread with one call. Copies share what is stored, so that the cost does not grow with the thread.

        Raises InvalidRequest if both ids are equal.
        """
        self._run(self.operations.copy(str(source_thread_id), str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes the checkpoints of threads: all with the strategy "delete"; with "keep_latest", all but the latest one
        of each namespace and the ancestors that its delta channels need. Copies stay as they are. Needs the role WRITE.

        What is put meanwhile stays, and stays the latest. Raises AnabranchError, and deletes nothing, if checkpoints are
        put during each of 8 attempts. If a call is interrupted, repeat it.
        """
        self._run(self.operations.prune([str(id) for id in thread_ids], strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Returns what channels contributed to the ancestors of a checkpoint, up to the nearest stored value of each."""
        return self._run(self.operations.history(config, channels)) if channels else {}

    _asynchronous: Any = _refused(
        "AnabranchSaver has no asynchronous methods. For ainvoke, astream and other coroutines of a graph, use "
        "AsyncAnabranchSaver of anabranch.langgraph with the same arguments."
    )
    aput = aput_writes = aget_tuple = alist = aget_delta_channel_history = _asynchronous
    adelete_thread = adelete_for_runs = acopy_thread = aprune = _asynchronous

    def _run(self, operation: Operation[Any]) -> Any:
        connection: Connection = self.client.connection
        return run(connection, operation)


class AsyncAnabranchSaver(_Saver):
    """The same checkpointer for asyncio. Its calls are made in the event loop, without threads and locks.

    The arguments are those of AnabranchSaver. As an asynchronous context manager, the saver closes its connection at
    the end.
    """

    def __init__(self, server: Server = None, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(server, serde=serde)
        self._connection = AsyncConnection(self.client.address)
        self._sending: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, conn_string: str | None = None) -> AsyncGenerator[Self]:
        """Returns a saver for the block. `conn_string` is an address as `anabranch.connect` takes it."""
        async with cls(conn_string) as saver:
            yield saver

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. The next call opens another one."""
        await self._connection.close()

    async def setup(self) -> None:
        """Has no effect: the server creates its tables itself."""

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint, as AnabranchSaver.put."""
        return await self._connection.run(self.operations.put(config, checkpoint, metadata))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores pending writes, as AnabranchSaver.put_writes."""
        operations = self.operations
        step = await self._connection.run(operations.writes(config, writes, task_id, task_path))
        line = operations.line(thread_of(config))
        waiting, sends = line.add(step)
        if sends:
            # A task of its own: the caller may be cancelled while others wait.
            task = asyncio.create_task(self._send(line))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        await asyncio.wrap_future(waiting.done)

    async def _send(self, line: Line) -> None:
        """Sends what waits until nothing does."""
        while some := line.take():
            await self._send_some(line, some)

    async def _send_some(self, line: Line, some: Sequence[Waiting]) -> None:
        try:
            await self._connection.run(line.send([each.step for each in some]))
        except AnabranchError as error:
            if len(some) == 1 or isinstance(error, Unreachable):
                Waiting.fail(some, error)
                return
            for each in some:
                await self._send_some(line, [each])
        except BaseException as error:
            Waiting.fail(some, error)
            raise
        else:
            Waiting.succeed(some)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns a checkpoint, as AnabranchSaver.get_tuple."""
        return await self._connection.run(self.operations.get(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yields checkpoints, as AnabranchSaver.list."""
        if limit is not None and limit <= 0:
            return
        operations, connection = self.operations, self._connection
        if config is None:
            for each in await connection.run(operations.everything(filter, before, limit)):
                yield each
            return
        if config.get("configurable", {}).get("checkpoint_id"):
            for each in _matching(await self.aget_tuple(config), filter, before):
                yield each
            return
        query: Query | None = await connection.run(operations.query(config, filter, before, limit))
        while query is not None:
            some, query = await connection.run(operations.listed(query))
            for each in some:
                yield each

    async def adelete_thread(self, thread_id: str) -> None:
        """Deletes a thread, as AnabranchSaver.delete_thread."""
        await self._connection.run(self.operations.delete(str(thread_id)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes what runs have stored, as AnabranchSaver.delete_for_runs."""
        await self._connection.run(self.operations.delete_runs([str(id) for id in run_ids]))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread, as AnabranchSaver.copy_thread."""
        await self._connection.run(self.operations.copy(str(source_thread_id), str(target_thread_id)))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prunes threads, as AnabranchSaver.prune."""
        await self._connection.run(self.operations.prune([str(id) for id in thread_ids], strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Returns the history of channels, as AnabranchSaver.get_delta_channel_history."""
        return await self._connection.run(self.operations.history(config, channels)) if channels else {}

    _synchronous: Any = _refused(
        "AsyncAnabranchSaver has only asynchronous methods. Use ainvoke, astream and other coroutines of the graph, or for "
        "invoke and stream AnabranchSaver of anabranch.langgraph with the same arguments."
    )
    put = put_writes = get_tuple = list = get_delta_channel_history = _synchronous
    delete_thread = delete_for_runs = copy_thread = prune = _synchronous


def _matching(
    found: CheckpointTuple | None, filter: Mapping[str, Any] | None, before: RunnableConfig | None
) -> list[CheckpointTuple]:
    """Returns the checkpoint in a list if it matches."""
    before_id = None if before is None else before.get("configurable", {}).get("checkpoint_id")
    if found is None or (before_id and found.checkpoint["id"] >= str(before_id)):
        return []
    metadata: Mapping[str, Any] = {**found.metadata}
    return [found] if all(metadata.get(name) == value for name, value in (filter or {}).items()) else []
