"""SIGTERM ends the `with` blocks of trajectories, unless the program has a handler of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from conftest import Server

import anabranch as ab
from anabranch._wire.termination import Terminated
from anabranch.v1.status_pb2 import STATUS_CANCELLED, STATUS_COMPLETED

BEGIN = """
import asyncio, os, signal, sys, threading
import anabranch as ab
client = ab.connect(sys.argv[1])

def record(t):
    t.reset(observation=0)
    print(t.id, flush=True)

def wait():
    # The input ends after the signal. It may come between two calls, and must end the wait all the same.
    while True:
        sys.stdin.readline()
"""
#: Waits for the signal, which comes when the id is printed.
WAITS = """
with client.trajectory() as t:
    record(t)
    wait()
"""
WAITS_IN_A_BLOCK_WITHIN = """
with client.trajectory() as outer:
    record(outer)
    with client.trajectory():
        pass
    wait()
"""
WAITS_IN_A_TASK = """
async def wait():
    async with ab.aio.connect(sys.argv[1]) as client:
        async with client.trajectory() as t:
            record(t)
            await asyncio.Event().wait()

asyncio.run(wait())
"""
HAS_A_HANDLER = """
signal.signal(signal.SIGTERM, print)
with client.trajectory() as t:
    record(t)
    sys.stdin.readline()
"""
SETS_A_HANDLER_WITHIN = """
with client.trajectory() as t:
    signal.signal(signal.SIGTERM, print)
    record(t)
    sys.stdin.readline()
assert signal.getsignal(signal.SIGTERM) is print
"""
IGNORES_IT = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with client.trajectory() as t:
    record(t)
    sys.stdin.readline()
"""
WAITS_OUTSIDE = """
with client.trajectory() as t:
    t.reset(observation=0)
t.flush(60)
print(t.id, flush=True)
wait()
"""
FORKS_WITHIN = """
with client.trajectory() as t:
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    record(t)
    wait()
"""


def run(program: str, server: Server) -> tuple[str, int, str]:
    """Runs a program, and sends SIGTERM when it has printed the id of its trajectory. Returns the id, the exit code, and
    what it has written to stderr."""
    # Python 3.12 warns of forks beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGIN + program, server.address]
    environment = {**os.environ, "ANABRANCH_EXIT_SECONDS": "60"}
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
    assert child.stdout is not None
    trajectory_id = child.stdout.readline().strip()
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate("\n", timeout=200)
    return trajectory_id, child.returncode, errors


@pytest.mark.parametrize("program", [WAITS, WAITS_IN_A_BLOCK_WITHIN, WAITS_IN_A_TASK, FORKS_WITHIN])
def test_sigterm_cancels_the_trajectory_of_a_block(server: Server, program: str) -> None:
    trajectory_id, code, errors = run(program, server)
    stored = server.stored(trajectory_id)
    assert (code, errors) == (143, "")
    assert stored.status == STATUS_CANCELLED
    # The signal can come within the task itself, or while the event loop waits: then it cancels the task.
    assert stored.status_message in ("Terminated", "CancelledError")


@pytest.mark.parametrize("program", [HAS_A_HANDLER, SETS_A_HANDLER_WITHIN, IGNORES_IT])
def test_a_handler_of_the_program_is_left_alone(server: Server, program: str) -> None:
    trajectory_id, code, errors = run(program, server)
    assert (code, errors) == (0, "")
    assert server.stored(trajectory_id).status == STATUS_COMPLETED


def test_sigterm_outside_of_blocks_ends_the_program_as_before(server: Server) -> None:
    trajectory_id, code, _ = run(WAITS_OUTSIDE, server)
    assert code == -signal.SIGTERM
    assert server.stored(trajectory_id).status == STATUS_COMPLETED


def test_sigterm_returns_a_rollout_to_the_queue(server: Server) -> None:
    stage = ab.connect(server.address).run("terminated", config={}).stage("train_step", 0)
    with pytest.raises(Terminated), stage.rollout(0, 0) as rollout:
        rollout.reset(observation=0)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with stage.rollout(0, 0) as again:
        assert again.id == rollout.id


def test_blocks_of_other_threads_set_no_handler(server: Server) -> None:
    found: list[object] = []

    def play() -> None:
        with ab.connect(server.address).trajectory() as t:
            t.reset(observation=0)
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]


def test_a_block_that_ends_in_another_thread_leaves_the_signal_as_it_was(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    t.__enter__()
    thread = threading.Thread(target=t.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    with ab.connect(server.address).trajectory():
        pass
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
