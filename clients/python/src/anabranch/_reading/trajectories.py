"""Trajectories as the server lists them, without their steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from anabranch._reading.blobs import Blobs
from anabranch._reading.episode import Step
from anabranch._reading.listing import Listing
from anabranch._reading.read import INLINE_BYTES, OwnedStep, blobs_of, require_word
from anabranch._reading.tree import tree_text
from anabranch._wire.outage import call, pages
from anabranch.errors import TrajectoryNotFound
from anabranch.v1 import records
from anabranch.v1.run_service_pb2 import ListStatusChangesRequest
from anabranch.v1.trajectory_service_pb2 import (
    DeleteTrajectoryRequest,
    GetTrajectoryRequest,
    ListStepsRequest,
    ListStepsResponse,
    ListTrajectoriesRequest,
    OnBranches,
)

if TYPE_CHECKING:
    from anabranch._wire.connection import Connection
    from anabranch._wire.shown import Text

Branches = Literal["refuse", "cascade", "keep_shared"]
StepOrder = Literal["number", "reward", "time", "metric"]


class TrajectoryRecord(records.Trajectory):
    """A trajectory without its steps, as the server returned it last. `client.episode(record)` reads the steps."""

    def __init__(self, connection: Connection, message: Any) -> None:
        super().__init__(message)
        self._connection = connection

    def history(self) -> list[records.StatusChange]:
        """Returns the changes of the status, the oldest first."""
        return read_history(self._connection, trajectory_id=self.id)

    def tree(self) -> Text:
        """Returns the tree of the trajectory as text, as `anabranch tree` draws it."""
        return tree_text(self._connection, self.id)

    def delete(self, *, branches: Branches = "refuse") -> int:
        """Deletes the trajectory, as `Client.delete`."""
        return delete_trajectory(self._connection, self.id, branches)


def list_trajectories(connection: Connection, request: ListTrajectoriesRequest) -> Listing[TrajectoryRecord]:
    return Listing(
        connection,
        lambda stubs: stubs.trajectories.ListTrajectories,
        request,
        lambda page: (TrajectoryRecord(connection, each) for each in page.trajectories),
    )


def get_trajectory(connection: Connection, trajectory_id: str) -> TrajectoryRecord:
    """Returns a trajectory. Raises TrajectoryNotFound."""
    request = GetTrajectoryRequest(trajectory_id=trajectory_id)
    found = call(connection, lambda stubs: stubs.trajectories.GetTrajectory, request)
    return TrajectoryRecord(connection, found.trajectory)


def trajectory_exists(connection: Connection, trajectory_id: str) -> bool:
    try:
        get_trajectory(connection, trajectory_id)
    except TrajectoryNotFound:
        return False
    return True


def delete_trajectory(connection: Connection, trajectory_id: str, branches: Branches) -> int:
    """Returns how many trajectories were deleted permanently."""
    request = DeleteTrajectoryRequest(trajectory_id=trajectory_id, on_branches=on_branches(branches))
    return call(connection, lambda stubs: stubs.trajectories.DeleteTrajectory, request).purged_trajectories


def on_branches(branches: Branches) -> OnBranches.ValueType:
    """Returns what a deletion does to branches. Raises ValueError, which names the valid words."""
    words = [name.removeprefix("ON_BRANCHES_").lower() for name in OnBranches.keys()[1:]]
    require_word("branches", branches, words)
    return OnBranches.Value(f"ON_BRANCHES_{branches.upper()}")


def list_steps(connection: Connection, request: ListStepsRequest) -> Listing[Step]:
    request.inline_bytes = INLINE_BYTES

    def rows(page: ListStepsResponse) -> Iterator[Step]:
        blobs = {blob.digest: blob.data for blob in page.blobs}
        owned = [OwnedStep(each.trajectory_id, each.step, blobs_of(each.step, blobs)) for each in page.steps]
        together = Blobs(connection, owned)
        for each in owned:
            yield Step(each.owner_id, each, together)

    return Listing(connection, lambda stubs: stubs.trajectories.ListSteps, request, rows)


def read_history(connection: Connection, **resource: str) -> list[records.StatusChange]:
    """Returns the changes of the status of a resource, the oldest first."""
    request = ListStatusChangesRequest(ascending=True, page_size=1000, **resource)
    found = pages(connection, lambda stubs: stubs.runs.ListStatusChanges, request)
    return [records.StatusChange(change) for page in found for change in page.changes]
