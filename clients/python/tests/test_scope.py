"""A scope ends what another thread waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from conftest import Server, free_port

from anabranch import connect
from anabranch._wire.scope import Interrupted, Scope, current, sleep


def interrupted(wait: Callable[[], object], *, before: bool = False) -> None:
    """Waits in a thread, cancels its scope before or meanwhile, and checks that the wait was interrupted."""
    scope, started, ended = Scope(), threading.Event(), threading.Event()

    def run() -> None:
        current.set(scope)
        started.set()
        try:
            wait()
        except Interrupted:
            ended.set()

    if before:
        scope.cancel()
    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(10)
    scope.cancel()
    thread.join(20)
    assert ended.is_set()


@pytest.mark.parametrize("before", [True, False])
def test_a_cancelled_scope_ends_its_waits(server: Server, before: bool) -> None:
    away = connect(f"127.0.0.1:{free_port()}", spool=False).trajectory(name="away")
    away.reset(observation=1)
    client = connect(server.address)
    live = client.trajectory(name="live")
    live.reset(observation=1)
    live.flush(20)
    run = client.run(f"scope {live.id}", config={})
    waits: list[Callable[[], object]] = [
        lambda: sleep(60),
        away.flush,
        lambda: list(live.steps(follow=True)),
        lambda: list(run.watch()),
        lambda: next(client.claims(run=run, wait_seconds=50)),
        lambda: client.work(print, run=f"no such run {live.id}"),
    ]
    for wait in waits:
        interrupted(wait, before=before)


def test_a_wait_without_a_scope_is_not_ended() -> None:
    begun = time.monotonic()
    sleep(0.01)
    assert time.monotonic() - begun >= 0.01


def test_a_closed_client_renews_no_leases_and_connects_again(server: Server) -> None:
    with connect(server.address) as client:
        run = client.run(f"closed {time.time_ns()}", config={})
        stage = run.stage("train_step", 0)
        stage.start()
        stage.rollouts([{"group": 0, "number": 0}])
        rollout = next(client.claims(run=run))
        assert rollout._leases.held == [rollout]
    assert rollout._leases.held == []
    assert run.refresh().status == "running"
    rollout.release()
