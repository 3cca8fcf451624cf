"""What workers of `multiprocessing` record arrives: they wait at their end, and others send what was left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from conftest import Server
from programs import run_spool

#: Each worker records an episode of three steps. Its `with` block waits for nothing.
WORKER = """
import multiprocessing, os, sys
import anabranch as ab

def play(number):
    client = ab.connect(sys.argv[1])
    with client.trajectory(name=str(number)) as t:
        t.reset(observation=0)
        t.step(action=1, reward=1.0)
        t.step(action=1, reward=1.0)
    return client.stats.recorded
"""

JOINS = """
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    workers = [context.Process(target=play, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(max(worker.exitcode for worker in workers))
"""
POOL = """
if __name__ == "__main__":
    pool = multiprocessing.get_context(sys.argv[2]).Pool(3)
    assert set(pool.map(play, range(6))) <= {3, 6, 9, 12, 15, 18}
    pool.close()
    pool.join()
"""
EXECUTOR = """
if __name__ == "__main__":
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context(sys.argv[2])) as executor:
        assert set(executor.map(play, range(6))) <= {3, 6, 9, 12, 15, 18}
"""


def begin(folder: Path, program: str, *arguments: str, exit_seconds: int = 100) -> subprocess.Popen[str]:
    """Starts a program from a file, which spawned workers import."""
    file = folder / "program.py"
    file.write_text(program)
    environment = {**os.environ, "ANABRANCH_EXIT_SECONDS": str(exit_seconds)}
    command = [sys.executable, str(file), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def stored(server: Server) -> list[tuple[int, float, int]]:
    """Returns the number of steps, the sum of rewards and the status of each trajectory."""
    return [(each.next_step_number, each.reward_sum, each.status) for each in server.listed()]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("program", [JOINS, POOL, EXECUTOR], ids=["processes", "pool", "executor"])
def test_a_worker_waits_at_its_end_until_its_steps_are_durable(
    own_server: Server, tmp_path: Path, program: str, method: str
) -> None:
    own_server.start()
    process = begin(tmp_path, WORKER + program, own_server.address, method)
    assert process.communicate(timeout=300) == ("", "")
    assert process.returncode == 0
    # The parent has no client that could have sent them.
    assert stored(own_server) == [(3, 2.0, 5)] * (4 if program == JOINS else 6)
    assert run_spool("list") == ""


def test_a_worker_whose_server_refuses_connections_does_not_wait_for_long(own_server: Server, tmp_path: Path) -> None:
    process = begin(tmp_path, WORKER + JOINS, own_server.address, "fork", exit_seconds=3600)
    _, errors = process.communicate(timeout=300)
    assert errors.count("3 steps are kept in") == 4
    own_server.start()
    run_spool("send", "--address", own_server.address)
    assert stored(own_server) == [(3, 2.0, 5)] * 4


#: The server is away while the workers record. `with` terminates them.
TERMINATED = """
if __name__ == "__main__":
    client = ab.connect(sys.argv[1])
    with multiprocessing.get_context(sys.argv[2]).Pool(3) as pool:
        pool.map(play, range(6))
    print("terminated", flush=True)
    sys.stdin.readline()
"""
#: A process that has recorded nothing.
ADOPTS = """
    sender = client.recorder.sender
    assert client.stats.recorded == 0
    assert sender.wait(lambda: sender.durable == 18, 200)
"""
#: It would not look for terminated workers by itself.
ADOPTS_AT_ONCE = """
    assert client.recorder.adopt(200)
    print(client.stats.durable)
"""
#: The same for the flush of a trajectory of its own.
FLUSHES = """
    t = client.trajectory()
    t.flush(200)
    sender = client.recorder.sender
    assert sender.wait(lambda: sender.durable == 18, 200)
"""
#: The end of the process sends what terminated workers left.
ENDS = ""
NEVER_SCANS = """
from anabranch._recording import sender
sender._SCAN_SECONDS = 1e6
"""


def go_on(process: subprocess.Popen[str], server: Server) -> str:
    """Starts the server when the workers were terminated. Returns what the program prints after that."""
    assert process.stdout is not None
    assert process.stdout.readline() == "terminated\n"
    server.start()
    output, errors = process.communicate("go\n", timeout=300)
    assert (process.returncode, [line for line in errors.splitlines() if "reachable" not in line]) == (0, [])
    return output


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("before", "after"),
    [("", ADOPTS), (NEVER_SCANS, ADOPTS_AT_ONCE), (NEVER_SCANS, FLUSHES), (NEVER_SCANS, ENDS)],
    ids=["by itself", "at once", "at a flush", "at the end"],
)
def test_a_living_process_sends_what_terminated_workers_left(
    own_server: Server, tmp_path: Path, method: str, before: str, after: str
) -> None:
    process = begin(tmp_path, before + WORKER + TERMINATED + after, own_server.address, method)
    go_on(process, own_server)
    expected = [(3, 2.0, 5)] * 6
    assert sorted(each for each in stored(own_server) if each[0]) == expected
    assert run_spool("list") == ""


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


KILLED = """
if __name__ == "__main__":
    client = ab.connect(sys.argv[1])
    child = os.fork()
    if child == 0:
        play(0)
        os._exit(0)
    os.waitpid(child, 0)
    print("terminated", flush=True)
    sys.stdin.readline()
"""


def test_a_forked_child_that_ends_at_once_leaves_its_steps_to_its_parent(own_server: Server, tmp_path: Path) -> None:
    process = begin(tmp_path, NEVER_SCANS + WORKER + KILLED + ADOPTS_AT_ONCE, own_server.address)
    assert go_on(process, own_server) == "3\n"
    assert stored(own_server) == [(3, 2.0, 5)]


RECORDS = """
import os, sys
import anabranch as ab
t = ab.connect(sys.argv[1]).trajectory()
t.reset(observation=0)
print("recorded", flush=True)
sys.stdin.readline()
"""
READS = """
import sys
import anabranch as ab
client = ab.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.readline()
sender = client.recorder.sender
assert sender.wait(lambda: sender.durable == 1, 200)
"""


def test_an_unrelated_process_with_the_same_spool_sends_them_too(own_server: Server, tmp_path: Path) -> None:
    (tmp_path / "reader").mkdir()
    reader = begin(tmp_path / "reader", READS, own_server.address)
    assert line_of(reader.stdout) == "connected\n"
    dies = begin(tmp_path, RECORDS, own_server.address)
    assert line_of(dies.stdout) == "recorded\n"
    dies.send_signal(signal.SIGKILL)
    dies.communicate()
    own_server.start()
    reader.communicate("go\n", timeout=300)
    assert reader.returncode == 0
    assert [each.next_step_number for each in own_server.listed()] == [1]
