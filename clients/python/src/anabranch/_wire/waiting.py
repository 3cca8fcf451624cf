"""How `anabranch.aio` waits: each blocking call of the synchronous package runs in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future
from types import GeneratorType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, cast, overload

from anabranch._wire.scope import Interrupted, Scope, current

S = TypeVar("S")
R = TypeVar("R")
W = TypeVar("W")
P = ParamSpec("P")

_THREADS = 64


class Threads:
    """Runs the blocking calls of one client: at most 64 at once, besides one for each open iteration.

    The threads are daemons, so that none of them delays the end of the program.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_THREADS)
        #: Calls that were sent and are not awaited yet.
        self.sent: set[asyncio.Task[Any]] = set()

    async def settle(self) -> None:
        """Waits for the calls that were sent and are not awaited yet. Raises the first error."""
        calls = list(self.sent)
        self.sent.clear()
        failures = [
            each for each in await asyncio.gather(*calls, return_exceptions=True) if isinstance(each, BaseException)
        ]
        if failures:
            raise failures[0]

    async def run(self, call: Callable[[], R], undo: Callable[[R], object] | None = None) -> R:
        """Returns the result of a blocking call. If the task is cancelled, the call ends at its next wait; the task
        waits for that, unless it is cancelled again. `undo` is called with a result that a cancelled task did not get.
        """
        async with self._free:
            return await _result_of(call, Scope(), undo)

    async def iterate(
        self, begin: Callable[[], Iterable[R]], undo: Callable[[R], object] | None
    ) -> AsyncGenerator[R, None]:
        """Yields what a blocking iterator yields. `undo` is called with an item that a cancelled task did not get."""
        scope = Scope()
        iterator: Iterator[R] = iter(())
        begun = False

        def advance() -> list[R]:
            nonlocal iterator, begun
            if not begun:
                begun, iterator = True, iter(begin())
            for item in iterator:
                return [item]
            return []

        def undo_all(items: list[R]) -> None:
            for item in items:
                if undo is not None:
                    undo(item)

        try:
            while found := await _result_of(advance, scope, undo_all):
                yield found[0]
        finally:
            scope.cancel()
            if isinstance(iterator, GeneratorType) and not iterator.gi_running:
                iterator.close()


async def _result_of(call: Callable[[], R], scope: Scope, undo: Callable[[R], object] | None) -> R:
    """Runs a call in a thread. If the task is cancelled, ends the waits of the call, and waits until it has ended."""
    future = _begin(call, scope, undo)
    try:
        return await asyncio.shield(_quiet(future))
    except asyncio.CancelledError:
        scope.cancel()
        if undo is not None and future.done() and future.exception() is None:
            # The result came at the same time as the cancellation.
            await asyncio.wait([_quiet(_begin(functools.partial(undo, future.result()), Scope(), None))])
        await asyncio.wait([_quiet(future)])
        raise


def _begin(call: Callable[[], R], scope: Scope, undo: Callable[[R], object] | None) -> Future[R]:
    """Starts a call in a thread. If the scope was cancelled before the result is set, the thread undoes the call."""
    future: Future[R] = Future()

    def work() -> None:
        current.set(scope)
        try:
            result = call()
            if not scope.deliver(lambda: future.set_result(result)):
                if undo is not None:
                    undo(result)
                raise Interrupted
        except BaseException as error:  # noqa: BLE001 - the task that awaits the call gets it
            future.set_exception(error)

    threading.Thread(target=work, name="anabranch-call", daemon=True).start()
    return future


def _quiet(future: Future[R]) -> asyncio.Future[R]:
    """Returns the future for this loop. An error that is not retrieved is not reported."""
    wrapped = asyncio.wrap_future(future)
    wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())
    return wrapped


class Wrapper(Generic[S]):
    """The asynchronous form of an object. `sync` is the object itself: its calls block."""

    def __init__(self, threads: Threads, sync: S) -> None:
        self.threads = threads
        self.sync = sync

    def __repr__(self) -> str:
        return repr(self.sync)


class Shared(Generic[R]):
    """An attribute of the synchronous object, which needs no server."""

    def __set_name__(self, owner: type[object], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[object]) -> Shared[R]: ...
    @overload
    def __get__(self, instance: Wrapper[Any], owner: type[object]) -> R: ...
    def __get__(self, instance: Wrapper[Any] | None, owner: type[object]) -> Shared[R] | R:
        return self if instance is None else getattr(instance.sync, self._name)

    def __set__(self, instance: Wrapper[Any], value: R) -> None:
        setattr(instance.sync, self._name, value)


def refused(instead: str) -> Callable[..., NoReturn]:
    """The synchronous form of a method, whose error names the asynchronous one."""

    def refuse(self: object, *_: object) -> NoReturn:
        raise TypeError(f"this {type(self).__name__} is of anabranch.aio: use `{instead}`")

    return refuse


