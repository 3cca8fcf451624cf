"""Faults: the client or the server ends at any point, and nothing that `step()` took is lost, doubled or changed."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from conftest import Server, dose, stored_steps
from programs import run_spool, spool_command, start

import anabranch as ab
from anabranch._recording.digest import step_digest
from anabranch.v1.server_service_pb2 import GetServerInfoResponse
from anabranch.v1.server_service_pb2_grpc import ServerServiceServicer, add_ServerServiceServicer_to_server
from anabranch.v1.trajectory_pb2 import Step, Trajectory
from anabranch.v1.trajectory_service_pb2 import (
    GetTrajectoryRequest,
    GetTrajectoryResponse,
    ListTagsRequest,
    ListTrajectoriesRequest,
    ListTrajectoriesResponse,
    SetTagRequest,
)
from anabranch.v1.trajectory_service_pb2_grpc import TrajectoryServiceServicer, add_TrajectoryServiceServicer_to_server

#: Records steps as fast as it can, and prints the trajectory and the number of each step when `step()` has returned.
RECORDS = """
import os, sys, itertools
import anabranch as ab
client = ab.connect(sys.argv[1])
ts = [client.trajectory() for _ in range(2)]
for t in ts:
    t.reset(observation=[t.id, 0], info={"begin": t.id})
    os.write(1, f"{t.id} 0\\n".encode())
for number in itertools.count(1) if len(sys.argv) < 3 else range(1, int(sys.argv[2])):
    for t in ts:
        states = {"env": b"%08d" % number * 6_000} if number % 50 == 0 else {}
        t.step(action=number, observation=[t.id, number], reward=number / 4, truncated=number % 7 == 0,
               info={"number": number}, metrics={"loss": 1 / number}, token_ids=[number, 1], logprobs=[-number, -0.5],
               states=states, tags=["last"] if number % 40 == 0 else [])
        os.write(1, f"{t.id} {number}\\n".encode())
"""


def assert_whole(server: Server, counts: dict[str, int]) -> None:
    """Checks all that `RECORDS` records, of each step that returned."""
    assert_stored(server, counts)
    stubs = server.stubs()
    for trajectory_id in counts:
        steps = stored_steps(server, trajectory_id)
        expected = [Step(step_number=0, info_json=json.dumps({"begin": trajectory_id}, separators=(",", ":")))]
        for number in range(1, len(steps)):
            step = Step(step_number=number, reward=number / 4, truncated=number % 7 == 0, metrics={"loss": 1 / number})
            step.info_json = f'{{"number":{number}}}'
            action = step.actions.add(token_ids=[number, 1], logprobs=[-number, -0.5])
            action.content.json = str(number)
            if number % 50 == 0:
                step.states.add(name="env", data=b"%08d" % number * 6_000)
            expected.append(step)
        for step, stored in zip(expected, steps, strict=True):
            step.observations.add().content.json = f'["{trajectory_id}",{step.step_number}]'
            assert step_digest(step) == step_digest(stored)
        tags = stubs.trajectories.ListTags(ListTagsRequest(trajectory_id=trajectory_id)).tags
        # A tag is set in the transaction that stores its step.
        last = (len(steps) - 1) // 40 * 40
        assert {tag.name: tag.step_number for tag in tags} == ({"last": last} if last else {})


def returned(output: str) -> dict[str, int]:
    """Returns the number of steps of each trajectory that the program printed."""
    counts: dict[str, int] = {}
    for line in output.splitlines():
        trajectory_id, number = line.split()
        counts[trajectory_id] = int(number) + 1
    return counts


def assert_stored(server: Server, counts: dict[str, int]) -> None:
    for trajectory_id, count in counts.items():
        steps = stored_steps(server, trajectory_id)
        expected = [f'["{trajectory_id}",{number}]' for number in range(len(steps))]
        assert [step.observations[0].content.json for step in steps] == expected
        # The process may have ended between the return of step() and the print.
        assert count <= len(steps) <= count + 1


def leave(address: str, steps: int = 100) -> dict[str, int]:
    """Records while the server is not reachable, in a process that then dies."""
    child = start(RECORDS + "\nos._exit(0)", address, str(steps))
    output, _ = child.communicate()
    return returned(output)


def kill_at_random_points(server: Server, times: int, chance: random.Random) -> None:
    counts: dict[str, int] = {}
    for _ in range(times):
        child = start(RECORDS, server.address)
        assert child.stdout is not None
        output = child.stdout.readline()
        time.sleep(chance.random() * 0.4)
        child.kill()
        counts.update(returned(output + child.stdout.read()))
        child.communicate()
    run_spool("send", "--address", server.address)
    assert_whole(server, counts)
    assert run_spool("list") == ""


def test_nothing_is_lost_when_the_client_is_killed(server: Server) -> None:
    kill_at_random_points(server, 4, random.Random(1))


@pytest.mark.faults
def test_nothing_is_lost_when_the_client_is_killed_many_times(server: Server) -> None:
    kill_at_random_points(server, dose(6, 200), random.Random())


@pytest.mark.faults
def test_nothing_is_lost_when_the_server_restarts_many_times(server_process: Server) -> None:
    restarts = dose(2, 20)
    server_process.start()
    client = ab.connect(server_process.address)
    ts = [client.trajectory() for _ in range(8)]
    for t in ts:
        t.reset(observation=[t.id, 0])
    steps = restarts * 125
    for number in range(1, steps):
        for t in ts:
            t.step(action=number, observation=[t.id, number])
        if number % 125 == 60:
            server_process.restart()
    for t in ts:
        t.flush(120)
    assert_stored(server_process, {t.id: steps for t in ts})


#: Records a third of its steps for each line of its input.
RECORDS_IN_THIRDS = """
import os, sys
import anabranch as ab
client = ab.connect(sys.argv[1])
ts = [client.trajectory() for _ in range(2)]
number = 0
for _ in range(3):
    sys.stdin.readline()
    for number in range(number, number + 100):
        for t in ts:
            t.step(action=number, observation=[t.id, number]) if number else t.reset(observation=[t.id, 0])
    number += 1
    for t in ts:
        os.write(1, f"{t.id} {number - 1}\\n".encode())
