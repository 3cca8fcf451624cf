"""Creates simulations and runs, and branches runs: `simulation_db.managers.simulation_manager`."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import suppress
from math import isnan
from typing import Any

from anabranch._wire.outage import call, pages
from anabranch.compat._source import bounded
from anabranch.compat._strict import append_step
from anabranch.compat.simulation_db.database import Session
from anabranch.compat.simulation_db.models import BRANCH_POINT, ROOT, STATE, Simulation, SimulationRun, State
from anabranch.errors import ExperimentExists, RunExists, StepConflict, StepGap
from anabranch.tasks import json_text
from anabranch.v1.run_service_pb2 import (
    BranchRunRequest,
    CompleteRunRequest,
    CreateExperimentRequest,
    CreateRunRequest,
    GetRunRequest,
    GetRunTreeRequest,
    PauseRunRequest,
)
from anabranch.v1.status_pb2 import STATUS_RUNNING
from anabranch.v1.trajectory_pb2 import Step

_NAME_BYTES = 256


class SimulationManager:
    """The manager of simulations and runs."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._client = session.client
        self._connection = session.connection

    def create_simulation(
        self,
        name: str,
        environment_name: str,
        agent_type: str,
        agent_config: dict[str, Any],
        description: str | None = None,
        environment_config: dict[str, Any] | None = None,
        *,
        max_steps: int | None = None,
        seed: int | None = None,
        tags: list[str] | None = None,
    ) -> Simulation:
        """Creates a simulation. `agent_config` is the config on which those of its runs are based. If the name is
        taken, it gets a suffix: `-2`, `-3`, …"""
        id = str(uuid.uuid4())
        request = CreateExperimentRequest(experiment_id=id, request_id=id, max_steps=max_steps, seed=seed, tags=tags)
        request.environment_name, request.agent_type = environment_name, agent_type
        request.description = description or ""
        request.environment_config_json = json_text(environment_config or {}, "environment_config")
        request.agent_config_json = request.default_config_json = json_text(agent_config, "agent_config")
        for request.name in names(name):
            with suppress(ExperimentExists):
                created = call(self._connection, lambda stubs: stubs.runs.CreateExperiment, request)
                return Simulation(created.experiment)
        raise AssertionError("the names never end")

    def create_run(
        self,
        simulation_id: str,
        name: str,
        root_state: State,
        description: str | None = None,
        config_overrides: dict[str, Any] | None = None,
        parent_run_id: str | None = None,
        branch_point_state_id: str | None = None,
    ) -> SimulationRun:
        """Creates a run that begins with a state. It is active at once.

        `config_overrides` are merged over the config of the simulation. If the name is taken in the simulation, it
        gets a suffix: `-2`, `-3`, … With `parent_run_id`, the run branches from that one, as in `branch_from_state`.
        """
        if parent_run_id is not None:
            parent = self.session.get(SimulationRun, parent_run_id)
            point = self.session.get(State, branch_point_state_id or root_state.id)
            if parent is None or point is None:
                unknown = f"parent_run_id is {parent_run_id!r} and the branch point {branch_point_state_id!r}"
                raise ValueError(f"{unknown}: expected a run and a state")
            return self.branch_from_state(parent, point, name, config_overrides, description)
        id = str(uuid.uuid4())
        request = CreateRunRequest(run_id=id, request_id=id, experiment_id=simulation_id, labels={ROOT: root_state.id})
        request.description, request.initial_status = description or "", STATUS_RUNNING
        request.config_json = json_text(config_overrides or {}, "config_overrides")
        request.main_trajectory.root.CopyFrom(_step_of(root_state, 0))
        for request.name in names(name):
            with suppress(RunExists):
                return SimulationRun(
                    call(self._connection, lambda stubs: stubs.runs.CreateRun, request).run, root_state.id
                )
        raise AssertionError("the names never end")

    def branch_from_state(
        self,
        parent_run: SimulationRun,
        branch_point_state: State,
        new_run_name: str,
        config_overrides: dict[str, Any] | None = None,
        description: str | None = None,
    ) -> SimulationRun:
        """Creates a run that shares the states of another one up to a state, with another config. Nothing is copied,
        and the other run continues as before.

        `config_overrides` are merged over those of the other run. The default of `description` is "Branched from NAME
        at step N". If the name is taken in the simulation, it gets a suffix: `-2`, `-3`, … Raises ValueError if the
        state is not in the run.
        """
        id, point = str(uuid.uuid4()), branch_point_state
        merged = {**parent_run.config_overrides, **(config_overrides or {})}
        request = BranchRunRequest(run_id=parent_run.id, branch_id=id, request_id=id, description=description or "")
        request.step_number = self._position_of(parent_run, point)
        request.config_overrides_json = json_text(merged, "config_overrides")
        request.labels.update({ROOT: parent_run.root_state_id, BRANCH_POINT: point.id})
        for request.name in names(new_run_name):
            with suppress(RunExists):
                return SimulationRun(call(self._connection, lambda stubs: stubs.runs.BranchRun, request).run, point.id)
        raise AssertionError("the names never end")

    def add_state_to_run(self, run: SimulationRun, state: State) -> None:
        """Appends a state to the path of a run. Of processes that append to one run at once, each adds its state
        behind the others. Raises TrajectorySealed after `complete_run`."""
        message = run.message
        while True:
            number = message.next_step_number
            try:
                append_step(self._connection, message.main_trajectory_id, _step_of(state, number))
                break
            except (StepConflict, StepGap):
                # Another process has appended to the run.
                message = call(self._connection, lambda stubs: stubs.runs.GetRun, GetRunRequest(run_id=run.id)).run
        message.next_step_number, message.reward_sum = number + 1, message.reward_sum + _finite(state.reward)
        run.current_state_id = state.id
        run.take(message)

    def complete_run(self, run: SimulationRun, total_reward: float | None = None) -> None:
        """Completes a run: it takes no more states. `total_reward` replaces the sum of the rewards."""
        result = None if total_reward is None else {"total_reward": total_reward}
        request = CompleteRunRequest(run_id=run.id, result_json=json_text(result, "total_reward"))
        run.take(call(self._connection, lambda stubs: stubs.runs.CompleteRun, request).run)

    def pause_run(self, run: SimulationRun) -> None:
        """Pauses a run. It still takes states, and can be branched."""
        request = PauseRunRequest(run_id=run.id)
        run.take(call(self._connection, lambda stubs: stubs.runs.PauseRun, request).run)

    def get_run_tree(self, simulation_id: str) -> list[dict[str, Any]]:
        """Returns the runs of a simulation as trees, the oldest first.

        A run has `id`, `name`, `status`, `total_steps`, `branch_point` (the id of a state, None for a root) and
        `children`, the runs that were branched from it.
        """
        request = GetRunTreeRequest(experiment_id=simulation_id, page_size=1000)
        roots: list[dict[str, Any]] = []
        nodes: dict[str, dict[str, Any]] = {}
        for page in pages(self._connection, lambda stubs: stubs.runs.GetRunTree, request):
            for message in page.runs:
                run = SimulationRun(message, "")
                node = {name: getattr(run, name) for name in ("id", "name", "status", "total_steps")}
                nodes[run.id] = {**node, "branch_point": run.branch_point_state_id, "children": []}
                parent = nodes.get(run.parent_run_id or "")
                (roots if parent is None else parent["children"]).append(nodes[run.id])
        return roots

    def _position_of(self, run: SimulationRun, state: State) -> int:
        """Returns the number of a state in the path of a run."""
        found = self._client.steps(trajectory=run.message.main_trajectory_id, labels={STATE: state.id})
        for step in found:
            return step.number
        raise ValueError(f"state {state.id} is not in run {run.name!r}: a run branches from a state of its own path")


def names(name: str) -> Iterator[str]:
    """Yields a name, then the name with suffixes, which replace the end of a name that has no room for them."""
    yield name
    for suffix in map("-{}".format, itertools.count(2)):
        yield bounded(name, _NAME_BYTES - len(suffix)) + suffix


def _step_of(state: State, number: int) -> Step:
    """Returns the step of a state in a run."""
    step = Step()
    step.CopyFrom(state.message)
    step.step_number = number
    step.labels[STATE] = state.id
    return step


def _finite(reward: float | None) -> float:
    """Returns what a reward adds to a sum: nothing if it is missing or NaN."""
    return 0.0 if reward is None or isnan(reward) else reward
