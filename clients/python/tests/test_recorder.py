"""The recorder: what is recorded arrives, once and in order."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from conftest import Server, stored_steps

import anabranch as ab
from anabranch._recording import rpc
from anabranch._recording import sender as _sender
from anabranch._recording import spool as _spool
from anabranch._wire.failures import Failure
from anabranch.client import _NAMES
from anabranch.errors import RunNotFound, SpoolFull, TagNotFound, TrajectoryNotFound, TrajectorySealed
from anabranch.v1.trajectory_service_pb2 import AppendOpened, AppendStepsResponse, ListTagsRequest


def observed(server: Server, trajectory_id: str) -> list[str]:
    return [step.observations[0].content.json for step in stored_steps(server, trajectory_id)]


def tagged(server: Server, trajectory_id: str) -> dict[str, int]:
    tags = server.stubs().trajectories.ListTags(ListTagsRequest(trajectory_id=trajectory_id)).tags
    return {tag.name: tag.step_number for tag in tags}


def test_steps_arrive_in_order(server: Server) -> None:
    client = ab.connect(server.address)
    with client.trajectory(task="counting", name="main", labels={"a": "b"}) as t:
        t.reset(observation=0)
        for number in range(1, 1000):
            t.step(action="up", observation=number, reward=1.0)
    t.flush(30)
    assert observed(server, t.id) == [str(number) for number in range(1000)]
    stored = server.stored(t.id)
    assert (stored.task_id, stored.name, dict(stored.labels)) == ("counting", "main", {"a": "b"})
    assert (stored.reward_sum, stored.status, t.reward_sum) == (999.0, 5, 999.0)


def test_a_receipt_waits_for_its_step(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(observation=0)
    receipt = t.step(action=1, observation=1)
    assert receipt.number == 1
    assert receipt.wait(30).durable
    assert len(stored_steps(server, t.id)) == 2


def test_an_exception_seals_as_failed_and_a_keyboard_interrupt_as_cancelled(server: Server) -> None:
    client = ab.connect(server.address)
    for error, status, text in (
        (ValueError("lost"), 6, "ValueError: lost"),
        (KeyboardInterrupt(), 7, "KeyboardInterrupt"),
    ):
        t = client.trajectory()
        with pytest.raises(type(error)), t:
            t.reset(observation=0)
            raise error
        t.flush(30)
        assert (server.stored(t.id).status, server.stored(t.id).status_message) == (status, text)


def test_tags_follow_their_steps(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    t.reset(observation=0)
    t.step(action=1, tags=["best", "kept"])
    t.step(action=2)
    t.tag("last")
    t.flush(30)
    assert tagged(server, t.id) == {"best": 1, "kept": 1, "last": 2}


def test_tags_that_the_server_rejects_cost_no_step(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # The rules of this version keep such tags from the server.
    monkeypatch.setattr("anabranch.trajectory.fitted_tags", lambda names, values: names)
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(observation=0)
    for number in range(1, 5):
        t.step(action=1, observation=number, tags=["kept"] if number == 3 else ["no name"] if number == 2 else [])
    t.flush(30)
    assert observed(server, t.id) == ["0", "1", "2", "3", "4"]
    assert tagged(server, t.id) == {"kept": 3}
    assert client.stats.unstored["rejected"] >= 1


def test_a_branch_waits_for_its_branch_point(server: Server) -> None:
    t = ab.connect(server.address).trajectory(name="main")
    t.reset(observation=0)
    for number in range(1, 10):
        t.step(action=1, observation=number, reward=1.0)
    branch = t.branch(at=4, name="other")
    assert branch.next_step == 5
    branch.step(action=2, observation=50, reward=10.0)
    branch.flush(30)
    assert observed(server, branch.id) == ["0", "1", "2", "3", "4", "50"]
    assert (branch.reward_sum, branch.last_observation) == (14.0, 50)


def test_a_branch_of_an_empty_trajectory_is_rejected(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    # The creation is sent; no step is.
    t.flush(30)
    for source in t, t.id:
        with pytest.raises(ValueError, match=f"trajectory {t.id} has no steps: branch\\(\\) needs a recorded step"):
            client.branch(source)
        for at in -1, 0:
            with pytest.raises(ValueError, match=f"`at` is {at}: expected .* of trajectory {t.id}, which has none"):
                client.branch(source, at=at)
    assert client.stats.dropped == 0
    assert [each.id for each in server.listed() if each.parent_id == t.id] == []


def test_a_branch_beyond_the_end_is_rejected_at_once(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(observation=0)
    t.step(action=1, observation=1)
    for source in t, t.id:
        for at in 2, 99, -1:
            with pytest.raises(ValueError, match=f"`at` is {at}: expected .* of trajectory {t.id}, 0 to 1"):
                client.branch(source, at=at)
        for wrong in "best", 1.5:
            with pytest.raises(TypeError, match=f"`at` is {wrong!r}: expected the number of a step"):
                client.branch(source, at=wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match="`at` is 1 and `tag` is 'best': expected one of them"):
            client.branch(source, at=1, tag="best")
        with pytest.raises(TagNotFound, match="best"):
            client.branch(source, tag="best")
        assert client.branch(source, at=np.int64(1)).next_step == 2
    with pytest.raises(TrajectoryNotFound):
        client.branch(str(uuid.uuid4()), at=0)
    assert client.stats.dropped == 0


def test_a_tag_needs_a_recorded_step(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    with pytest.raises(ValueError, match="needs a recorded step"):
        t.tag("best")
    t.reset(observation=0)
    for step in 1, -1:
        with pytest.raises(ValueError, match=f"`step` is {step}: expected .* of trajectory {t.id}, 0 to 0"):
            t.tag("best", step)


def test_steps_of_a_server_that_comes_later_arrive(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client = ab.connect(own_server.address)
    own = client.recorder.sender.connections
    calls: list[str] = []
    granted: list[AppendOpened] = []
    call, open_stream = own.call, own.open_stream

    def called(method: str, request: bytes, done: rpc.Done) -> None:
        if method == "ServerService/GetServerInfo":
            call(method, request, done)
        else:
            calls.append(method)

    def counted(opening: bytes, report: Callable[[AppendStepsResponse | Failure | None], None]) -> rpc.Stream:
        def noted(response: AppendStepsResponse | Failure | None) -> None:
            if isinstance(response, AppendStepsResponse) and response.HasField("opened"):
                granted.append(response.opened)
            report(response)

        return open_stream(opening, noted)

    monkeypatch.setattr(own, "open_stream", counted)
    monkeypatch.setattr(own, "call", called)
    t = client.trajectory()
    t.reset(observation=0)
    for number in range(1, 50):
        t.step(action=1, observation=number)
    with pytest.raises(TimeoutError):
        t.flush(0.2)
    own_server.start()
    t.flush(60)
    assert len(stored_steps(own_server, t.id)) == 50
    # One stream does all, the creation too.
    assert (len(granted), calls) == (1, [])


def test_steps_survive_restarts_of_the_server(server_process: Server) -> None:
    server_process.start()
    client = ab.connect(server_process.address)
    ts = [client.trajectory(name=f"t{i}") for i in range(4)]
    for t in ts:
        t.reset(observation=0)
    for number in range(1, 401):
        for t in ts:
            t.step(action=1, observation=number)
        if number in (150, 300):
            server_process.restart()
    for t in ts:
        t.flush(60)
        assert observed(server_process, t.id) == [str(number) for number in range(401)]


def test_large_values_become_states_and_read_back(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    text, data = "é" * 700_000, bytes(range(256)) * 8_000
    t.reset(observation=text, info={"long": "x" * 1_200_000})
    t.step(action=data, states={"env": data, "agent": {"a": [1, 2]}})
    t.flush(60)
    assert t.checkpoint(1) == {"env": data, "agent": {"a": [1, 2]}}
    again = ab.connect(server.address).branch(t.id, at=0)
    assert again.last_observation == text


def test_a_step_that_the_server_rejects_is_replaced_by_a_marker_with_its_reward_and_flags(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The rules of this version keep such a step from the server.
    monkeypatch.setattr("anabranch.trajectory.fit", lambda step, values: None)
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(observation=0)
    for number in range(1, 20):
        bad = {"metrics": {"x" * 200: 1.0}, "terminated": True, "truncated": True} if number == 10 else {}
        t.step(action=1, observation=number, reward=1.0, **bad)
    t.flush(30)
    steps = stored_steps(server, t.id)
    assert [step.step_number for step in steps] == list(range(20))
    assert "INVALID_REQUEST" in steps[10].info_json
    assert (steps[10].terminated, steps[10].truncated, steps[19].reward_sum) == (True, True, 19.0)
    assert all(step.observations for step in steps if step.step_number != 10)
    assert client.stats.unstored["rejected"] >= 1


def test_threads_share_a_trajectory(server: Server) -> None:
    client = ab.connect(server.address)
    shared, own = client.trajectory(), [client.trajectory() for _ in range(8)]
    shared.reset(observation=0)

    def record(index: int) -> None:
        own[index].reset(observation=0)
        for number in range(100):
            shared.step(action=[index, number])
            own[index].step(action=[index, number], observation=number)

    threads = [threading.Thread(target=record, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.flush(60)
    actions = [step.actions[0].content.json for step in stored_steps(server, shared.id)[1:]]
    assert len(actions) == 800
    for index, t in enumerate(own):
        expected = [f"[{index},{number}]" for number in range(100)]
        assert [action for action in actions if action.startswith(f"[{index},")] == expected
        t.flush(60)
        assert [step.actions[0].content.json for step in stored_steps(server, t.id)[1:]] == expected


def test_resume_continues_where_it_ended(server: Server) -> None:
    client = ab.connect(server.address)
    name = "resumed"
    with pytest.raises(TrajectoryNotFound):
        client.trajectory(task="t", name=name, resume="must")
    first = client.trajectory(task="t", name=name, resume="allow")
    assert first.checkpoint() is None
    first.reset(observation=0)
    for number in range(1, 6):
        first.step(action=1, observation=number, reward=1.0, states={"env": b"%d" % number} if number == 3 else None)
    first.flush(30)
    again = client.trajectory(task="t", name=name, resume="must")
    assert (again.id, again.next_step, again.last_observation, again.reward_sum) == (first.id, 6, 5, 5.0)
    point = again.rewind()
    assert point is not None
    assert (point.step, point["env"], again.next_step) == (3, b"3", 4)
    again.step(action=2, observation=40)
    again.flush(30)
    assert again.id != first.id
    assert observed(server, again.id) == ["0", "1", "2", "3", "40"]
    third = client.trajectory(task="t", name=name, resume="allow")
    assert (third.id, third.next_step) == (again.id, 5)


def test_a_resumed_trajectory_reads_earlier_steps_once(own_server: Server) -> None:
    own_server.start()
    client = ab.connect(own_server.address)
    first = client.trajectory(name="resumed", resume="allow")
    first.reset(observation=0, messages=[{"role": "user", "content": "hi"}])
    first.flush(30)
    again = client.trajectory(name="resumed", resume="must")
    again.load()
    own_server.kill()
    again.step(action=1, observation=1, reward=2.0)
    assert (again.last_observation, again.reward_sum, len(again.messages)) == (1, 2.0, 1)


def test_a_trajectory_that_another_writer_continued_becomes_a_branch(own_server: Server, tmp_path: Path) -> None:
    own_server.start()
    slow = ab.connect(own_server.address, spool=tmp_path / "one")
    t = slow.trajectory(task="t", name="n", resume="allow")
    t.reset(observation=0)
    t.step(action=1, observation=1)
    t.flush(30)
    other = ab.connect(own_server.address, spool=tmp_path / "two").trajectory(task="t", name="n", resume="must")
    other.step(action=2, observation=20)
    other.flush(30)
    t.step(action=1, observation=2)
    t.step(action=1, observation=3)
    t.flush(30)
    assert t.id != other.id
    assert observed(own_server, other.id) == ["0", "1", "20"]
    assert observed(own_server, t.id) == ["0", "1", "2", "3"]
    assert own_server.stored(t.id).labels["anabranch.spooled_from"] == other.id


def test_spellings_of_a_spool_folder_share_a_recorder(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path / "s")
    spellings = ["s", "./x/../s", "~/s", "link", str(tmp_path / "s"), tmp_path / "s"]
    recorders = {id(ab.connect(server.address, spool=spool).trajectory()._recorder) for spool in spellings}
    for spool in spellings:
        monkeypatch.setenv("ANABRANCH_SPOOL", os.fspath(spool))
        recorders.add(id(ab.connect(server.address).trajectory()._recorder))
    assert len(recorders) == 1


def test_a_relative_spool_stays_where_it_was_when_the_directory_changes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_spool, "SEGMENT_BYTES", 64 * 1024)
    client = ab.connect(server.address, strict=True, spool="s")
    monkeypatch.chdir(tmp_path.parent)
    t = client.trajectory()
    t.reset(observation=0)
    # More segments follow.
    monkeypatch.chdir(tmp_path.parent.parent)
    for number in range(1, 200):
        t.step(action=1, observation=f"{number:01000}")
    t.flush(60)
    assert len(stored_steps(server, t.id)) == 200
    assert (tmp_path / "s").exists()


def test_a_deleted_trajectory_ends_its_recording(server: Server) -> None:
    from anabranch.v1.trajectory_service_pb2 import DeleteTrajectoryRequest

    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(observation=0)
    t.flush(30)
    before = client.stats.dropped
    server.stubs().trajectories.DeleteTrajectory(DeleteTrajectoryRequest(trajectory_id=t.id))
    receipt = t.step(action=1)
    for wait in (t.flush, receipt.wait):
        with pytest.raises(TrajectoryNotFound, match="TRAJECTORY_NOT_FOUND") as caught:
            wait(30)
        assert isinstance(caught.value.__cause__, grpc.RpcError)
        assert caught.value.metadata == {"trajectory_id": t.id}
    assert t.step(action=2).number == -1
    assert client.stats.dropped == before + 2


def test_a_step_after_the_deletion_raises_with_strict(server: Server) -> None:
    from anabranch.v1.trajectory_service_pb2 import DeleteTrajectoryRequest

    t = ab.connect(server.address, strict=True).trajectory()
    t.reset(observation=0).wait(30)
    server.stubs().trajectories.DeleteTrajectory(DeleteTrajectoryRequest(trajectory_id=t.id))
    with pytest.raises(TrajectoryNotFound):
        t.step(action=1).wait(30)
    with pytest.raises(TrajectoryNotFound, match="was deleted") as caught:
        t.step(action=2)
    assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_reset_must_come_first_and_seal_last(server: Server) -> None:
    t = ab.connect(server.address, strict=True).trajectory()
    t.step(action=1)
    assert t.next_step == 2
    with pytest.raises(ValueError, match="first step"):
        t.reset()
    t.seal()
    assert t.done
    with pytest.raises(TrajectorySealed, match="sealed") as raised:
        t.step(action=2)
    assert raised.value.reason == "TRAJECTORY_SEALED"
    lenient = ab.connect(server.address).trajectory()
    lenient.seal()
    refused = lenient.step(action=1)
    assert refused.number == -1
    # Not after a timeout: the step is not recorded.
    with pytest.raises(TrajectorySealed):
        refused.wait()


def test_a_seal_follows_a_late_stream_of_its_own_writer(server: Server) -> None:
    from anabranch.v1 import trajectory_service_pb2 as s

    t = ab.connect(server.address).trajectory()
    t.reset(observation=0)
    t.flush(30)
    opening = s.AppendOpen(trajectory_id=t.id, writer_id=t._transfer._identity.writer_id)
    responses = list(server.stubs().trajectories.AppendSteps(iter([s.AppendStepsRequest(open=opening)])))
    assert [response.opened.epoch for response in responses] == [2]
    t.seal()
    t.flush(30)
    assert (server.stored(t.id).status, server.stored(t.id).writer_epoch) == (5, 3)


def test_a_new_trajectory_needs_no_call_of_its_own(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    call = rpc.Connections.call

    def counted(self: rpc.Connections, method: str, request: bytes, done: rpc.Done) -> None:
        calls.append(method)
        call(self, method, request, done)

    monkeypatch.setattr(rpc.Connections, "call", counted)
    t = ab.connect(server.address).trajectory(task="counting")
    t.reset(observation=0)
    branch = t.branch()
    branch.step(action=1, observation=1)
    branch.flush(30)
    assert (observed(server, t.id), observed(server, branch.id)) == (["0"], ["0", "1"])
    assert not {rpc.CREATE, rpc.BRANCH} & set(calls)


def test_a_trajectory_that_was_deleted_before_its_creation_arrived_is_not_created_again(own_server: Server) -> None:
    from anabranch.v1 import trajectory_service_pb2 as s

    t = ab.connect(own_server.address).trajectory()
    t.reset(observation=0)
    own_server.start()
    t.flush(30)
    stub = own_server.stubs().trajectories
    stub.DeleteTrajectory(s.DeleteTrajectoryRequest(trajectory_id=t.id))
    other = ab.connect(own_server.address, spool=False).trajectory(id=t.id)
    other.reset(observation=0)
    with pytest.raises(TrajectoryNotFound, match="TRAJECTORY_NOT_FOUND"):
        other.flush(30)
    assert own_server.listed() == []


def test_many_trajectories_that_step_together_share_messages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    call = rpc.Connections.call

    def counted(self: rpc.Connections, method: str, request: bytes, done: rpc.Done) -> None:
        calls.append(method)
        call(self, method, request, done)

    monkeypatch.setattr(rpc.Connections, "call", counted)
    monkeypatch.setattr("anabranch.trajectory.fit", lambda step, values: None)
    client = ab.connect(server.address)
    ts = [client.trajectory()]
    sender = ts[0]._recorder.sender
    # The sender sees all of them begin together.
    while not sender.hold():
        pass
    ts += [client.trajectory() for _ in range(99)]
    for number in range(50):
        for t in ts:
            metrics, tags = {"x" * 200: 1.0} if number == 20 else None, ["kept"] if number % 20 == 5 else []
            t.step(action=number, observation=[t.id, number], metrics=metrics, tags=tags)
        if number == 0:
            sender.release()
        time.sleep(0.01)
    for t in ts:
        t.seal()
    for t in ts:
        t.flush(60)
        steps = stored_steps(server, t.id)
        expected = ["", *(f'["{t.id}",{number}]' for number in range(50))]
        expected[21] = ""
        assert [step.observations[0].content.json if step.observations else "" for step in steps] == expected
        assert server.stored(t.id).status == 5
        assert tagged(server, t.id) == {"kept": 46}
    assert 1 <= calls.count(rpc.APPEND_BATCH) < 500


def test_a_full_spool_raises_its_class(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_SPOOL_BYTES", str(20 * 1024 * 1024))
    t = ab.connect(server.address, strict=True).trajectory()
    with pytest.raises(SpoolFull, match="ANABRANCH_SPOOL_BYTES") as raised:
        for _ in range(2000):
            t.step(states={"env": os.urandom(10_000_000)})
    assert raised.value.reason == "SPOOL_FULL"
    with pytest.raises(SpoolFull):
        t.flush()


def test_a_name_is_of_its_run_and_task(server: Server) -> None:
    client = ab.connect(server.address)
    names = [f"experiment {uuid.uuid4()}" for _ in range(2)]
    runs = [client.run("same name", config={}, experiment=name) for name in names]
    found: list[str] = []
    for run in runs:
        t = client.trajectory(task="t", name="n", run=run, resume="allow")
        assert t.id == str(uuid.uuid5(_NAMES, json.dumps([run.id, "t", "n"])))
        t.reset(observation=0)
        t.flush(60)
        assert server.stored(t.id).experiment_id == run.experiment_id != ""
        # An id is accepted wherever an object is.
        assert client.trajectory(task="t", name="n", run=run.id, resume="must").id == t.id
        found.append(t.id)
    alone = client.trajectory(task="t", name="n", resume="allow")
    assert alone.id == str(uuid.uuid5(_NAMES, json.dumps(["", "t", "n"])))
    assert len({*found, alone.id}) == 3
    with pytest.raises(RunNotFound):
        client.trajectory(task="t", name="n", run=str(uuid.uuid4()), resume="allow")


def test_a_relative_variable_is_resolved_when_the_client_connects(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANABRANCH_SPOOL", "from environment")
    client = ab.connect(server.address)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("ANABRANCH_SPOOL", "later")
    for _ in range(2):
        t = client.trajectory()
        t.reset(observation=0)
        t.flush(60)
        assert client.stats.durable > 0
        monkeypatch.chdir(tmp_path.parent)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == []
    root = tmp_path / "from environment"
    assert len(list(root.glob("*/*/*.seg"))) == 1
    # For the user alone.
    assert [path.stat().st_mode & 0o777 for path in (root, *root.glob("*"), *root.glob("*/*"))] == [0o700] * 3


GIVES_UP = """
import os, sys
import anabranch as ab
from anabranch.errors import AnabranchError
client = ab.connect(sys.argv[1], give_up_after=0.3)
t = client.trajectory(id=sys.argv[2])
t.reset(observation=0)
try:
    t.flush()
