"""Creates and reads states: `simulation_db.managers.state_manager`."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from anabranch._reading.blobs import Blobs
from anabranch._reading.episode import Step as RecordedStep
from anabranch._reading.read import OwnedStep
from anabranch._wire.outage import call, pages
from anabranch.compat._strict import append_branch, append_step, float_of, integer_of, store_large_parts
from anabranch.compat.simulation_db.database import Session
from anabranch.compat.simulation_db.models import (
    CALL,
    EXTRA,
    NUMBER,
    PARENT,
    STATES_TASK,
    SimulationRun,
    State,
    place_of,
)
from anabranch.errors import StepConflict, StepGap, TrajectoryNotFound
from anabranch.v1.trajectory_pb2 import Step
from anabranch.v1.trajectory_service_pb2 import (
    BranchTrajectoryRequest,
    CreateTrajectoryRequest,
    ListTrajectoriesRequest,
)

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp


class StateManager:
    """The manager of states. They form trees: a state has one parent and any number of children."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._client = session.client
        self._connection = session.connection

    def create_state(
        self,
        observation: Any,
        step_number: int,
        parent_state_id: str | None = None,
        action: Any = None,
        reward: float | None = None,
        done: bool = False,
        truncated: bool = False,
        info: Any = None,
        extra_metadata: Any = None,
    ) -> State:
        """Creates a state below its parent, or a root without one, and returns it.

        `observation` and `action` are stored as by the package, `info` and `extra_metadata` as plain JSON. `done` means
        that the environment has ended, `truncated` that it was cut off. Raises ValueError if there is no parent with
        this id, TypeError for a value that cannot be stored, and StepTooLarge for one that is too large. Nothing is
        stored then.
        """
        step = self._message(observation, action, reward, info)
        step.terminated, step.truncated = bool(done), bool(truncated)
        place = None if parent_state_id is None else place_of(parent_state_id)
        if parent_state_id is not None and place is None:
            raise _no_parent(parent_state_id)
        number = 0 if place is None else place[1] + 1
        metadata = {EXTRA: extra_metadata} if extra_metadata is not None else {}
        if (given := integer_of(step_number, "step_number")) != number:
            metadata[NUMBER] = given
        if metadata:
            step.metadata_json = self._client.values.info_json(metadata, EXTRA)
        step.step_number = number
        # Two processes may create equal children of one state at the same moment: both are kept.
        step.labels[CALL] = str(uuid.uuid4())
        if parent_state_id is not None:
            step.labels[PARENT] = parent_state_id
        trajectory_id, commit_time = self._store(step, None if place is None else place[0])
        step.commit_time.CopyFrom(commit_time)
        owned = OwnedStep(trajectory_id, step)
        return State(RecordedStep(trajectory_id, owned, Blobs(self._connection, [owned])))

    def get_state(self, state_id: str) -> State | None:
        """Returns a state by its id; None if there is none."""
        return State.read(self._client, state_id)

    def get_state_path(self, state: State) -> list[State]:
        """Returns the states from the root to this one, in order."""
        return state.get_lineage(self.session)

    def get_children(self, state: State) -> list[State]:
        """Returns the children of a state, the first one first."""
        place = place_of(state.id)
        if place is None:
            return []
        trajectory_id, number = place
        following = State.read(self._client, f"{trajectory_id}@{number + 1}")
        children = [following] if following is not None else []
        request = ListTrajectoriesRequest(parent_id=trajectory_id, branch_point=number, ascending=True, page_size=1000)
        for page in pages(self._connection, lambda stubs: stubs.trajectories.ListTrajectories, request):
            children += [self._read(f"{branch.id}@{number + 1}") for branch in page.trajectories]
        return children

    def get_terminal_states(self) -> list[State]:
        """Returns all states that are `done`, of all simulations."""
        found = self._client.steps(task=STATES_TASK, terminal=True)
        return [State(step) for step in found if step.terminated]

    def compare_runs(self, run1: SimulationRun, run2: SimulationRun) -> dict[str, Any]:
        """Compares the paths of two runs.

        Returns `shared`, `run1_only` and `run2_only`, lists of states in order, and `divergence_point`, the last shared
        state, or None.
        """
        first, second = (run.get_state_sequence(self.session) for run in (run1, run2))
        shared = 0
        while shared < min(len(first), len(second)) and first[shared].id == second[shared].id:
            shared += 1
        return {
            "shared": first[:shared],
            "run1_only": first[shared:],
            "run2_only": second[shared:],
            "divergence_point": first[shared - 1] if shared else None,
        }

    def _message(self, observation: Any, action: Any, reward: float | None, info: Any) -> Step:
        values, step = self._client.values, Step()
        if action is not None:
            values.add_action(step, action)
        values.add_observation(step, observation)
        if reward is not None:
            step.reward = float_of(reward, "reward")
        if info is not None:
            step.info_json = values.info_json(info)
        return step

    def _store(self, step: Step, parent: str | None) -> tuple[str, Timestamp]:
        """Stores a state. Returns the id of its trajectory, which is that of the parent, or a new one if the parent
        has a child already, and the time of the commit."""
        new = str(uuid.uuid4())
        if parent is None:
            store_large_parts(self._connection, step)
            root = CreateTrajectoryRequest(trajectory_id=new, request_id=new, task_id=STATES_TASK, root=step)
            created = call(self._connection, lambda stubs: stubs.trajectories.CreateTrajectory, root)
            return new, created.trajectory.create_time
        try:
            return parent, append_step(self._connection, parent, step)
        except StepConflict:
            branch = BranchTrajectoryRequest(trajectory_id=parent, step_number=step.step_number - 1, branch_id=new)
            branch.request_id = new
            return new, append_branch(self._connection, branch, step)
        except (StepGap, TrajectoryNotFound) as error:
            raise _no_parent(step.labels[PARENT]) from error

    def _read(self, id: str) -> State:
        found = State.read(self._client, id)
        if found is None:
            raise ValueError(f"state {id!r} was deleted meanwhile")
        return found


def _no_parent(id: str) -> ValueError:
    return ValueError(f"parent_state_id is {id!r}: no state has this id")
