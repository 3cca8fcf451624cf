"""Trajectories that the server has refused: the spool keeps them until the user renames or drops them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch._recording import rpc
from anabranch._recording.abandoned import Abandoned, Left, Owner, folders_of, refusals_of
from anabranch._recording.segment import Entry, Kind
from anabranch._recording.spool import Spool, spool_bytes
from anabranch.v1.trajectory_pb2 import Step
from anabranch.v1.trajectory_service_pb2 import (
    AppendStepsRequest,
    BranchTrajectoryRequest,
    CreateTrajectoryRequest,
    Seal,
    SetTagRequest,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message


@dataclass(frozen=True)
class Changes:
    """What the creation of a trajectory says instead. None leaves a field as it is."""

    name: str | None = None
    task: str | None = None
    run_id: str | None = None
    #: Labels that are added or replaced.
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@contextmanager
def refused(root: Path, trajectory_id: str) -> Generator[tuple[Abandoned, Left], None, None]:
    """Takes the folder of a refused trajectory for the block. Raises ValueError if there is none, or it is in use."""
    for folder in folders_of(root):
        owner = Owner.lock(folder)
        if owner is None:
            if any(each == trajectory_id for each, _ in refusals_of(folder).values()):
                raise ValueError(f"trajectory {trajectory_id} is in use by the process that recorded it: end it first")
            continue
        found = Abandoned(owner)
        try:
            for left in found.left:
                if left.refused and left.identity.trajectory_id == trajectory_id:
                    yield found, left
                    return
        finally:
            found.leave()
    raise ValueError(
        f"no trajectory {trajectory_id} was refused: `python -m anabranch spool list` shows those that were"
    )


def rename(found: Abandoned, left: Left, changes: Changes) -> None:
    """Lets the next process create the trajectory with changes, and send it.

    Raises ValueError if the changes do not apply, and SpoolFullError."""
    contents = [left.load(entry) for entry in left.entries]
    creation = next((index for index, entry in enumerate(left.entries) if entry.kind == Kind.CREATE), None)
    if creation is not None:
        contents[creation] = _changed(contents[creation], changes)
    elif changes != Changes():
        raise ValueError(f"trajectory {left.identity.trajectory_id} was created: its creation cannot be changed")
    identity = left.identity if changes.name is None else replace(left.identity, name=changes.name)
    owner = Owner.create(found.owner.folder.parent)
    try:
        spool = Spool(owner.folder, spool_bytes())
        spooled = spool.add(identity.to_bytes())
        for entry, content in zip(left.entries, contents, strict=True):
            spool.append(spooled, entry.kind, entry.number, content)
        spool.close()
    except BaseException:
        owner.delete()
        raise
    owner.release()
    found.drop(left)


def export(left: Left) -> Iterator[dict[str, Any]]:
    """Yields what the server would have received, in order: objects for lines of JSON, with messages of the protos."""
    yield {"trajectory_id": left.identity.trajectory_id, "refused": left.refused}
    for entry in left.entries:
        yield from _exported(entry, left.load(entry))


def _changed(content: bytes, changes: Changes) -> bytes:
    method, request = _creation_of(content)
    if isinstance(request, CreateTrajectoryRequest):
        request.task_id = request.task_id if changes.task is None else changes.task
        request.run_id = request.run_id if changes.run_id is None else changes.run_id
    elif changes.task is not None or changes.run_id is not None:
        raise ValueError("a branch has the task and the run of its source: neither can be changed")
    request.name = request.name if changes.name is None else changes.name
    request.labels.update(changes.labels)
    return method + b"\0" + request.SerializeToString()


def _creation_of(content: bytes) -> tuple[bytes, CreateTrajectoryRequest | BranchTrajectoryRequest]:
    method, _, data = content.partition(b"\0")
    kind = BranchTrajectoryRequest if method == rpc.BRANCH.encode() else CreateTrajectoryRequest
    return method, kind.FromString(data)


def _exported(entry: Entry, content: bytes) -> Iterator[dict[str, Any]]:
    if entry.kind == Kind.CREATE:
        _, request = _creation_of(content)
        yield {"create" if isinstance(request, CreateTrajectoryRequest) else "branch": _plain(request)}
    elif entry.is_step:
        yield {"step": _plain(Step.FromString(rpc.step_of(entry.kind, content)))}
        if entry.kind == Kind.TAGGED_STEP:
            for tag in AppendStepsRequest.FromString(rpc.tags_of(content)).tags:
                yield {"tag": _plain(tag)}
    elif entry.kind == Kind.UPLOAD:
        data = base64.b64encode(content).decode()
        yield {"state": {"digest": hashlib.sha256(content).hexdigest(), "data": data}}
    elif entry.kind == Kind.TAG:
        yield {"tag": _plain(SetTagRequest.FromString(content))}
    elif entry.kind == Kind.SEAL:
        yield {"seal": _plain(Seal.FromString(content))}


def _plain(message: Message) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=True)