except AnabranchError as error:
    print(error)
for number in range(1, 50):
    t.step(action=number, observation=number)
print(client.stats.spooled)
"""


def test_after_the_retry_limit_the_rest_stays_in_the_spool(own_server: Server) -> None:
    trajectory_id = str(uuid.uuid4())
    command = [sys.executable, "-c", GIVES_UP, own_server.address, trajectory_id]
    # The end does not wait either: nothing can be sent any more.
    environment = {**os.environ, "ANABRANCH_EXIT_SECONDS": "600"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    failure, spooled = done.stdout.splitlines()
    assert failure.startswith("DEADLINE_EXCEEDED: gave up after 0.3 s without progress; last error: UNAVAILABLE")
    assert spooled == "50"
    assert f"trajectory {trajectory_id}: 1 steps cannot be sent and are kept in " in done.stderr
    assert "50 steps are kept in " in done.stderr
    own_server.start()
    sent = [sys.executable, "-m", "anabranch", "spool", "send", "--address", own_server.address]
    assert "50 steps were sent" in subprocess.run(sent, check=True, capture_output=True, text=True, timeout=300).stdout
    assert observed(own_server, trajectory_id) == [str(number) for number in range(50)]


def test_a_flush_says_what_it_waits_for(
    own_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = ab.connect(own_server.address)
    t = client.trajectory()
    t.reset(observation=0)
    t.step(action=1)
    sender = client.recorder.sender
    assert sender.wait(lambda: "does not answer" in sender.problem, 100)
    # Ten seconds, for users.
    monkeypatch.setattr(_sender, "_PATIENT_SECONDS", 0)
    away = f"the server at {own_server.address} does not answer \\(UNAVAILABLE: "
    with pytest.raises(TimeoutError, match=f"are not durable after 0.1 s; they are kept: {away}"):
        t.flush(0.1)
    (warning,) = [text for text in caplog.messages if "still waiting" in text]
    assert re.search(f"still waiting for 3 records of trajectory {t.id} after 0 s: {away}", warning)


@pytest.mark.parametrize("option", ["silence", "give_up_after"])
def test_times_of_sending_are_above_zero(option: str) -> None:
    with pytest.raises(ValueError, match=f"`{option}` is 0: expected seconds above 0"):
        ab.connect("127.0.0.1:1", **{option: 0})


#: Each process gets a client by pickling, as with Ray and the workers of torch.
SPAWNS = """
import multiprocessing, os, sys
import anabranch as ab