"""


@pytest.mark.faults
@pytest.mark.parametrize("when", ["beginning", "middle", "exit"])
def test_nothing_is_lost_when_the_server_is_away_for_long(server_process: Server, when: str) -> None:
    command = [sys.executable, "-c", RECORDS_IN_THIRDS, server_process.address]
    environment = {**os.environ, "ANABRANCH_EXIT_SECONDS": "60"}
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert child.stdin is not None and child.stdout is not None
    lines: list[str] = []
    if when != "beginning":
        server_process.start()
    for third in "beginning", "middle", "exit":
        if third == when != "beginning":
            server_process.kill()
        child.stdin.write("\n")
        child.stdin.flush()
        lines += [child.stdout.readline(), child.stdout.readline()]
        if third == when != "exit":
            time.sleep(dose(1, 10))
            server_process.start()
    output, errors = child.communicate(timeout=100)
    assert child.returncode == 0
    if when == "exit":
        # The end of the program does not wait for a server that refuses connections.
        assert "are kept in" in errors
        server_process.start()
        run_spool("send", "--address", server_process.address)
    counts = returned("".join(lines) + output)
    assert [*counts.values()] == [300, 300]
    assert_stored(server_process, counts)
    assert [len(stored_steps(server_process, trajectory_id)) for trajectory_id in counts] == [300, 300]
    assert errors.count("is unreachable") == 1
    assert errors.count("is reachable again") == (0 if when == "exit" else 1)
    assert run_spool("list") == ""


def test_the_end_of_the_program_sends_what_waits(server: Server) -> None:
    child = start(RECORDS, server.address, "200", ANABRANCH_EXIT_SECONDS="30")
    output, errors = child.communicate(timeout=60)
    assert errors == ""
    counts = returned(output)
    assert_whole(server, counts)
    assert [len(stored_steps(server, trajectory_id)) for trajectory_id in counts] == [200, 200]
    assert run_spool("list") == ""


#: Ends when the recorder has said that the server is unreachable.
WAITS_FOR_THE_WARNING = """
import logging, threading
warned = threading.Event()
class Handler(logging.StreamHandler):
    def emit(self, record):
        super().emit(record)
        warned.set()
