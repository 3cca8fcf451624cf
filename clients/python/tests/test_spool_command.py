"""What a server has refused is kept and settled once, and `python -m anabranch spool` settles or sends what is left."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Server, stored_steps
from front import Front
from programs import run_spool, spool_command, start

import anabranch as ab
from anabranch._recording import transfer as _transfer
from anabranch.errors import RunNotFound, TrajectoryNotFound
from anabranch.v1.trajectory_service_pb2 import DeleteTrajectoryRequest, ListTagsRequest

NO_RUN = "01a22200-0000-7000-8000-000000000000"

#: Records two trajectories: one of a run that does not exist, and another one. `run` is an object, as one that was read
#: before the run was deleted.
RECORDS = """
import logging, os, sys
from types import SimpleNamespace
import anabranch as ab
client = ab.connect(sys.argv[1])
run = SimpleNamespace(id=sys.argv[2])
refused = client.trajectory(id=sys.argv[3], run=run, name="lost", labels={"a": "b"})
other = client.trajectory(id=sys.argv[4])
for t in refused, other:
    with t:
        t.reset(observation=0)
        t.step(action=1, observation=1, reward=2.0, tags=["best"])
        t.step(action=2, states={"env": b"x" * 600_000})
other.flush(60)
try:
    refused.flush(60)
except ab.errors.RunNotFound as error:
    print(error)