def work(client, trajectory_id):
    with client.trajectory(id=trajectory_id) as t:
        t.reset(observation=[os.getpid(), client.strict])
    t.flush(60)

if __name__ == "__main__":
    client = ab.connect(sys.argv[1], strict=True)
    t = client.trajectory(id=sys.argv[2])
    t.reset(observation=[os.getpid(), client.strict])
    t.flush(60)
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=work, args=(client, each)) for each in sys.argv[3:]]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(os.getpid(), *(process.pid for process in processes))
    sys.exit(max(process.exitcode for process in processes))
"""


def test_processes_get_clients_by_pickling(server: Server, tmp_path: Path) -> None:
    program = tmp_path / "spawns.py"
    program.write_text(SPAWNS)
    ids = [str(uuid.uuid4()) for _ in range(3)]
    command = [sys.executable, str(program), server.address, *ids]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    pids = done.stdout.split()
    assert len(set(pids)) == 3
    for pid, each in zip(pids, ids, strict=True):
        assert observed(server, each) == [f"[{pid},true]"]


def test_a_pickled_client_keeps_what_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = ab.connect("127.0.0.1:1", strict=True, spool=tmp_path / "chosen", silence=7, give_up_after=8)
    copy = pickle.loads(pickle.dumps(client))
    assert {**vars(copy), "connection": None} == {**vars(client), "connection": None}
    # A variable belongs to its process.
    monkeypatch.setenv("ANABRANCH_SPOOL", str(tmp_path / "here"))
    pickled = pickle.dumps(ab.connect("127.0.0.1:1"))
    monkeypatch.setenv("ANABRANCH_SPOOL", str(tmp_path / "there"))
    assert pickle.loads(pickled)._spool == tmp_path / "there"


def test_a_connection_has_at_most_90_streams(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sender, "BATCH_FROM", 1 << 30)
    opened: list[int] = []
    client = ab.connect(server.address)
    own = client.recorder.sender.connections
    open_stream = own.open_stream

    def counted(*arguments: Any) -> rpc.Stream:
        stream = open_stream(*arguments)
        opened.append(stream.index)
        return stream

    monkeypatch.setattr(own, "open_stream", counted)
    # A connection that is slow to open opens its streams again: this one is open before the others need it.
    ts = [client.trajectory()]
    ts[0].flush(100)
    opened.clear()
    ts += [client.trajectory() for _ in range(94)]
    for t in ts:
        t.reset(observation=0)
    for t in ts:
        t.flush(100)
    assert opened[:89] == [0] * 89
    assert len(opened) >= 94
    assert set(opened[89:]) == {1}
    opened.clear()
    for t in ts:
        t.seal()
    for t in ts:
        t.flush(100)
    last = client.trajectory()
    last.reset(observation=0)
    last.flush(100)
    # Streams that have ended make room.
    assert opened == [0]
    assert all(server.stored(t.id).next_step_number == 1 for t in ts)
