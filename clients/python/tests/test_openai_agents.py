"""`anabranch.openai_agents`: sessions of the OpenAI Agents SDK, with its own runner."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from agents import Agent, Runner, SessionSettings, SQLiteSession, function_tool
from agents.memory import Session
from agents.testing import ScriptedModel, assistant_message, function_call
from conftest import Host, Server
from front import Front, info_of
from test_access import KeyServer

import anabranch as ab
from anabranch._wire.limits import limits_of
from anabranch.errors import (
    IncompatibleVersion,
    StepTooLarge,
    TrajectoryExists,
    TrajectoryNotFound,
    Unauthenticated,
    Unreachable,
)
from anabranch.openai_agents import AnabranchSession
from anabranch.v1.access_pb2 import ROLE_WORK
from anabranch.v1.status_pb2 import STATUS_CANCELLED
from anabranch.v1.trajectory_service_pb2 import (
    ON_BRANCHES_KEEP_SHARED,
    DeleteTrajectoryRequest,
    Seal,
    SealTrajectoryRequest,
)


@pytest.fixture
def client(any_server: Server) -> Iterator[ab.Client]:
    with ab.connect(any_server.address, strict=True, spool=False, namespace=f"n{uuid.uuid4().hex}") as client:
        yield client


def said(text: object) -> Any:
    return {"role": "user", "content": text}


@function_tool
def add(a: int, b: int) -> int:
    """Adds numbers."""
    return a + b


def adder() -> Agent[Any]:
    call = function_call("add", {"a": 1, "b": 2}, call_id="c1")
    return Agent(
        name="adder", model=ScriptedModel([[call], [assistant_message("3")], [assistant_message("Yes.")]]), tools=[add]
    )


async def test_a_conversation_with_tools_is_that_of_the_sqlite_session(client: ab.Client) -> None:
    session, other = AnabranchSession("user-42", client), SQLiteSession("user-42")
    assert isinstance(session, Session)
    for each in (session, other):
        agent = adder()
        await Runner.run(agent, "1 + 2?", session=each)
        assert (await Runner.run(agent, "Sure?", session=each)).final_output == "Yes."
    items = await session.get_items()
    assert items == await other.get_items()
    assert [item.get("type", item.get("role")) for item in items] == [
        *["user", "function_call", "function_call_output", "message", "user", "message"]
    ]
    assert await AnabranchSession("user-42", client).get_items(2) == items[-2:]


async def test_the_items_are_steps_of_a_conversation(client: ab.Client) -> None:
    session = AnabranchSession("user-42", client)
    await Runner.run(adder(), "1 + 2?", session=session)
    (episode,) = client.episodes(labels={"integration": "openai-agents", "session": "user-42"})
    assert (episode.id, episode.task, episode.name) == (session.trajectory_id, "openai-agents/user-42", "user-42")
    root, asked, called, answered, replied = episode.steps
    assert (root.action, root.observation) == (None, None)
    assert asked.observation["messages"] == [{"content": "1 + 2?", "role": "user"}]
    assert called.action["tool_calls"] == [{"id": "c1", "name": "add", "arguments": '{"a":1,"b":2}'}]
    assert [each["id"] for each in answered.observation["tool_results"]] == ["c1"]
    assert replied.action["text"] == "3"
    t = client.trajectory(id=session.trajectory_id, resume="must")
    assert [message.get("type", message.get("role")) for message in t.messages] == [
        *["user", "function_call", "function_call_output", "message"]
    ]


async def test_items_are_added_popped_and_cleared(client: ab.Client) -> None:
    session = AnabranchSession("s", client)
    assert (await session.get_items(), await session.pop_item()) == ([], None)
    await session.clear_session()
    await session.add_items([])
    assert client.trajectories().count() == 0
    items = [said(f"item {number}") for number in range(5)]
    await session.add_items(items[:2])
    await session.add_items(items[2:])
    assert await session.get_items() == items
    assert await session.get_items(0) == []
    assert await session.get_items(-1) == items
    assert await session.get_items(9) == items
    assert await session.pop_item() == items[4]
    assert await session.pop_item() == items[3]
    assert await session.get_items() == items[:3]
    await session.add_items([said("other")])
    assert await AnabranchSession("s", client).get_items() == [*items[:3], said("other")]
    await session.clear_session()
    assert (await session.get_items(), await session.pop_item()) == ([], None)
    await session.add_items([said("new")])
    assert await AnabranchSession("s", client).get_items() == [said("new")]
    # What was popped and cleared is still in the tree.
    ends = [
        (each.trajectory.parent_id != "", each.trajectory.branch_point, len(each.steps)) for each in client.episodes()
    ]
    assert sorted(ends) == [(False, 0, 6), (True, 0, 2), (True, 3, 5), (True, 4, 5)]


async def test_the_limit_of_the_settings_is_the_default(client: ab.Client) -> None:
    session = AnabranchSession("s", client, session_settings=SessionSettings(limit=2))
    await session.add_items([said(number) for number in range(5)])
    assert await session.get_items() == [said(3), said(4)]
    assert await session.get_items(3) == [said(2), said(3), said(4)]


async def test_a_fork_shares_the_first_items_and_copies_nothing(client: ab.Client) -> None:
    session = AnabranchSession("s", client)
    await session.add_items([said(number) for number in range(4)])
    first = await session.fork(at=2, session_id="t")
    whole = await first.fork()
    await first.add_items([said("fork")])
    await session.add_items([said("main")])
    none = await session.fork(at=0)
    assert await session.get_items() == [*map(said, range(4)), said("main")]
    assert await AnabranchSession("t", client).get_items() == [said(0), said(1), said("fork")]
    assert (await whole.get_items(), await none.get_items()) == ([said(0), said(1)], [])
    assert await first.pop_item() == said("fork")
    assert await first.pop_item() == said(1)
    assert await AnabranchSession("t", client).get_items() == [said(0)]
    assert await whole.get_items() == [said(0), said(1)]
    with pytest.raises(ValueError, match="`at` is 6: expected 0 to 5, the number of items"):
        await session.fork(at=6)
    with pytest.raises(TrajectoryExists):
        await session.fork(session_id="t")
    with pytest.raises(TrajectoryNotFound, match="there is no session 'unknown'"):
        await AnabranchSession("unknown", client).fork()


async def test_a_fork_uses_the_client_of_its_session_alone(client: ab.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    session = AnabranchSession("s", client)
    await session.add_items([said(1)])
    monkeypatch.setenv("ANABRANCH_ADDRESS", "no address")
    assert await (await session.fork()).get_items() == [said(1)]


#: Values that JSON texts of other libraries change: order, numbers, escapes.
FORMS: list[Any] = [
    {"role": "user", "z": 1, "a": [1.0, 1e300, -0.0, 2**80, 0.1], "content": 'ü \u2028 \x00 \ud800 😀 \\ / "'},
    {"type": "function_call", "name": "n" * 300, "call_id": "c", "arguments": "{not json"},
    {"type": "function_call", "name": "f", "call_id": "c" * 5000, "arguments": '{"a": NaN}'},
    {"type": "function_call", "name": "f", "call_id": "c", "arguments": "\ud800"},
    {"type": "custom_tool_call", "name": "f", "call_id": "c", "input": "text \x00"},
    {"type": "computer_call", "call_id": "c", "action": {"type": "click", "x": 1}},
    {"type": "reasoning", "summary": [], "encrypted_content": "x" * 100_000},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "d" * 2_000_000}]},
    {"type": "message", "role": "assistant", "content": []},
    {"type": "item_reference", "id": "i"},
    {"role": "user", "message": None},
    {},
]


async def test_items_are_stored_byte_for_byte(client: ab.Client) -> None:
    session = AnabranchSession("s", client)
    await session.add_items(FORMS)
    for item in FORMS:
        await session.add_items([item])
    assert list(map(json.dumps, await session.get_items())) == list(map(json.dumps, [*FORMS, *FORMS]))
    for item in reversed(FORMS):
        assert await session.pop_item() == item


async def test_many_items_are_added_together_or_not_at_all(client: ab.Client) -> None:
    session = AnabranchSession("s", client)
    items = [said("x" * 3_000 + str(number)) for number in range(1000)]
    await session.add_items(items)
    assert await session.get_items() == items
    with pytest.raises(TypeError, match="item 1 cannot be stored as JSON: Object of type set"):
        await session.add_items([said("a"), said({1}), said("b")])
    with pytest.raises(ValueError, match="item 0 cannot be stored as JSON: Out of range float"):
        await session.add_items([said(float("nan"))])
    with pytest.raises(TypeError, match="item 0 is of type str: expected a dict"):
        await session.add_items(["text"])  # pyright: ignore
    limits = limits_of(client.address)
    limits.values = {**limits.values, "stateBytes": 2_000_000}
    with pytest.raises(StepTooLarge, match="expected at most 2000000"):
        await session.add_items([said("a"), said("x" * 2_000_000)])
    limits.values = {**limits.values, "stateBytes": 256 * 1024 * 1024}
    assert await session.get_items(1) == items[-1:]


ADDS = """
import asyncio, sys
from anabranch.openai_agents import AnabranchSession

