"""Uses each integration of Python before, during and after an outage. Prints a line when each part is done."""

import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from anabranch.claude_agent_sdk import AnabranchSessionStore
from anabranch.langgraph import AnabranchSaver, AsyncAnabranchSaver
from anabranch.openai_agents import AnabranchSession

Use = tuple[Callable[[int], Awaitable[object]], Callable[[], Awaitable[int]]]


def checkpoint(number: int) -> Any:
    return {**empty_checkpoint(), "channel_values": {"a": number}, "channel_versions": {"a": number}}


def threads() -> Use:
    saver, config = AnabranchSaver(), [config_of("sync")]

    def write(number: int) -> None:
        config[0] = saver.put(config[0], checkpoint(number), {"source": "loop", "step": number}, {"a": number})
        saver.put_writes(config[0], [("a", number)], "task")

    def read() -> int:
        return sum(len(each.pending_writes or []) for each in saver.list(config_of("sync")))

    return lambda number: asyncio.to_thread(write, number), lambda: asyncio.to_thread(read)


def coroutines() -> Use:
    saver, config = AsyncAnabranchSaver(), [config_of("async")]

    async def write(number: int) -> None:
        config[0] = await saver.aput(config[0], checkpoint(number), {"source": "loop", "step": number}, {"a": number})
        await saver.aput_writes(config[0], [("a", number)], "task")

    async def read() -> int:
        return sum([len(each.pending_writes or []) async for each in saver.alist(config_of("async"))])

    return write, read


def config_of(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def openai() -> Use:
    session = AnabranchSession("python")

    async def read() -> int:
        return len(await session.get_items())

    return lambda number: session.add_items([{"role": "user", "content": str(number)}]), read


def claude() -> Use:
    store, key = AnabranchSessionStore(), {"project_key": "project", "session_id": "python"}

    async def read() -> int:
        return len(await store.load(key) or [])

    return lambda number: store.append(key, [{"type": "user", "uuid": str(uuid.uuid4()), "n": number}]), read


async def main() -> None:
    uses = [threads(), coroutines(), openai(), claude()]
    await asyncio.gather(*(write(1) for write, _ in uses))
    print("written", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(write(2) for write, _ in uses))
    print("written again", flush=True)
    print(await asyncio.gather(*(read() for _, read in uses)), flush=True)


asyncio.run(main())