logging.getLogger("anabranch").addHandler(Handler())
"""


def test_the_end_of_the_program_reports_what_is_kept(own_server: Server) -> None:
    program = f"{WAITS_FOR_THE_WARNING}{RECORDS}\nwarned.wait()\n"
    child = start(program, own_server.address, "100", ANABRANCH_EXIT_SECONDS="0.5")
    output, errors = child.communicate(timeout=100)
    assert "200 steps are kept in" in errors
    assert "unreachable" in errors
    own_server.start()
    assert "abandoned: 200 steps of 2 trajectories" in run_spool("list")
    assert "200 steps were sent" in run_spool("send", "--address", own_server.address)
    assert_whole(own_server, returned(output))


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class SlowTrajectories(TrajectoryServiceServicer):
    """Answers as a server whose trajectory was continued by more and more branches, each after 0.1 s."""

    def __init__(self) -> None:
        #: How many seconds the client allowed for each call.
        self.allowed: list[float] = []

    def GetTrajectory(self, request: GetTrajectoryRequest, context: grpc.ServicerContext) -> GetTrajectoryResponse:
        self.allowed.append(context.time_remaining() or 0.0)
        time.sleep(0.1)
        if len(self.allowed) > 100:
            context.abort(grpc.StatusCode.INTERNAL, "the client did not stop")
        return GetTrajectoryResponse(trajectory=Trajectory(id=request.trajectory_id))

    def ListTrajectories(
        self, request: ListTrajectoriesRequest, context: grpc.ServicerContext
    ) -> ListTrajectoriesResponse:
        return ListTrajectoriesResponse(trajectories=[Trajectory(id=str(uuid.uuid4()))])


class OwnVersion(ServerServiceServicer):
    """Answers that the server has the version of this package."""

    def GetServerInfo(self, request: object, context: object) -> GetServerInfoResponse:
        return GetServerInfoResponse(version=ab.__version__)


def test_a_resume_has_one_deadline_for_all_its_calls() -> None:
    slow = SlowTrajectories()
    server = grpc.server(ThreadPoolExecutor(1))
    add_TrajectoryServiceServicer_to_server(slow, server)
    add_ServerServiceServicer_to_server(OwnVersion(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with pytest.raises((TimeoutError, ab.errors.Unreachable)):
            ab.connect(address).trajectory(name="n", resume="allow", resume_timeout=3)
    finally:
        server.stop(None)
    assert slow.allowed == sorted(slow.allowed, reverse=True)
    assert len(slow.allowed) <= 31


def test_a_resume_from_a_server_that_never_answers_raises(mute: str) -> None:
    with pytest.raises((TimeoutError, ab.errors.Unreachable)):
        ab.connect(mute).trajectory(name="n", resume="allow", resume_timeout=1)


TAKES = """
import sys, time
import anabranch as ab
t = ab.connect(sys.argv[1]).trajectory()
t.reset(observation=0)
before = time.process_time()
for number in range(20_000):
    t.step(action=number, observation=number)
print(time.process_time() - before, time.time())
"""


def test_a_server_that_never_answers_delays_neither_steps_nor_the_exit(mute: str, own_server: Server) -> None:
    costs: dict[str, list[float]] = {mute: [], own_server.address: []}
    for address in (mute, own_server.address) * 2:
        child = start(TAKES, address, ANABRANCH_EXIT_SECONDS="0.5")
        output, errors = child.communicate(timeout=60)
        cost, end = map(float, output.split())
        assert time.time() - end < 15
        assert "steps are kept in" in errors
        costs[address].append(cost)
    assert min(costs[mute]) < 2 * min(costs[own_server.address]) + 0.5


#: The sender never returns from its first call of gRPC, which it makes with its locks held.
STUCK = """
import threading
from anabranch._recording import rpc
called = threading.Event()
def never(*arguments):
    called.set()
    threading.Event().wait()
rpc.Connections.open_stream = rpc.Connections.call = rpc.Connections.put_state = never
import os, sys
import anabranch as ab
client = ab.connect(sys.argv[1])
ts = [client.trajectory() for _ in range(2)]
ts[0].reset(observation=0)
called.wait()
for number in range(1, 20_000):
    for t in ts:
        t.step(action=number, observation="x" * 800, tags=["last"] if number % 1000 == 0 else [])
