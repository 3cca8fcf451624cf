"""The checkpointers of LangGraph: `anabranch.langgraph`."""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import random
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Host, Server
from fle_database import running_postgres
from front import Front, info_of
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_threads import chain, checkpoint_with, config_of, id_of, put, values_in
from test_access import KeyServer

import anabranch as ab
from anabranch import errors
from anabranch.langgraph import AnabranchSaver, AsyncAnabranchSaver
from anabranch.v1.access_pb2 import ROLE_WORK

pytestmark = pytest.mark.usefixtures("own_namespace")


@pytest.fixture
def saver() -> Iterator[AnabranchSaver]:
    with AnabranchSaver() as opened:
        yield opened


@pytest.fixture
def thread() -> str:
    """A thread that no other test uses."""
    return f"thread-{uuid.uuid4()}"


@pytest.fixture
def any_engine(own_namespace: None, any_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients without arguments use a server of each engine."""
    monkeypatch.setenv("ANABRANCH_ADDRESS", any_server.address)


# The suite of LangGraph


@pytest.mark.usefixtures("any_engine")
async def test_the_conformance_suite_of_langgraph_passes_completely() -> None:
    @checkpointer_test(name="anabranch")
    async def checkpointer() -> AsyncIterator[AsyncAnabranchSaver]:
        async with AsyncAnabranchSaver.from_conn_string() as opened:
            await opened.setup()
            yield opened

    report = await validate(checkpointer)
    assert [result.failures for result in report.results.values() if result.failures] == []
    assert report.passed_all()
    assert report.conformance_level() == "FULL"
    # A capability that is not detected is not tested.
    assert {name for name, result in report.results.items() if result.detected} == {each.value for each in Capability}
    assert len(Capability) == 8


# Calls


@pytest.fixture
def front(server: Server) -> Iterator[Front]:
    running = Front(server)
    yield running
    running.stop()


def calls_with(front: Front, thread: str, length: int) -> dict[str, list[str]]:
    """Returns the calls that each method makes for a thread of so many checkpoints."""
    saver = AnabranchSaver(front.address)
    configs = chain(saver, thread, length)
    calls: dict[str, list[str]] = {}

    def counted(name: str, act: Callable[[], Any]) -> Any:
        front.methods.clear()
        result = act()
        calls[name] = list(front.methods)
        return result

    new = AnabranchSaver(front.address)
    counted("get", lambda: new.get_tuple(config_of(thread)))
    counted("put after get in a new process", lambda: put(new, configs[-1], other=1))
    counted("put beside another process", lambda: put(saver, configs[-1], other=2))
    counted("put", lambda: put(saver, configs[-1], other=3))
    counted("put after an unknown parent", lambda: put(AnabranchSaver(front.address), configs[-1], other=4))
    counted("put_writes", lambda: saver.put_writes(configs[-1], [("a", 1)], "task"))
    counted("get by id", lambda: AnabranchSaver(front.address).get_tuple(configs[3]))
    found = counted("list", lambda: list(saver.list(config_of(thread), limit=10)))
    assert len(found) == 10
    before = found[4].config
    assert len(counted("list before", lambda: list(saver.list(config_of(thread), before=before, limit=5)))) == 5
    counted("filtered", lambda: list(saver.list(config_of(thread), filter={"step": 2}, limit=1)))
    counted("copy", lambda: saver.copy_thread(thread, f"{thread}-copy"))
    copy = config_of(f"{thread}-copy")
    counted("get of a copy", lambda: AnabranchSaver(front.address).get_tuple(copy))
    counted("list of a copy", lambda: list(AnabranchSaver(front.address).list(copy, limit=10)))
    return calls


def test_the_number_of_calls_does_not_depend_on_the_thread(front: Front, thread: str) -> None:
    counts = [calls_with(front, f"{thread}-{length}", length) for length in (10, 150)]
    assert counts[0] == counts[1]
    assert counts[0] == {
        "get": ["ReadStates", "ReadStates"],
        "put after get in a new process": ["AppendBatch"],
        # Another process has put its own child of the same parent: this one is another, and becomes a branch.
        "put beside another process": ["AppendBatch", "GetStep", "AppendBatch"],
        "put": ["AppendBatch"],
        "put after an unknown parent": ["ListSteps", "AppendBatch", "GetStep", "AppendBatch"],
        "put_writes": ["AppendBatch"],
        "get by id": ["ReadStates"],
        "list": ["ReadStates", "ReadStates"],
        "list before": ["ReadStates", "ReadStates"],
        "filtered": ["ReadStates", "ReadStates"],
        "copy": ["BranchTrajectories"],
        "get of a copy": ["ReadStates", "ReadStates"],
        "list of a copy": ["ReadStates", "ReadStates"],
    }


def test_the_number_of_calls_does_not_depend_on_the_size_of_states(front: Front, thread: str) -> None:
    values = {f"c{number}": random.Random(number).randbytes(200_000) for number in range(10)}
    saver, config = AnabranchSaver(front.address), config_of(thread)
    for step in range(12):
        config = put(saver, config, **values, huge=b"x" * 300_000, step=step)
    saver.put_writes(config, [(name, value) for name, value in values.items()], "task")
    other = AnabranchSaver(front.address)
    front.methods.clear()
    found = other.get_tuple(config_of(thread))
    assert front.methods == ["ReadStates", "ReadStates"]
    assert found is not None and found.checkpoint["channel_values"] == {**values, "huge": b"x" * 300_000, "step": 11}
    assert found.pending_writes == [("task", name, value) for name, value in values.items()]
    front.methods.clear()
    listed = list(other.list(config_of(thread), limit=10))
    assert [each.checkpoint["channel_values"]["step"] for each in listed] == list(range(11, 1, -1))
    assert front.methods == ["ReadStates", "ReadStates"]
    assert [each.checkpoint["channel_values"]["step"] for each in other.list(config_of(thread))] == list(
        range(11, -1, -1)
    )


async def test_the_asynchronous_saver_makes_the_same_calls(front: Front, thread: str) -> None:
    async with AsyncAnabranchSaver(front.address) as saver:
        config = config_of(thread)
        for step in range(3):
            checkpoint = checkpoint_with({"step": step})
            config = await saver.aput(config, checkpoint, {"source": "loop", "step": step}, {"step": 1})
        assert front.methods == ["AppendBatch"] * 3
        front.methods.clear()
        await asyncio.gather(*(saver.aput_writes(config, [("a", i)], f"task-{i}") for i in range(20)))
        assert front.methods == ["AppendBatch"]
        assert not [each.name for each in threading.enumerate() if each.name.startswith("asyncio_")]
        found = await saver.aget_tuple(config)
        assert found is not None and found.pending_writes is not None
        assert sorted(write[2] for write in found.pending_writes) == list(range(20))


# What is stored


def test_a_thread_is_a_trajectory_and_a_fork_is_a_branch(server: Server, saver: AnabranchSaver, thread: str) -> None:
    first = put(saver, config_of(thread), a=1, metadata={"source": "input", "step": -1, "run_id": "r1"})
    second = put(saver, first, a=2)
    fork = put(saver, first, a=3)
    saver.put_writes(second, [("a", 5)], "task")
    listed = list(ab.connect().trajectories(task=f"langgraph/{thread}"))
    assert sorted(each.labels["kind"] for each in listed) == ["checkpoints", "checkpoints", "writes"]
    (branch,) = [each for each in listed if each.parent_id]
    assert (branch.branch_point, branch.task_id) == (0, f"langgraph/{thread}")
    assert [each.checkpoint["channel_values"]["a"] for each in saver.list(config_of(thread))] == [3, 2, 1]
    assert values_in(saver, config_of(thread)) == {"a": 3}
    assert [values_in(saver, each)["a"] for each in (first, second, fork)] == [1, 2, 3]
    found = saver.get_tuple(fork)
    assert found is not None and id_of(found.parent_config) == id_of(first)


def test_large_values_are_states_of_their_own_and_sent_once(front: Front, saver: AnabranchSaver, thread: str) -> None:
    large = {f"large {number}": random.Random(number).randbytes(100_000) for number in range(3)}
    config = config_of(thread)
    for step in range(4):
        config = put(saver, config, **large, **{f"c{number}": number for number in range(965)}, step=step)
    (t,) = ab.connect().trajectories(task=f"langgraph/{thread}")
    step = stored_steps_of(t.id)[-1]
    assert sorted(state.name for state in step.states) == sorted(
        ["checkpoint", id_of(config), *(f"channel/{name}" for name in large)]
    )
    assert values_in(AnabranchSaver(), config) == {**large, **{f"c{n}": n for n in range(965)}, "step": 3}


def stored_steps_of(trajectory_id: str) -> list[Any]:
    import os

    from anabranch._wire.connection import address_from, open_stubs
    from anabranch.v1.trajectory_service_pb2 import ReadStepsRequest

    messages = open_stubs(address_from(os.environ["ANABRANCH_ADDRESS"])).trajectories.ReadSteps(
        ReadStepsRequest(trajectory_id=trajectory_id)
    )
    return [step for message in messages for step in message.steps]


def test_more_large_values_than_a_step_has_states(saver: AnabranchSaver, thread: str) -> None:
    values = {f"c{number}": chr(97 + number % 26) * 70_000 for number in range(300)}
    config = put(saver, config_of(thread), **values)
    assert values_in(AnabranchSaver(), config) == values


def test_messages_are_shown_as_a_conversation(saver: AnabranchSaver, thread: str) -> None:
    call = {"id": "call-1", "name": "look", "args": {"at": "sky"}}
    messages: list[Any] = [HumanMessage("What is up?", id="1")]
    config = put(saver, config_of(thread), messages=list(messages))
    messages += [AIMessage("I look.", id="2", tool_calls=[call]), ToolMessage("blue", tool_call_id="call-1", id="3")]
    config = put(saver, config, messages=list(messages))
    (t,) = ab.connect().trajectories(task=f"langgraph/{thread}")
    asked, answered = ab.connect().steps(trajectory=t.id)
    assert asked.observation["messages"] == [{"role": "user", "content": "What is up?"}]
    assert answered.action["text"] == "I look."
    assert [call["name"] for call in answered.action["tool_calls"]] == ["look"]
    assert [result["content"] for result in answered.observation["tool_results"]] == ["blue"]
    assert values_in(saver, config)["messages"] == messages
    # A message that is replaced is shown again, also by another process.
    messages[2] = ToolMessage("grey", tool_call_id="call-1", id="3")
    other = AnabranchSaver()
    assert other.get_tuple(config) is not None
    put(other, config, messages=list(messages))
    *_, replaced = ab.connect().steps(trajectory=t.id)
    assert replaced.action is None
    assert [result["content"] for result in replaced.observation["tool_results"]] == ["grey"]


@pytest.mark.parametrize(
    "calls",
    [
        [{"id": f"call-{number}", "name": "look", "args": {}} for number in range(1_100)],
        [{"id": "1", "name": "x" * 300, "args": {}}, {"id": "y" * 5_000, "name": "look", "args": {"at": "\0"}}],
    ],
    ids=["many", "long names and ids"],
)
def test_calls_of_tools_that_no_step_can_show_do_not_fail_a_put(
    saver: AnabranchSaver, thread: str, calls: list[Any]
) -> None:
    messages = [AIMessage("I look.", id="1", tool_calls=calls), ToolMessage("?", tool_call_id="y" * 5_000, id="2")]
    config = put(saver, put(saver, config_of(thread), messages=[]), messages=messages)
    assert values_in(AnabranchSaver(), config)["messages"] == messages


def test_pages_before_a_checkpoint_lose_none_that_was_committed_in_another_order(
    saver: AnabranchSaver, thread: str
) -> None:
    # As hosts whose clocks differ would put them.
    for id in "29183":
        put(saver, config_of(thread), f"id {id}", a=0)
    found, before = "", None
    while page := list(saver.list(config_of(thread), before=before, limit=2)):
        found += "".join(id_of(each.config)[-1] for each in page)
        before = page[-1].config
    assert found == "38192"
    unstored = config_of(thread, "id 5")
    assert [id_of(each.config)[-1] for each in saver.list(config_of(thread), before=unstored)] == ["3", "1", "2"]


# Repetitions


def test_a_put_that_is_repeated_stores_nothing(saver: AnabranchSaver, thread: str) -> None:
    """By the same saver, by a new one, by one that has read the latest checkpoint, and by one that has listed all."""
    messages: list[Any] = [HumanMessage("What is up?", id="1")]
    metadata: Any = {"source": "loop", "step": 0}
    puts: list[tuple[Any, Any]] = []
    config = config_of(thread)
    for step in range(4):
        messages.append(AIMessage("The sky.", id=f"a{step}"))
        checkpoint = checkpoint_with({"messages": list(messages), "large": "x" * 100_000, "step": step})
        puts.append((config, checkpoint))
        config = saver.put(config, checkpoint, metadata, {})
        if step == 1:
            fork = checkpoint_with({"messages": list(messages), "fork": 1})
            puts.append((config, fork))
            saver.put(config, fork, metadata, {})
    head, listed = read_of(thread), list(saver.list(config_of(thread)))
    stored = stored_of(thread)
    assert len(stored) == 5
    new, reading, listing = (AnabranchSaver() for _ in range(3))
    reading.get_tuple(config_of(thread))
    list(listing.list(config_of(thread)))
    for name, other in {"same": saver, "new": new, "reading": reading, "listing": listing}.items():
        for number, (parent, checkpoint) in enumerate(puts):
            other.put(parent, checkpoint, metadata, {})
            assert stored_of(thread) == stored, (name, number)
    # The last ones first: their parents are not known yet.
    backwards = AnabranchSaver()
    for parent, checkpoint in reversed(puts):
        backwards.put(parent, checkpoint, metadata, {})
    assert stored_of(thread) == stored
    assert read_of(thread) == head and list(AnabranchSaver().list(config_of(thread))) == listed
    # What is left of a thread that was pruned.
    saver.prune([thread])
    for other in (saver, new, AnabranchSaver()):
        other.put(*puts[-1], metadata, {})
        assert len(stored_of(thread)) == 1
    after = put(new, config, after=1)
    assert id_of(after) in stored_of(thread) and len(stored_of(thread)) == 2


def test_the_same_put_by_threads_of_several_savers_stores_one_checkpoint(saver: AnabranchSaver, thread: str) -> None:
    root = put(saver, config_of(thread), step=0)
    first, second = checkpoint_with({"step": 1}), checkpoint_with({"step": 2})
    savers = [AnabranchSaver() for _ in range(4)]
    with ThreadPoolExecutor(16) as pool:
        for checkpoint in (first, second):
            calls = [pool.submit(savers[n % 4].put, root, checkpoint, {"step": 1}, {}) for n in range(32)]
            assert {id_of(call.result()) for call in calls} == {checkpoint["id"]}
    assert stored_of(thread) == sorted([id_of(root), first["id"], second["id"]])


def test_a_put_with_a_stored_id_and_other_values_replaces_the_checkpoint(saver: AnabranchSaver, thread: str) -> None:
    configs = chain(saver, thread, 3)
    for number, other in enumerate((saver, AnabranchSaver(), saver, AnabranchSaver())):
        # As before every other time.
        replaced = put(other, configs[0], id_of(configs[1]), step="other" if number % 2 == 0 else 1)
        assert replaced == configs[1]
        for reader in (AnabranchSaver(), saver):
            assert values_in(reader, configs[1]) == {"step": "other" if number % 2 == 0 else 1}
        # It was put last, and is listed once.
        listed = [id_of(each.config) for each in AnabranchSaver().list(config_of(thread))]
        assert listed == [id_of(each) for each in (configs[1], configs[2], configs[0])]
    found = AnabranchSaver().get_tuple(configs[1])
    assert found is not None and found.pending_writes == [("task-1", "step", 2)]
    put(saver, config_of(thread), id_of(configs[0]), step="root")
    assert values_in(AnabranchSaver(), configs[0]) == {"step": "root"}
    saver.prune([thread])
    assert values_in(AnabranchSaver(), config_of(thread)) == {"step": "root"}


# Filters


def test_the_server_filters_by_source_step_run_and_thread(saver: AnabranchSaver, thread: str) -> None:
    config = config_of(thread)
    for step in range(6):
        source = "input" if step % 3 == 0 else "loop"
        metadata = {"source": source, "step": step, "run_id": f"run-{step // 3}", "user": step % 2}
        config = put(saver, config, step=step, metadata=metadata)
    put(saver, config_of(f"{thread}-other"), step=9, metadata={"step": 3, "run_id": "run-1"})

    def found(**filter: Any) -> list[int]:
        return [each.checkpoint["channel_values"]["step"] for each in saver.list(config_of(thread), filter=filter)]

    assert found(source="input") == [3, 0]
    assert found(run_id="run-1") == [5, 4, 3]
    assert found(run_id="run-1", step=4) == [4]
    assert found(user=1) == [5, 3, 1]
    assert found(user=1, source="loop") == [5, 1]
    assert found(step="3") == []
    assert next(saver.list(None, filter={"run_id": "run-1"})).metadata["step"] == 3
    assert len(list(saver.list(None, filter={"run_id": "run-1"}))) == 4
    assert len(list(saver.list(None, limit=2))) == 2


def test_namespaces_of_a_thread_are_listed_apart_and_together(saver: AnabranchSaver, thread: str) -> None:
    for ns in ("", "child:1", "child:1|" + "x" * 300):
        put(saver, config_of(thread, ns=ns), ns=ns)
        assert values_in(AnabranchSaver(), config_of(thread, ns=ns)) == {"ns": ns}
    assert len(list(saver.list({"configurable": {"thread_id": thread}}))) == 3


def test_pending_writes_are_stored_once_for_a_task_and_an_index(saver: AnabranchSaver, thread: str) -> None:
    config = put(saver, config_of(thread), a=1)
    saver.put_writes(config, [("a", "first"), ("b", None)], "task", "path")
    saver.put_writes(config, [("a", "second"), ("b", 2), ("c", b"bytes")], "task", "path")
    saver.put_writes(config, [(ERROR, "one")], "task")
    saver.put_writes(config, [(ERROR, "two")], "task")
    found = AnabranchSaver().get_tuple(config)
    assert found is not None
    writes = [("task", ERROR, "two"), ("task", "a", "first"), ("task", "b", None), ("task", "c", b"bytes")]
    assert found.pending_writes == writes


# Copies, branches and deletion


def test_copies_stay_as_they_are(saver: AnabranchSaver, thread: str) -> None:
    configs = chain(saver, thread, 5)
    fork = put(saver, configs[1], fork=True)
    copy, second = f"{thread}-copy", f"{thread}-copy of the copy"
    saver.copy_thread(thread, copy)
    saver.copy_thread(copy, second)

    def ids(thread_id: str) -> list[str]:
        return [id_of(each.config) for each in AnabranchSaver().list(config_of(thread_id))]

    before = ids(thread)
    assert ids(copy) == ids(second) == before and len(before) == 6
    # What is put later is in one of them only, whichever process puts it.
    put(saver, config_of(thread, id_of(configs[4])), later="in the thread")
    saver.put_writes(configs[4], [("late", 1)], "late task")
    new = AnabranchSaver()
    added = put(new, config_of(copy, id_of(configs[4])), later="in the copy")
    new.put_writes(config_of(copy, id_of(configs[4])), [("own", 1)], "own task")
    assert values_in(AnabranchSaver(), config_of(copy)) == {"later": "in the copy"}
    found = AnabranchSaver().get_tuple(config_of(copy, id_of(configs[4])))
    assert found is not None and [write[1] for write in found.pending_writes or []] == ["own", "step"]
    assert ids(second) == before
    # Deleting the thread leaves its copies.
    saver.delete_thread(thread)
    assert ids(thread) == [] and saver.get_tuple(configs[0]) is None
    assert ids(copy) == [id_of(added), *before] and ids(second) == before
    assert values_in(AnabranchSaver(), config_of(second, id_of(fork))) == {"fork": True}
    after = put(AnabranchSaver(), config_of(second, id_of(configs[2])), last=1)
    found = saver.get_tuple(config_of(second))
    assert found is not None and (id_of(found.config), id_of(found.parent_config)) == (id_of(after), id_of(configs[2]))
    # The thread can be used again.
    again = chain(AnabranchSaver(), thread, 2)
    assert ids(thread) == [id_of(config) for config in reversed(again)]


def test_copies_are_labelled_as_trajectories_of_their_thread(saver: AnabranchSaver, thread: str) -> None:
    config = chain(saver, thread, 1)[0]
    put(saver, config_of(thread, ns="inner"))
    copy = f"{thread}-copy"
    saver.copy_thread(thread, copy)
    saver.copy_thread(thread, copy)
    with pytest.raises(errors.InvalidRequest, match="must differ"):
        saver.copy_thread(thread, thread)

    def ordered(described: tuple[object, ...]) -> str:
        return json.dumps(described, sort_keys=True)

    with ab.connect() as client:
        copies = [(each.name, each.labels, each.metadata) for each in client.trajectories(task=f"langgraph/{copy}")]
    labels = {"integration": "langgraph", "thread": copy}
    main = (copy, {**labels, "kind": "checkpoints", "ns": ""}, {"thread_id": copy, "checkpoint_ns": ""})
    inner = (copy, {**labels, "kind": "checkpoints", "ns": "inner"}, {"thread_id": copy, "checkpoint_ns": "inner"})
    writes = (copy, {**labels, "kind": "writes"}, {"thread_id": copy})
    assert sorted(copies, key=ordered) == sorted(2 * [main, inner, writes], key=ordered)
    assert saver.get_tuple(config_of(copy, id_of(config))) is not None


def test_a_copy_keeps_large_states_when_its_source_is_deleted(saver: AnabranchSaver, thread: str) -> None:
    values = {"large": random.Random(1).randbytes(300_000), "huge": random.Random(2).randbytes(3_000_000)}
    config = put(saver, config_of(thread), **values)
    saver.put_writes(config, list(values.items()), "task")
    saver.copy_thread(thread, f"{thread}-copy")
    saver.delete_thread(thread)
    found = AnabranchSaver().get_tuple(config_of(f"{thread}-copy"))
    assert found is not None and found.checkpoint["channel_values"] == values
    assert found.pending_writes == [("task", name, value) for name, value in values.items()]


def test_pruning_keeps_the_latest_checkpoint_and_every_copy(saver: AnabranchSaver, thread: str) -> None:
    configs = chain(saver, thread, 4)
    saver.copy_thread(thread, f"{thread}-copy")
    saver.prune([thread])
    assert [id_of(each.config) for each in saver.list(config_of(thread))] == [id_of(configs[-1])]
    found = AnabranchSaver().get_tuple(config_of(thread))
    assert found is not None and [write[2] for write in found.pending_writes or []] == [4]
    assert len(list(saver.list(config_of(f"{thread}-copy")))) == 4
    # A process that knows the thread from before goes on.
    put(saver, configs[-1], step=9)
    saver.put_writes(configs[-1], [("more", 1)], "more")
    assert [each.checkpoint["channel_values"]["step"] for each in saver.list(config_of(thread))] == [9, 3]
    saver.prune([thread], strategy="delete")
    assert list(saver.list(config_of(thread))) == []
    with pytest.raises(ValueError, match="strategy is 'some': expected one of keep_latest, delete"):
        saver.prune([thread], strategy="some")


def pruned_thread(thread: str, kind: str) -> list[Any]:
    """Makes a thread whose latest checkpoint has writes, and needs those of its ancestors if `kind` is delta."""
    saver, config, configs = AnabranchSaver(), config_of(thread), list[Any]()
    for step in range(4):
        counters = {"counters_since_delta_snapshot": {"delta": [1, 1]}} if kind == "delta" else {}
        values = {"delta": "seed"} if kind == "delta" and step == 1 else {}
        config = put(saver, config, step=step, metadata={"step": step, **counters}, **values)
        configs.append(config)
        saver.put_writes(config, [("delta", step), ("other", -step)], f"task-{step}")
        saver.put_writes(config, [(ERROR, "first")], f"task-{step}")
        saver.put_writes(config, [(ERROR, "last")], f"task-{step}")
    put(saver, config_of(thread, ns="child:1"), child=1)
    return configs


def read_of(thread: str, **config: Any) -> dict[str, Any]:
    """Returns what a new process reads of the latest checkpoint of a thread."""
    saver = AnabranchSaver()
    found = saver.get_tuple(config_of(thread, **config))
    assert found is not None
    channels = ["delta"] if "counters_since_delta_snapshot" in found.metadata else []
    return {
        "config": found.config,
        "values": found.checkpoint["channel_values"],
        "writes": found.pending_writes,
        "delta": saver.get_delta_channel_history(config=found.config, channels=channels),
    }


def stored_of(thread: str) -> list[str]:
    """Returns which steps of a thread are stored, each as often as it is: checkpoint ids, and tasks of writes."""
    saver = AnabranchSaver()
    request = saver.operations._request(thread, [])
    request.inline_bytes = 0
    answer = saver.client.connection.stubs.trajectories.ListSteps(request, timeout=60)
    assert not answer.next_page_token
    abouts = [json.loads(each.step.metadata_json) for each in answer.steps]
    return sorted(about.get("task_id", about["checkpoint_id"]) for about in abouts)


@pytest.mark.usefixtures("any_engine")
@pytest.mark.parametrize("kind", ["plain", "delta"])
def test_pruning_again_by_other_processes_keeps_every_write(thread: str, kind: str) -> None:
    configs = pruned_thread(thread, kind)
    before = read_of(thread)
    if kind == "delta":
        assert before["delta"]["delta"] == {
            "writes": [(f"task-{n}", "delta", n) for n in (1, 2)],
            "seed": "seed",
        }
    for _ in range(3):
        AnabranchSaver().prune([thread])
        assert read_of(thread) == before
    stored = stored_of(thread)
    assert len(stored) == (4 if kind == "plain" else 10)
    AnabranchSaver().prune([thread])
    assert stored_of(thread) == stored
    # A checkpoint and writes that are added between two prunes.
    saver = AnabranchSaver()
    counters = {"counters_since_delta_snapshot": {"delta": [1, 1]}} if kind == "delta" else {}
    added = put(saver, configs[-1], step=9, metadata={"step": 9, **counters})
    saver.put_writes(added, [("delta", 9)], "task-9")
    saver.put_writes(configs[-1], [("delta", 8), (ERROR, "newest")], "task-3")
    before = read_of(thread)
    AnabranchSaver().prune([thread])
    assert read_of(thread) == before
    if kind == "delta":
        found = AnabranchSaver().get_tuple(configs[-1])
        assert found is not None
        assert found.pending_writes == [
            ("task-3", ERROR, "newest"),
            ("task-3", "delta", 3),
            ("task-3", "other", -3),
        ]


def watched(operation: Any, before: Callable[[int], bool]) -> Any:
    """An operation that asks before each of its calls whether to make it. Returns whether it ended."""
    number = 0
    try:
        call = next(operation)
        while before(number):
            number += 1
            try:
                answer = yield call
            except ab.AnabranchError as error:
                call = operation.throw(error)
            else:
                call = operation.send(answer)
    except StopIteration:
        return True
    operation.close()
    return False


@pytest.mark.parametrize("kind", ["plain", "delta"])
@pytest.mark.parametrize("act", ["prune", "delete_for_runs"])
def test_a_prune_that_is_interrupted_loses_nothing_and_can_be_repeated(thread: str, kind: str, act: str) -> None:
    from anabranch.langgraph._calls import run

    def operation(saver: AnabranchSaver, id: str) -> Any:
        return saver.operations.prune([id], "keep_latest") if act == "prune" else saver.operations.delete_runs(["r"])

    is_over, calls = False, 0
    while not is_over:
        id = f"{thread}-{calls}"
        first = put(AnabranchSaver(), config_of(id), run=1, metadata={"run_id": "r"})
        pruned_thread(id, kind)
        before, child = read_of(id), read_of(id, ns="child:1")
        # Twice: the repetition is interrupted too.
        for _ in range(2):
            saver = AnabranchSaver()
            is_over = run(saver.client.connection, watched(operation(saver, id), range(calls).__contains__))
            assert (read_of(id), read_of(id, ns="child:1")) == (before, child)
        saver = AnabranchSaver()
        run(saver.client.connection, operation(saver, id))
        assert (read_of(id), read_of(id, ns="child:1")) == (before, child)
        assert AnabranchSaver().get_tuple(first) is None
        stored = stored_of(id)
        counts = [len(stored), *(stored.count(f"task-{step}") for step in range(4))]
        # Two steps of writes count for each checkpoint that stays.
        expected = [4, 0, 0, 0, 2] if kind == "plain" else [10, 0, 2, 2, 2]
        assert counts == (expected if act == "prune" else [13, 2, 2, 2, 2])
        calls += 1
    assert calls > 8


def put_while_pruned(thread: str, configs: list[Any], when: int) -> Any:
    """Prunes a thread, and puts a checkpoint before its call number `when`. Returns the config; None without such a call."""
    from anabranch.langgraph._calls import run

    other, added = AnabranchSaver(), list[Any]()
    assert other.get_tuple(config_of(thread)) is not None

    def put_late(number: int) -> bool:
        if number == when:
            added.append(put(other, configs[-1], late=1))
            other.put_writes(added[0], [("late", 1)], "late")
            other.put_writes(configs[-1], [(ERROR, "newest")], "task-3")
        return True

    saver = AnabranchSaver()
    run(saver.client.connection, watched(saver.operations.prune([thread], "keep_latest"), put_late))
    return added[0] if added else None


@pytest.mark.usefixtures("any_engine")
@pytest.mark.parametrize("kind", ["plain", "delta"])
def test_a_checkpoint_that_is_put_while_its_thread_is_pruned_is_the_latest(thread: str, kind: str) -> None:
    for calls in itertools.count():
        id = f"{thread}-{calls}"
        configs = pruned_thread(id, kind)
        added = put_while_pruned(id, configs, calls)
        if added is None:
            break
        assert read_of(id)["config"] == added
        assert read_of(id)["writes"] == [("late", "late", 1)]
        assert next(AnabranchSaver().list(config_of(id))).config == added
        found = AnabranchSaver().get_tuple(configs[-1])
        if found is not None:
            assert found.pending_writes is not None and found.pending_writes[0] == ("task-3", ERROR, "newest")
    assert calls > 8


def test_a_thread_is_read_while_it_is_pruned(saver: AnabranchSaver, thread: str) -> None:
    from anabranch.langgraph._calls import run

    values = {"huge": random.Random(1).randbytes(300_000)}
    config = put(saver, config_of(thread), **values)
    saver.put_writes(config, list(values.items()), "task")
    found: list[Any] = []

    def read() -> Any:
        found.append((yield from saver.operations.get(config_of(thread))))

    def prune_too(number: int) -> bool:
        # Between a list and the states that it names.
        if number in (1, 4):
            AnabranchSaver().prune([thread])
        return True

    assert run(saver.client.connection, watched(read(), prune_too))
    assert found[0].checkpoint["channel_values"] == values
    assert found[0].pending_writes == [("task", "huge", values["huge"])]


@pytest.mark.parametrize("kind", ["plain", "delta"])
def test_a_thread_that_is_pruned_while_it_is_pruned_stays_as_it_is(thread: str, kind: str) -> None:
    from anabranch.langgraph._calls import run

    for calls in itertools.count():
        id = f"{thread}-{calls}"
        pruned_thread(id, kind)
        before, acts = read_of(id), list[int]()

        def prune_too(number: int, id: str = id, calls: int = calls, acts: list[int] = acts) -> bool:
            if number == calls:
                AnabranchSaver().prune([id])
                acts.append(number)
            return True

        saver = AnabranchSaver()
        run(saver.client.connection, watched(saver.operations.prune([id], "keep_latest"), prune_too))
        assert read_of(id) == before
        if not acts:
            break
    assert calls > 8


@pytest.mark.parametrize("kind", ["plain", "delta"])
def test_a_thread_that_is_pruned_by_several_processes_at_once_stays_as_it_is(thread: str, kind: str) -> None:
    pruned_thread(thread, kind)
    before = read_of(thread)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for call in [pool.submit(AnabranchSaver().prune, [thread]) for _ in range(4)]:
                call.result()
            assert read_of(thread) == before
    AnabranchSaver().prune([thread])
    assert len(stored_of(thread)) == (4 if kind == "plain" else 10)


def test_a_thread_that_is_put_to_all_the_time_is_not_pruned(saver: AnabranchSaver, thread: str) -> None:
    from anabranch.langgraph._calls import run

    config = pruned_thread(thread, "plain")[-1]
    other = AnabranchSaver()

    def put_more(number: int) -> bool:
        nonlocal config
        config = put(other, config, number=number)
        return True

    with pytest.raises(ab.AnabranchError, match="was written to at each of 8 attempts .* nothing was deleted"):
        run(saver.client.connection, watched(saver.operations.prune([thread], "keep_latest"), put_more))
    assert values_in(AnabranchSaver(), config_of(thread, ns="child:1")) == {"child": 1}
    put(other, config, last=1)
    AnabranchSaver().prune([thread])
    assert values_in(AnabranchSaver(), config_of(thread)) == {"last": 1}
    assert len(list(AnabranchSaver().list(config_of(thread)))) == 1


def test_the_checkpoints_of_a_run_are_deleted_and_others_keep_their_order(saver: AnabranchSaver, thread: str) -> None:
    config, configs = config_of(thread), []
    for step in range(6):
        config = put(saver, config, step=step, metadata={"run_id": "even" if step % 2 == 0 else "odd"})
        configs.append(config)
    saver.copy_thread(thread, f"{thread}-copy")
    saver.delete_for_runs(["even", "unknown"])
    assert [each.checkpoint["channel_values"]["step"] for each in saver.list(config_of(thread))] == [5, 3, 1]
    assert len(list(saver.list(config_of(f"{thread}-copy")))) == 6
    assert AnabranchSaver().get_tuple(configs[2]) is None


# Delta channels


@pytest.mark.usefixtures("any_engine")
@pytest.mark.parametrize("where", ["the thread", "a copy", "a fork", "a pruned thread"])
def test_the_history_of_delta_channels_is_that_of_the_base_class(
    saver: AnabranchSaver, thread: str, where: str
) -> None:
    config = config_of(thread)
    for step in range(70):
        values = {"delta": "seed"} if step == 20 else {}
        metadata = {"step": step, "counters_since_delta_snapshot": {"delta": [1, 1]}}
        config = put(saver, config, step=step, metadata=metadata, **values)
        saver.put_writes(config, [("delta", step), ("other", -step)], f"task-{step}")
        if step == 40:
            middle = config
    if where == "a copy":
        saver.copy_thread(thread, f"{thread}-copy")
        config = config_of(f"{thread}-copy")
    elif where == "a fork":
        config = put(saver, middle, fork=1)
    elif where == "a pruned thread":
        saver.prune([thread])
        assert len(list(saver.list(config_of(thread)))) == 50
    new = AnabranchSaver()
    channels = ["delta", "other", "none"]
    history = new.get_delta_channel_history(config=config, channels=channels)
    assert history == BaseCheckpointSaver.get_delta_channel_history(new, config=config, channels=channels)
    last = 41 if where == "a fork" else 69
    assert history["delta"] == {"writes": [(f"task-{n}", "delta", n) for n in range(20, last)], "seed": "seed"}
    assert "seed" not in history["none"] and history["none"]["writes"] == []
    assert new.get_delta_channel_history(config=config, channels=[]) == {}


# Serialization


def test_pickle_is_not_used_and_the_allow_list_holds(saver: AnabranchSaver, thread: str) -> None:
    strict = AnabranchSaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    config = put(saver, config_of(thread), path=Path("/tmp"), count=threading_like(3))
    assert values_in(saver, config)["count"] == threading_like(3)
    found = values_in(strict, config)
    assert found["path"] == Path("/tmp") and not isinstance(found["count"], Counting)
    allowed = strict.with_allowlist([(Counting.__module__, "Counting")])
    assert values_in(allowed, config)["count"] == threading_like(3)


class Counting:
    """A class that the serializer knows only by the allow-list."""

    def __init__(self, count: int) -> None:
        self.count = count

    def _asdict(self) -> dict[str, int]:
        return {"count": self.count}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counting) and other.count == self.count

    def __hash__(self) -> int:
        return self.count


def threading_like(count: int) -> Counting:
    return Counting(count)


@pytest.mark.parametrize("version", [None, 1, "00000000000000000000000000000007.0.123"])
def test_versions_of_channels_continue_those_of_other_savers(saver: AnabranchSaver, version: Any) -> None:
    after = saver.get_next_version(version, None)
    assert type(after) is (int if version is None else type(version))
    assert version is None or after > version


# Errors


def assert_nothing(thread: str) -> None:
    assert AnabranchSaver().get_tuple(config_of(thread)) is None
    assert list(ab.connect().trajectories(task=f"langgraph/{thread}")) == []


def test_a_state_that_cannot_be_serialized_stores_nothing(saver: AnabranchSaver, thread: str) -> None:
    with pytest.raises(TypeError, match=r"checkpoint \S+ cannot be serialized, so nothing was stored"):
        put(saver, config_of(thread), lock=threading.Lock())
    with pytest.raises(TypeError, match="the metadata of checkpoint"):
        put(saver, config_of(thread), a=1, metadata={"lock": threading.Lock()})
    assert_nothing(thread)
    config = put(saver, config_of(thread), a=1)
    with pytest.raises(TypeError, match="a write of task t cannot be serialized"):
        saver.put_writes(config, [("fine", 1), ("lock", threading.Lock())], "t")
    found = saver.get_tuple(config)
    assert found is not None and found.pending_writes == []


def test_an_oversized_value_stores_nothing(saver: AnabranchSaver, thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(saver, config_of(f"{thread}-other"), a=1)
    limits = ab._wire.limits.limits_of(saver.client.address)  # type: ignore[attr-defined]
    monkeypatch.setattr(limits, "values", {**limits.values, "stateBytes": 2_000_000})
    with pytest.raises(errors.StepTooLarge, match="a value has 30000.. bytes: expected at most 2000000"):
        put(saver, config_of(thread), large=random.Random(1).randbytes(3_000_000))
    assert_nothing(thread)
    config = put(saver, config_of(thread), a=1)
    with pytest.raises(errors.StepTooLarge, match="a value has 30000.. bytes: expected at most 2000000"):
        saver.put_writes(config, [("fine", 1), ("large", random.Random(1).randbytes(3_000_000))], "task")
    found = saver.get_tuple(config)
    assert found is not None and found.pending_writes == []


def test_values_and_metadata_of_megabytes(saver: AnabranchSaver, thread: str) -> None:
    large, metadata = random.Random(1).randbytes(3_000_000), {"notes": "x" * 1024 * 1024}
    config = put(saver, config_of(thread), large=large, metadata=metadata)
    saver.put_writes(config, [("large", large)], "task")
    found = AnabranchSaver().get_tuple(config_of(thread))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"large": large}
    assert found.metadata["notes"] == metadata["notes"]  # type: ignore[typeddict-item]
    assert found.pending_writes == [("task", "large", large)]


@pytest.mark.parametrize("id", ["1", "checkpoint", "Ünïcode 'id\"", "x" * 500, "1F1EC50A-5426-6E5C-BFFE-F256FD0CD439"])
def test_checkpoint_ids_that_are_no_uuid(saver: AnabranchSaver, thread: str, id: str) -> None:
    first = put(saver, config_of(thread), "0", a=0)
    config = put(saver, first, id, a=1)
    saver.put_writes(config, [("a", 2)], "task")
    found = AnabranchSaver().get_tuple(config_of(thread, id))
    assert found is not None and id_of(found.config) == id and id_of(found.parent_config) == "0"
    assert found.pending_writes == [("task", "a", 2)]


@pytest.mark.parametrize("odd", ["", "x" * 1000, "a\0b", "\ud800", 7])
def test_thread_ids_of_any_form(saver: AnabranchSaver, thread: str, odd: Any) -> None:
    id = odd if isinstance(odd, int) else f"{thread}{odd}"
    config = put(saver, config_of(id), a=1)
    saver.put_writes(config, [("a", 2)], "task")
    found = AnabranchSaver().get_tuple(config_of(id))
    assert found is not None and found.config["configurable"]["thread_id"] == str(id)
    assert found.pending_writes == [("task", "a", 2)]
    saver.delete_thread(id)
    assert saver.get_tuple(config_of(id)) is None


def test_unknown_threads_and_missing_ids(saver: AnabranchSaver, thread: str) -> None:
    assert saver.get_tuple(config_of(thread)) is None
    assert list(saver.list(config_of(thread))) == []
    for act in (saver.delete_thread, lambda id: saver.copy_thread(id, f"{id}-copy"), lambda id: saver.prune([id])):
        act(thread)
    with pytest.raises(ValueError, match="config has no thread_id"):
        saver.get_tuple({"configurable": {}})
    with pytest.raises(ValueError, match="config has no checkpoint_id"):
        saver.put_writes(config_of(thread), [("a", 1)], "task")
    # A parent that is not stored is kept as it was named.
    config = put(saver, config_of(thread, str(uuid.uuid4())), a=1)
    assert values_in(saver, config) == {"a": 1}


@pytest.fixture
def guarded(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyServer]:
    monkeypatch.delenv("ANABRANCH_NAMESPACE")
    monkeypatch.setattr("anabranch._wire.access._given", {})
    running = KeyServer(tmp_path, host)
    running.start()
    yield running
    running.kill()


async def test_a_wrong_token_stores_nothing_and_deleting_needs_the_role_write(guarded: KeyServer, thread: str) -> None:
    def client(token: str | Path) -> ab.Client:
        return ab.connect(guarded.address, token=token, spool=False)

    with pytest.raises(errors.Unauthenticated):
        put(AnabranchSaver(client("wrong")), config_of(thread), a=1)
    async with AsyncAnabranchSaver(client("wrong")) as wrong:
        with pytest.raises(errors.Unauthenticated):
            await wrong.aput(config_of(thread), checkpoint_with({"a": 1}), {"step": 0}, {})
        with pytest.raises(errors.Unauthenticated):
            await wrong.aput_writes(config_of(thread, "1"), [("a", 1)], "task")
    _, secret = guarded.make_key("agent", ROLE_WORK, "default")
    saver = AnabranchSaver(client(secret))
    assert saver.get_tuple(config_of(thread)) is None
    configs = chain(saver, thread, 2)
    saver.copy_thread(thread, f"{thread}-copy")
    before = [(each.id, each.next_step_number, each.status) for each in saver.client.trajectories()]
    assert len(before) == 4
    for act in (saver.delete_thread, lambda id: saver.prune([id]), lambda _: saver.delete_for_runs(["run"])):
        with pytest.raises(errors.PermissionDenied, match="WRITE"):
            act(thread)
    async with AsyncAnabranchSaver(client(secret)) as other:
        with pytest.raises(errors.PermissionDenied, match="this needs the role WRITE, and agent has the role WORK"):
            await other.aprune([thread])
    assert [(each.id, each.next_step_number, each.status) for each in saver.client.trajectories()] == before
    assert [id_of(each.config) for each in saver.list(config_of(thread))] == [id_of(each) for each in reversed(configs)]
    AnabranchSaver(client(guarded.key_file)).delete_thread(thread)
    assert saver.get_tuple(config_of(thread)) is None


def test_a_server_of_another_version_is_refused(server: Server, thread: str) -> None:
    other = Front(server, info_of(server, version="9.9.9"))
    with pytest.raises(ab.AnabranchError, match="client version .* cannot use server version 9.9.9"):
        put(AnabranchSaver(other.address), config_of(thread), a=1)
    other.stop()
    assert_nothing(thread)


async def test_another_version_with_asyncio(server: Server, thread: str) -> None:
    other = Front(server, info_of(server, version="9.9.9"))
    async with AsyncAnabranchSaver(other.address) as saver:
        with pytest.raises(ab.AnabranchError, match="cannot use server version 9.9.9"):
            await saver.aget_tuple(config_of(thread))
    other.stop()


def test_calls_continue_after_a_restart(own_server: Server, thread: str) -> None:
    own_server.start()
    with AnabranchSaver(own_server.address) as saver:
        configs = chain(saver, thread, 2)
        own_server.kill()
        with ThreadPoolExecutor(2) as pool:
            stored = pool.submit(put, saver, configs[-1], step=2)
            written = pool.submit(saver.put_writes, configs[-1], [("late", 1)], "late")
            own_server.start()
            third = stored.result()
            written.result()
        assert values_in(saver, third) == {"step": 2}
        assert len(list(saver.list(config_of(thread)))) == 3


async def test_calls_with_asyncio_continue_after_a_restart(own_server: Server, thread: str) -> None:
    own_server.start()
    async with AsyncAnabranchSaver(own_server.address) as saver:
        first = await saver.aput(config_of(thread), checkpoint_with({"a": 1}), {"step": 0}, {})
        own_server.kill()
        pending = [
            asyncio.ensure_future(saver.aput(first, checkpoint_with({"a": 2}), {"step": 1}, {})),
            asyncio.ensure_future(saver.aput_writes(first, [("b", 1)], "task")),
        ]
        await asyncio.to_thread(own_server.start)
        await asyncio.gather(*pending)
        assert [each.checkpoint["channel_values"]["a"] async for each in saver.alist(config_of(thread))] == [2, 1]


def test_an_outage_beyond_the_limit_is_a_clear_error(
    own_server: Server, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_server.start()
    with AnabranchSaver(own_server.address) as saver:
        first = put(saver, config_of(thread), a=1)
        own_server.kill()
        with monkeypatch.context() as limited:
            limited.setenv("ANABRANCH_CALL_SECONDS", "0.5")
            with pytest.raises(ab.AnabranchError, match="has not answered for"):
                put(saver, first, a=2)
            with pytest.raises(ab.AnabranchError, match="has not answered for"):
                saver.put_writes(first, [("b", 1)], "task")
        own_server.start()
        assert [each.checkpoint["channel_values"]["a"] for each in saver.list(config_of(thread))] == [1]
        saver.put_writes(first, [("b", 1)], "task")
        put(saver, first, a=2)
        assert values_in(saver, config_of(thread)) == {"a": 2}


async def test_a_cancelled_call_leaves_the_others(saver: AnabranchSaver, front: Front, thread: str) -> None:
    async with AsyncAnabranchSaver(front.address) as own:
        config = await own.aput(config_of(thread), checkpoint_with({"a": 1}), {"step": 0}, {})
        calls = [asyncio.ensure_future(own.aput_writes(config, [("a", i)], f"task-{i}")) for i in range(10)]
        await asyncio.sleep(0)
        calls[0].cancel()
        await asyncio.gather(*calls[1:])
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        found = await own.aget_tuple(config)
        assert found is not None and {write[2] for write in found.pending_writes or []} >= set(range(1, 10))


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "get": ({},),
    "get_tuple": ({},),
    "list": ({},),
    "put": ({}, {}, {}, {}),
    "put_writes": ({}, [], "task"),
    "delete_thread": ("1",),
    "delete_for_runs": (["r"],),
    "copy_thread": ("1", "2"),
    "prune": (["1"],),
}


@pytest.mark.parametrize("method", [*ARGUMENTS, "get_delta_channel_history"])
async def test_methods_of_the_other_kind_name_the_other_class(method: str) -> None:
    arguments, named = ARGUMENTS.get(method, ()), {} if method in ARGUMENTS else {"config": {}, "channels": ["a"]}
    with pytest.raises(
        NotImplementedError, match="AnabranchSaver has no asynchronous methods.* use AsyncAnabranchSaver"
    ):
        result = getattr(AnabranchSaver(), f"a{method}")(*arguments, **named)
        await result
    async with AsyncAnabranchSaver() as saver:
        with pytest.raises(NotImplementedError, match="only asynchronous methods.* invoke and stream AnabranchSaver"):
            getattr(saver, method)(*arguments, **named)


async def test_a_graph_with_the_saver_of_the_other_kind_raises_a_clear_error(thread: str) -> None:
    graph = StateGraph(MessagesState).add_node("answer", lambda _: {"messages": []}).add_edge(START, "answer")
    with pytest.raises(NotImplementedError, match="use AsyncAnabranchSaver"):
        await graph.compile(checkpointer=AnabranchSaver()).ainvoke({"messages": []}, config_of(thread))
    async with AsyncAnabranchSaver() as saver:
        with pytest.raises(NotImplementedError, match="Use ainvoke"):
            graph.compile(checkpointer=saver).invoke({"messages": []}, config_of(thread))


def test_the_missing_package_is_named() -> None:
    program = "import sys; sys.modules['langgraph.checkpoint.base'] = None; import anabranch.langgraph"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)
    message = "anabranch.langgraph needs the package langgraph-checkpoint: pip install 'anabranch-client[langgraph]'"
    assert message in done.stderr


# Many writers


def write_many(address: str, root: Any, process: int) -> None:
    """Puts chains and writes in 16 threads of a process, or in 16 tasks of asyncio."""
    if process % 2 == 1:
        asyncio.run(write_many_async(address, root, process))
        return
    with AnabranchSaver(address) as saver:

        def work(number: int) -> None:
            config = root
            for step in range(3):
                name = f"{process}/{number}/{step}"
                config = put(saver, config, name=name, metadata={"step": step})
                saver.put_writes(config, [("name", name)], f"task {name}")
                saver.put_writes(root, [("name", name)], f"task {name}")

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(16)))


async def write_many_async(address: str, root: Any, process: int) -> None:
    async with AsyncAnabranchSaver(address) as saver:

        async def work(number: int) -> None:
            config = root
            for step in range(3):
                name = f"{process}/{number}/{step}"
                config = await saver.aput(config, checkpoint_with({"name": name}), {"source": "loop", "step": step}, {})
                await saver.aput_writes(config, [("name", name)], f"task {name}")
                await saver.aput_writes(root, [("name", name)], f"task {name}")

        await asyncio.gather(*map(work, range(16)))


def test_threads_tasks_and_processes_on_one_thread_lose_no_write(
    server: Server, saver: AnabranchSaver, thread: str
) -> None:
    root = put(saver, config_of(thread), name="root")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_many, args=(server.address, root, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    names = {f"{process}/{number}/{step}" for process in range(4) for number in range(16) for step in range(3)}
    found = list(AnabranchSaver().list(config_of(thread)))
    stored = [each.checkpoint["channel_values"]["name"] for each in found]
    assert sorted(stored) == sorted([*names, "root"])
    for each in found:
        own = each.checkpoint["channel_values"]["name"]
        expected = sorted(names) if own == "root" else [own]
        assert sorted(write[2] for write in each.pending_writes or []) == expected
    steps = {(each.trajectory_id, each.number) for each in places_of(saver, thread)}
    assert len(steps) == len(names) + 1
    assert values_in(saver, root) == {"name": "root"}


def places_of(saver: AnabranchSaver, thread: str) -> list[Any]:
    """Returns where all checkpoints of a thread are, each time that they are stored."""
    operations = saver.operations
    request = operations._request(thread, ["checkpoint"])
    from anabranch.langgraph._calls import run

    return [each.place for each in run(saver.client.connection, operations._steps(request))]


def test_a_saver_takes_a_client_an_address_or_a_file(
    server: Server, thread: str, runtime: Path, tmp_path: Path
) -> None:
    config = put(AnabranchSaver(ab.connect()), config_of(thread), a=1)
    assert values_in(AnabranchSaver(), config) == {"a": 1}
    file = f"sqlite:{tmp_path}/runs.db"
    with AnabranchSaver.from_conn_string(file) as saver:
        saver.setup()
        put(saver, config_of(thread), a=2)
    with AnabranchSaver(file) as saver:
        assert values_in(saver, config_of(thread)) == {"a": 2}


async def test_an_asynchronous_saver_takes_a_file(thread: str, runtime: Path, tmp_path: Path) -> None:
    async with AsyncAnabranchSaver.from_conn_string(f"sqlite:{tmp_path}/runs.db") as saver:
        await saver.setup()
        await saver.aput(config_of(thread), checkpoint_with({"a": 2}), {"step": 0}, {})
        found = await saver.aget_tuple(config_of(thread))
        assert found is not None and found.checkpoint["channel_values"] == {"a": 2}


# Import


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_checkpoints_of_other_savers_are_imported(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest, thread: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.sqlite import SqliteSaver

    from anabranch.langgraph.__main__ import main

    source = str(tmp_path / "theirs.sqlite") if engine == "sqlite" else request.getfixturevalue("postgres_url")
    opened: Any = (SqliteSaver if engine == "sqlite" else PostgresSaver).from_conn_string(source)
    with opened as theirs:
        theirs.setup()
        messages = [HumanMessage("Hello", id="1")]
        first = put(theirs, config_of(thread), messages=messages, count=1, none=None, raw=b"bytes")
        second = put(theirs, first, messages=messages, count=2, metadata={"source": "input", "step": 5, "run_id": "r"})
        put(theirs, first, fork={"deep": [1, 2]})
        put(theirs, config_of(thread, ns="child:1"), child=True)
        put(theirs, config_of(f"{thread}-other"), other=1)
        theirs.put_writes(second, [("messages", messages), ("none", None), ("raw", b"raw")], "task", "path")
        theirs.put_writes(second, [(ERROR, "failed")], "task")

        def imported(*arguments: str) -> Any:
            assert main(["import", source, "--json", "--thread", thread, *arguments]) == 0
            return json.loads(capsys.readouterr().out)

        assert imported("--dry-run")["checkpoints"] == 4
        assert AnabranchSaver().get_tuple(config_of(thread)) is None
        for _ in range(2):
            result = imported()
            assert (result["saver"], result["checkpoints"], result["writes"]) == (engine, 4, 4)
            for ns in ("", "child:1"):
                found, original = (list(each.list(config_of(thread, ns=ns))) for each in (AnabranchSaver(), theirs))
                assert [each.config for each in found] == [each.config for each in original]
                for own, other in zip(found, original, strict=True):
                    assert own.checkpoint["channel_values"] == other.checkpoint["channel_values"]
                    assert own.checkpoint["channel_versions"] == other.checkpoint["channel_versions"]
                    assert own.metadata == other.metadata
                    assert own.parent_config == other.parent_config
                    assert own.pending_writes == other.pending_writes
    assert AnabranchSaver().get_tuple(config_of(f"{thread}-other")) is None
    put(AnabranchSaver(), second, more=1)
    assert values_in(AnabranchSaver(), config_of(thread)) == {"more": 1}


def test_a_source_without_checkpoints_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from anabranch.langgraph.__main__ import main

    (tmp_path / "empty.db").touch()
    assert main(["import", str(tmp_path / "empty.db")]) == 1
    assert (
        "has no checkpoints of LangGraph: expected the tables checkpoints, writes (sqlite)" in capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        main(["import", "mysql://host/db"])