class Call(Coroutine[Any, Any, W]):
    """A call that begins when it is awaited. An error says so where its result is used without that."""

    _forgotten = "is used without `await`"

    def __init__(self, coroutine: Coroutine[Any, Any, W]) -> None:
        self._coroutine = coroutine
        self.__qualname__: str = coroutine.__qualname__

    def __await__(self) -> Generator[Any, Any, W]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    # Type checkers know that a coroutine has none of these.
    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> NoReturn:
            raise AttributeError(f"{self.__qualname__}().{attribute}: the call {self._forgotten}")

        def _refuse(self, *_: object) -> NoReturn:
            raise TypeError(f"{self.__qualname__}(): the call {self._forgotten}")

        def __bool__(self) -> bool:
            # asyncio asks for it. A condition is reported as a call that was never awaited.
            return True

        __len__ = __iter__ = __aiter__ = __getitem__ = __contains__ = __enter__ = __exit__ = _refuse


class Opening(Call[W]):
    """What a call will return: `await` it, or enter it with `async with`."""

    _forgotten = "is used without `await` or `async with`"
    _entered: Any = None

    async def __aenter__(self) -> W:
        self._entered = await self
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._entered.__aexit__(kind, error, traceback)


class Sent(Generic[W]):
    """A call that is sent. `await` it to wait for its end; otherwise the end of the stage and of the client do so."""

    def __init__(self, threads: Threads, call: Coroutine[Any, Any, W]) -> None:
        self._threads = threads
        self._task = asyncio.create_task(call)
        threads.sent.add(self._task)

    def __await__(self) -> Generator[Any, Any, W]:
        self._threads.sent.discard(self._task)
        return self._task.__await__()


Wrap = Callable[[Threads, R], W]


def direct(method: Callable[Concatenate[S, P], R], wrap: Wrap[R, W]) -> Callable[Concatenate[Wrapper[S], P], W]:
    """A method that does not wait: the call of the synchronous object, with a wrapped result."""

    @functools.wraps(method)
    def call(self: Wrapper[S], /, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrap(self.threads, method(self.sync, *args, **kwargs))

    return call


def awaited(
    method: Callable[Concatenate[S, P], R], wrap: Wrap[R, W], *, undo: Callable[[R], object] | None = None
) -> Callable[Concatenate[Wrapper[S], P], Coroutine[Any, Any, W]]:
    """A method whose call is awaited. `undo` is called with a result that a cancelled task did not get."""

    @functools.wraps(method)
    async def call(self: Wrapper[S], *args: P.args, **kwargs: P.kwargs) -> W:
        result = await self.threads.run(functools.partial(method, self.sync, *_unwrapped(args), **kwargs), undo)
        return wrap(self.threads, result)

    @functools.wraps(method)
    def begin(self: Wrapper[S], *args: P.args, **kwargs: P.kwargs) -> Call[W]:
        coroutine = call(self, *args, **kwargs)
        coroutine.__qualname__ = f"{type(self).__name__}.{method.__name__}"
        return Call(coroutine)

    return begin


def sent(method: Callable[Concatenate[S, P], R], wrap: Wrap[R, W]) -> Callable[Concatenate[Wrapper[S], P], Sent[W]]:
    """A method whose call is sent at once, and need not be awaited."""
    call = awaited(method, wrap)

    @functools.wraps(method)
    def send(self: Wrapper[S], *args: P.args, **kwargs: P.kwargs) -> Sent[W]:
        return Sent(self.threads, call(self, *args, **kwargs))

    return send


def iterated(
    method: Callable[Concatenate[S, P], Iterable[R]],
    wrap: Wrap[R, W],
    *,
    prepare: Callable[[R], object] | None = None,
    undo: Callable[[R], object] | None = None,
) -> Callable[Concatenate[Wrapper[S], P], AsyncGenerator[W, None]]:
    """A method whose result is an asynchronous iterator. `prepare` is called with each item, and may block."""

    @functools.wraps(method)
    async def call(self: Wrapper[S], *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[W, None]:
        def prepared() -> Iterator[R]:
            for item in method(self.sync, *_unwrapped(args), **kwargs):
                if prepare is not None:
                    prepare(item)
                yield item

        items = self.threads.iterate(prepared, undo)
        try:
            async for item in items:
                yield wrap(self.threads, item)
        finally:
            await items.aclose()

    return call


def same(_: Threads, result: R) -> R:
    """The result is not wrapped."""
    return result


def _unwrapped(values: Any) -> Any:
    return [cast(Any, value).sync if isinstance(value, Wrapper) else value for value in values]