ts[0].seal()
print(client.stats.recorded, client.stats.spooled, flush=True)
os._exit(0)
"""


def test_steps_wait_for_nothing_that_the_sender_does(mute: str, spool: Path) -> None:
    # Were a lock shared with the sender, or its help needed for the next segment, a call would not return.
    output, errors = start(STUCK, mute).communicate(timeout=300)
    assert (output, errors) == ("40000 40000\n", "")
    assert len(list(spool.glob("*/*/*.seg"))) > 1
    assert "abandoned: 40000 steps of 2 trajectories" in run_spool("list")


ANSWERS_LATE = """
import os, sys
import anabranch as ab
t = ab.connect(sys.argv[1]).trajectory(id=sys.argv[2])
t.reset(observation=0)
for number in range(1, 20_000):
    t.step(action=number, observation=number)
os.write(1, b"recorded\\n")
sys.stdin.readline()
t.flush(100)
os._exit(0)
"""


def test_steps_return_before_a_server_that_accepts_connections_answers(own_server: Server) -> None:
    # No server runs at the address, but it accepts connections, until all calls have returned.
    with socket.create_server(("127.0.0.1", own_server.port)):
        trajectory_id = str(uuid.uuid4())
        command = [sys.executable, "-c", ANSWERS_LATE, own_server.address, trajectory_id]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "recorded\n"
    own_server.start()
    _, errors = child.communicate("go\n", timeout=200)
    assert child.returncode == 0, errors
    assert len(stored_steps(own_server, trajectory_id)) == 20_000


def test_a_folder_that_cannot_be_written_means_memory(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    client = ab.connect(server.address, spool=tmp_path / "file/below")
    t = client.trajectory()
    t.reset(observation=0)
    t.step(action=1)
    t.flush(30)
    assert len(stored_steps(server, t.id)) == 2
    assert client.stats.durable == 2


def test_a_full_spool_ends_the_recording_at_a_whole_step(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_SPOOL_BYTES", str(40 * 1024 * 1024))
    client = ab.connect(own_server.address)
    t = client.trajectory(labels={"a": "b"})
    t.reset(observation=[t.id, 0])
    numbers = [
        t.step(action=number, observation=[t.id, number], states={"env": os.urandom(400_000)}).number
        for number in range(1, 150)
    ]
    kept = sum(1 for number in numbers if number > 0)
    assert 0 < kept < 100
    assert numbers == [*range(1, kept + 1), *[-1] * (149 - kept)]
    assert (client.stats.recorded, client.stats.dropped) == (kept + 1, 149 - kept)
    own_server.start()
    deadline = time.monotonic() + 60
    while "anabranch.incomplete" not in labels_of(own_server, t.id) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert labels_of(own_server, t.id) == {"a": "b", "anabranch.incomplete": "true"}
    assert_stored(own_server, {t.id: kept + 1})


def labels_of(server: Server, trajectory_id: str) -> dict[str, str]:
    import grpc

    try:
        return dict(server.stored(trajectory_id).labels)
    except grpc.RpcError:
        return {}


def test_a_flipped_byte_costs_only_the_steps_that_follow_it(own_server: Server, spool: Path) -> None:
    counts = leave(own_server.address)
    (segment,) = spool.glob("*/*/*.seg")
    data = bytearray(segment.read_bytes())
    first, second = counts
    at = data.find(f'["{first}",50]'.encode())
    data[at + 5] ^= 1
    segment.write_bytes(data)
    own_server.start()
    run_spool("send", "--address", own_server.address)
    assert_stored(own_server, {first: 50, second: 100})
    assert "set aside: " in run_spool("list")


def test_a_spool_that_is_set_aside_is_not_sent(own_server: Server) -> None:
    leave(own_server.address)
    name = run_spool("list").split()[1]
    assert run_spool("set-aside", name) == ""
    own_server.start()
    assert "0 steps were sent" in run_spool("send", "--address", own_server.address)
    assert run_spool("list").startswith("set aside: ")
    unknown = spool_command("set-aside", name)
    assert (unknown.returncode, unknown.stderr.split(" in ")[0]) == (1, f"{name} does not exist")


def test_two_processes_send_one_abandoned_spool_once(own_server: Server) -> None:
    counts = leave(own_server.address)
    own_server.start()
    command = [sys.executable, "-m", "anabranch", "spool", "send", "--address", own_server.address]
    senders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [sender.communicate(timeout=60)[0] for sender in senders]
    assert sorted(int(output.split()[0]) for output in outputs) == [0, 200]
    assert_stored(own_server, counts)


def test_the_next_process_sends_an_abandoned_spool(own_server: Server) -> None:
    counts = leave(own_server.address)
    own_server.start()
    client = ab.connect(own_server.address)
    t = client.trajectory()
    t.reset()
    deadline = time.monotonic() + 60
    while client.stats.durable < 201 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert_whole(own_server, counts)


NAMED = """
import os, sys
import anabranch as ab
t = ab.connect(sys.argv[1]).trajectory(task="t", name="named", resume="allow")
if t.next_step == 0:
    t.reset(observation=0)
    t.flush()
