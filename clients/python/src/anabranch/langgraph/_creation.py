"""Requests that create the trajectories of a thread."""

from __future__ import annotations

import json

from anabranch.langgraph._names import INTEGRATION, fitting, name_of, task_of
from anabranch.langgraph._steps import WRITES
from anabranch.v1.trajectory_service_pb2 import (
    BranchTrajectoriesRequest,
    BranchTrajectoryRequest,
    CreateTrajectoryRequest,
    TrajectoryCreation,
)

CHECKPOINTS = "checkpoints"
#: Label of a trajectory whose steps before this number were stored again by a prune.
AGAIN = "stored_again"


def creation_of(thread_id: str, id: str, ns: str | None = None) -> TrajectoryCreation:
    """Returns the creation of a trajectory for the checkpoints of a namespace, or for pending writes."""
    request = CreateTrajectoryRequest(trajectory_id=id, request_id=id, task_id=task_of(thread_id))
    _describe(request, thread_id, ns)
    return TrajectoryCreation(trajectory=request)


def branch_of(thread_id: str, id: str, source_id: str, at: int, ns: str | None) -> TrajectoryCreation:
    """Returns the creation of a branch that belongs to the thread."""
    request = BranchTrajectoryRequest(
        trajectory_id=source_id, step_number=at, branch_id=id, request_id=id, task_id=task_of(thread_id)
    )
    _describe(request, thread_id, ns)
    return TrajectoryCreation(branch=request)


def copy_of(thread_id: str, target_id: str, request_id: str) -> BranchTrajectoriesRequest:
    """Returns the request that copies a thread. The copies keep kind and namespace of their sources."""
    return BranchTrajectoriesRequest(
        task_id=task_of(thread_id),
        branch_task_id=task_of(target_id),
        request_id=request_id,
        name=name_of(target_id, ""),
        labels={"thread": fitting(target_id)},
        metadata_json=json.dumps({"thread_id": target_id}),
    )


def mark_again(creation: TrajectoryCreation, end: int) -> None:
    """Labels a trajectory whose steps before `end` are stored again."""
    request = creation.branch if creation.HasField("branch") else creation.trajectory
    request.labels[AGAIN] = str(end)


def _describe(request: CreateTrajectoryRequest | BranchTrajectoryRequest, thread_id: str, ns: str | None) -> None:
    kind = WRITES if ns is None else CHECKPOINTS
    request.name = name_of(thread_id, kind if ns is None else ns)
    labels = {"integration": INTEGRATION, "kind": kind, "thread": fitting(thread_id)}
    request.labels.update(labels if ns is None else {**labels, "ns": fitting(ns)})
    about = {"thread_id": thread_id, **({} if ns is None else {"checkpoint_ns": ns})}
    request.metadata_json = json.dumps(about)
