"""Imports databases of simulator-state-db, as `anabranch.compat.simulation_db` would have written them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch._wire.kinds import is_a
from anabranch._wire.outage import call
from anabranch._wire.values import ValueEncoder
from anabranch.client import Client
from anabranch.compat._source import ROWS, Record, Source, SourceError, bounded
from anabranch.compat._strict import append_all, is_uuid, store_large_parts
from anabranch.compat.simulation_db.managers.simulation_manager import names
from anabranch.compat.simulation_db.models import BRANCH_POINT, CALL, EXTRA, NUMBER, PARENT, ROOT, STATE, STATES_TASK
from anabranch.errors import ExperimentExists, ExperimentNotFound, RunExists, RunNotFound, TrajectoryNotFound
from anabranch.tasks import json_text
from anabranch.v1.run_pb2 import Run
from anabranch.v1.run_service_pb2 import (
    BranchRunRequest,
    CompleteRunRequest,
    CreateExperimentRequest,
    CreateRunRequest,
    FailRunRequest,
    GetExperimentRequest,
    GetRunRequest,
    PauseRunRequest,
)
from anabranch.v1.status_pb2 import STATUS_RUNNING
from anabranch.v1.trajectory_pb2 import VIEW_BASIC, Step
from anabranch.v1.trajectory_service_pb2 import BranchTrajectoryRequest, CreateTrajectoryRequest, GetTrajectoryRequest

#: Ids of what had no UUID there.
_IDS = uuid.UUID("8d3c6a52-4a0e-5f0b-9d53-2f0f6d6a9c11")
#: The key of the metadata that has the row of the source.
_ROW = "simulation_db"


@dataclass
class _Chain:
    """States that one trajectory has, in order."""

    #: The step that the trajectory branches after. None for a root.
    start: tuple[str, int] | None
    first: int
    ids: list[str] = field(default_factory=list[str])


def import_simulations(client: Client, source: Source, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Imports the simulations, runs and states that are not stored yet. Returns for each run its name and id, the
    number of its states, and of those that this import stored. A second call continues an interrupted import. Raises
    SourceError if what is stored was continued since."""
    return list(_Import(client, source, dry_run=dry_run).run())