print(t.id, flush=True)
sys.stdin.readline()
for number in range(1, 50):
    t.step(action=number, observation=number)
os._exit(0)
"""


LOGS = """
import os, sys
import anabranch as ab
run = ab.connect(sys.argv[1]).run("logged", config={})
print(run.id, flush=True)
sys.stdin.readline()
for number in range(50):
    run.log(number, loss=number / 2)
os._exit(0)
"""


def test_metrics_survive_the_end_of_their_process(own_server: Server) -> None:
    from anabranch.v1.run_service_pb2 import ReadMetricsRequest

    own_server.start()
    run_id = record_while_away(own_server, LOGS)
    assert "abandoned: 0 steps of 0 trajectories, 50 logs of metrics" in run_spool("list")
    run_spool("send", "--address", own_server.address)
    messages = own_server.stubs().runs.ReadMetrics(ReadMetricsRequest(run_ids=[run_id]))
    assert [list(each.values) for message in messages for each in message.series] == [[n / 2 for n in range(50)]]
    assert run_spool("list") == ""


def record_while_away(server: Server, program: str) -> str:
    """Runs a program that waits after its first line, which is returned. The server is killed before the rest."""
    command = [sys.executable, "-c", program, server.address]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    server.kill()
    child.communicate("go\n")
    assert child.returncode == 0
    server.start()
    return line


def leave_named(server: Server) -> str:
    """Leaves 49 steps of a trajectory that is on the server with its root. The server ends before the steps."""
    return record_while_away(server, NAMED)


def test_a_step_that_is_sent_again_moves_no_tag_back(own_server: Server) -> None:
    own_server.start()
    records = """
import os, sys
import anabranch as ab
from anabranch._recording import segment as _segment
_segment.Marks.set = lambda *arguments: None
t = ab.connect(sys.argv[1]).trajectory()
t.reset(observation=0)
t.step(action=1, tags=["best"])
t.flush(30)
os.write(1, t.id.encode())
os._exit(0)
"""
    trajectory_id, _ = start(records, own_server.address).communicate()
    trajectories = own_server.stubs().trajectories
    trajectories.SetTag(SetTagRequest(trajectory_id=trajectory_id, name="best", step_number=0))
    assert "2 steps" in run_spool("list")
    assert "2 steps were sent" in run_spool("send", "--address", own_server.address)
    assert len(stored_steps(own_server, trajectory_id)) == 2
    tags = trajectories.ListTags(ListTagsRequest(trajectory_id=trajectory_id, name="best")).tags
    assert [tag.step_number for tag in tags] == [0]


def test_a_seal_that_is_all_that_is_left_is_sent(own_server: Server) -> None:
    own_server.start()
    records = """
import os, sys
import anabranch as ab
from anabranch._recording import rpc
call = rpc.Connections.call
rpc.Connections.call = lambda self, method, *rest: None if "Seal" in method else call(self, method, *rest)
t = ab.connect(sys.argv[1]).trajectory()
t.reset(observation=0).wait(30)
t.seal()
os.write(1, t.id.encode())
os._exit(0)
"""
    trajectory_id, _ = start(records, own_server.address).communicate()
    run_spool("send", "--address", own_server.address)
    assert own_server.stored(trajectory_id).status == 5


def test_resume_first_sends_what_is_spooled(own_server: Server) -> None:
    own_server.start()
    trajectory_id = leave_named(own_server)
    t = ab.connect(own_server.address).trajectory(task="t", name="named", resume="must")
    assert (t.id, t.next_step, t.last_observation) == (trajectory_id, 50, 49)


UNOPENED = """
import os, sys
import anabranch as ab
t = ab.connect(sys.argv[1]).trajectory(task="t", name="named", resume="must")
print(flush=True)
sys.stdin.readline()
for number in range(50, 60):
    t.step(action=number, observation=number)
