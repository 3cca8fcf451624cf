"""Recorders obey the limits of their server, and the defaults of their version until it has answered."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import IS_LARGE_DOSE, NODE, ROOT, Server, free_port, stored_steps
from front import Front, info_of

import anabranch as ab
from anabranch._wire.decode import Unstored
from anabranch._wire.limits import limits_of
from anabranch.errors import StepTooLarge
from anabranch.v1.limits import LIMITS

OTHER = {"stepBytes": 3000, "inlineStateBytes": 2000, "chunkBytes": 1000, "stateBytes": 5000, "tensorDimensions": 1}


@pytest.fixture
def front(server: Server) -> Iterator[Front]:
    running = Front(server, info_of(server, limits=OTHER))
    yield running
    running.stop()


def asked(address: str) -> None:
    """Waits until the server has told its limits: nothing that records waits for that."""
    deadline = time.monotonic() + 60
    while not limits_of(address).known:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_recorder_obeys_the_limits_of_its_server(server: Server, front: Front) -> None:
    client = ab.connect(front.address, strict=True)
    assert client.values.limits.values == LIMITS
    t = client.trajectory()
    t.reset()
    t.flush(60)
    asked(front.address)
    t.step(observation=b"x" * 2500)
    with pytest.raises(StepTooLarge, match="expected at most 3000"):
        t.step(observation=[b"y" * 20] * 200)
    with pytest.raises(StepTooLarge, match="octet-stream of 5001 bytes"):
        t.step(observation=b"z" * 5001)
    for _ in range(100):
        t.step(observation=b"small")
    t.flush(60)
    # The real server would have kept these bytes in the step.
    assert stored_steps(server, t.id)[1].observations[0].content.state_digest
    # The first message of an upload also has its digest.
    assert len(front.chunks) == 3
    assert max(front.chunks) < 1100
    assert len(stored_steps(server, t.id)) == 102
    assert front.asked == 1


@pytest.mark.parametrize("most", [5000, 256 * 1024**2] if IS_LARGE_DOSE else [5000])
def test_larger_values_than_a_state_raise_with_strict_and_become_markers_otherwise(front: Front, most: int) -> None:
    assert front.info is not None
    front.info.limits["stateBytes"] = most
    large = np.zeros(most + 1, np.uint8)
    whole = "{" + " " * most + "}"
    strict = ab.connect(front.address, strict=True).trajectory()
    strict.reset(observation=0)
    strict.flush(60)
    asked(front.address)
    for values in ({"observation": large}, {"observation": whole}, {"states": {"env": large.tobytes()}}):
        with pytest.raises(StepTooLarge) as raised:
            strict.step(**values)
        assert raised.value.reason == "STEP_TOO_LARGE"
    client = ab.connect(front.address)
    t = client.trajectory()
    t.reset(observation=0)
    t.step(action=1, observation=large)
    t.step(action=2, observation=whole)
    t.step(action=3, observation=[whole], info=[whole])
    t.step(action=4, observation=4, states={"env": large.tobytes(), "small": b"1"})
    strict.step(observation=1)
    for each in (strict, t):
        each.flush(100)
    assert [step.observation for step in strict.episode().steps] == [0, 1]
    steps = t.episode().steps
    names = [f"array of {large.nbytes} bytes", f"str of {len(whole)} bytes", f"list as JSON of {len(whole) + 4} bytes"]
    assert [step.observation for step in steps] == [0, *map(Unstored, names), 4]
    assert [step.action for step in steps] == [None, 1, 2, 3, 4]
    assert (steps[3].info, steps[4].states) == ({"$unstored": names[2]}, ("small",))
    assert client.stats.unstored == {names[0]: 1, names[1]: 1, names[2]: 2, "states": 1}


def test_without_a_server_the_limits_are_those_of_the_version(server: Server) -> None:
    script = "import('./src/domain/limits.ts').then(({ LIMITS }) => console.log(JSON.stringify(LIMITS)))"
    done = subprocess.run([NODE, "-e", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == LIMITS
    assert LIMITS["stateBytes"] == 256 * 1024**2
    away = ab.connect(f"127.0.0.1:{free_port()}", spool=False)
    away.trajectory().reset(observation=b"x" * 2500)
    assert away.values.limits.values == LIMITS


def test_the_limits_of_the_real_server_replace_the_defaults(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset()
    t.flush(60)
    asked(server.address)
    assert client.values.limits.values.items() >= LIMITS.items()
    assert client.values.limits["maxConnections"] > 0
