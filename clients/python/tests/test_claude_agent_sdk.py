"""`anabranch.claude_agent_sdk`: the SDK's own conformance tests, its functions on files, and what processes share."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    InMemorySessionStore,
    SessionKey,
    fork_session_via_store,
    get_session_messages_from_store,
    import_session_to_store,
    list_sessions_from_store,
    project_key_for_directory,
)
from claude_agent_sdk._internal.session_resume import materialize_resume_session
from claude_agent_sdk.testing import run_session_store_conformance
from conftest import Host, Server
from front import Front, info_of
from test_access import KeyServer

import anabranch as ab
from anabranch._wire.limits import limits_of
from anabranch.claude_agent_sdk import AnabranchSessionStore
from anabranch.errors import (
    IncompatibleVersion,
    PermissionDenied,
    StepTooLarge,
    TrajectoryExists,
    TrajectoryNotFound,
    Unauthenticated,
    Unreachable,
)
from anabranch.v1.access_pb2 import ROLE_WORK

KEY: SessionKey = {"project_key": "proj", "session_id": "11111111-1111-4111-8111-111111111111"}
SUB: SessionKey = {**KEY, "subpath": "subagents/agent-1"}


def client_of(server: Server) -> ab.Client:
    return ab.connect(server.address, strict=True, spool=False, namespace=f"n{uuid.uuid4().hex}")


@pytest.fixture
def store(any_server: Server) -> AnabranchSessionStore:
    return AnabranchSessionStore(client_of(any_server))


async def test_the_conformance_tests_of_the_sdk_pass(any_server: Server) -> None:
    await run_session_store_conformance(lambda: AnabranchSessionStore(client_of(any_server)))


# Sessions as the SDK writes them


def entry(number: int, parent: str | None, kind: str, content: Any, session: str = KEY["session_id"]) -> Any:
    role = {"role": kind, "content": content}
    message = {"model": "claude", "id": f"msg-{number}", **role, "usage": {"output_tokens": 3}}
    return {
        "parentUuid": parent,
        "isSidechain": False,
        "cwd": "/work",
        "sessionId": session,
        "message": message if kind == "assistant" else role,
        "type": kind,
        "uuid": str(uuid.UUID(int=number)),
        "timestamp": f"2026-01-01T00:00:0{number % 10}.000Z",
    }


def conversation() -> list[Any]:
    """A session with a tool, a title, and entries that are no messages."""
    ids = [str(uuid.UUID(int=number)) for number in range(9)]
    call = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a.txt", "limit": 1.0}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no such file", "is_error": True}
    progress = {"type": "progress", "uuid": ids[3], "parentUuid": ids[2], "sessionId": KEY["session_id"]}
    side = entry(8, ids[4], "user", "to a subagent")
    return [
        {"type": "summary", "summary": "Größe \u2028 😀", "leafUuid": ids[5]},
        entry(1, None, "user", "What is in a.txt?"),
        entry(2, ids[1], "assistant", [{"type": "text", "text": "I look."}, call]),
        progress,
        {**entry(4, ids[3], "user", [result]), "toolUseResult": {"stdout": "x" * 300_000}},
        {**side, "isSidechain": True},
        {"type": "content-replacement", "sessionId": KEY["session_id"], "replacements": [{"at": 1}]},
        {**entry(5, ids[4], "assistant", [{"type": "text", "text": "There is none."}]), "logicalParentUuid": ids[1]},
        {"type": "custom-title", "customTitle": "A file", "sessionId": KEY["session_id"]},
        {"type": "user", "message": {"role": "assistant", "content": "odd"}, "uuid": "\ud800"},
        {"type": "user", "message": None, "uuid": ""},
        {"type": "assistant", "message": "text", "uuid": 7},
    ]


async def test_entries_read_back_with_their_keys_in_order(store: AnabranchSessionStore) -> None:
    entries = conversation()
    await store.append(KEY, entries)
    assert json.dumps(await store.load(KEY)) == json.dumps(entries)


async def test_a_session_that_is_materialised_elsewhere_has_the_same_bytes(
    store: AnabranchSessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the files of one machine into the store, and from there into the files of another machine."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    project = project_key_for_directory(str(tmp_path))
    here = tmp_path / "config/projects" / project
    sub = here / KEY["session_id"] / "subagents"
    sub.mkdir(parents=True)
    texts = [f"{json.dumps(each, separators=(',', ':'))}\n" for each in conversation()]
    (here / f"{KEY['session_id']}.jsonl").write_text("".join(texts))
    (sub / "agent-1.jsonl").write_text("".join(texts[1:5]))
    (sub / "agent-1.meta.json").write_text('{"agentType": "explorer"}')
    for _ in range(2):
        await import_session_to_store(KEY["session_id"], store, batch_size=2)
    options = ClaudeAgentOptions(session_store=store, resume=KEY["session_id"], cwd=str(tmp_path))
    made = await materialize_resume_session(options)
    assert made is not None
    there = made.config_dir / "projects" / project
    names = sorted(str(path.relative_to(here)) for path in here.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(there)) for path in there.rglob("*") if path.is_file())
    # Entries without a uuid are not compared with what is stored, so the second import has added them again.
    whole = [line for line in texts if '"uuid":"0000' in line]
    lines = (there / f"{KEY['session_id']}.jsonl").read_text().splitlines(keepends=True)
    assert [line for line in lines if '"uuid":"0000' in line] == whole
    assert lines[: len(texts)] == texts
    assert (there / KEY["session_id"] / "subagents/agent-1.jsonl").read_text() == "".join(texts[1:5])
    assert json.loads((there / KEY["session_id"] / "subagents/agent-1.meta.json").read_text()) == {
        "agentType": "explorer"
    }
    await made.cleanup()
    (found,) = await list_sessions_from_store(store, str(tmp_path))
    assert (found.session_id, found.summary) == (KEY["session_id"], "A file")


async def test_the_entries_are_steps_of_a_conversation(any_server: Server) -> None:
    client = client_of(any_server)
    store = AnabranchSessionStore(client)
    await store.append(KEY, conversation())
    await store.append(SUB, conversation()[:2])
    (episode,) = client.episodes(labels={"session": KEY["session_id"], "subpath": SUB["subpath"]})  # pyright: ignore
    assert episode.name == f"{KEY['session_id']}/subagents/agent-1"
    (episode,) = [each for each in client.episodes(task="claude-agent-sdk/proj") if "subpath" not in each.labels]
    assert episode.id == store.trajectory_id(KEY)
    asked, called, _, answered = episode.steps[2:6]
    assert asked.observation["messages"] == [{"role": "user", "content": "What is in a.txt?"}]
    assert called.action["text"] == "I look."
    (call,) = called.action["tool_calls"]
    assert (call["id"], call["name"], json.loads(call["arguments"])) == (
        "toolu_1",
        "Read",
        {"path": "a.txt", "limit": 1.0},
    )
    assert [(each["id"], each["is_error"]) for each in answered.observation["tool_results"]] == [("toolu_1", True)]
    messages = client.trajectory(id=episode.id, resume="must").messages
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "user", "assistant"]


async def test_a_uuid_is_stored_once_whoever_appends_it(store: AnabranchSessionStore) -> None:
    entries = conversation()[1:5]
    await store.append(KEY, [*entries[:2], entries[0]])
    other = AnabranchSessionStore(ab.Client(store._connection.address, strict=True, spool=False))  # pyright: ignore
    await other.append(KEY, entries[:3])
    await store.append(KEY, entries)
    await other.append(KEY, entries)
    assert await store.load(KEY) == entries
    await store.delete(KEY)
    assert await other.load(KEY) is None
    await other.append(KEY, entries[:2])
    await store.append(KEY, entries[:2])
    await store.delete(KEY)
    await store.append(KEY, entries[2:])
    await other.append(KEY, entries[:2])
    assert await store.load(KEY) == [*entries[2:], *entries[:2]]
    await store.delete(KEY)
    await store.append(KEY, entries[:2])
    assert await store.load(KEY) == entries[:2]


# Forks


async def test_a_fork_at_any_message_is_the_sdks_fork_as_a_branch(store: AnabranchSessionStore, tmp_path: Path) -> None:
    project = project_key_for_directory(str(tmp_path))
    key: SessionKey = {**KEY, "project_key": project}
    await store.append(key, conversation()[:9])
    for at in [None, *(str(uuid.UUID(int=number)) for number in (1, 2, 3, 4, 5))]:
        expected = await fork_session_via_store(store, KEY["session_id"], str(tmp_path), at)
        copied = await store.load({**key, "session_id": expected.session_id})
        forked = await store.fork(key, at)
        shared = await store.load(forked)
        assert copied is not None and shared is not None
        assert without_names(shared, forked["session_id"]) == without_names(copied, expected.session_id)
        assert [list(each) for each in shared] == [list(each) for each in copied]
        messages = await get_session_messages_from_store(store, forked["session_id"], str(tmp_path))
        assert len(messages) == {1: 1, 2: 2, 3: 2, 4: 3, 5: 4}[uuid.UUID(at).int if at else 5]
    # A fork of a fork, which continues.
    again = await store.fork(forked, str(shared[1]["uuid"]), session_id=str(uuid.UUID(int=77)), title="Again")  # pyright: ignore
    loaded = await store.load(again)
    assert loaded is not None
    assert [each.get("forkedFrom", {}).get("sessionId") for each in cast("list[Any]", loaded)] == [
        *[forked["session_id"]] * 2,
        None,
        None,
    ]
    assert loaded[1]["parentUuid"] == loaded[0]["uuid"]  # pyright: ignore
    assert loaded[-1]["customTitle"] == "Again"  # pyright: ignore
    other = AnabranchSessionStore(ab.Client(store._connection.address, strict=True, spool=False))  # pyright: ignore
    for each in (store, other):
        await each.append(again, [*loaded, entry(9, str(loaded[1]["uuid"]), "user", "more")])  # pyright: ignore
        assert await each.load(again) == [*loaded, entry(9, str(loaded[1]["uuid"]), "user", "more")]  # pyright: ignore
    # The source can be deleted.
    await store.delete(key)
    await store.delete(forked)
    assert await store.load(forked) is None
    assert await store.load(again) == [*loaded, entry(9, str(loaded[1]["uuid"]), "user", "more")]  # pyright: ignore


def without_names(entries: list[Any], session_id: str) -> list[Any]:
    """Returns entries with numbers in place of the names that each fork makes, and without the time of the fork."""
    text = json.dumps(entries).replace(session_id, "SESSION")
    for number, each in enumerate(entries):
        text = text.replace(str(each["uuid"]), f"uuid {number}")
    found = json.loads(text)
    return [{**each, "timestamp": recorded if (recorded := each["timestamp"]) < "2026-01-02" else ""} for each in found]


async def test_forks_of_what_is_not_there_raise(store: AnabranchSessionStore) -> None:
    with pytest.raises(TrajectoryNotFound):
        await store.fork(KEY)
    await store.append(KEY, [{"type": "summary"}])
    with pytest.raises(ValueError, match="has no messages"):
        await store.fork(KEY)
    await store.append(KEY, conversation()[1:3])
    with pytest.raises(ValueError, match="has no message with the uuid 'unknown'"):
        await store.fork(KEY, "unknown")
    with pytest.raises(TrajectoryExists):
        await store.fork(KEY, session_id=KEY["session_id"])


# Processes, faults, bounds

APPENDS = """
import asyncio, sys
from anabranch.claude_agent_sdk import AnabranchSessionStore

