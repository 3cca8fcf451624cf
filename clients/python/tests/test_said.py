"""`t.say()`: what is said is durable at once, and is stored with the next step or as a step of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Server, free_port, stored_steps

import anabranch as ab
from anabranch._recording.abandoned import Abandoned, Owner
from anabranch._recording.segment import read_segment
from anabranch._recording.turns import messages_of
from anabranch.errors import TrajectorySealed
from anabranch.v1.trajectory_pb2 import Step

REPLY = {"choices": [{"message": {"role": "assistant", "content": "yes"}}]}
ANSWER = {"role": "assistant", "content": "yes"}


def user(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


def kinds(server: Server, trajectory_id: str) -> list[list[str]]:
    """Returns the types of the observations of each step."""
    return [[item.type for item in step.observations] for step in stored_steps(server, trajectory_id)]


def test_the_next_step_has_what_was_said_in_its_order(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.say("before the reset")
    t.reset(messages=user("reset"), observation=0)
    t.say("before the turn")
    with t.turn(REPLY):
        t.say("within the turn")
    t.say(["before", {"role": "user", "content": "the step"}])
    t.step(action=1, observation=2)
    expected = [
        *user("before the reset", "reset", "before the turn"),
        ANSWER,
        *user("within the turn", "before", "the step"),
    ]
    assert t.messages == expected
    t.flush(60)
    assert kinds(server, t.id) == [
        ["message", "message", ""],
        ["prompt_message", "message"],
        ["prompt_message", "prompt_message", ""],
    ]
    again = client.branch(t.id, at=2)
    assert (again.messages, again.last_observation) == (expected, 2)


def test_the_end_of_a_trajectory_stores_what_was_said_as_a_step(server: Server) -> None:
    client = ab.connect(server.address)
    with client.trajectory() as t:
        t.reset(messages=user("a"))
        t.say("b")
    t.flush(60)
    assert kinds(server, t.id) == [["message"], ["message"]]
    assert client.branch(t.id, at=1).messages == t.messages == user("a", "b")


def test_what_was_said_to_a_rollout_is_stored_when_it_completes(server: Server) -> None:
    client = ab.connect(server.address)
    run = client.run(f"run {uuid.uuid4()}", plan=ab.Plan(train_steps=1, groups=1, group_size=1))
    stage = next(run.train_steps())
    with stage.rollout(0, 0) as rollout:
        rollout.reset(messages=user("a"))
        rollout.say("b")
        trajectory_id = rollout.trajectory.id
    assert kinds(server, trajectory_id) == [["message"], ["message"]]


def test_a_branch_has_what_was_said_after_the_last_step(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(messages=user("a"))
    t.say("b")
    branch = t.branch()
    with branch.turn(REPLY):
        pass
    assert branch.messages == [*user("a", "b"), ANSWER]
    branch.flush(60)
    assert client.branch(branch.id, at=1).messages == branch.messages
    # A step that is named has only what it was recorded with.
    assert t.branch(at=0).messages == user("a")
    assert t.messages == user("a", "b")


def test_what_was_said_before_a_rewind_is_stored_where_it_was_said(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(messages=user("a"), states={"env": b"s"})
    t.step(action=1)
    t.say("b")
    first = t.id
    assert t.rewind() is not None
    t.say("c")
    t.step(action=2)
    assert t.messages == user("a", "c")
    t.flush(60)
    assert client.branch(first, at=2).messages == user("a", "b")
    assert client.branch(t.id, at=1).messages == user("a", "c")


@pytest.mark.parametrize("messages", [None, [], ()])
def test_nothing_said_is_nothing(server: Server, messages: Any) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(messages=messages)
    t.say(messages)
    t.seal()
    assert (t.messages, t.next_step) == ([], 1)


def test_what_is_no_message_is_left_out_with_a_warning(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.say([3, *user("a"), None])  # type: ignore[list-item]
    t.say(7)  # type: ignore[arg-type]
    assert t.messages == user("a")
    assert client.stats.unstored == {"int": 2, "NoneType": 1}
    with pytest.raises(TypeError, match=r"messages\[0\] is a int"):
        ab.connect(server.address, strict=True).trajectory().say([3])  # type: ignore[list-item]


def test_any_iterable_and_any_number_of_messages_is_one_step(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    expected = user(*(f"{number} {'x' * 1000}" for number in range(3000)))
    t.reset(messages=iter(expected))
    assert t.messages == expected
    t.flush(60)
    (step,) = stored_steps(server, t.id)
    assert len(step.observations) <= 256
    assert client.branch(t.id, at=0).messages == expected


def test_say_after_the_seal_raises_with_strict_only(server: Server) -> None:
    for strict in (False, True):
        t = ab.connect(server.address, strict=strict).trajectory()
        t.reset()
        t.seal()
        if strict:
            with pytest.raises(TrajectorySealed):
                t.say("late")
        else:
            t.say("late")


#: Each way to end with something that no step has. They print the id, and what must be stored.
ENDS = """
import json, os, sys
import anabranch as ab
client = ab.connect(sys.argv[1])
REPLY = {"choices": [{"message": {"role": "assistant", "content": "yes"}}]}
def twice(t):
    t.say("a")
    t.say("b")