class _Import:
    def __init__(self, client: Client, source: Source, *, dry_run: bool) -> None:
        self._connection = client.connection
        self._values: ValueEncoder = client.values
        self._source = source
        self._dry_run = dry_run
        #: Where each state is stored: trajectory and step.
        self._places: dict[str, tuple[str, int]] = {}
        self._paths: dict[str, list[str]] = {}

    def run(self) -> Iterator[dict[str, Any]]:
        for trajectory_id, chain in self._chains().items():
            if not self._dry_run:
                self._store_chain(trajectory_id, chain)
        experiments: dict[str, str] = {}
        for simulation in self._all("simulations"):
            id = _text(simulation, "id")
            experiments[id] = _uuid_of(id) if self._dry_run else self._experiment(simulation)
        for run in _parents_first({_text(run, "id"): run for run in self._all("simulation_runs")}):
            yield self._import_run(run, experiments)

    def _all(self, table: str) -> list[Record]:
        """Returns the rows of a table in the order of their creation."""
        return [Record(row) for row in self._source.read(table, self._source.columns(table), "ORDER BY created_at, id")]

    # States

    def _chains(self) -> dict[str, _Chain]:
        """Decides where the states are stored: after their parent in its trajectory, or in a branch if the parent has a
        child already. Depends only on the states in the order of their creation."""
        order = "ORDER BY created_at, id"
        heads = [Record(row) for row in self._source.read("states", ("id", "parent_state_id"), order)]
        parents = {_text(head, "id"): head.text("parent_state_id") for head in heads}
        chains: dict[str, _Chain] = {}
        for id in parents:
            for state in reversed(list(self._unplaced(id, parents))):
                place = self._places.get(parents[state] or "")
                trajectory_id, number = (_uuid_of(f"state {state}"), 0) if place is None else (place[0], place[1] + 1)
                if place is not None and len(chains[trajectory_id].ids) > number - chains[trajectory_id].first:
                    trajectory_id = _uuid_of(f"state {state}")
                chains.setdefault(trajectory_id, _Chain(place, number)).ids.append(state)
                self._places[state] = (trajectory_id, number)
        return chains

    def _unplaced(self, id: str, parents: Mapping[str, str | None]) -> Iterator[str]:
        """Yields a state and its ancestors that have no place yet."""
        seen: set[str] = set()
        following = id
        while following in parents and following not in self._places:
            if following in seen:
                raise SourceError(f"State {following} is its own ancestor (parent_state_id): correct it.")
            seen.add(following)
            yield following
            following = parents[following] or ""

    def _store_chain(self, trajectory_id: str, chain: _Chain) -> None:
        end = self._end_of(trajectory_id)
        if end is None:
            if chain.start is None:
                root = CreateTrajectoryRequest(trajectory_id=trajectory_id, request_id=trajectory_id)
                root.task_id = STATES_TASK
                call(self._connection, lambda stubs: stubs.trajectories.CreateTrajectory, root)
            else:
                branch = BranchTrajectoryRequest(trajectory_id=chain.start[0], step_number=chain.start[1])
                branch.branch_id = branch.request_id = trajectory_id
                call(self._connection, lambda stubs: stubs.trajectories.BranchTrajectory, branch)
            end = chain.first
        steps = self._steps(chain.ids[end - chain.first :], end)
        for _ in append_all(self._connection, trajectory_id, steps):
            pass

    def _end_of(self, trajectory_id: str) -> int | None:
        request = GetTrajectoryRequest(trajectory_id=trajectory_id, view=VIEW_BASIC)
        try:
            found = call(self._connection, lambda stubs: stubs.trajectories.GetTrajectory, request)
        except TrajectoryNotFound:
            return None
        return found.trajectory.next_step_number

    def _steps(self, ids: list[str], number: int, *, of_run: bool = False) -> Iterator[Step]:
        """Yields states as steps with the numbers from `number` on."""
        for start in range(0, len(ids), ROWS):
            some = ids[start : start + ROWS]
            condition = f"WHERE id IN ({', '.join('?' for _ in some)})"
            rows = [
                Record(row) for row in self._source.read("states", self._source.columns("states"), condition, *some)
            ]
            found = {_text(row, "id"): row for row in rows}
            for id in some:
                if id not in found:
                    raise SourceError(f"State {id} was deleted during the import. Run the command again.")
                step = self._step(found[id], number)
                if of_run:
                    step.labels[STATE] = _place_text(self._places[id])
                store_large_parts(self._connection, step)
                yield step
                number += 1

    def _step(self, state: Record, number: int) -> Step:
        id, parent = _text(state, "id"), state.text("parent_state_id")
        step, place = Step(step_number=number), self._places[id]
        if (action := state.json("action")) is not None:
            self._values.add_action(step, action)
        self._values.add_observation(step, state.json("observation"))
        if (reward := state.number("reward")) is not None:
            step.reward = reward
        step.terminated, step.truncated = bool(state.flag("done")), bool(state.flag("truncated"))
        if (info := state.json("info")) is not None:
            step.info_json = self._values.info_json(info)
        metadata: dict[str, Any] = {_ROW: state.values("observation", "action", "info", "extra_metadata")}
        if (extra := state.json("extra_metadata")) is not None:
            metadata[EXTRA] = extra
        if (given := state.whole("step_number")) is not None and given != place[1]:
            metadata[NUMBER] = given
        step.metadata_json = self._values.info_json(metadata, "metadata")
        if created := state.time("created_at"):
            step.end_time.CopyFrom(created)
        step.labels[CALL] = bounded(id)
        if parent in self._places:
            step.labels[PARENT] = _place_text(self._places[parent])
        return step

    # Simulations and runs

    def _experiment(self, simulation: Record) -> str:
        """Returns the id of the experiment of a simulation. Creates it if it does not exist."""
        id = _uuid_of(_text(simulation, "id"))
        try:
            return call(
                self._connection, lambda stubs: stubs.runs.GetExperiment, GetExperimentRequest(experiment_id=id)
            ).experiment.id
        except ExperimentNotFound:
            pass
        agent = simulation.json("agent_config")
        request = CreateExperimentRequest(experiment_id=id, request_id=id)
        request.description = bounded(simulation.text("description"), 16 * 1024)
        request.environment_name = bounded(simulation.text("environment_name"))
        request.environment_config_json = json_text(simulation.json("environment_config"), "environment_config")
        request.agent_type = bounded(simulation.text("agent_type"))
        request.agent_config_json = json_text(agent, "agent_config")
        if is_a(agent, dict):
            request.default_config_json = request.agent_config_json
        for name in ("max_steps", "seed"):
            value = simulation.json(name)
            if isinstance(value, int):
                setattr(request, name, value)
        request.tags.extend(bounded(tag) for tag in simulation.words("tags")[:64] if tag)
        request.metadata_json = json_text({_ROW: simulation.values("environment_config", "agent_config")}, "metadata")
        for request.name in names(bounded(simulation.text("name") or "simulation")):
            try:
                return call(self._connection, lambda stubs: stubs.runs.CreateExperiment, request).experiment.id
            except ExperimentExists:
                continue
        raise AssertionError("the names never end")

    def _import_run(self, run: Record, experiments: Mapping[str, str]) -> dict[str, Any]:
        path = self._path(run)
        stored = self._find_run(_uuid_of(_text(run, "id")))
        parent = run.text("parent_run_id") or ""
        shared = _shared(path, self._paths.get(parent, []))
        end = stored.next_step_number if stored is not None else shared
        result = {"run_name": run.text("name") or "", "run_id": _uuid_of(_text(run, "id")), "states": len(path)}
        result |= {"imported": max(0, len(path) - end), "branches": int(stored is None and shared > 0)}
        if self._dry_run:
            return result
        if stored is None:
            stored = self._create_run(run, experiments, path, parent, shared)
        if path[stored.next_step_number :]:
            steps = self._steps(path[stored.next_step_number :], stored.next_step_number, of_run=True)
            for _ in append_all(self._connection, stored.main_trajectory_id, steps):
                pass
        if stored.status == STATUS_RUNNING:
            self._end(stored.id, run)
        return {**result, "run_name": stored.name}

    def _path(self, run: Record) -> list[str]:
        """Returns the ids of the states of a run in order."""
        id = _text(run, "id")
        condition = "WHERE run_id = ? ORDER BY sequence_order, created_at, id"
        rows = self._source.read("run_state_sequence", ("state_id",), condition, id)
        states = [_text(Record(row), "state_id") for row in rows] or [run.text("root_state_id") or ""]
        self._paths[id] = [state for state in states if state in self._places]
        return self._paths[id]

    def _find_run(self, id: str) -> Run | None:
        try:
            return call(self._connection, lambda stubs: stubs.runs.GetRun, GetRunRequest(run_id=id)).run
        except RunNotFound:
            return None

    def _create_run(
        self, run: Record, experiments: Mapping[str, str], path: list[str], parent: str, shared: int
    ) -> Run:
        id = _uuid_of(_text(run, "id"))
        simulation = run.text("simulation_id") or ""
        if simulation not in experiments:
            raise SourceError(f"Run {_text(run, 'id')} is of simulation {simulation}, which is not in the source.")
        request: CreateRunRequest | BranchRunRequest
        if shared:
            request = BranchRunRequest(run_id=_uuid_of(parent), branch_id=id, step_number=shared - 1)
            request.labels[BRANCH_POINT] = _place_text(self._places[path[shared - 1]])
            request.config_overrides_json = json_text(_object(run.json("config_overrides")), "config_overrides")
        else:
            request = CreateRunRequest(run_id=id, experiment_id=experiments[simulation], initial_status=STATUS_RUNNING)
            request.config_json = json_text(_object(run.json("config_overrides")), "config_overrides")
            request.main_trajectory.SetInParent()
        request.request_id = id
        request.description = bounded(run.text("description"), 16 * 1024)
        request.metadata_json = json_text({_ROW: run.values()}, "metadata")
        if path:
            request.labels[ROOT] = _place_text(self._places[path[0]])
        for request.name in names(bounded(run.text("name") or "run")):
            try:
                if isinstance(request, BranchRunRequest):
                    return call(self._connection, lambda stubs: stubs.runs.BranchRun, request).run
                return call(self._connection, lambda stubs: stubs.runs.CreateRun, request).run
            except RunExists:
                continue
        raise AssertionError("the names never end")

    def _end(self, id: str, run: Record) -> None:
        """Gives a run the status that it had."""
        status = run.text("status")
        if status == "completed":
            total = run.json("total_reward")
            done = CompleteRunRequest(run_id=id)
            done.result_json = json_text(None if total is None else {"total_reward": total}, "total_reward")
            call(self._connection, lambda stubs: stubs.runs.CompleteRun, done)
        elif status == "paused":
            call(self._connection, lambda stubs: stubs.runs.PauseRun, PauseRunRequest(run_id=id))
        elif status == "failed":
            call(self._connection, lambda stubs: stubs.runs.FailRun, FailRunRequest(run_id=id))


def _parents_first(runs: Mapping[str, Record]) -> Iterator[Record]:
    done: set[str] = set()
    for id in runs:
        waiting: dict[str, Record] = {}
        following = id
        while following in runs and following not in done:
            if following in waiting:
                raise SourceError(f"Run {following} is its own ancestor (parent_run_id): correct it.")
            waiting[following] = runs[following]
            following = runs[following].text("parent_run_id") or ""
        yield from reversed(waiting.values())
        done.update(waiting)


def _shared(path: list[str], other: list[str]) -> int:
    """Returns how many states two paths begin with."""
    count = 0
    while count < min(len(path), len(other)) and path[count] == other[count]:
        count += 1
    return count


def _text(record: Record, name: str) -> str:
    return record.text(name) or ""


def _object(value: Any) -> Any:
    """Returns a config, which is an object; None for another value."""
    return value if is_a(value, dict) else None


def _place_text(place: tuple[str, int]) -> str:
    return f"{place[0]}@{place[1]}"


def _uuid_of(id: str) -> str:
    """Returns the id of what had this id there: the same, if it is a UUID."""
    return id.lower() if is_uuid(id) else str(uuid.uuid5(_IDS, id))
