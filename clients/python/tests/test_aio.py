"""`anabranch.aio`: the names of the package, none of whose calls blocks the event loop."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, cast, get_args, get_origin

import pytest
from conftest import Server, free_port

import anabranch
from anabranch import aio
from anabranch._recording.sender import Sender
from anabranch._wire.connection import Connection
from anabranch._wire.errors import Unreachable
from anabranch._wire.waiting import Shared, Wrapper
from anabranch.errors import AnabranchError, LeaseLost, RunNotFound
from anabranch.v1.rollout_service_pb2 import ClaimRolloutsRequest, ListRolloutsRequest
from anabranch.v1.run_service_pb2 import GetStageRequest
from anabranch.v1.status_pb2 import STATUS_CANCELLED

#: Names that have one form: values, errors, modules.
SHARED = {"AnabranchError", "Checkpoint", "Plan", "Stats", "Undecodable", "Unstored", "aio", "errors"}
#: Public members of classes that other modules of the package use, and programs do not.
INTERNAL = {
    "Client": {
        "attempt",
        "connection",
        "create",
        "creation",
        "flush_metrics",
        "metadata_json",
        "metrics",
        "recorder",
        "values",
    },
    "Episode": {"prefetch_states"},
    "Episodes": {"connection"},
    "Rollout": {"drop_lease", "give_back", "open", "opened"},
    "Trajectory": {
        "after",
        "begin",
        "continue_after",
        "create",
        "dropped",
        "end",
        "position_at",
        "record_said",
        "recorded",
    }
    | {"say_again", "unrecorded"},
    "Turn": {"messages", "said", "say"},
}
#: Methods that wait for nothing.
DIRECT = {
    "Client": {"episodes"},
    "Episodes": {"shard", "steps"},
    "Group": {"tokens"},
    "Rollout": {"check", "log", "reset", "say", "step", "turn", "validate"},
    "Run": {"log"},
    "Stage": {"log"},
    "Trajectory": {"reset", "say", "seal", "step", "tag", "turn"},
    "Turn": {"result"},
}
#: Methods that are sent at once, and need not be awaited.
SENT = {"Stage": {"checkpoint"}}
#: The protocols of a class and their asynchronous forms.
PROTOCOLS = {"__iter__": "__aiter__", "__enter__": "__aenter__", "__exit__": "__aexit__"}


@pytest.fixture(autouse=True)
def loop_is_not_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails each call of the server, and each wait for the sender, in a thread that runs an event loop."""

    def refusing(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return method(*args)
            raise AssertionError("the event loop is blocked")

        return call

    assert isinstance(Connection.stubs, property)
    assert Connection.stubs.fget is not None
    monkeypatch.setattr(Connection, "stubs", property(refusing(Connection.stubs.fget)))
    monkeypatch.setattr(Sender, "wait", refusing(Sender.wait))


@pytest.fixture
def name() -> str:
    return f"run {uuid.uuid4()}"


def wrapped(cls: type[Any]) -> type[Any]:
    """Returns the synchronous class of a class of `anabranch.aio`."""
    (base,) = (base for base in vars(cls)["__orig_bases__"] if getattr(base, "__origin__", None) is Wrapper)
    return get_origin(get_args(base)[0]) or get_args(base)[0]


CLASSES = [cls for cls in vars(aio).values() if inspect.isclass(cls) and issubclass(cls, Wrapper)]
PAIRS = {cls.__name__: (wrapped(cls), cls) for cls in CLASSES if cls is not Wrapper}


def test_both_modules_have_the_same_names() -> None:
    assert set(aio.__all__) == set(anabranch.__all__) - {"aio"}
    for each in anabranch.__all__:
        if each in SHARED:
            assert each == "aio" or getattr(aio, each) is getattr(anabranch, each), each
        elif each not in ("connect", "local"):
            assert PAIRS[each] == (getattr(anabranch, each), getattr(aio, each))
    assert inspect.signature(aio.connect).parameters == inspect.signature(anabranch.connect).parameters
    assert inspect.signature(aio.local).parameters == inspect.signature(anabranch.local).parameters


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_all_members_have_an_asynchronous_form(name: str) -> None:
    sync, cls = PAIRS[name]
    fields = set(getattr(sync, "__annotations__", ())) | instance_attributes(sync)
    members = {each for each in {*dir(sync), *fields} if not each.startswith("_")}
    own = {each for each in dir(cls) if not each.startswith("_")} - {"sync", "threads"}
    assert own == members - INTERNAL.get(name, set())
    for each in sorted(own):
        one, other = getattr(sync, each, None), inspect.getattr_static(cls, each)
        if not inspect.isfunction(one):
            assert isinstance(other, (Shared, property)), each
            continue
        assert parameters(other) == parameters(one), each
        if returned(one).startswith("Listing["):
            # A list is read by its iteration.
            assert not inspect.iscoroutinefunction(other), each
            continue
        waits = is_awaited(other) or inspect.isasyncgenfunction(other) or "Opening[" in returned(other)
        assert waits == (each not in DIRECT.get(name, set()) | SENT.get(name, set())), each
        assert inspect.isasyncgenfunction(other) == returned(one).startswith(("Iterator[", "Generator[")), each
    turn = name == "Turn"
    for plain, asynchronous in PROTOCOLS.items():
        assert hasattr(sync, plain) == hasattr(cls, plain if turn else asynchronous), plain


def is_awaited(method: Any) -> bool:
    return inspect.iscoroutinefunction(method) or getattr(method, "__code__", None) is aio.Client.close.__code__


def parameters(method: Any) -> str:
    """Returns the parameters of a method, with types and defaults. What `work` plays is awaited in `anabranch.aio`."""
    return str(inspect.signature(method, follow_wrapped=True).replace(return_annotation=None)).replace(
        "Awaitable[object]", "object"
    )


def returned(method: Any) -> str:
    return str(inspect.signature(method).return_annotation)


def instance_attributes(cls: type[Any]) -> set[str]:
    """Returns the attributes that `__init__` of a class, or of its base, sets."""
    if not inspect.isfunction(cls.__init__) or is_dataclass(cls):
        return set()
    return set(re.findall(r"self\.(\w+)(?:: .+)? = ", inspect.getsource(cls.__init__)))


async def played(rollout: aio.Rollout) -> None:
    async with rollout:
        await asyncio.sleep(0)
        rollout.reset(observation=rollout.task.description)
        for turn in range(3):
            rollout.step(action=f"{rollout.group}/{rollout.number}/{turn}", token_ids=[turn], logprobs=[-0.5])
            await asyncio.sleep(0)
        rollout.validate("state", success=rollout.number == 1)
        rollout.reward = float(rollout.number)


async def running_stage(client: aio.Client, name: str, count: int = 0) -> aio.Stage:
    """Returns a stage that is running, with `count` rollouts of one group."""
    run = await client.run(name, config={})
    stage = await run.stage("train_step", 0)
    await stage.start()
    await stage.rollouts([{"group": 0, "number": number} for number in range(count)])
    return stage


def claimable(server: Server, stage: aio.Stage) -> list[int]:
    """Claims the rollouts that are in the queue now, and returns their numbers."""
    request = ClaimRolloutsRequest(worker_id="other", stage_id=stage.id, max_rollouts=100)
    request.lease_duration.seconds = 60
    return [claim.rollout.number for claim in server.stubs().rollouts.ClaimRollouts(request).claims]


async def test_a_trainer_and_a_worker_play_a_run(server: Server, name: str) -> None:
    async with aio.connect(server.address, strict=True) as client:
        run = await client.run(name, config={"lr": 0.1}, plan=aio.Plan(train_steps=2, groups=2, group_size=2))
        await client.tasks.put([f"{name}/{number}" for number in range(2)], validators={"state": {}})
        worker = asyncio.create_task(client.work(played, run=name, concurrency=4, wait_seconds=1))
        async for stage in run.train_steps():
            await stage.rollouts([(group, number, f"{name}/{group}") for group in range(2) for number in range(2)])
            groups = [group async for group in stage.groups(complete=True)]
            assert [group.rewards for group in groups] == [[0.0, 1.0]] * 2
            assert [[rollout.success for rollout in group.rollouts] for group in groups] == [[False, True]] * 2
            assert [row.input_ids for row in groups[0].tokens().rows] == [[0, 1, 2]] * 2
            stage.log(loss=0.5)
            stage.checkpoint(f"model {stage.number}")
        await asyncio.wait_for(worker, 30)
        assert (await run.refresh()).status == "completed"
        assert len([episode async for episode in await run.rollouts(stage=1, success=True)]) == 2
        (summary,) = await client.summarize(runs=[run])
        assert (summary.rollout_count, summary.success_count) == (8, 4)
        found = {task.id async for task in client.tasks.list()}
        assert {f"{name}/0", f"{name}/1"} <= found
        with pytest.raises(RunNotFound):
            await client.run(f"{name}, too")


async def test_tools_can_be_coroutines_whose_exceptions_are_recorded(server: Server) -> None:
    async def run_tool(call: Any) -> str:
        await asyncio.sleep(0)
        return call.input["x"]

    calls = [
        {"id": f"c{x}", "type": "function", "function": {"name": "run", "arguments": f'{{"{x}": "found"}}'}}
        for x in "xy"
    ]
    async with aio.connect(server.address) as client, client.trajectory() as t:
        t.say("Go on.")
        with t.turn({"choices": [{"message": {"role": "assistant", "tool_calls": calls}}]}) as turn:
            one, two = turn.tool_calls
            assert await turn.result(one, run_tool, one) == "found"
            assert isinstance(await turn.result(two, run_tool, two), KeyError)
            assert turn.result(two, len, "ab") == 2
        contents = [message.get("content") for message in t.messages]
        assert contents == ["Go on.", None, "found", "2"]


async def test_a_trajectory_is_recorded_branched_resumed_and_read(server: Server, name: str) -> None:
    async with aio.connect(server.address, strict=True) as client:
        async with client.trajectory(task="a", name=name, resume="allow") as t:
            first = t.reset(observation="o0", messages=[{"role": "user", "content": "hi"}])
            assert (await first).durable
            last = t.step(action="a1", observation="o1", reward=1.0, states={"env": b"s1"}, tags=["best"])
            with t.turn({"choices": [{"message": {"role": "assistant", "content": "yes"}}]}) as turn:
                turn.reward = 2.0
            assert turn.receipt is not None
            assert (await turn.receipt.wait(20)).number == 2
            assert last.durable
            branch = await t.branch(tag="best", name="branch")
            branch.step(action="b2", observation="o2")
            async with client.branch(t, at=1) as other:
                other.step(action="c2")
        await asyncio.gather(t.flush(20), branch.flush(20), other.flush(20))
        resumed = await client.trajectory(task="a", name=name, resume="must")
        await resumed.load()
        assert (resumed.id, resumed.done, resumed.reward_sum, len(resumed.messages)) == (t.id, True, 3.0, 2)
        assert (await t.compare(branch)).shared_steps == 2
        assert (await t.tree()).count("\n") >= 2
        point = await branch.checkpoint()
        assert point is not None
        assert (point.step, point["env"]) == (1, b"s1")
        steps = [step async for step in t.steps(1)]
        assert [step.action for step in steps][:1] == ["a1"]
        assert await steps[0].state("env") == b"s1"
        episode = await t.episode()
        assert (episode.status, len(episode), episode.steps[1].observation) == ("completed", 2, "o1")
        episodes = client.episodes(ids=[t, other])
        assert [each.id async for each in episodes] == [t.id, other.id]
        assert [step.number async for step in episodes.steps()] == [0, 1, 2, 0, 1, 2]
        assert len(await episodes.to_pandas()) == 6
        assert client.stats.dropped == 0


async def test_an_exception_fails_and_a_cancelled_task_cancels_a_trajectory(server: Server, name: str) -> None:
    async with aio.connect(server.address) as client:
        failed = await client.trajectory(name=name)
        with pytest.raises(ValueError, match="no screen"):
            async with failed:
                raise ValueError("no screen")
        cancelled = await client.trajectory(name=name)

        async def record() -> None:
            async with cancelled:
                cancelled.reset(observation=1)
                await asyncio.sleep(60)

        task = asyncio.create_task(record())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await cancelled.flush(20)
        await failed.flush(20)
    assert server.stored(failed.id).status_message == "ValueError: no screen"
    stored = server.stored(cancelled.id)
    assert (stored.status, stored.status_message) == (STATUS_CANCELLED, "CancelledError")


async def test_200_rollouts_at_once_keep_their_turns_apart(server: Server, name: str) -> None:
    async with aio.connect(server.address, strict=True) as client:
        stage = await running_stage(client, name)

        async def play(number: int) -> str:
            async with stage.rollout(number // 4, number % 4) as rollout:
                await played(rollout)
                return rollout.trajectory.id

        ids = await asyncio.gather(*map(play, range(200)))
        assert len(set(ids)) == 200
        seen = {group.number: group async for group in stage.groups(complete=True)}
        assert sorted(seen) == list(range(50))
        for number, trajectory_id in enumerate(ids):
            rollout = seen[number // 4].rollouts[number % 4]
            assert rollout.message.trajectory_id == trajectory_id
            wanted = [f"{number // 4}/{number % 4}/{turn}" for turn in range(3)]
            assert [step.action for step in rollout.episode.moves] == wanted


async def test_recording_needs_no_server_and_a_cancelled_flush_ends() -> None:
    client = aio.connect(f"127.0.0.1:{free_port()}", spool=False)
    async with client.trajectory(name="away") as t:
        receipt = t.reset(observation=1)
        for wait in (t.flush(), receipt.wait(), t.tree()):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(wait, 0.05)
        with pytest.raises(TimeoutError, match="not durable after 0.1 s"):
            await t.flush(0.1)
    for thread in threading.enumerate():
        if thread.name == "anabranch-call":
            thread.join(10)
            assert not thread.is_alive()


async def test_a_rollout_must_be_started_before_its_first_step(server: Server, name: str) -> None:
    async with aio.connect(server.address) as client:
        stage = await running_stage(client, name)
        rollout = await stage.rollout(0, 0)
        with pytest.raises(RuntimeError, match="await rollout.start"):
            rollout.reset(observation=1)
        await rollout.start()
        await rollout.reset(observation=1)
        await rollout.complete()
        assert rollout.ended


@pytest.mark.parametrize("pauses", [0, 1, 2, 3, 5, 10, 50, 200])
async def test_a_cancelled_worker_returns_its_rollouts_at_once(server: Server, name: str, pauses: int) -> None:
    """The worker is cancelled at several points: before its first claim, in a claim, between steps, at the end."""
    async with aio.connect(server.address) as client:
        stage = await running_stage(client, name, 6)

        async def play(rollout: aio.Rollout) -> None:
            rollout.reset(observation=1)
            for _ in range(20):
                await asyncio.sleep(0.001)
                rollout.step(action=1)

        worker = asyncio.create_task(client.work(play, run=name, concurrency=3, lease_seconds=600))
        for _ in range(pauses):
            await asyncio.sleep(0.001)
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        assert [each for leases in client.sync.connection.leases for each in leases.held] == []
        completed = [each async for each in client.episodes(run=await client.run(name), status="completed")]
        left = 6 - len(completed)
        assert len(claimable(server, stage)) == left


async def test_a_cancelled_task_gives_up_what_it_was_about_to_claim(server: Server, name: str) -> None:
    async with aio.connect(server.address) as client:
        stage = await running_stage(client, name)
        for number in range(20):
            task = asyncio.ensure_future(stage.rollout(0, number, labels={"number": str(number)}))
            await asyncio.sleep(0.0004 * number)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                await task.result().release(refund_attempt=True)
        assert not stage.sync._leases.held
    listed = server.stubs().rollouts.ListRollouts(ListRolloutsRequest(stage_id=stage.id, page_size=100)).rollouts
    assert sorted(claimable(server, stage)) == sorted(rollout.number for rollout in listed)


async def test_a_worker_that_cannot_claim_ends_after_its_rollouts(
    own_server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_server.start()
    monkeypatch.setenv("ANABRANCH_CALL_SECONDS", "1")
    played_to_the_end: list[int] = []

    async def play(rollout: aio.Rollout) -> None:
        rollout.reset(observation=1)
        own_server.kill()
        for _ in range(30):
            await asyncio.sleep(0.1)
            rollout.step(action=1)
        played_to_the_end.append(rollout.number)
        rollout.cancelled = True  # so that the end does not wait for the server
        rollout.check()

    async with aio.connect(own_server.address) as client:
        await running_stage(client, name, 1)
        with pytest.raises(Unreachable):
            await client.work(play, run=name, concurrency=2)
    assert played_to_the_end == [0]


async def test_a_task_that_is_cancelled_twice_renews_no_lease(server: Server, name: str) -> None:
    async with aio.connect(server.address) as client:
        stage = await running_stage(client, name)
        begun = asyncio.Event()

        async def play() -> None:
            async with stage.rollout(0, 0) as rollout:
                rollout.reset(observation=1)
                begun.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(play())
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not stage.sync._leases.held


@pytest.mark.parametrize("before", [True, False])
async def test_a_lost_lease_ends_the_block_without_an_error(server: Server, name: str, before: bool) -> None:
    async with aio.connect(server.address) as client:
        stage = await running_stage(client, name)
        rollout = await stage.rollout(0, 0)
        run = await client.run(name)
        if before:
            await run.cancel("enough")
        after: list[str] = []
        async with rollout:
            rollout.reset(observation=1)
            await run.cancel("enough")
            await asyncio.to_thread(stage.sync._leases.renew)
            rollout.step(action="b")
            after.append("not reached")
        assert (rollout.cancelled, after) == (True, [])
        with pytest.raises(LeaseLost):
            rollout.log(a=1.0)


async def test_calls_that_were_sent_are_awaited_at_the_end(server: Server, name: str) -> None:
    client = aio.connect(server.address)
    with pytest.raises(AnabranchError, match="model_checkpoint_uri"):
        async with client:
            stage = await running_stage(client, name)
            stage.checkpoint("model 0")
            await stage.log(loss=0.5)
            with pytest.raises(AnabranchError, match="model_checkpoint_uri"):
                await stage.checkpoint("x" * 10_000)
            stage.checkpoint("x" * 10_000)
    assert server.stubs().runs.GetStage(GetStageRequest(stage_id=stage.id)).stage.model_checkpoint_uri == "model 0"


#: What a program does with the result of a call that it does not await, and the call that the error names.
FORGOTTEN: dict[str, tuple[Callable[[aio.Client, aio.Trajectory], object], str]] = {
    "an attribute": (lambda client, _: client.run("a").id, "Client.run().id"),
    "a method": (lambda client, _: client.trajectory().reset(), "Client.trajectory().reset"),
    "a method of a branch": (lambda _, t: t.branch().step(), "Trajectory.branch().step"),
    "an item": (lambda _, t: t.checkpoint()["env"], "Trajectory.checkpoint()"),
    "a length": (lambda _, t: len(t.episode()), "Trajectory.episode()"),
    "a loop": (lambda _, t: list(t.tokens()), "Trajectory.tokens()"),
    "a block": (lambda client, _: entered(client.trajectory()), "Client.trajectory()"),
}


def entered(value: Any) -> None:
    with value:
        pass


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("use", FORGOTTEN)
async def test_an_error_says_that_an_await_is_forgotten(use: str) -> None:
    client = aio.connect(f"127.0.0.1:{free_port()}", spool=False)
    program, call = FORGOTTEN[use]
    async with client.trajectory() as t:
        with pytest.raises((AttributeError, TypeError), match=re.escape(call) + ": the call is used without `await`"):
            program(client, t)


async def test_a_call_that_is_never_awaited_is_reported_with_its_name() -> None:
    client = aio.connect(f"127.0.0.1:{free_port()}", spool=False)
    with pytest.warns(RuntimeWarning, match=r"coroutine 'Client\.close' was never awaited"):
        client.close()


async def test_an_error_says_that_an_async_is_forgotten() -> None:
    client = aio.connect(f"127.0.0.1:{free_port()}", spool=False)
    async with client.trajectory() as t:
        for block in client, t:
            with pytest.raises(TypeError, match="use `async with`"):
                entered(block)
        for values in client.episodes(), client.episodes().steps():
            with pytest.raises(TypeError, match="use `async for`"):
                list(cast("list[object]", values))


async def test_calls_are_coroutines_to_asyncio() -> None:
    client = aio.connect(f"127.0.0.1:{free_port()}", spool=False)
    task = asyncio.create_task(client.close())
    assert "coro=<Client.close()>" in repr(task)
    await task
    await asyncio.gather(client.close(), asyncio.wait_for(client.close(), 30))
    assert await asyncio.gather(asyncio.ensure_future(client.trajectory()), client.trajectory()) != []


async def test_values_that_are_not_awaited_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def observe() -> int:
        return 1

    client = aio.connect(f"127.0.0.1:{free_port()}", spool=False)
    async with client.trajectory() as t:
        forgotten = observe()
        t.reset(observation=forgotten)
        with pytest.raises(TypeError, match="reply is a coroutine: `await` it"):
            t.turn(forgotten)
        forgotten.close()
    assert (
        "observation is a coroutine, which cannot be stored. A marker replaces it. Was `await` forgotten?"
        in caplog.text
    )


async def test_metrics_can_have_any_name(server: Server, name: str) -> None:
    names = ("step", "self", "metrics", "more", "args", "kwargs")
    async with aio.connect(server.address) as client:
        stage = await running_stage(client, name)
        run = await client.run(name)
        await run.log(1, {"loss": 1.0}, **dict.fromkeys(names, 2.0))
        await stage.log(**dict.fromkeys(names, 3.0))
        found = await run.metrics()
    assert set(found) == {"loss", *names}