async def main():
    store = AnabranchSessionStore(sys.argv[1])
    key = {"project_key": "proj", "session_id": "shared"}
    for batch in range(4):
        own = [{"type": "x", "uuid": f"{sys.argv[2]} {batch} {number}"} for number in range(3)]
        shared = [{"type": "x", "uuid": f"shared {batch}"}]
        await store.append(key, [*own, *shared, {"type": "title", "of": sys.argv[2]}])

asyncio.run(main())
"""


def test_processes_on_one_session_lose_nothing_and_store_each_uuid_once(store: AnabranchSessionStore) -> None:
    address, _, namespace = store._connection.address.partition("#")  # pyright: ignore
    environ = {**os.environ, "ANABRANCH_NAMESPACE": namespace}
    command = [sys.executable, "-c", APPENDS, address]
    running = [
        subprocess.Popen([*command, str(process)], env=environ, stderr=subprocess.PIPE, text=True)
        for process in range(4)
    ]
    ends = [process.communicate(timeout=200) for process in running]
    assert [process.returncode for process in running] == [0] * 4, ends
    loaded = cast("list[Any]", asyncio.run(store.load({"project_key": "proj", "session_id": "shared"})))
    uuids = [each["uuid"] for each in loaded if "uuid" in each]
    own = {f"{process} {batch} {number}" for process in range(4) for batch in range(4) for number in range(3)}
    assert set(uuids) == own | {f"shared {batch}" for batch in range(4)}
    assert (len(uuids), len(loaded)) == (len(set(uuids)), len(uuids) + 16)
    for process in range(4):
        assert [each for each in uuids if each.startswith(f"{process} ")] == sorted(
            each for each in own if each[0] == str(process)
        )


async def test_large_entries_and_batches_are_stored_and_bad_ones_leave_nothing(store: AnabranchSessionStore) -> None:
    entries: list[Any] = [
        {"type": "x", "uuid": str(number), "text": "x" * 60_000 * (number % 10)} for number in range(40)
    ]
    await store.append(KEY, entries)
    assert await store.load(KEY) == entries
    with pytest.raises(TypeError, match=r"entries\[1\] cannot be stored as JSON: Object of type set"):
        await store.append(KEY, [{"type": "a"}, cast("Any", {"type": "b", "x": {1}})])
    with pytest.raises(TypeError, match=r"entries\[0\] is of type str: expected a dict"):
        await store.append(KEY, cast("Any", ["text"]))
    limits = limits_of(store._connection.address)  # pyright: ignore
    limits.values = {**limits.values, "stateBytes": 2_000_000}
    with pytest.raises(StepTooLarge, match="expected at most 2000000"):
        await store.append(KEY, [{"type": "a"}, cast("Any", {"type": "b", "x": "x" * 2_000_001})])
    limits.values = {**limits.values, "stateBytes": 256 * 1024 * 1024}
    assert await store.load(KEY) == entries


@pytest.mark.parametrize(("count", "id", "length"), [(5_000, "", 0), (1_000, "i" * 4_000, 0), (1_100, "", 2_000)])
async def test_a_message_with_many_tool_calls_is_stored(
    store: AnabranchSessionStore, count: int, id: str, length: int
) -> None:
    calls = [
        {"type": "tool_use", "id": f"{number}{id}", "name": "Write", "input": {"text": "x" * length}}
        for number in range(count)
    ]
    said = entry(1, None, "assistant", calls)
    await store.append(KEY, [said])
    assert await store.load(KEY) == [said]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ({"project_key": "", "session_id": "s"}, "is empty"),
        ({"project_key": "p", "session_id": ""}, "`session` of claude-agent-sdk is empty"),
        ({"project_key": "x" * 250, "session_id": "s"}, "`task` has 267 bytes"),
        ({"project_key": "p", "session_id": "s" * 257}, "has 257 bytes"),
        ({"project_key": "p", "session_id": "s", "subpath": "a\0"}, r"it has U\+0000"),
    ],
)
async def test_a_key_that_cannot_be_stored_raises(store: AnabranchSessionStore, key: Any, message: str) -> None:
    for call in (store.append(key, [{"type": "x"}]), store.load(key), store.delete(key)):
        with pytest.raises(ValueError, match=message):
            await call


async def test_the_store_waits_for_a_server_that_is_away_and_ends_with_its_task(own_server: Server) -> None:
    own_server.start()
    store = AnabranchSessionStore(own_server.address)
    await store.append(KEY, [{"type": "x", "uuid": "1"}])
    own_server.kill()
    waiting = asyncio.create_task(store.append(KEY, [{"type": "x", "uuid": "2"}]))
    while store._connection.reach._away_since is None:  # pyright: ignore
        await asyncio.sleep(0.01)
    # As the SDK bounds a call.
    with pytest.raises(TimeoutError), anyio.fail_after(0.1):
        await store.load(KEY)
    own_server.start()
    await waiting
    assert await store.load(KEY) == [{"type": "x", "uuid": "1"}, {"type": "x", "uuid": "2"}]


async def test_an_append_is_one_call(server: Server) -> None:
    front = Front(server)
    try:
        store = AnabranchSessionStore(front.address)
        key: SessionKey = {"project_key": "proj", "session_id": str(uuid.uuid4())}
        await store.append(key, [{"type": "x"}])
        assert front.methods == ["GetTrajectory", "AppendBatch"]
        front.methods.clear()
        await store.append(key, [{"type": "x"}])
        await store.load(key)
        assert front.methods == ["AppendBatch", "ReadSteps"]
    finally:
        front.stop()


async def test_errors_are_clear(tmp_path: Path, host: Host, server: Server) -> None:
    guarded = KeyServer(tmp_path, host)
    guarded.start()
    try:
        wrong = AnabranchSessionStore(ab.connect(guarded.address, token="wrong", spool=False))
        with pytest.raises(Unauthenticated):
            await wrong.append(KEY, [{"type": "x"}])
        _, secret = guarded.make_key("agent", ROLE_WORK, "default")
        store = AnabranchSessionStore(ab.connect(guarded.address, token=secret, spool=False))
        await store.append(KEY, conversation())
        await store.append(SUB, conversation())
        await store.fork(KEY)
        with pytest.raises(PermissionDenied):
            await store.delete(KEY)
        assert len(await store.list_sessions("proj")) == 2
        assert await store.list_subkeys(cast("Any", KEY)) == ["subagents/agent-1"]
    finally:
        guarded.kill()
    front = Front(server, info_of(server, version="9.2.0"))
    try:
        with pytest.raises(IncompatibleVersion):
            await AnabranchSessionStore(front.address).append(KEY, [{"type": "x"}])
        assert front.methods == []
    finally:
        front.stop()
    with pytest.raises(Unreachable):
        await AnabranchSessionStore("127.0.0.1:1").load(KEY)


def test_the_missing_package_is_named() -> None:
    program = 'import sys; sys.modules["claude_agent_sdk"] = None; import anabranch.claude_agent_sdk'
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert "claude-agent-sdk is required for anabranch.claude_agent_sdk: pip install claude-agent-sdk" in done.stderr


async def test_summaries_are_those_of_the_sdk_and_read_what_has_changed(server: Server, tmp_path: Path) -> None:
    front, project = Front(server), project_key_for_directory(str(tmp_path))
    try:
        store = AnabranchSessionStore(ab.connect(front.address, spool=False, namespace=f"n{uuid.uuid4().hex}"))
        memory = InMemorySessionStore()
        key: SessionKey = {**KEY, "project_key": project}
        for each in (memory, store):
            await each.append(key, conversation()[1:6])
            await each.append({**key, "subpath": "subagents/a"}, conversation()[:2])
        fork = await store.fork(key, title="Fork")
        await memory.append(fork, cast("Any", await store.load(fork)))

        def data(summaries: list[Any]) -> dict[str, Any]:
            return {each["session_id"]: each["data"] for each in summaries}

        summaries = await store.list_session_summaries(project)
        assert data(summaries) == data(await memory.list_session_summaries(project))
        assert {each["session_id"]: each["mtime"] for each in summaries} == {
            each["session_id"]: each["mtime"] for each in await store.list_sessions(project)
        }
        front.methods.clear()
        assert data(await store.list_session_summaries(project)) == data(summaries)
        assert front.methods == ["ListTrajectories"]
        front.methods.clear()
        titled = [cast("Any", {"type": "custom-title", "customTitle": "Later"})]
        await store.append(key, titled)
        await memory.append(key, titled)
        assert data(await store.list_session_summaries(project)) == data(await memory.list_session_summaries(project))
        assert front.methods == ["AppendBatch", "ListTrajectories", "ReadTrajectories"]
        front.methods.clear()
        listed = await list_sessions_from_store(store, str(tmp_path))
        assert {each.summary for each in listed} == {"Later", "Fork"}
        assert front.methods == ["ListTrajectories"] * 2
    finally:
        front.stop()


async def test_the_store_behaves_as_that_in_memory(store: AnabranchSessionStore, tmp_path: Path) -> None:
    memory, project = InMemorySessionStore(), project_key_for_directory(str(tmp_path))
    key: SessionKey = {**KEY, "project_key": project}
    for each in (memory, store):
        await each.append(key, conversation()[:6])
        await each.append({**key, "subpath": "subagents/a"}, conversation()[:2])
    (one,), (other,) = [await list_sessions_from_store(each, str(tmp_path)) for each in (memory, store)]
    assert (one.first_prompt, one.created_at) == (other.first_prompt, other.created_at)