os._exit(0)
"""


def test_a_process_that_died_before_its_first_grant_makes_no_branch(own_server: Server) -> None:
    own_server.start()
    trajectory_id = leave_named(own_server)
    record_while_away(own_server, UNOPENED)
    t = ab.connect(own_server.address).trajectory(task="t", name="named", resume="must")
    assert (t.id, t.next_step, t.last_observation) == (trajectory_id, 60, 59)
    assert len(own_server.listed()) == 1


@pytest.mark.parametrize("what", ["deleted", "sealed", "continued"])
def test_a_spool_whose_trajectory_changed_meanwhile(own_server: Server, what: str) -> None:
    from anabranch.v1 import trajectory_service_pb2 as s
    from anabranch.v1.trajectory_pb2 import Step

    own_server.start()
    trajectory_id = leave_named(own_server)
    stub = own_server.stubs().trajectories
    writer = own_server.stored(trajectory_id)
    if what == "deleted":
        stub.DeleteTrajectory(s.DeleteTrajectoryRequest(trajectory_id=trajectory_id))
    elif what == "sealed":
        request = s.SealTrajectoryRequest(trajectory_id=trajectory_id, writer_epoch=writer.writer_epoch)
        request.seal.status = 5
        stub.SealTrajectory(request)
    else:
        opening = s.AppendOpen(trajectory_id=trajectory_id, writer_id="other", take_over_epoch=writer.writer_epoch)
        frames = [s.AppendStepsRequest(open=opening), s.AppendStepsRequest(steps=[Step(step_number=1)])]
        assert len(list(stub.AppendSteps(iter(frames)))) == 2
    run_spool("send", "--address", own_server.address)
    listed = stub.ListTrajectories(s.ListTrajectoriesRequest()).trajectories
    branches = [each for each in listed if each.labels.get("anabranch.spooled_from") == trajectory_id]
    if what == "deleted":
        assert len(listed) == 0
        return
    (branch,) = branches
    observed = [step.observations[0].content.json for step in stored_steps(own_server, branch.id)]
    assert (branch.name, branch.branch_point) == ("named", 0)
    assert observed == [str(number) for number in range(50)]
    assert len(stored_steps(own_server, trajectory_id)) == (1 if what == "sealed" else 2)
    assert run_spool("list") == ""


ATTEMPT = """
import os, sys
import anabranch as ab
client = ab.connect(sys.argv[1])
stage = client.run("a run", config={}).stage("train_step", 0)
stage.start()
rollout = stage.rollout(0, 0)
rollout.reset(observation=0)
rollout.trajectory.flush()
print(flush=True)
sys.stdin.readline()
for number in range(1, 50):
    rollout.step(action=number)
os._exit(0)
"""


def test_steps_of_a_killed_worker_are_dropped_when_its_lease_is_lost(own_server: Server) -> None:
    own_server.start()
    record_while_away(own_server, ATTEMPT)
    # A client with the same spool would send the steps.
    ab.connect(own_server.address, spool=False).run("a run").cancel("enough")
    run_spool("send", "--address", own_server.address)
    assert [each.next_step_number for each in own_server.listed()] == [1]
    assert run_spool("list") == ""


#: Three threads follow the trajectory, and have read its first step: threads within gRPC must not break a forked child.
FOLLOWS = """
import threading
def follow_by_threads(t):
    following = threading.Semaphore(0)
    def follow():
        for _ in t.steps(follow=True):
            following.release()
    for _ in range(3):
        threading.Thread(target=follow, daemon=True).start()
    for _ in range(3):
        following.acquire()
"""

#: Forks beside live streams, and ends with the child's code. It is a program of its own: gRPC cannot be copied while a
#: stream of another test waits for its connection.
FORKS = """
import logging, os, sys, traceback
import anabranch as ab
import pytest
from anabranch.errors import RecorderClosed

