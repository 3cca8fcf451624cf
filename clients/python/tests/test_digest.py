"""The digest of a step (rule W6): the same as that of the server and of the TypeScript client."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from conftest import ROOT, Server, stored_steps
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

import anabranch as ab
from anabranch._recording import rpc
from anabranch._recording.digest import step_digest
from anabranch.v1.trajectory_pb2 import Action, Content, Observation, Step, StepState, Tensor
from anabranch.v1.trajectory_service_pb2 import (
    AppendStepRequest,
    AttachStateRequest,
    CreateTrajectoryRequest,
    GetStepRequest,
)

VECTORS: list[dict[str, Any]] = json.loads((ROOT / "test/domain/step_digest_vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_golden_vectors(vector: dict[str, Any]) -> None:
    assert step_digest(Step.FromString(bytes.fromhex(vector["storedHex"]))) == vector["digest"]


def test_all_bit_patterns_of_nan_are_equal() -> None:
    (other,) = struct.unpack(">d", bytes.fromhex("fff80000deadbeef"))
    assert step_digest(Step(reward=float("nan"))) == step_digest(Step(reward=other)) != step_digest(Step(reward=0))


#: Fields that the server sets, or that name the bytes that another field has.
NOT_SENT = {"commit_time", "writer_epoch", "reward_sum", "size", "pruned_time", "attach_time"}


#: A step for each kind of message in it, and the way to that message.
PLACES: list[tuple[Step, Callable[[Step], Message]]] = [
    (Step(), lambda step: step),
    (Step(actions=[Action()]), lambda step: step.actions[0]),
    (Step(observations=[Observation()]), lambda step: step.observations[0]),
    (Step(states=[StepState(name="a", digest="a")]), lambda step: step.states[0]),
    (Step(actions=[Action(content=Content(uri="a"))]), lambda step: step.actions[0].content),
    (Step(actions=[Action(content=Content(tensor=Tensor(dtype="a")))]), lambda step: step.actions[0].content.tensor),
]
#: Values of fields: one of them has the type of the field.
SAMPLES: tuple[Any, ...] = ("b", b"b", 5, 1.5, True, ["b"], [5], {"b": 1.5}, {"b": "b"}, [{}])
MESSAGES = {
    "content": Content(text="b"),
    "tensor": Tensor(dtype="b"),
    "start_time": Timestamp(),
    "end_time": Timestamp(),
}


@pytest.mark.parametrize(("step", "way"), PLACES, ids=lambda value: "")
def test_every_field_that_a_client_sends_changes_the_digest(step: Step, way: Callable[[Step], Message]) -> None:
    for field in type(way(step)).DESCRIPTOR.fields:
        if field.name not in NOT_SENT:
            changed = Step.FromString(step.SerializeToString())
            way(changed).MergeFrom(sample_of(type(way(step)), field.name))
            assert step_digest(changed) != step_digest(step), field.full_name


def sample_of(kind: type[Message], name: str) -> Message:
    """Returns a message with one field."""
    for sample in (MESSAGES[name],) if name in MESSAGES else SAMPLES:
        try:
            return kind(**{name: sample})
        except (TypeError, ValueError):
            continue
    raise AssertionError(f"{name} has no sample")


SENT = Step(
    step_number=0,
    actions=[Action(content=Content(json="{}"), token_ids=[1, -2], logprobs=[-0.1, float("nan")], kept_tokens=0)],
    observations=[
        Observation(content=Content(data=b"x" * 20_000, media_type="image/png")),
        Observation(content=Content(data=b"x" * 100, media_type="image/png")),
        Observation(content=Content(tensor=Tensor(dtype="|u1", shape=[20_000], data=b"y" * 20_000))),
        Observation(content=Content(text="é")),
    ],
    metrics={"b": 1.5, "a": float("-inf")},
    labels={"z": "1", "é": "2"},
    states=[StepState(name="mind", data=b"z" * 9000), StepState(data=b"1")],
)


def test_a_step_that_the_server_returns_is_the_one_that_was_sent(server: Server) -> None:
    trajectories = server.stubs().trajectories
    created = trajectories.CreateTrajectory(CreateTrajectoryRequest()).trajectory
    trajectories.AppendStep(AppendStepRequest(trajectory_id=created.id, step=SENT))
    response = trajectories.GetStep(GetStepRequest(trajectory_id=created.id, step_number=0)).SerializeToString()
    assert rpc.is_stored(SENT.SerializeToString(), response)
    # A state that is attached later is no part of it.
    attached = StepState(name="later", data=b"2")
    trajectories.AttachState(AttachStateRequest(trajectory_id=created.id, step_number=0, state=attached))
    response = trajectories.GetStep(GetStepRequest(trajectory_id=created.id, step_number=0)).SerializeToString()
    assert rpc.is_stored(SENT.SerializeToString(), response)
    other = Step.FromString(SENT.SerializeToString())
    other.states[0].data = b"z" * 8999
    assert not rpc.is_stored(other.SerializeToString(), response)


def test_a_step_has_300_images(server: Server) -> None:
    images = [b"\x89PNG\r\n\x1a\n" + bytes([number % 256, number // 256]) * 200 for number in range(300)]
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(observation=images)
    t.flush(60)
    assert client.branch(t.id).last_observation == tuple(images)


@pytest.mark.parametrize("excess", [0, 1])
def test_a_step_of_the_largest_size_is_sent_as_it_is(server: Server, excess: int) -> None:
    from anabranch.v1.limits import LIMITS

    step_bytes = LIMITS["stepBytes"]

    def observations(size: int) -> dict[str, object]:
        # With bytes among them, each value is an observation of its own.
        return {"bytes": b"1", "first": "x" * 400_000, "second": "é" * 200_000, "third": "y" * size}

    def encoded(size: int) -> int:
        step = Step(step_number=1)
        client.values.add_observation(step, observations(size))
        return step.ByteSize()

    client = ab.connect(server.address, strict=True)
    size = step_bytes - encoded(0) + excess
    while encoded(size) > step_bytes + excess:
        size -= 1
    assert encoded(size) == step_bytes + excess
    t = client.trajectory()
    t.reset()
    t.step(observation=observations(size))
    t.flush(60)
    step = stored_steps(server, t.id)[1]
    assert any(item.content.HasField("state_digest") for item in step.observations) == (excess == 1)
    assert client.branch(t.id).last_observation == observations(size)
