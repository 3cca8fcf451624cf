"""Simulations, their runs, and states: `simulation_db.models`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from anabranch._reading.read import status_name
from anabranch._wire.decode import decode_json
from anabranch._wire.outage import call
from anabranch.compat._strict import is_uuid
from anabranch.episodes import Step, steps_of
from anabranch.errors import ExperimentNotFound, RangeBeyondEnd, RunNotFound, TrajectoryNotFound
from anabranch.v1.run_service_pb2 import GetExperimentRequest, GetRunRequest
from anabranch.v1.trajectory_pb2 import VIEW_BASIC
from anabranch.v1.trajectory_service_pb2 import GetStepRequest

if TYPE_CHECKING:
    from anabranch.client import Client
    from anabranch.compat.simulation_db.database import Session
    from anabranch.v1.run_pb2 import Experiment, Run
    from anabranch.v1.trajectory_pb2 import Step as StepMessage

__all__ = ["Simulation", "SimulationRun", "State"]

#: The task of the trajectories that have the states as they were created.
STATES_TASK = "simulation_db states"
#: Labels of steps: the id of a state in a run, the id of its parent, and what tells equal states apart.
STATE, PARENT, CALL = "simulation_db.state", "simulation_db.parent", "simulation_db.call"
#: The keys of the metadata of a step.
EXTRA, NUMBER = "extra_metadata", "step_number"
#: Labels of runs: ids of states.
ROOT, BRANCH_POINT = "simulation_db.root", "simulation_db.branch_point"
#: Our statuses that have another name there.
_STATUSES = {"running": "active", "pending": "active", "initializing": "active"}


class Simulation:
    """A template of runs."""

    def __init__(self, experiment: Experiment) -> None:
        self.id: str = experiment.id
        self.name: str = experiment.name
        self.description: str | None = experiment.description or None
        self.environment_name: str = experiment.environment_name
        self.environment_config: Any = _value_of(experiment.environment_config_json)
        self.agent_type: str = experiment.agent_type
        self.agent_config: Any = _value_of(experiment.agent_config_json)
        self.max_steps: int | None = experiment.max_steps if experiment.HasField("max_steps") else None
        self.seed: int | None = experiment.seed if experiment.HasField("seed") else None
        self.tags: list[str] = list(experiment.tags)
        self.created_at: datetime = experiment.create_time.ToDatetime()
        self.updated_at: datetime = experiment.update_time.ToDatetime()

    @classmethod
    def read(cls, client: Client, id: str) -> Simulation | None:
        """Returns the simulation with an id; None if there is none."""
        if not is_uuid(id):
            return None
        request = GetExperimentRequest(experiment_id=id)
        try:
            found = call(client.connection, lambda stubs: stubs.runs.GetExperiment, request)
        except ExperimentNotFound:
            return None
        return cls(found.experiment)

    def __repr__(self) -> str:
        return f"<Simulation(id={self.id[:8]}, name={self.name!r}, env={self.environment_name!r})>"


class SimulationRun:
    """A run: a path of states. The managers keep its attributes up to date."""

    def __init__(self, run: Run, current_state_id: str) -> None:
        self.current_state_id: str = current_state_id
        self.take(run)

    def take(self, run: Run) -> None:
        """Takes what the server says of the run."""
        self.message = run
        self.id: str = run.id
        self.simulation_id: str = run.experiment_id
        self.name: str = run.name
        self.description: str | None = run.description or None
        #: The first state of the path. A branch has that of its parent.
        self.root_state_id: str = run.labels[ROOT]
        self.parent_run_id: str | None = run.parent_id or None
        self.branch_point_state_id: str | None = run.labels[BRANCH_POINT] if run.parent_id else None
        self.config_overrides: dict[str, Any] = _value_of(run.config_overrides_json) or {}
        #: `active`, `paused`, `completed`, `failed` or `cancelled`.
        self.status: str = _STATUSES.get(status_name(run.status), status_name(run.status))
        #: Number of states after the root, those included that a branch shares with its parent.
        self.total_steps: int = max(0, run.next_step_number - 1)
        result: Any = _value_of(run.result_json) or {}
        #: What `complete_run` was given, else the sum of the rewards of the path.
        self.total_reward: float = result.get("total_reward", run.reward_sum)
        self.created_at: datetime = run.create_time.ToDatetime()
        self.started_at: datetime | None = run.start_time.ToDatetime() if run.HasField("start_time") else None
        self.completed_at: datetime | None = run.end_time.ToDatetime() if run.HasField("end_time") else None

    @classmethod
    def read(cls, client: Client, id: str) -> SimulationRun | None:
        """Returns the run with an id; None if there is none."""
        if not is_uuid(id):
            return None
        try:
            found = call(client.connection, lambda stubs: stubs.runs.GetRun, GetRunRequest(run_id=id)).run
        except RunNotFound:
            return None
        if not found.next_step_number:
            return cls(found, "")
        end = GetStepRequest(trajectory_id=found.main_trajectory_id, step_number=found.next_step_number - 1)
        end.view = VIEW_BASIC
        last = call(client.connection, lambda stubs: stubs.trajectories.GetStep, end).step
        return cls(found, last.labels[STATE])

    def get_state_sequence(self, session: Session) -> list[State]:
        """Returns the states of the path in order, those included that a branch shares with its parent."""
        return [State(step) for step in steps_of(session.connection, self.message.main_trajectory_id)]

    def __repr__(self) -> str:
        return f"<SimulationRun(id={self.id[:8]}, name={self.name!r}, status={self.status!r})>"


class State:
    """A state: what was observed, the action that led to it, and what it earned. It never changes."""

    def __init__(self, step: Step) -> None:
        message = step.message
        self.message: StepMessage = message
        #: In a run, the id of the state as it was created.
        self.id: str = message.labels.get(STATE) or f"{step.owner_id}@{step.number}"
        self.parent_state_id: str | None = message.labels.get(PARENT)
        self.observation: Any = step.observation
        #: None for a root.
        self.action: Any = step.action
        self.reward: float | None = step.reward
        self.done: bool = step.terminated
        self.truncated: bool = step.truncated
        self.info: Any = step.info
        metadata: Any = _value_of(message.metadata_json) or {}
        self.extra_metadata: Any = metadata.get(EXTRA)
        self.step_number: int = metadata.get(NUMBER, step.number)
        created = message.end_time if message.HasField("end_time") else message.commit_time
        self.created_at: datetime = created.ToDatetime()

    @classmethod
    def read(cls, client: Client, id: str) -> State | None:
        """Returns the state with an id; None if there is none."""
        place = place_of(id)
        if place is None:
            return None
        trajectory_id, number = place
        try:
            found = next(iter(steps_of(client.connection, trajectory_id, number, number + 1)), None)
        except (TrajectoryNotFound, RangeBeyondEnd):
            return None
        return None if found is None else cls(found)

    def get_lineage(self, session: Session) -> list[State]:
        """Returns the states from the root to this one, in order."""
        return list(_lineage(session, self.id))

    def get_depth(self) -> int:
        """Returns the number of states above this one: 0 for a root."""
        place = place_of(self.id)
        return 0 if place is None else place[1]

    def __repr__(self) -> str:
        return f"<State(id={self.id[:8]}, step={self.step_number}, done={self.done})>"


def _lineage(session: Session, id: str) -> Iterator[State]:
    place = place_of(id)
    if place is not None:
        trajectory_id, number = place
        yield from map(State, steps_of(session.connection, trajectory_id, 0, number + 1))


def place_of(id: str) -> tuple[str, int] | None:
    """Returns the trajectory and the step of a state by its id: TRAJECTORY@STEP. None for other texts."""
    trajectory_id, _, number = str(id).partition("@")
    is_place = is_uuid(trajectory_id) and number.isascii() and number.isdigit() and len(number) < 19
    return (trajectory_id, int(number)) if is_place else None


def _value_of(text: str) -> Any:
    return decode_json(text) if text else None
