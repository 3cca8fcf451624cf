"""What programs with asyncio record: trajectories, turns and receipts."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from anabranch import episodes as _episodes
from anabranch import receipt as _receipt
from anabranch import trajectory as _trajectory
from anabranch._aio_reading import Episode, Step
from anabranch._recording import turns as _turns
from anabranch._recording.replies import Reply, ToolCall
from anabranch._wire.waiting import Opening, Shared, Wrapper, awaited, direct, iterated, same

if TYPE_CHECKING:
    from typing_extensions import Self

    from anabranch.aio import Client


class Receipt(Wrapper[_receipt.Receipt]):
    """A recorded step. `await receipt` returns when the step is durable on the server."""

    number = Shared[int]()
    durable = Shared[bool]()

    async def wait(self, timeout: float | None = None) -> Receipt:
        await self.threads.run(lambda: self.sync.wait(timeout))
        return self

    def __await__(self) -> Generator[Any, Any, Receipt]:
        return self.wait().__await__()


class Turn(Wrapper[_turns.Turn]):
    """One turn of an agent. The step is recorded at the end of the `with` block, which waits for nothing."""

    reply = Shared[Reply]()
    text = Shared[str]()
    tool_calls = Shared[list[ToolCall]]()
    reward = Shared[float | None]()
    terminated = Shared[bool]()
    truncated = Shared[bool]()
    result = direct(_turns.Turn.result, same)

    @property
    def receipt(self) -> Receipt | None:
        return None if self.sync.receipt is None else Receipt(self.threads, self.sync.receipt)

    def __enter__(self) -> Self:
        self.sync.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sync.__exit__(kind, error, traceback)


class Trajectory(Wrapper[_trajectory.Trajectory]):
    """A sequence of steps. `async with` seals it at the end: as completed, failed, or cancelled with its task.

    After `resume`, `checkpoint` or `branch`, `reward_sum`, `last_observation` and `messages` need earlier steps: await
    `load()` before.
    """

    id = Shared[str]()
    name = Shared[str]()
    next_step = Shared[int]()
    done = Shared[bool]()
    reward_sum = Shared[float]()
    last_observation = Shared[object]()
    messages = Shared[list[dict[str, object]]]()
    reset = direct(_trajectory.Trajectory.reset, Receipt)
    step = direct(_trajectory.Trajectory.step, Receipt)
    turn = direct(_trajectory.Trajectory.turn, Turn)
    tag = direct(_trajectory.Trajectory.tag, same)
    seal = direct(_trajectory.Trajectory.seal, same)
    load = awaited(_trajectory.Trajectory.load, same)
    flush = awaited(_trajectory.Trajectory.flush, same)
    checkpoint = awaited(_trajectory.Trajectory.checkpoint, same)
    steps = iterated(_trajectory.Trajectory.steps, Step, prepare=_episodes.Step.prefetch)
    episode = awaited(_trajectory.Trajectory.episode, Episode)
    to_numpy = awaited(_trajectory.Trajectory.to_numpy, same)
    tokens = awaited(_trajectory.Trajectory.tokens, same)
    series = awaited(_trajectory.Trajectory.series, same)
    search = iterated(_trajectory.Trajectory.search, same)
    compare = awaited(_trajectory.Trajectory.compare, same)
    tree = awaited(_trajectory.Trajectory.tree, same)
    _branch = awaited(_trajectory.Trajectory.branch, lambda threads, branch: Trajectory(threads, branch))

    @property
    def client(self) -> Client:
        from anabranch.aio import Client

        return Client(self.threads, self.sync.client)

    def branch(self, *, at: int | None = None, tag: str | None = None, name: str = "") -> Opening[Trajectory]:
        return Opening(self._branch(at=at, tag=tag, name=name))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sync.__exit__(kind, error, traceback)
