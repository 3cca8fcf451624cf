"""The package for programs with asyncio: the same names, and calls that wait for the server are awaited.

Calls that record (`reset`, `step`, `turn`, `say`, `tag`, `seal`, `log`) wait for nothing, so they stay plain calls; receipts can be
awaited. `checkpoint` of a stage is sent at once, and awaited at its end if the program does not. Everything
is done by the synchronous package, whose object is the attribute `sync`. If a task is cancelled, the call that it
awaits ends, its trajectory is sealed as cancelled, and its rollout returns to the queue.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from anabranch import client as _client
from anabranch import episodes as _episodes
from anabranch import errors
from anabranch import groups as _groups
from anabranch import receipt as _receipt
from anabranch import rollouts as _rollouts
from anabranch import runs as _runs
from anabranch import tasks as _tasks
from anabranch import trajectory as _trajectory
from anabranch._reading import listing as _listing
from anabranch._reading import trajectories as _trajectories
from anabranch._reading.read import HasId
from anabranch._recording import turns as _turns
from anabranch._recording.history import Checkpoint
from anabranch._recording.recorder import Stats
from anabranch._recording.replies import Reply, ToolCall
from anabranch._wire.access import Pem, Token
from anabranch._wire.decode import Undecodable, Unstored
from anabranch._wire.errors import AnabranchError
from anabranch._wire.waiting import Opening, Shared, Threads, Wrapper, awaited, direct, iterated, refused, same, sent
from anabranch.errors import LeaseLost
from anabranch.runs import Plan
from anabranch.tasks import Task
from anabranch.v1 import records

if TYPE_CHECKING:
    from typing_extensions import Self

    from anabranch.client import Resume, Spool

__all__ = [
    "AnabranchError",
    "Checkpoint",
    "Client",
    "Episode",
    "Episodes",
    "Experiment",
    "Plan",
    "Receipt",
    "Rollout",
    "Run",
    "Stage",
    "Stats",
    "Step",
    "Trajectory",
    "Turn",
    "Undecodable",
    "Unstored",
    "connect",
    "errors",
    "local",
]

_logger = logging.getLogger("anabranch")
S = TypeVar("S")
R = TypeVar("R")
W = TypeVar("W")
P = ParamSpec("P")


class Listing(Wrapper[_listing.Listing[R]], Generic[R, W]):
    """A list of resources. Nothing is read before the iteration; each iteration reads again."""

    def __init__(self, threads: Threads, sync: _listing.Listing[R], wrap: Callable[[Threads, R], W]) -> None:
        super().__init__(threads, sync)
        self._wrap = wrap

    async def __aiter__(self) -> AsyncGenerator[W, None]:
        items = self.threads.iterate(lambda: self.sync, None)
        try:
            async for item in items:
                yield self._wrap(self.threads, item)
        finally:
            await items.aclose()

    async def first(self) -> W | None:
        """Returns the first resource; None if there is none."""
        found = await self.threads.run(self.sync.first)
        return None if found is None else self._wrap(self.threads, found)

    async def count(self) -> int:
        """Returns how many resources there are."""
        return await self.threads.run(self.sync.count)


def _listed(
    method: Callable[Concatenate[S, P], _listing.Listing[R]], wrap: Callable[[Threads, R], W]
) -> Callable[Concatenate[Wrapper[S], P], Listing[R, W]]:
    """A method that returns a list."""
    return direct(method, lambda threads, listing: Listing(threads, listing, wrap))


class Step(Wrapper[_episodes.Step]):
    """A recorded step. Its values are read before the step is returned, those of the steps of groups at first use."""

    trajectory_id = Shared[str]()
    owner_id = Shared[str]()
    message = Shared[Any]()
    number = Shared[int]()
    observation = Shared[Any]()
    action = Shared[Any]()
    reward = Shared[float | None]()
    terminated = Shared[bool]()
    truncated = Shared[bool]()
    info = Shared[Any]()
    info_text = Shared[str | None]()
    metrics = Shared[Mapping[str, float]]()
    states = Shared[tuple[str, ...]]()
    commit_time = Shared[Any]()
    prefetch = awaited(_episodes.Step.prefetch, same)
    state = awaited(_episodes.Step.state, same)
    blob = awaited(_episodes.Step.blob, same)


class Episode(Wrapper[_episodes.Episode]):
    """A recorded trajectory. Its values are read before it is returned; for those of groups, await `prefetch()`."""

    trajectory = Shared[Any]()
    id = Shared[str]()
    name = Shared[str]()
    task = Shared[str]()
    labels = Shared[Mapping[str, str]]()
    status = Shared[str]()
    reward_sum = Shared[float]()
    terminated = Shared[bool]()
    truncated = Shared[bool]()
    has_reset = Shared[bool]()
    observations = Shared[Any]()
    actions = Shared[Any]()
    rewards = Shared[Any]()
    infos = Shared[list[Any]]()
    metadata = Shared[Any]()
    prefetch = awaited(_episodes.Episode.prefetch, same)
    to_numpy = awaited(_episodes.Episode.to_numpy, same)
    tokens = awaited(_episodes.Episode.tokens, same)

    @property
    def steps(self) -> list[Step]:
        return [Step(self.threads, step) for step in self.sync.steps]

    @property
    def moves(self) -> list[Step]:
        return [Step(self.threads, step) for step in self.sync.moves]

    def __len__(self) -> int:
        return len(self.sync)


class Steps(Wrapper[_episodes.Steps]):
    """The steps of a selection of episodes, a row per step."""

    to_arrow = awaited(_episodes.Steps.to_arrow, same)
    to_pandas = awaited(_episodes.Steps.to_pandas, same)
    to_hf = awaited(_episodes.Steps.to_hf, same)
    _iterate = iterated(_episodes.Steps.__iter__, Step, prepare=_episodes.Step.prefetch)

    @property
    def episodes(self) -> Episodes:
        return Episodes(self.threads, self.sync.episodes)

    def __aiter__(self) -> AsyncIterator[Step]:
        return self._iterate()

    if not TYPE_CHECKING:
        __iter__ = refused("async for")


class Episodes(Wrapper[_episodes.Episodes]):
    """A selection of trajectories. Nothing is read before the iteration; each iteration reads again."""

    selection = Shared[Any]()
    shard = direct(_episodes.Episodes.shard, lambda threads, part: Episodes(threads, part))
    steps = direct(_episodes.Episodes.steps, Steps)
    tokens = awaited(_episodes.Episodes.tokens, same)
    to_arrow = awaited(_episodes.Episodes.to_arrow, same)
    to_pandas = awaited(_episodes.Episodes.to_pandas, same)
    to_hf = awaited(_episodes.Episodes.to_hf, same)
    to_torch = awaited(_episodes.Episodes.to_torch, same)
    to_minari = awaited(_episodes.Episodes.to_minari, same)
    _iterate = iterated(_episodes.Episodes.__iter__, Episode, prepare=_episodes.Episode.prefetch)

    def __aiter__(self) -> AsyncIterator[Episode]:
        return self._iterate()

    if not TYPE_CHECKING:
        __iter__ = refused("async for")


class PlayedRollout(Wrapper[_groups.PlayedRollout]):
    """A rollout that has ended, with the trajectory of its last attempt."""

    message = Shared[Any]()
    reward = Shared[float | None]()
    success = Shared[bool | None]()

    @property
    def episode(self) -> Episode:
        return Episode(self.threads, self.sync.episode)


class Group(Wrapper[_groups.Group]):
    """The rollouts of a group, by their number. Its tokens are read before it is returned."""

    number = Shared[int]()
    rewards = Shared[list[float | None]]()
    prefetch = awaited(_groups.Group.prefetch, same)
    tokens = direct(_groups.Group.tokens, same)

    @property
    def rollouts(self) -> list[PlayedRollout]:
        return [PlayedRollout(self.threads, rollout) for rollout in self.sync.rollouts]


class Tasks(Wrapper[_tasks.Tasks]):
    """The catalogue of tasks."""

    put = awaited(_tasks.Tasks.put, same)
    get = awaited(_tasks.Tasks.get, same)
    list = _listed(_tasks.Tasks.list, same)


class TrajectoryRecord(Wrapper[_trajectories.TrajectoryRecord], records.Trajectory):
    """A trajectory without its steps, as the server returned it last."""

    proto = Shared[Any]()
    history = awaited(_trajectories.TrajectoryRecord.history, same)
    tree = awaited(_trajectories.TrajectoryRecord.tree, same)
    delete = awaited(_trajectories.TrajectoryRecord.delete, same)


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

    def result(self, call: object, value: object, *args: object, **kwargs: object) -> Any:
        """Records the result of a tool call, as `anabranch.Turn.result`. Await the call if the tool is a coroutine
        function."""
        if args or kwargs or callable(value):
            value = _turns.outcome_of(value, args, kwargs)
        if inspect.isawaitable(value):
            return self._awaited_result(call, value)
        return self.sync.result(call, value)

    async def _awaited_result(self, call: object, result: Awaitable[object]) -> Any:
        try:
            value = await result
        except Exception as error:  # noqa: BLE001 - the tool's own code fails
            value = error
        return self.sync.result(call, value)

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

    After `resume`, `rewind` or `branch`, `reward_sum`, `last_observation` and `messages` need earlier steps: await
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
    say = direct(_trajectory.Trajectory.say, same)
    tag = direct(_trajectory.Trajectory.tag, same)
    seal = direct(_trajectory.Trajectory.seal, same)
    load = awaited(_trajectory.Trajectory.load, same)
    flush = awaited(_trajectory.Trajectory.flush, same)
    checkpoint = awaited(_trajectory.Trajectory.checkpoint, same)
    rewind = awaited(_trajectory.Trajectory.rewind, same)
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
        return Client(self.threads, self.sync.client)

    def branch(self, *, at: int | None = None, tag: str | None = None, name: str = "") -> Opening[Trajectory]:
        return Opening(self._branch(at=at, tag=tag, name=name))

    async def __aenter__(self) -> Self:
        self.sync.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sync.__exit__(kind, error, traceback)

    if not TYPE_CHECKING:
        __enter__ = __exit__ = refused("async with")


class Rollout(Wrapper[_rollouts.Rollout]):
    """A rollout that this worker holds. Enter it with `async with`, or await `start()`, before its first step.

    At the end of the block, the rollout is completed; an exception fails it; a cancelled task returns it to the queue.
    If the lease is lost or the run is cancelled, the next call raises LeaseLost, and the block ends without an error.
    """

    id = Shared[str]()
    message = Shared[Any]()
    attempt = Shared[int]()
    group = Shared[int]()
    number = Shared[int]()
    labels = Shared[Mapping[str, str]]()
    input = Shared[Any]()
    model_uri = Shared[str]()
    task = Shared[Task]()
    max_turns = Shared[int | None]()
    cancelled = Shared[bool]()
    ended = Shared[bool]()
    reward = Shared[float | None]()
    success = Shared[bool | None]()
    check = direct(_rollouts.Rollout.check, same)
    log = direct(_rollouts.Rollout.log, same)
    validate = direct(_rollouts.Rollout.validate, same)
    complete = awaited(_rollouts.Rollout.complete, same)
    fail = awaited(_rollouts.Rollout.fail, same)
    release = awaited(_rollouts.Rollout.release, same)
    start = awaited(_rollouts.Rollout.open, same)

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(self.threads, self._opened().trajectory)

    @property
    def messages(self) -> list[dict[str, object]]:
        return self._opened().messages

    def reset(self, **values: Any) -> Receipt:
        return Receipt(self.threads, self._opened().reset(**values))

    def step(self, **values: Any) -> Receipt:
        return Receipt(self.threads, self._opened().step(**values))

    def turn(self, reply: object) -> Turn:
        return Turn(self.threads, self._opened().turn(reply))

    def say(self, messages: Iterable[Mapping[str, object]] | str) -> None:
        self._opened().say(messages)

    async def __aenter__(self) -> Self:
        self.sync.__enter__()
        try:
            await self.start()
        except LeaseLost:
            # The next call raises it, within the block.
            pass
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            return await self.threads.run(lambda: self.sync.__exit__(kind, error, traceback))
        finally:
            self.sync.drop_lease()

    def _opened(self) -> _rollouts.Rollout:
        if not self.sync.opened:
            self.sync.check()
            raise RuntimeError("the rollout is not started: use `async with rollout`, or `await rollout.start()`")
        return self.sync

    if not TYPE_CHECKING:
        __enter__ = __exit__ = refused("async with")


class RolloutRecord(Wrapper[_rollouts.RolloutRecord], records.Rollout):
    """A rollout as the server returned it last: for trainers and tools that look at it."""

    proto = Shared[Any]()
    episode = awaited(_rollouts.RolloutRecord.episode, Episode)
    attempts = awaited(_rollouts.RolloutRecord.attempts, same)
    history = awaited(_rollouts.RolloutRecord.history, same)
    override_verdict = awaited(_rollouts.RolloutRecord.override_verdict, same)
    overrides = awaited(_rollouts.RolloutRecord.overrides, same)
    cancel = awaited(_rollouts.RolloutRecord.cancel, same)
    retry = awaited(_rollouts.RolloutRecord.retry, same)

    async def refresh(self) -> RolloutRecord:
        await self.threads.run(self.sync.refresh)
        return self


class Stage(Wrapper[_runs.Stage], records.Stage):
    """A stage of a run: a training step, an evaluation or a baseline."""

    proto = Shared[Any]()
    history = awaited(_runs.Stage.history, same)
    fail = awaited(_runs.Stage.fail, same)
    cancel = awaited(_runs.Stage.cancel, same)
    start = awaited(_runs.Stage.start, same)
    rollouts = awaited(_runs.Stage.rollouts, same)
    close_queue = awaited(_runs.Stage.close_queue, same)
    groups = iterated(_runs.Stage.groups, Group, prepare=_groups.Group.prefetch)
    log = direct(_runs.Stage.log, Receipt)
    checkpoint = sent(_runs.Stage.checkpoint, same)
    complete = awaited(_runs.Stage.complete, same)
    _rollout = awaited(_runs.Stage.rollout, Rollout, undo=_rollouts.Rollout.give_back)

    def rollout(self, group: int, number: int, task: Task | str = "", **fields: Any) -> Opening[Rollout]:
        return Opening(self._rollout(group, number, task, **fields))


class Experiment(Wrapper[_runs.Experiment], records.Experiment):
    """A folder of runs, with the config on which theirs are based."""

    proto = Shared[Any]()
    runs = _listed(_runs.Experiment.runs, lambda threads, run: Run(threads, run))
    tree = awaited(_runs.Experiment.tree, same)
    delete = awaited(_runs.Experiment.delete, same)


class Run(Wrapper[_runs.Run], records.Run):
    """A run, as the server returned it last."""

    proto = Shared[Any]()
    _train_steps = iterated(_runs.Run.train_steps, Stage)
    stage = awaited(_runs.Run.stage, Stage)
    rollouts = awaited(_runs.Run.rollouts, Episodes)
    log = direct(_runs.Run.log, Receipt)
    metrics = awaited(_runs.Run.metrics, same)  # pyright: ignore[reportIncompatibleVariableOverride, reportAssignmentType]
    watch = iterated(_runs.Run.watch, same)
    complete = awaited(_runs.Run.complete, same)
    fail = awaited(_runs.Run.fail, same)
    cancel = awaited(_runs.Run.cancel, same)
    pause = awaited(_runs.Run.pause, same)
    resume = awaited(_runs.Run.resume, same)
    reopen = awaited(_runs.Run.reopen, same)
    delete = awaited(_runs.Run.delete, same)
    progress = awaited(_runs.Run.progress, same)
    history = awaited(_runs.Run.history, same)
    stages = _listed(_runs.Run.stages, Stage)
    branch = awaited(_runs.Run.branch, lambda threads, branch: Run(threads, branch))
    main_trajectory = awaited(_runs.Run.main_trajectory, Trajectory)
    tree = awaited(_runs.Run.tree, same)
    compare = awaited(_runs.Run.compare, same)

    async def train_steps(self, stop: int | None = None) -> AsyncGenerator[Stage, None]:
        """Yields the training steps that are left, as `anabranch.Run.train_steps`. Before a stage is completed, its
        calls of `checkpoint` have ended."""
        stages = self._train_steps(stop)
        try:
            async for stage in stages:
                yield stage
                await self.threads.settle()
        finally:
            await stages.aclose()

    async def refresh(self) -> Run:
        await self.threads.run(self.sync.refresh)
        return self


class Client(Wrapper[_client.Client]):
    """A client of one server, for one event loop."""

    address = Shared[str]()
    strict = Shared[bool]()
    stats = Shared[Stats]()
    episodes = direct(_client.Client.episodes, Episodes)
    episode = awaited(_client.Client.episode, Episode)
    trajectories = _listed(_client.Client.trajectories, TrajectoryRecord)
    get = awaited(_client.Client.get, TrajectoryRecord)
    exists = awaited(_client.Client.exists, same)
    delete = awaited(_client.Client.delete, same)
    steps = _listed(_client.Client.steps, Step)
    run = awaited(_client.Client.run, Run)
    runs = _listed(_client.Client.runs, Run)
    experiments = _listed(_client.Client.experiments, Experiment)
    rollouts = _listed(_client.Client.rollouts, RolloutRecord)
    claims = iterated(_client.Client.claims, Rollout, undo=_rollouts.Rollout.give_back)
    summarize = awaited(_client.Client.summarize, same)
    search = iterated(_client.Client.search, same)
    series = awaited(_client.Client.series, same)
    compare_branches = awaited(_client.Client.compare_branches, same)
    watch_tree = iterated(_client.Client.watch_tree, same)
    watch_runs = iterated(_client.Client.watch_runs, same)
    diff_states = awaited(_client.Client.diff_states, same)
    storage_usage = awaited(_client.Client.storage_usage, same)
    export = awaited(_client.Client.export, same)
    flush = awaited(_client.Client.flush, same)
    close = awaited(_client.Client.close, same)
    _trajectory = awaited(_client.Client.trajectory, Trajectory)
    _branch = awaited(_client.Client.branch, Trajectory)

    @property
    def tasks(self) -> Tasks:
        return Tasks(self.threads, self.sync.tasks)

    def trajectory(
        self,
        *,
        task: str = "",
        name: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: object = None,
        run: HasId | str | None = None,
        id: str | None = None,
        resume: Resume = "never",
        resume_timeout: float = 30.0,
    ) -> Opening[Trajectory]:
        return Opening(
            self._trajectory(
                task=task,
                name=name,
                labels=labels,
                metadata=metadata,
                run=run,
                id=id,
                resume=resume,
                resume_timeout=resume_timeout,
            )
        )

    def branch(
        self,
        source: Trajectory | str,
        *,
        at: int | None = None,
        tag: str | None = None,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: object = None,
    ) -> Opening[Trajectory]:
        sync = source.sync if isinstance(source, Trajectory) else source
        return Opening(self._branch(sync, at=at, tag=tag, name=name, labels=labels, metadata=metadata))

    async def work(
        self,
        play: Callable[[Rollout], Awaitable[object]],
        *,
        run: HasId | str | None = None,
        stage: HasId | str | None = None,
        tasks: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        concurrency: int = 1,
        lease_seconds: int = 60,
        wait_seconds: int = 20,
        worker: str = "",
    ) -> None:
        """Claims rollouts and plays each with `await play(rollout)`, in `concurrency` tasks, until the run has ended.

        A rollout is completed when `play` returns, and failed with the text of the exception if it raises.
        """
        free = asyncio.Semaphore(concurrency - 1)
        playing: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            playing.discard(task)
            free.release()

        claims = self.claims(
            run=run,
            stage=stage,
            tasks=tasks,
            labels=labels,
            lease_seconds=lease_seconds,
            wait_seconds=wait_seconds,
            worker=worker,
        )
        failure: AnabranchError | None = None
        try:
            try:
                async for rollout in claims:
                    task = asyncio.create_task(_play(rollout, play))
                    playing.add(task)
                    task.add_done_callback(ended)
                    await free.acquire()
            except AnabranchError as error:
                # What was claimed before is played to its end.
                failure = error
            while playing:
                await asyncio.wait(playing)
            if failure is not None:
                raise failure
        finally:
            # A task that has not begun would not return its rollout.
            await asyncio.sleep(0)
            for task in playing:
                task.cancel()
            await asyncio.gather(*playing, claims.aclose(), return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.threads.settle()
        except AnabranchError:
            # The error of the block comes first.
            if error is None:
                raise
        finally:
            self.sync.close()

    if not TYPE_CHECKING:
        __enter__ = __exit__ = refused("async with")


def connect(
    address: str | None = None,
    *,
    strict: bool = False,
    spool: Spool = None,
    silence: float = 45.0,
    give_up_after: float = math.inf,
    token: Token | None = None,
    namespace: str | None = None,
    ca: Pem | None = None,
    cert: Pem | None = None,
    key: Pem | None = None,
) -> Client:
    """Returns a client. It connects at its first call. The arguments are those of `anabranch.connect`."""
    sync = _client.connect(
        address,
        strict=strict,
        spool=spool,
        silence=silence,
        give_up_after=give_up_after,
        token=token,
        namespace=namespace,
        ca=ca,
        cert=cert,
        key=key,
    )
    return Client(Threads(), sync)


@asynccontextmanager
async def local(
    database: str | os.PathLike[str] = ".anabranch/data.db",
    *,
    strict: bool = False,
    spool: Spool = None,
    namespace: str | None = None,
) -> AsyncGenerator[Client]:
    """Serves a database file in an `async with` block, and returns a client of its server. The arguments are those of
    `anabranch.local`."""
    threads = Threads()
    block = _client.local(database, strict=strict, spool=spool, namespace=namespace)
    sync = await threads.run(block.__enter__, lambda _: block.__exit__(None, None, None))
    try:
        async with Client(threads, sync) as client:
            yield client
    except BaseException as error:
        await threads.run(functools.partial(block.__exit__, type(error), error, error.__traceback__))
        raise
    await threads.run(lambda: block.__exit__(None, None, None))


async def _play(rollout: Rollout, play: Callable[[Rollout], Awaitable[object]]) -> None:
    """Plays one rollout. What `play` raises fails it, and is logged; the worker continues with others."""
    try:
        async with rollout:
            await play(rollout)
    except Exception:
        _logger.exception("Rollout %s has failed.", rollout.id)
