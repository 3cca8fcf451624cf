"""The table of cases that the sender shares with the writer of the TypeScript client."""

from __future__ import annotations

import json
import math
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import NODE, ROOT

from anabranch._recording import queue as _queue
from anabranch._recording import rpc
from anabranch._recording import sender as _sender
from anabranch._recording.segment import Kind
from anabranch._recording.sending import DEFAULT_SENDING, Sending
from anabranch._recording.spool import Identity, MemorySpool
from anabranch._recording.transfer import Transfer
from anabranch._wire.failures import Failure
from anabranch._wire.retry import Patience, Situation, judge
from anabranch.v1.trajectory_pb2 import Content, Observation, Step
from anabranch.v1.trajectory_service_pb2 import CreateTrajectoryRequest

CASES: dict[str, Any] = json.loads((ROOT / "test/client/sending_cases.json").read_text())


TRAJECTORY = "0191c5a0-0000-7000-8000-0000000000aa"
SECONDS = 60
#: What ends waiting, with the defaults, in milliseconds.
LIMITS = {"silence_ms": CASES["defaults"]["silence_ms"], "give_up_after_ms": math.inf}


def failure_of(error: dict[str, Any]) -> Failure:
    reason, metadata = error.get("reason", ""), error.get("metadata", {})
    return Failure(error["code"], "failed", reason, metadata, error.get("retry_after_ms", 0) / 1000)


def test_frames_and_the_window_have_the_same_bounds() -> None:
    assert CASES["defaults"] == {
        "frame_steps": _queue._FRAME_STEPS,
        "frame_bytes": _queue._FRAME_BYTES,
        "window_steps": _queue._WINDOW_STEPS,
        "window_bytes": _queue._WINDOW_BYTES,
        "silence_ms": DEFAULT_SENDING.silence * 1000,
    }


@pytest.mark.parametrize("case", CASES["retries"], ids=lambda case: str(case["error"]))
def test_errors_after_which_a_retry_can_succeed(case: dict[str, Any]) -> None:
    assert failure_of(case["error"]).transient == case["transient"]


@pytest.mark.parametrize("case", CASES["delays"], ids=lambda case: case["title"])
def test_delays(case: dict[str, Any]) -> None:
    limit = case.get("give_up_after_ms", math.inf) / 1000
    patience = Patience(limit, now=lambda: 0.0, chance=lambda: case["random"])
    delays: list[float | None] = []
    for error in case["failures"]:
        failure = failure_of(error)
        at = math.inf if patience.useless(failure) else patience.retry_at(failure)
        delays.append(None if at == math.inf else round(at * 1000))
    assert delays == case["delays_ms"]


@pytest.mark.parametrize("case", CASES["verdicts"], ids=lambda case: case["title"])
def test_verdicts(case: dict[str, Any]) -> None:
    # The recorder has remedies where the writer fails: a branch, or a marker in place of the step.
    assert judge(failure_of(case["error"]), Situation(**case["situation"])) == case["recorder"]


class Servers:
    """The servers that play the scripted streams, one for each case."""

    def __init__(self) -> None:
        command = [str(NODE), "test/client/stream_cases_server.ts"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.urls: dict[str, str] = self._read()

    def seen(self, title: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{title}\n")
        self.process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        self.process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    running = Servers()
    yield running
    running.stop()


@pytest.fixture
def sender(
    request: pytest.FixtureRequest, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[_sender.Sender]:
    """A sender with the settings of a case, to the server that plays its script."""
    case: dict[str, Any] = request.getfixturevalue("case")
    if "window_steps" in case:
        monkeypatch.setattr(_queue, "_WINDOW_STEPS", case["window_steps"])
    if "window_kib" in case:
        monkeypatch.setattr(_queue, "_WINDOW_BYTES", case["window_kib"] * 1024)
    address = servers.urls[case["title"]]
    silence, give_up_after = (case.get(name, default) / 1000 for name, default in LIMITS.items())
    running = _sender.Sender(address, None, Sending(silence, give_up_after))
    running.spool = MemorySpool(64 * 1024 * 1024)
    running.start()
    yield running
    running.stop()


@pytest.mark.parametrize("case", CASES["streams"], ids=lambda case: case["title"])
def test_streams(case: dict[str, Any], servers: Servers, sender: _sender.Sender) -> None:
    transfer = write(sender, case)
    expected = {"calls": [], "markers": [], "streams": len(case["streams"]), **case.get("recorder", case["writer"])}
    failure = "" if transfer.failure is None else transfer.failure.reason or transfer.failure.code
    durable = max(case.get("start", 0), transfer.durable)
    seen = {"durable": durable, "failure": failure, **servers.seen(case["title"])}
    assert seen["connections"] >= expected.pop("connections", 1)
    assert seen["waited_ms"] >= expected.pop("waited_ms", 0)
    assert seen["problems"] == []
    assert {key: seen[key] for key in expected} == expected


def write(sender: _sender.Sender, case: dict[str, Any]) -> Transfer:
    """Records the steps of a case and waits until they are durable, or the rest of them cannot be sent."""
    spool = sender.spool
    assert isinstance(spool, MemorySpool)
    identity = Identity(TRAJECTORY, str(uuid.uuid4()), take_over=case.get("take_over", True))
    spooled = spool.add(identity.to_bytes())
    transfer = Transfer(sender, spool, None, spooled.number, identity)

    def record(kind: Kind, number: int, content: bytes) -> None:
        transfer.add(spool.append(spooled, kind, number, content))
        sender.notify(transfer)

    number = case.get("start", 0)
    if case.get("create"):
        creation = CreateTrajectoryRequest(trajectory_id=TRAJECTORY, request_id=TRAJECTORY).SerializeToString()
        record(Kind.CREATE, 0, rpc.CREATE.encode() + b"\0" + creation)
    for batch in case["batches"]:
        # The sender sees the steps of a batch together.
        while not sender.hold():
            pass
        for _ in range(batch):
            size = case["kib"][number - case.get("start", 0)] * 1024 if "kib" in case else 0
            observations = [Observation(content=Content(text="x" * size))] if size else []
            step = Step(step_number=number, reward=number, observations=observations)
            record(Kind.STEP, number, step.SerializeToString())
            number += 1
        sender.release()
        ended: Callable[[], bool] = lambda: transfer.failure is not None or not transfer.waiting
        assert sender.wait(ended, SECONDS), f"steps wait after {SECONDS} s"
        if transfer.failure is not None:
            break
    return transfer