"""
KILLED = RECORDS + "\nos._exit(0)"


class Recorded:
    """A program that has recorded a trajectory that was refused, and another one."""

    def __init__(self, address: str, program: str) -> None:
        self.refused, self.other = str(uuid.uuid4()), str(uuid.uuid4())
        process = start(program, address, NO_RUN, self.refused, self.other, ANABRANCH_EXIT_SECONDS="60")
        self.output, self.errors = process.communicate(timeout=200)
        assert process.returncode == 0, self.errors


@pytest.fixture
def front(own_server: Server) -> Iterator[Front]:
    own_server.start()
    running = Front(own_server)
    yield running
    running.stop()


#: What another process does that records for the same server.
OTHER = """
import sys
import anabranch as ab
client = ab.connect(sys.argv[1])
t = client.trajectory()
t.reset(observation=0)
t.flush(60)
assert client.recorder.adopt(60)
"""


@pytest.mark.parametrize("program", [RECORDS, KILLED], ids=["ended", "killed"])
def test_a_refused_trajectory_is_one_error_and_no_process_tries_it_again(
    own_server: Server, front: Front, program: str
) -> None:
    done = Recorded(front.address, program)
    # The flush raises the class of the reason, with the way out.
    for text in (done.output, done.errors):
        assert f'RUN_NOT_FOUND: Run "{NO_RUN}" does not exist' in text
        assert "`python -m anabranch spool` lists, renames, drops or exports them" in text
    assert f"trajectory {done.refused}: 3 steps are refused" in done.errors
    assert len(done.errors.splitlines()) == 1
    assert len(stored_steps(own_server, done.other)) == 3
    front.methods.clear()
    for _ in range(2):
        output, errors = start(OTHER, front.address, ANABRANCH_EXIT_SECONDS="60").communicate(timeout=100)
        assert (output, errors) == ("", "")
    # One stream for each trajectory of their own.
    assert front.methods == ["AppendSteps"] * 2
    assert "0 steps were sent" in run_spool("send", "--address", front.address)
    listed = run_spool("list")
    assert f"refused: {done.refused} 'lost', 3 steps: RUN_NOT_FOUND" in listed
    assert "abandoned: 0 steps of 0 trajectories" in listed


def test_what_was_refused_takes_its_own_room_only(front: Front, spool: Path) -> None:
    Recorded(front.address, RECORDS)
    run_spool("send", "--address", front.address)
    assert sum(path.stat().st_size for path in spool.glob("*/*/*.seg")) < 2_000_000


@pytest.mark.parametrize("program", [RECORDS, KILLED], ids=["ended", "killed"])
def test_a_renamed_trajectory_is_sent(own_server: Server, front: Front, program: str) -> None:
    done = Recorded(front.address, program)
    changes = ["--run", "", "--name", "found", "--task", "t", "--label", "c=d=e"]
    assert f"spool send --address {front.address}" in run_spool("rename", done.refused, *changes)
    run_spool("send", "--address", front.address)
    stored = own_server.stored(done.refused)
    assert (stored.name, stored.task_id, dict(stored.labels)) == ("found", "t", {"a": "b", "c": "d=e"})
    assert (stored.next_step_number, stored.reward_sum, stored.status) == (3, 2.0, 5)
    tags = own_server.stubs().trajectories.ListTags(ListTagsRequest(trajectory_id=done.refused)).tags
    assert [(tag.name, tag.step_number) for tag in tags] == [("best", 1)]
    assert run_spool("list") == ""


def test_a_trajectory_that_is_renamed_without_changes_is_tried_once_more(front: Front) -> None:
    done = Recorded(front.address, RECORDS)
    run_spool("rename", done.refused)
    assert "abandoned: 3 steps of 1 trajectories" in run_spool("list")
    again = spool_command("send", "--address", front.address)
    assert (again.returncode, again.stdout) == (1, "0 steps were sent\n")
    assert "RUN_NOT_FOUND" in again.stderr
    assert f"refused: {done.refused} 'lost', 3 steps" in run_spool("list")


def test_what_the_server_would_refuse_again_is_no_name(front: Front) -> None:
    done = Recorded(front.address, RECORDS)
    for changes, problem in (
        (["--name", "n" * 300], "`name` has 300 bytes"),
        (["--run", "my run"], "`run` is 'my run'"),
        (["--label", "key"], "--label is 'key': expected KEY=VALUE"),
    ):
        answer = spool_command("rename", done.refused, *changes)
        assert answer.returncode == 1
        assert problem in answer.stderr
    unknown = spool_command("rename", done.other, "--name", "n")
    assert f"no trajectory {done.other} was refused" in unknown.stderr


def test_a_dropped_trajectory_is_gone(front: Front) -> None:
    done = [Recorded(front.address, RECORDS) for _ in range(2)]
    run_spool("drop", *(each.refused for each in done))
    assert run_spool("list") == ""
    again = spool_command("drop", done[0].refused)
    assert (again.returncode, again.stdout) == (1, "")


def test_an_exported_trajectory_is_what_the_server_would_have_received(front: Front, tmp_path: Path) -> None:
    done = Recorded(front.address, RECORDS)
    file = tmp_path / "refused.jsonl"
    run_spool("export", done.refused, "--output", str(file))
    assert file.read_text() == run_spool("export", done.refused)
    head, create, *records = map(json.loads, file.read_text().splitlines())
    assert (head["trajectory_id"], head["refused"].partition(":")[0]) == (done.refused, "RUN_NOT_FOUND")
    assert {key: create["create"][key] for key in ("name", "run_id", "labels")} == {
        "name": "lost",
        "run_id": NO_RUN,
        "labels": {"a": "b"},
    }
    steps = [record["step"] for record in records if "step" in record]
    assert [step.get("step_number", "0") for step in steps] == ["0", "1", "2"]
    assert steps[1]["reward"] == 2.0
    (state,) = [record["state"] for record in records if "state" in record]
    data = base64.b64decode(state["data"])
    digest = hashlib.sha256(data).hexdigest()
    assert (data, digest, digest) == (b"x" * 600_000, state["digest"], steps[2]["states"][0]["digest"])
    assert [record["tag"] for record in records if "tag" in record] == [{"name": "best", "step_number": "1"}]
    assert records[-1] == {"seal": {"status": "STATUS_COMPLETED"}}
    # It is still there, and no file is overwritten.
    assert done.refused in run_spool("list")
    assert spool_command("export", done.refused, "--output", str(file)).returncode == 1


STAYS = RECORDS + "\nprint('recorded', flush=True)\nsys.stdin.readline()"


def test_the_process_that_recorded_keeps_what_was_refused_until_its_end(front: Front) -> None:
    refused = str(uuid.uuid4())
    command = [sys.executable, "-c", STAYS, front.address, NO_RUN, refused, str(uuid.uuid4())]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert "recorded\n" in iter(process.stdout.readline, "")
    assert f"in use\n  refused: {refused}: RUN_NOT_FOUND" in run_spool("list")
    assert "in use by the process that recorded it: end it first" in spool_command("drop", refused).stderr
    process.communicate("end\n", timeout=100)
    run_spool("drop", refused)
    assert run_spool("list") == ""


def test_others_of_the_same_process_are_sent_though_one_is_refused(own_server: Server) -> None:
    refused, other = str(uuid.uuid4()), str(uuid.uuid4())
    # The server is away: the process leaves both.
    process = start(RECORDS.partition("other.flush")[0] + "\nos._exit(0)", own_server.address, NO_RUN, refused, other)
    assert process.wait(100) == 0
    own_server.start()
    sent = spool_command("send", "--address", own_server.address)
    assert (sent.returncode, sent.stdout) == (1, "3 steps were sent\n")
    assert len(stored_steps(own_server, other)) == 3
    assert f"refused: {refused} 'lost', 3 steps" in run_spool("list")


def test_the_branch_of_a_deleted_trajectory_is_refused_and_kept(
    own_server: Server, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_transfer, "_BRANCH_TRIES", 1)
    own_server.start()
    client = ab.connect(own_server.address)
    t = client.trajectory()
    t.step(action=1)
    t.flush(60)
    client.delete(t)
    branch = client.branch(t, at=1, name="n")
    branch.step(action=1)
    with pytest.raises(TrajectoryNotFound, match=f"Trajectory {t.id} does not exist.*python -m anabranch spool"):
        branch.flush(60)
    assert branch.dropped == ""
    (note,) = spool.glob("*/*/refused")
    assert branch.id in note.read_text()


MANY = """
import sys
from types import SimpleNamespace
import anabranch as ab
client = ab.connect(sys.argv[1])
ts = [client.trajectory(run=SimpleNamespace(id=sys.argv[2])) for _ in range(20)]
for t in ts:
    t.reset(observation=0)
