"""Writes trajectories by unary calls, for tests of reading."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from anabranch._wire.connection import Connection
from anabranch._wire.values import ValueEncoder
from anabranch.v1.status_pb2 import Status
from anabranch.v1.trajectory_pb2 import Step
from anabranch.v1.trajectory_service_pb2 import (
    AppendStepRequest,
    BranchTrajectoryRequest,
    CreateTrajectoryRequest,
    Seal,
    SealTrajectoryRequest,
)

_SECONDS = 20
_encoder = ValueEncoder(strict=True)


def new_step(number: int, *, action: Any = None, observation: Any = None, info: Any = None, **fields: Any) -> Step:
    step = Step(step_number=number, **fields)
    if action is not None:
        _encoder.add_action(step, action)
    if observation is not None:
        _encoder.add_observation(step, observation)
    if info is not None:
        step.info_json = _encoder.info_json(info)
    return step


def token_step(number: int, prompt: Sequence[int], reply: Sequence[int], **fields: Any) -> Step:
    """A step with one action that has tokens. The log-probability of token n is -n."""
    step = Step(step_number=number, **fields)
    action = step.actions.add(token_ids=reply, logprobs=[-float(token) for token in reply])
    action.content.text = "reply"
    action.prompt_token_ids.extend(prompt)
    return step


def record(connection: Connection, steps: Sequence[Step], *, seal: str = "completed", **fields: Any) -> str:
    """Creates a trajectory with these steps, and seals it. Returns its id."""
    request = CreateTrajectoryRequest(trajectory_id=str(uuid.uuid4()), **fields)
    connection.stubs.trajectories.CreateTrajectory(request, timeout=_SECONDS)
    append(connection, request.trajectory_id, steps)
    if seal:
        end(connection, request.trajectory_id, seal)
    return request.trajectory_id


def branch(connection: Connection, trajectory_id: str, at: int, steps: Sequence[Step], **fields: Any) -> str:
    request = BranchTrajectoryRequest(
        trajectory_id=trajectory_id, step_number=at, branch_id=str(uuid.uuid4()), **fields
    )
    connection.stubs.trajectories.BranchTrajectory(request, timeout=_SECONDS)
    append(connection, request.branch_id, steps)
    return request.branch_id


def append(connection: Connection, trajectory_id: str, steps: Sequence[Step]) -> None:
    for step in steps:
        connection.stubs.trajectories.AppendStep(
            AppendStepRequest(trajectory_id=trajectory_id, step=step), timeout=_SECONDS
        )


def end(connection: Connection, trajectory_id: str, status: str) -> None:
    seal = Seal(status=Status.Value(f"STATUS_{status.upper()}"))
    request = SealTrajectoryRequest(trajectory_id=trajectory_id, seal=seal)
    connection.stubs.trajectories.SealTrajectory(request, timeout=_SECONDS)


def episode_steps(length: int, observe: Callable[[int], Any], act: Callable[[int], Any]) -> list[Step]:
    """A reset and `length` steps. The reward of step n is n; the last step is terminal."""
    moves = [
        new_step(
            number,
            action=act(number),
            observation=observe(number),
            reward=float(number),
            info={"number": number},
            terminated=number == length,
        )
        for number in range(1, length + 1)
    ]
    return [new_step(0, observation=observe(0), info={}), *moves]