warned = []
class Told(logging.Handler):
    def emit(self, record):
        warned.append(record.getMessage())

client = ab.connect(sys.argv[1])
t = client.trajectory(id=sys.argv[2])
t.reset(observation=0)
t.flush(30)
strict = ab.connect(sys.argv[1], strict=True).trajectory()
follow_by_threads(t)
child = os.fork()
if child == 0:
    code = 1
    try:
        logging.getLogger("anabranch").handlers = [Told()]
        refused = [t.step(action=1) for _ in range(3)]
        assert [receipt.number for receipt in refused] == [-1] * 3
        (warning,) = warned
        assert f"trajectory {t.id} belongs to another process" in warning
        # What the parent had sent is durable. What it still sends is not known here.
        t.flush()
        with pytest.raises(RecorderClosed):
            refused[0].wait()
        with pytest.raises(RecorderClosed, match="belongs to another process") as raised:
            strict.step(action=1)
        assert raised.value.reason == "RECORDER_CLOSED"
        own = client.trajectory(id=sys.argv[3])
        own.reset(observation=1)
        own.flush(30)
        assert [text for text in warned if "belongs to another process" in text] == [warning]
        assert client.stats.recorded == 1
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)
t.step(action=2, observation=2)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
t.seal()
t.flush(30)
sys.exit(code)
"""


def test_a_forked_child_records_its_own_trajectories(server: Server) -> None:
    ids = [str(uuid.uuid4()), str(uuid.uuid4())]
    forking = start(f"{FOLLOWS}{FORKS}", server.address, *ids)
    output, errors = forking.communicate(timeout=100)
    assert (forking.returncode, output) == (0, ""), errors
    assert [len(stored_steps(server, trajectory_id)) for trajectory_id in ids] == [2, 1]


#: Another package has used gRPC first. Forked children record while threads of the parent are within gRPC.
FORKS_AFTER_OTHERS = """
import os, sys
import grpc
assert "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
channel = grpc.insecure_channel(sys.argv[1])
channel.unary_unary("/anabranch.v1.ServerService/GetServerInfo")(b"", timeout=60)
if sys.argv[2] == "closed":
    channel.close()
    del channel
import anabranch as ab
client = ab.connect(sys.argv[1])
t = client.trajectory()
t.reset(observation=0)
t.flush(60)
if sys.argv[2] == "closed":
    follow_by_threads(t)
for _ in range(3):
    child = os.fork()
    if child == 0:
        if sys.argv[2] == "closed":
            own = client.trajectory()
            own.reset(observation=0)
            own.flush(60)
        else:
            # A channel could abort this child. It warns before that.
            from anabranch._wire.forks import prepare_forks
            prepare_forks()
            prepare_forks()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("channel", ["closed", "open"])
def test_a_package_that_imports_grpc_first_does_not_break_forks(server: Server, channel: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-c", f"{FOLLOWS}{FORKS_AFTER_OTHERS}", server.address, channel]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=300)
    assert (done.stdout.split(), done.returncode) == (["0"] * 3, 0), done.stderr
    # With an open channel, grpc cannot be mended: each child says so once.
    warnings = done.stderr.count("set GRPC_ENABLE_FORK_SUPPORT=1 before the program starts")
    assert warnings == (3 if channel == "open" else 0)


#: Says when the end of the program begins to wait. Programs that a shell starts in the background ignore interrupts.
SAYS_THAT_IT_WAITS = """
import signal
from anabranch._recording import sender as _sender
signal.signal(signal.SIGINT, signal.default_int_handler)
wait = _sender.Sender.wait
def said(self, condition, seconds):
    os.write(1, b"waits\\n")
    return wait(self, condition, seconds)
_sender.Sender.wait = said
"""


def test_a_second_interrupt_exits_at_once(own_server: Server) -> None:
    program = RECORDS.replace("client =", f"{SAYS_THAT_IT_WAITS}client =", 1)
    child = start(program, own_server.address, ANABRANCH_EXIT_SECONDS="600")
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert "waits\n" in iter(child.stdout.readline, "")
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=100)
    assert "steps are kept in" in errors