def tagged(t):
    t.say("a")
    t.tag("x")
def before_any_step(t):
    t.say("a")
def large(t):
    t.say("a" * 3_000_000)
def after_states(t):
    t.say("a")
    t.step(action=1, states={"env": os.urandom(700_000)})
    t.say("b")
    t.tag("y")
def within_a_turn(t):
    t.say("a")
    t.turn(REPLY).__enter__()
    t.say("b")
def after_a_turn(t):
    with t.turn(REPLY):
        t.say("a")
def after_a_flush(t):
    t.step(action=1)
    if len(sys.argv) > 3:
        t.flush()
    t.say("a")
kept = []
for way in (twice, tagged, before_any_step, large, after_states, within_a_turn, after_a_turn, after_a_flush):
    t = client.trajectory()
    if way is not before_any_step:
        t.reset(messages=[{"role": "user", "content": "start"}])
    way(t)
    kept.append(t)
    expected = [each for each in t.messages if way is not within_a_turn or each["role"] == "user"]
    print(json.dumps([way.__name__, t.id, expected]), flush=True)
del t, kept
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(0)", "pass"])
@pytest.mark.parametrize("reached", [True, False], ids=["server", "no server"])
def test_what_was_said_survives_the_end_of_the_process_and_is_stored_once(
    own_server: Server, end: str, reached: bool
) -> None:
    if reached:
        own_server.start()
    program = [sys.executable, "-c", ENDS + end, own_server.address, "x", *(["flush"] if reached else [])]
    environment = {**os.environ, "ANABRANCH_EXIT_SECONDS": "60" if reached else "0"}
    run = subprocess.run(program, check=False, capture_output=True, text=True, timeout=200, env=environment)
    assert "Traceback" not in run.stderr
    if not reached:
        own_server.start()
    command = [sys.executable, "-m", "anabranch", "spool", "send", "--address", own_server.address]
    subprocess.run(command, check=True, timeout=200)
    client = ab.connect(own_server.address)
    lines = run.stdout.splitlines()
    assert len(lines) == 8
    for line in lines:
        way, trajectory_id, expected = json.loads(line)
        stored = own_server.stored(trajectory_id)
        assert client.branch(trajectory_id, at=stored.next_step_number - 1).messages == expected, way
    assert {each.name for each in own_server.listed()} == {""}
    assert len(own_server.listed()) >= 8


def left_in(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Yields the messages that a next process finds in a spool, for each number of records that can be acked."""
    owner = Owner.lock(folder)
    assert owner is not None
    try:
        (left,) = Abandoned(owner).left or [None]
        if left is None:
            yield []
            return
        steps = [(entry.position, _step_of(entry)) for entry in left.entries if entry.has_step]
        for settled in range(left.entries[-1].position + 1):
            marked = Abandoned(owner)
            marked.marks.set(left.number, settled)
            found = [_step_of(e) for each in Abandoned(owner).left for e in each.entries if e.has_step]
            assert found == [step for position, step in steps if position >= settled]
        Abandoned(owner).marks.set(left.number, 0)
        yield [message for _, step in steps for message in messages_of(step, _none)]
    finally:
        owner.release()


def _step_of(entry: Any) -> Step:
    from anabranch._recording.rpc import step_of

    return Step.FromString(step_of(entry.kind, entry.segment.read(entry.offset, entry.length)))


def _none(digest: str) -> bytes:
    raise KeyError(digest)


def test_at_each_record_a_crash_loses_and_doubles_nothing_that_was_said(spool: Path, tmp_path: Path) -> None:
    t = ab.connect(f"127.0.0.1:{free_port()}").trajectory()
    known: list[Any] = [[]]
    moves = [
        lambda: t.reset(messages=user("a")),
        lambda: t.say("b"),
        lambda: t.tag("x"),
        lambda: t.say("c"),
        lambda: t.step(action=1, states={"env": os.urandom(600_000), "other": os.urandom(600_000)}, tags=["y"]),
        lambda: t.say("d"),
        lambda: t.step(action=2),
        lambda: t.tag("z"),
        lambda: t.say("e"),
        lambda: t.seal(),
    ]
    for move in moves:
        move()
        known.append(t.messages)
    (folder,) = spool.glob("*/*")
    (path,) = folder.glob("*.seg")
    records, _ = read_segment(path)
    at = 0
    for record in records:
        # A crash before this record was written.
        crashed = tmp_path / "crashed" / "address" / "owner"
        shutil.rmtree(crashed, ignore_errors=True)
        shutil.copytree(folder, crashed)
        copied = crashed / path.name
        copied.write_bytes(copied.read_bytes()[: record.offset - 24])
        for found in left_in(crashed):
            # It is what was known after a move, and never less than before.
            at = next(index for index in range(at, len(known)) if known[index] == found)
    assert known[at] == user("a", "b", "c", "d", "e")
