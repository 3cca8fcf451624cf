"""Measures checkpointers of LangGraph: that of Anabranch beside LangGraph's own for SQLite and Postgres."""

from __future__ import annotations

import asyncio
import os
import random
import string
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint

import anabranch as ab
from anabranch.langgraph import AnabranchSaver, AsyncAnabranchSaver

Settings = dict[str, Any]
#: A state of 93 KB.
FIELDS, CHANGED, TEXT = 965, 20, 75
TURNS, READS = 200, 50
THREADS, THREAD_TURNS = 64, 30


class Thread:
    """A thread whose every field is a channel, of which some change in each turn."""

    def __init__(self, saver: BaseCheckpointSaver[Any], seed: int) -> None:
        self._saver, self._random = saver, random.Random(seed)
        self._values = {f"field_{number:04}": self._text() for number in range(FIELDS)}
        self._versions: dict[str, Any] = {}
        self.config: Any = {"configurable": {"thread_id": str(uuid.uuid4()), "checkpoint_ns": ""}}

    def turn(self) -> tuple[Checkpoint, dict[str, Any]]:
        """Returns the next checkpoint and its new versions."""
        changed = self._random.sample(sorted(self._values), CHANGED) if self._versions else list(self._values)
        self._values |= {name: self._text() for name in changed}
        new = {name: self._saver.get_next_version(self._versions.get(name), None) for name in changed}
        self._versions |= new
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"], checkpoint["channel_versions"] = {**self._values}, {**self._versions}
        return checkpoint, new

    def _text(self) -> str:
        return "".join(self._random.choices(string.ascii_letters + " ", k=TEXT))


@contextmanager
def opened(settings: Settings) -> Iterator[BaseCheckpointSaver[Any]]:
    by, where = settings["by"], settings["where"]
    if by == "anabranch":
        with AnabranchSaver(where) as own:
            yield own
    elif by == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(where) as theirs:
            theirs.setup()
            yield theirs
    else:
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(in_schema(where)) as theirs:
            theirs.setup()
            yield theirs


def in_schema(url: str) -> str:
    """Returns the URL of a database with a schema that the role may create tables in."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS savers")
    return f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3Dsavers"


def saver_turns(settings: Settings) -> dict[str, float]:
    """The medians of put and of get_tuple in ms, and the bytes that the turns take."""
    puts: list[float] = []
    gets: list[float] = []
    with opened(settings) as saver:
        before = bytes_of(settings, saver)
        thread = Thread(saver, settings["seed"])
        for step in range(TURNS):
            checkpoint, new = thread.turn()
            begun = time.perf_counter()
            thread.config = saver.put(thread.config, checkpoint, {"source": "loop", "step": step}, new)
            puts.append(time.perf_counter() - begun)
        for _ in range(READS):
            begun = time.perf_counter()
            latest = saver.get_tuple({"configurable": {**thread.config["configurable"], "checkpoint_id": ""}})
            gets.append(time.perf_counter() - begun)
            assert latest is not None and latest.checkpoint["id"] == thread.config["configurable"]["checkpoint_id"]
        return {"put": 1e3 * median(puts), "get": 1e3 * median(gets), "bytes": bytes_of(settings, saver) - before}


def bytes_of(settings: Settings, saver: Any) -> int:
    """Returns the bytes of what is stored."""
    if settings["by"] == "anabranch":
        usage = ab.connect(settings["where"], spool=False).storage_usage()
        return usage.steps.stored_bytes + usage.states.stored_bytes
    if settings["by"] == "sqlite":
        saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return os.path.getsize(settings["where"])
    tables = "'checkpoints', 'checkpoint_blobs', 'checkpoint_writes'"
    query = f"SELECT sum(pg_total_relation_size(name::regclass)) AS size FROM unnest(ARRAY[{tables}]) AS name"
    with saver._cursor() as cursor:
        return int(cursor.execute(query).fetchone()["size"])


@asynccontextmanager
async def opened_async(settings: Settings) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    if settings["by"] == "anabranch":
        async with AsyncAnabranchSaver(settings["where"]) as own:
            yield own
        return
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    async with AsyncPostgresSaver.from_conn_string(in_schema(settings["where"])) as theirs:
        await theirs.setup()
        yield theirs


def saver_threads(settings: Settings) -> dict[str, float]:
    """Puts a second of 64 threads of an event loop that share a saver."""

    async def run() -> dict[str, float]:
        async with opened_async(settings) as saver:
            threads = [Thread(saver, seed) for seed in range(THREADS)]
            turns = {thread: [thread.turn() for _ in range(THREAD_TURNS)] for thread in threads}

            async def play(thread: Thread, count: int) -> None:
                for checkpoint, new in [turns[thread].pop(0) for _ in range(count)]:
                    thread.config = await saver.aput(thread.config, checkpoint, {"source": "loop", "step": 1}, new)

            await asyncio.gather(*(play(thread, 2) for thread in threads))
            begun = time.perf_counter()
            await asyncio.gather(*(play(thread, THREAD_TURNS - 2) for thread in threads))
            return {"perSecond": THREADS * (THREAD_TURNS - 2) / (time.perf_counter() - begun)}

    return asyncio.run(run())


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