async def main():
    session = AnabranchSession("shared", sys.argv[1])
    mark = lambda call, number: {"role": "user", "content": f"{sys.argv[2]} {call} {number}"}
    async def add(call):
        await session.add_items([mark(call, number) for number in range(3)])
        await session.add_items([{"role": "user", "content": "equal"}])
        if call % 2:
            print((await session.pop_item())["content"])
    for start in range(0, 4, 2):
        await asyncio.gather(*map(add, range(start, start + 2)))

asyncio.run(main())
"""


def test_processes_on_one_session_lose_nothing(client: ab.Client) -> None:
    address = client.address.partition("#")[0]
    session = AnabranchSession("shared", client)
    command = [sys.executable, "-c", ADDS, address]
    environ = {"ANABRANCH_NAMESPACE": client.address.partition("#")[2]}
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen([*command, str(process)], env={**os.environ, **environ}, stdout=pipe, stderr=pipe, text=True)
        for process in range(4)
    ]
    ends = [process.communicate(timeout=200) for process in running]
    assert [process.returncode for process in running] == [0] * 4, ends
    popped = "".join(out for out, _ in ends).splitlines()
    kept = [str(item["content"]) for item in asyncio.run(session.get_items())]  # pyright: ignore
    added = Counter(f"{process} {call} {number}" for process in range(4) for call in range(4) for number in range(3))
    added["equal"] = 16
    assert Counter(kept) + Counter(popped) == added
    assert len(popped) == 8
    # Items of one call stay together.
    for index, content in enumerate(kept):
        if content.endswith(" 2"):
            assert kept[index - 2 : index] == [f"{content[:-1]}{number}" for number in range(2)]


@pytest.mark.parametrize(("message", "left"), [("pop x", 2), ("clear x", 0), ("by hand", 3)])
async def test_a_session_whose_popper_died_continues(client: ab.Client, message: str, left: int) -> None:
    items = [said(number) for number in range(3)]
    session = AnabranchSession("s", client)
    await session.add_items(items)
    seal = Seal(status=STATUS_CANCELLED, message=message)
    request = SealTrajectoryRequest(trajectory_id=session.trajectory_id, seal=seal)
    client.connection.stubs.trajectories.SealTrajectory(request)
    assert await AnabranchSession("s", client).get_items() == items[:left]
    await session.add_items([said("next")])
    assert await AnabranchSession("s", client).get_items() == [*items[:left], said("next")]
    assert await session.pop_item() == said("next")


async def test_a_session_continues_after_its_first_trajectory_was_deleted(client: ab.Client) -> None:
    session = AnabranchSession("s", client)
    await session.add_items([said(1), said(2)])
    await session.pop_item()
    request = DeleteTrajectoryRequest(trajectory_id=session.trajectory_id, on_branches=ON_BRANCHES_KEEP_SHARED)
    client.connection.stubs.trajectories.DeleteTrajectory(request)
    assert await session.get_items() == [said(1)]
    await AnabranchSession("s", client).add_items([said(3)])
    assert await session.get_items() == [said(1), said(3)]


async def test_a_session_that_was_deleted_begins_again(client: ab.Client) -> None:
    session = AnabranchSession("s", client)
    for number in range(2):
        await session.add_items([said(number)])
        client.connection.stubs.trajectories.DeleteTrajectory(
            DeleteTrajectoryRequest(trajectory_id=session.trajectory_id)
        )
        assert await session.get_items() == []
    await session.add_items([said("again")])
    assert await session.get_items() == [said("again")]


@pytest.mark.parametrize("remove", ["pop_item", "clear_session"])
async def test_a_session_that_was_deleted_and_begun_again_can_be_popped_and_cleared(
    client: ab.Client, remove: str
) -> None:
    for number in range(2):
        session = AnabranchSession("s", client)
        await session.add_items([said(number), said("removed")])
        await getattr(session, remove)()
        await session.add_items([said("next")])
        kept = [said(number)] if remove == "pop_item" else []
        assert await AnabranchSession("s", client).get_items() == [*kept, said("next")]
        for each in list(client.trajectories()):
            client.delete(each.id)


async def test_a_session_continues_at_a_copy_when_its_branches_are_too_deep(own_server: Server) -> None:
    own_server.start()
    session = AnabranchSession("s", own_server.address)
    await session.add_items(FORMS)
    await session.add_items([said("popped")])
    own_server.kill()
    with closing(sqlite3.connect(own_server.folder / "data.db")) as database, database:
        database.execute("update trajectories set depth = 10000")
    own_server.start()
    fork = await session.fork(2)
    assert await session.pop_item() == said("popped")
    for each in (session, AnabranchSession("s", own_server.address)):
        assert list(map(json.dumps, await each.get_items())) == list(map(json.dumps, FORMS))
        await each.add_items([said("next"), said("popped")])
        assert await each.pop_item() == said("popped")
        assert await each.pop_item() == said("next")
    await fork.add_items([said("next")])
    assert await fork.get_items() == [*FORMS[:2], said("next")]
    # All of the session is found by its label.
    client = ab.connect(own_server.address, spool=False)
    for each in list(client.trajectories(labels={"session": "s"})):
        client.delete(each.id, branches="keep_shared")
    assert await session.get_items() == []
    client.close()


async def test_an_add_is_one_call_and_a_read_two(server: Server) -> None:
    front = Front(server)
    try:
        session = AnabranchSession(str(uuid.uuid4()), front.address)
        await session.add_items([said(1)])
        assert front.methods == ["ListTrajectories", "AppendBatch"]
        front.methods.clear()
        await session.add_items([said(2)])
        assert front.methods == ["AppendBatch"]
        front.methods.clear()
        assert await session.get_items() == [said(1), said(2)]
        assert front.methods == ["ListTrajectories", "ReadSteps"]
    finally:
        front.stop()


async def test_a_session_waits_for_a_server_that_is_away(own_server: Server) -> None:
    own_server.start()
    session = AnabranchSession("s", own_server.address)
    await session.add_items([said(1)])
    for number in range(2, 5):
        own_server.kill()
        waiting = asyncio.create_task(session.add_items([said(number)]))
        while session._connection.reach._away_since is None:  # pyright: ignore
            await asyncio.sleep(0.01)
        own_server.start()
        await waiting
    assert await session.get_items() == [said(number) for number in range(1, 5)]


@pytest.fixture
def guarded(tmp_path: Path, host: Host) -> Iterator[KeyServer]:
    running = KeyServer(tmp_path, host)
    running.start()
    yield running
    running.kill()


async def test_errors_are_clear_and_store_nothing(guarded: KeyServer, server: Server) -> None:
    with pytest.raises(Unauthenticated):
        await AnabranchSession("s", ab.connect(guarded.address, token="wrong", spool=False)).add_items([said(1)])
    _, secret = guarded.make_key("agent", ROLE_WORK, "default")
    session = AnabranchSession("s", ab.connect(guarded.address, token=secret, spool=False))
    await session.add_items([said(1), said(2)])
    assert await session.pop_item() == said(2)
    await session.clear_session()
    await (await session.fork()).add_items([said(3)])
    front = Front(server, info_of(server, version="9.2.0"))
    try:
        with pytest.raises(IncompatibleVersion, match=r"cannot use server version 9\.2\.0"):
            await AnabranchSession("s", front.address).add_items([said(1)])
        assert front.methods == []
    finally:
        front.stop()
    with pytest.raises(Unreachable, match="no server answers at 127.0.0.1:1"):
        await AnabranchSession("s", "127.0.0.1:1").get_items()


@pytest.mark.parametrize(
    ("session_id", "message"),
    [
        ("", "`session` of openai-agents is empty"),
        ("x" * 257, "has 257 bytes"),
        ("x" * 245, r"`task` has 259 bytes .* expected at most 256"),
        ("a\0", r"it has U\+0000 at index 1"),
        ("\ud800", "it has a lone surrogate at index 0"),
        (7, r"is 7, of type int: expected text"),
    ],
)
def test_a_session_id_that_cannot_be_stored_raises_at_once(session_id: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        AnabranchSession(session_id, "127.0.0.1:1")


def test_the_missing_package_is_named() -> None:
    program = dedent(
        """
        import sys
        sys.modules["agents"] = None
        import anabranch.openai_agents
        """
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert "openai-agents is required for anabranch.openai_agents: pip install openai-agents" in done.stderr
