"""Measures the Python client. Settings are JSON in the first argument, figures are JSON on stdout."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from savers import saver_threads, saver_turns

import anabranch as ab
from anabranch._reading.read import OwnedStep, fetch_states, read_steps
from anabranch._recording import sender as _sender
from anabranch.episodes import Episode
from anabranch.v1.state_service_pb2 import GetStateRequest
from anabranch.v1.trajectory_pb2 import Trajectory as TrajectoryMessage

Settings = dict[str, Any]
#: What a loop does between two calls of `step()`.
WORK_SECONDS = 50e-6
ENVIRONMENTS = 256
EPISODES, EPISODE_STEPS = 1000, 20
STATES, STATE_BYTES = 100, 20_000


def record(settings: Settings) -> dict[str, float]:
    """The duration of `step()` of CartPole, in µs. The loop works between the calls."""
    client = ab.connect(settings["address"])
    t = client.trajectory(task="bench")
    observations = np.random.default_rng(7).random((1000, 4), "f4")
    t.reset(observation=observations[0], info={})

    def step(number: int) -> None:
        t.step(
            action=number % 2,
            observation=observations[number % 1000],
            reward=1.0,
            terminated=False,
            truncated=False,
            info={},
        )

    return timed(settings, step, lambda number: number)


def record_llm(settings: Settings) -> dict[str, float]:
    """The duration of a turn of 2 KB of text with 500 tokens and their logprobs, in µs."""
    t = ab.connect(settings["address"]).trajectory(task="bench")
    t.reset(messages=[{"role": "user", "content": "Go on."}])
    logprobs = [{"token": "a", "logprob": -index / 1000} for index in range(500)]
    message = {"role": "assistant", "content": "Now I look at the next file. " * 70}

    def reply_of(number: int) -> dict[str, Any]:
        choice = {
            "finish_reason": "stop",
            "message": message,
            "token_ids": list(range(number, number + 500)),
            "logprobs": {"content": logprobs},
        }
        return {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 500}}

    def turn(reply: dict[str, Any]) -> None:
        with t.turn(reply):
            pass

    return timed(settings, turn, reply_of)


def record_bytes(settings: Settings) -> dict[str, float]:
    """MB/s of screenshots of 200 KB that `step()` accepts, within the time that it takes to call it."""
    client = ab.connect(settings["address"])
    t = client.trajectory(task="bench")
    images = [b"\x89PNG\r\n\x1a\n" + os.urandom(200_000) for _ in range(16)]
    for image in images:
        t.step(action="click", screenshot=image)
    t.flush(60)
    durations: list[float] = []
    # As many as the spool takes in a short burst; the server comes later.
    for number in range(settings["images"]):
        # A new image each time, as a device returns it.
        image = b"".join((images[number % 16][:-8], number.to_bytes(8, "little")))
        begun = time.perf_counter()
        t.step(action="click", screenshot=image)
        durations.append(time.perf_counter() - begun)
    t.flush(120)
    return {"mbPerSecond": 0.2 * len(durations) / sum(durations), "p50": 1e6 * percentile(durations, 0.5)}


def ingest(settings: Settings) -> dict[str, float]:
    """Steps/s of four trajectories, until they are durable."""
    client = ab.connect(settings["address"])
    ts = [client.trajectory(task="bench") for _ in range(4)]
    observations = np.random.default_rng(7).random((1000, 4), "f4")

    def some(count: int) -> None:
        for number in range(count // len(ts)):
            for t in ts:
                t.step(action=number % 2, observation=observations[number % 1000], reward=1.0)
        for t in ts:
            t.flush(120)

    some(settings["steps"] // 5)
    begun, cpu = time.perf_counter(), time.process_time()
    some(settings["steps"])
    seconds = time.perf_counter() - begun
    return {
        "stepsPerSecond": settings["steps"] / seconds,
        "cpuMicrosPerStep": 1e6 * (time.process_time() - cpu) / settings["steps"],
    }


def vector(settings: Settings) -> dict[str, float]:
    """CPU of this process per step, in µs, of environments that step together and wait until their steps are durable."""
    if settings["by"] == "streams":
        _sender.BATCH_FROM = 1 << 30
    client = ab.connect(settings["address"])
    ts = [client.trajectory(task="bench") for _ in range(ENVIRONMENTS)]
    observations = np.random.default_rng(7).random((1000, 4), "f4")
    sender = ts[0]._recorder.sender
    recording = 0.0

    def together(number: int) -> None:
        nonlocal recording
        cpu = time.thread_time()
        for index, t in enumerate(ts):
            t.step(action=number % 2, observation=observations[(number + index) % 1000], reward=1.0)
        recording += time.thread_time() - cpu
        recorded = client.stats.recorded
        sender.wait(lambda: sender.durable >= recorded, 120)

    end = time.perf_counter() + settings["warmupSeconds"]
    for number in itertools.count():
        together(number)
        if time.perf_counter() > end:
            break
    begun, recording, first = time.process_time(), 0.0, client.stats.recorded
    end = time.perf_counter() + settings["seconds"]
    while time.perf_counter() < end:
        together(0)
    cpu = time.process_time() - begun
    steps = client.stats.recorded - first
    return {"cpuMicrosPerStep": 1e6 * (cpu - recording) / steps, "recordingMicrosPerStep": 1e6 * recording / steps}


def write_episodes(settings: Settings) -> dict[str, float]:
    client = ab.connect(settings["address"])
    observations = np.random.default_rng(7).random((EPISODE_STEPS + 1, 4), "f4")
    for _ in range(EPISODES):
        with client.trajectory(task="read") as t:
            t.reset(observation=observations[0])
            for number in range(1, EPISODE_STEPS + 1):
                t.step(
                    action=number % 2, observation=observations[number], reward=1.0, terminated=number == EPISODE_STEPS
                )
    recorded = client.stats.recorded
    t._recorder.sender.wait(lambda: client.stats.durable >= recorded, 120)
    return {}


def read(settings: Settings) -> dict[str, float]:
    """Episodes/s that are read into arrays."""
    client = ab.connect(settings["address"])
    client.connection.stubs  # noqa: B018 the first call connects
    by_streams = settings["by"] == "ReadSteps"
    ids = [each.id for each in client.episodes(task="read")]
    cpu = time.process_time()
    begun = time.perf_counter()
    episodes = (episode_of(client, each) for each in ids) if by_streams else client.episodes(task="read")
    rows = sum(len(each.observations) + len(each.actions) + len(each.rewards) for each in episodes)
    seconds = time.perf_counter() - begun
    assert rows == EPISODES * (3 * EPISODE_STEPS + 1), rows
    return {"perSecond": EPISODES / seconds, "cpuMicros": 1e6 * (time.process_time() - cpu) / EPISODES}


def episode_of(client: ab.Client, trajectory_id: str) -> Episode:
    owned: list[OwnedStep] = [step for steps in read_steps(client.connection, trajectory_id) for step in steps]
    return Episode(TrajectoryMessage(id=trajectory_id), owned, client.connection)


def write_states(settings: Settings) -> dict[str, Any]:
    t = ab.connect(settings["address"]).trajectory(task="states")
    for number in range(STATES):
        t.step(action=0, observation=os.urandom(STATE_BYTES - 4) + number.to_bytes(4, "little"))
    t.flush(60)
    digests = [step.message.observations[0].content.state_digest for step in t.steps() if step.message.observations]
    return {"digests": digests}


def states(settings: Settings) -> dict[str, float]:
    """Reads of all states per second."""
    client = ab.connect(settings["address"])
    stub = client.connection.stubs.states
    digests: list[str] = settings["digests"]

    def one(digest: str) -> bytes:
        return b"".join(part.chunk for part in stub.GetState(GetStateRequest(digest=digest)))

    def read_all() -> int:
        if settings["by"] == "GetState":
            return sum(len(one(digest)) for digest in digests)
        return sum(len(data) for data in fetch_states(client.connection, digests).values())

    durations: list[float] = []
    end = time.perf_counter() + settings["warmupSeconds"] + settings["seconds"]
    while time.perf_counter() < end:
        begun = time.perf_counter()
        assert read_all() == STATES * STATE_BYTES
        durations.append(time.perf_counter() - begun)
    return {"perSecond": 1 / percentile(durations, 0.5)}


_T = TypeVar("_T")


def timed(settings: Settings, call: Callable[[_T], None], prepare: Callable[[int], _T]) -> dict[str, float]:
    """Returns percentiles of the durations of calls with work between them, in µs. Their arguments are made before."""
    durations: list[float] = []
    clock = time.perf_counter
    end = clock() + settings["warmupSeconds"] + settings["seconds"]
    measured_from = end - settings["seconds"]
    number = 0
    begun = clock()
    while begun < end:
        number += 1
        argument = prepare(number)
        begun = clock()
        call(argument)
        done = clock()
        if begun > measured_from:
            durations.append(done - begun)
        while clock() - done < WORK_SECONDS:
            pass
    return {f"p{part}": 1e6 * percentile(durations, part / 100) for part in (50, 90, 99)}


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


TASKS: dict[str, Callable[[Settings], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        record,
        record_llm,
        record_bytes,
        ingest,
        vector,
        write_episodes,
        read,
        write_states,
        states,
        saver_turns,
        saver_threads,
    )
}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    # What an unreachable server leaves in the spool is not sent at the end.
    os.environ["ANABRANCH_EXIT_SECONDS"] = "0"
    os.environ["ANABRANCH_SPOOL"] = given["spool"]
    figures = TASKS[given["task"]](given)
    print(json.dumps(figures), flush=True)
    os._exit(0)
