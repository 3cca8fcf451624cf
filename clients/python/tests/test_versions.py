"""A server of an incompatible version: one clear error before anything is sent to it, and no step is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Server, package_version
from front import Front, info_of

import anabranch as ab
from anabranch import aio
from anabranch._recording.creation import Creation
from anabranch._wire.limits import Limits
from anabranch.client import Client
from anabranch.errors import IncompatibleVersion
from anabranch.v1.server_service_pb2 import GetServerInfoResponse

TEXT = (
    f"client version {package_version()} cannot use server version 9.2.0: install the same major version of both "
    r"\(below 1.0, the same minor version\)"
)


@pytest.fixture
def other(server: Server) -> Iterator[Front]:
    """A server of another major version."""
    running = Front(server, info_of(server, version="9.2.0"))
    yield running
    running.stop()


@pytest.mark.parametrize(
    ("own", "version", "fits"),
    [
        ("0.1.0", "0.1.7", True),
        ("0.1.0", "0.2.0", False),
        ("0.1.0", "1.1.0", False),
        ("0.1.0", "0.10.0", False),
        ("1.4.0", "1.0.0-rc.1", True),
        ("1.4.0", "10.4.0", False),
        ("0.1.0", "", False),
        ("0.1.0", "next", False),
    ],
)
def test_the_major_version_must_be_the_same_and_below_1_the_minor_one(
    own: str, version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch._wire.limits.__version__", own)
    limits = Limits()
    if fits:
        limits.take(GetServerInfoResponse(version=version))
    else:
        with pytest.raises(IncompatibleVersion) as raised:
            limits.take(GetServerInfoResponse(version=version))
        assert raised.value.metadata == {"version": version}
    assert limits.known is fits


def read(client: Client) -> None:
    next(iter(client.episodes()))


def create(client: Client) -> None:
    client.run(f"run {uuid.uuid4()}", config={})


def watch(client: Client) -> None:
    next(client.watch_runs())


def resume(client: Client) -> None:
    client.trajectory(id=str(uuid.uuid4()), resume="must")


@pytest.mark.parametrize("use", [read, create, watch, resume])
def test_the_first_call_raises_with_both_versions_and_sends_nothing(other: Front, use: object) -> None:
    assert callable(use)
    client = ab.connect(other.address)
    for _ in range(2):
        with pytest.raises(IncompatibleVersion, match=TEXT) as raised:
            use(client)
        assert (raised.value.reason, raised.value.metadata) == ("INCOMPATIBLE_VERSION", {"version": "9.2.0"})
    assert other.methods == []


def test_the_server_is_asked_once_and_again_after_an_upgrade(server: Server, other: Front) -> None:
    client = ab.connect(other.address)
    with pytest.raises(IncompatibleVersion):
        create(client)
    other.info, other.asked = info_of(server), 0
    create(client)
    create(ab.connect(other.address))
    assert other.asked == 1


async def test_aio_raises_the_same_error(other: Front) -> None:
    async with aio.connect(other.address) as client:
        with pytest.raises(IncompatibleVersion, match=TEXT):
            await asyncio.wait_for(client.run("any", config={}), 60)


RECORD = """
import sys
import anabranch as ab
t = ab.connect(sys.argv[1]).trajectory(name="main")
t.reset(observation=1)
t.step(action=1, observation=2, tags=["best"])
try:
    t.flush(60)
except ab.errors.IncompatibleVersion as error:
    print(t.id, error.reason, error, sep="|")
"""

RECORD_LATER = """
import sys
import anabranch as ab
client = ab.connect(sys.argv[1])
client.trajectory(task="other").reset(observation=2)
t = client.trajectory(id=sys.argv[2], resume="must")
print(t.next_step)
"""


def test_steps_are_kept_until_client_and_server_have_the_same_version(
    server: Server, spool: Path, other: Front
) -> None:
    done = subprocess.run([sys.executable, "-c", RECORD, other.address], check=True, capture_output=True, text=True)
    trajectory_id, reason, message = done.stdout.strip().split("|")
    assert reason == "INCOMPATIBLE_VERSION"
    assert f"client version {package_version()} cannot use server version 9.2.0" in message
    assert done.stderr.count("cannot use server version 9.2.0") == 1
    assert "2 steps are kept in" in done.stderr
    assert other.methods == []
    other.info = info_of(server)
    again = [sys.executable, "-c", RECORD_LATER, other.address, trajectory_id]
    later = subprocess.run(again, check=True, capture_output=True, text=True)
    assert later.stdout.strip() == "2", (done.stderr, later.stderr)


@pytest.mark.parametrize("version", ["9.2.0", package_version()])
def test_trajectories_that_step_together_ask_once_and_share_their_first_message(server: Server, version: str) -> None:
    front = Front(server, info_of(server, version=version))
    try:
        client = ab.connect(front.address)
        group = client.recorder.group()
        # What is recorded outside of the block can be sent before the rest.
        with group:
            together = [client.create(str(uuid.uuid4()), Creation(), group=group) for _ in range(8)]
            for each in together:
                each.reset(observation=1)
        for each in together:
            if version == package_version():
                each.flush(60)
            else:
                with pytest.raises(IncompatibleVersion, match=TEXT):
                    each.flush(60)
        assert front.asked == 1
        assert front.methods == (["AppendBatch"] if version == package_version() else [])
    finally:
        front.stop()