for t in ts:
    try:
        t.flush(60)
    except ab.errors.RunNotFound:
        pass
"""


def test_many_trajectories_that_are_refused_for_one_reason_are_two_errors(own_server: Server) -> None:
    own_server.start()
    _, errors = start(MANY, own_server.address, NO_RUN, ANABRANCH_EXIT_SECONDS="60").communicate(timeout=100)
    first, last = errors.splitlines()
    assert "1 steps are refused: RUN_NOT_FOUND" in first
    assert "20 trajectories were refused: RUN_NOT_FOUND" in last
    assert run_spool("list").count("refused: ") == 20


def test_steps_after_a_refusal_are_kept_too(own_server: Server) -> None:
    program = RECORDS.replace("with t:", "if True:") + "\nrefused.step(action=3)\nrefused.seal()\n"
    own_server.start()
    done = Recorded(own_server.address, program)
    assert f"refused: {done.refused} 'lost', 4 steps" in run_spool("list")
    run_spool("rename", done.refused, "--run", "")
    run_spool("send", "--address", own_server.address)
    assert (own_server.stored(done.refused).next_step_number, own_server.stored(done.refused).status) == (4, 5)


def test_a_recorder_in_memory_offers_no_way_out(own_server: Server) -> None:
    own_server.start()
    run = type("Run", (), {"id": NO_RUN})()
    t = ab.connect(own_server.address, spool=False).trajectory(run=run)
    t.reset(observation=0)
    with pytest.raises(RunNotFound, match="kept in memory and not sent again$"):
        t.flush(60)


#: Leaves steps of one trajectory, some of which the server has.
LEAVES = """
import os, sys
import anabranch as ab
t = ab.connect(sys.argv[1]).trajectory(id=sys.argv[2])
t.reset(observation=0)
if len(sys.argv) > 3:
    t.flush(60)
    print(flush=True)
    sys.stdin.readline()
t.step(action=1, observation=1)
os._exit(0)
"""


def test_steps_are_sent_to_another_server_than_they_were_recorded_for(own_server: Server) -> None:
    trajectory_id = str(uuid.uuid4())
    assert start(LEAVES, "127.0.0.1:1", trajectory_id).wait(100) == 0
    own_server.start()
    # Nothing is recorded for this one.
    other = spool_command("send", "--address", own_server.address)
    assert (other.returncode, other.stdout) == (1, "0 steps were sent\n")
    assert f"`spool send --recorded-for 127.0.0.1:1 --to {own_server.address}` sends them there" in other.stderr
    assert run_spool("send", "--recorded-for", "127.0.0.1:1", "--to", own_server.address) == "2 steps were sent\n"
    assert len(stored_steps(own_server, trajectory_id)) == 2
    assert run_spool("list") == ""
    # An empty spool is no error.
    assert run_spool("send", "--address", own_server.address) == "0 steps were sent\n"


def test_what_another_server_refuses_is_kept_for_the_first_one(own_server: Server, server: Server) -> None:
    own_server.start()
    trajectory_id = str(uuid.uuid4())
    command = [sys.executable, "-c", LEAVES, own_server.address, trajectory_id, "later"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    own_server.kill()
    process.communicate("go\n")
    # The first step is on the first server only.
    sent = spool_command("send", "--recorded-for", own_server.address, "--to", server.address)
    assert (sent.returncode, sent.stdout) == (1, "0 steps were sent\n")
    assert f"kept: trajectory {trajectory_id}: TRAJECTORY_NOT_FOUND" in sent.stderr
    assert "abandoned: 1 steps of 1 trajectories" in run_spool("list")
    own_server.start()
    assert run_spool("send", "--address", own_server.address) == "1 steps were sent\n"
    assert len(stored_steps(own_server, trajectory_id)) == 2


def test_spools_in_use_are_named(own_server: Server) -> None:
    command = [sys.executable, "-c", LEAVES.replace("t.flush(60)", ""), own_server.address, str(uuid.uuid4()), "later"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    sent = spool_command("send", "--address", own_server.address)
    assert (sent.returncode, sent.stdout) == (0, "0 steps were sent\n")
    assert "1 spools are in use by the processes that record or send them" in sent.stderr
    process.communicate("go\n")


def test_a_trajectory_that_was_deleted_is_dropped_as_before(own_server: Server) -> None:
    own_server.start()
    client = ab.connect(own_server.address)
    t = client.trajectory()
    t.reset(observation=0).wait(60)
    own_server.stubs().trajectories.DeleteTrajectory(DeleteTrajectoryRequest(trajectory_id=t.id))
    with pytest.raises(TrajectoryNotFound):
        t.step(action=1).wait(60)
    assert "was deleted" in t.dropped
