"""`anabranch.compat.simulation_db`: runs, branches, states, and what several processes do with them."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from conftest import Server

from anabranch.compat.simulation_db.database import Session, SessionLocal, get_db, init_db
from anabranch.compat.simulation_db.managers.simulation_manager import SimulationManager
from anabranch.compat.simulation_db.managers.state_manager import StateManager
from anabranch.compat.simulation_db.models import Simulation, SimulationRun, State
from anabranch.errors import InvalidRequest, TrajectorySealed


@pytest.fixture(autouse=True)
def settings(own_namespace: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def session() -> Session:
    init_db()
    return SessionLocal()


@pytest.fixture
def runs(session: Session) -> SimulationManager:
    return SimulationManager(session)


@pytest.fixture
def states(session: Session) -> StateManager:
    return StateManager(session)


@pytest.fixture
def simulation(runs: SimulationManager) -> Simulation:
    return runs.create_simulation("sweep", "CartPole-v1", "DQN", {"gamma": 0.99}, max_steps=500, seed=7, tags=["a"])


def path_of(states: StateManager, runs: SimulationManager, simulation: Simulation, length: int) -> SimulationRun:
    """Creates a run with so many states after its root."""
    current = states.create_state(observation=[0], step_number=0)
    run = runs.create_run(simulation.id, "main", current, config_overrides={"lr": 0.001})
    for number in range(1, length + 1):
        current = states.create_state([number], number, parent_state_id=current.id, action=1, reward=1.0)
        runs.add_state_to_run(run, current)
    return run


def test_a_simulation_has_what_it_was_given(session: Session, simulation: Simulation, runs: SimulationManager) -> None:
    assert (simulation.name, simulation.environment_name, simulation.agent_config) == (
        "sweep",
        "CartPole-v1",
        {"gamma": 0.99},
    )
    assert (simulation.max_steps, simulation.seed, simulation.tags, simulation.environment_config) == (
        500,
        7,
        ["a"],
        {},
    )
    found = session.get(Simulation, simulation.id)
    assert found is not None and vars(found) == vars(simulation)
    assert runs.create_simulation("sweep", "CartPole-v1", "DQN", {}).name == "sweep-2"


def test_a_repeated_name_of_a_run_gets_a_suffix(
    states: StateManager, runs: SimulationManager, simulation: Simulation
) -> None:
    root = states.create_state([0], 0)
    names = [runs.create_run(simulation.id, "main", root).name for _ in range(3)]
    assert names == ["main", "main-2", "main-3"]
    run = runs.create_run(simulation.id, "other", root)
    assert [runs.branch_from_state(run, root, "other").name for _ in range(2)] == ["other-2", "other-3"]


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "🏭" * 64, "x" * 255])
def test_a_suffix_replaces_the_end_of_a_long_name(
    states: StateManager, runs: SimulationManager, simulation: Simulation, name: str
) -> None:
    root = states.create_state([0], 0)
    first = runs.create_run(simulation.id, name, root)
    found = [runs.create_run(simulation.id, name, root).name, runs.branch_from_state(first, root, name).name]
    found += [runs.create_simulation(name, "CartPole-v1", "DQN", {}).name for _ in range(2)][1:]
    assert first.name == name
    for each, suffix in zip(found, ("-2", "-3", "-2"), strict=True):
        shortened = each.removesuffix(suffix)
        assert each != shortened and name.startswith(shortened) and 250 < len(each.encode()) <= 256
    with pytest.raises(InvalidRequest, match="name: must be at most 256 bytes"):
        runs.create_run(simulation.id, f"{name}xx", root)


def test_a_run_follows_the_states_that_are_added(
    session: Session, states: StateManager, runs: SimulationManager, simulation: Simulation
) -> None:
    run = path_of(states, runs, simulation, 3)
    path = run.get_state_sequence(session)
    assert [(each.observation, each.action, each.reward) for each in path] == [
        ([0], None, None),
        ([1], 1, 1.0),
        ([2], 1, 1.0),
        ([3], 1, 1.0),
    ]
    assert (run.status, run.total_steps, run.total_reward) == ("active", 3, 3.0)
    assert (run.root_state_id, run.current_state_id) == (path[0].id, path[3].id)
    assert run.started_at is not None and run.completed_at is None
    found = session.get(SimulationRun, run.id)
    assert found is not None and (found.total_steps, found.total_reward, found.current_state_id) == (3, 3.0, path[3].id)


def test_a_run_branches_from_any_of_its_states_and_both_continue(
    session: Session, states: StateManager, runs: SimulationManager, simulation: Simulation
) -> None:
    main = path_of(states, runs, simulation, 4)
    point = main.get_state_sequence(session)[2]
    branch = runs.branch_from_state(main, point, "high lr", {"lr": 0.01, "layers": 2})
    assert (branch.parent_run_id, branch.branch_point_state_id, branch.current_state_id) == (
        main.id,
        point.id,
        point.id,
    )
    assert (branch.config_overrides, branch.description) == ({"lr": 0.01, "layers": 2}, "Branched from main at step 2")
    assert (branch.total_steps, branch.root_state_id) == (2, main.root_state_id)
    state = states.create_state(["b"], 3, parent_state_id=point.id, action=0)
    runs.add_state_to_run(branch, state)
    runs.add_state_to_run(main, states.create_state([5], 5, parent_state_id=main.current_state_id))
    assert [each.observation for each in branch.get_state_sequence(session)] == [[0], [1], [2], ["b"]]
    assert [each.observation for each in main.get_state_sequence(session)] == [[0], [1], [2], [3], [4], [5]]
    assert runs.get_run_tree(simulation.id) == [
        {
            "id": main.id,
            "name": "main",
            "status": "active",
            "total_steps": 5,
            "branch_point": None,
            "children": [
                {
                    "id": branch.id,
                    "name": "high lr",
                    "status": "active",
                    "total_steps": 3,
                    "branch_point": point.id,
                    "children": [],
                }
            ],
        }
    ]
    compared = states.compare_runs(main, branch)
    assert [[each.observation for each in compared[part]] for part in ("shared", "run1_only", "run2_only")] == [
        [[0], [1], [2]],
        [[3], [4], [5]],
        [["b"]],
    ]
    assert compared["divergence_point"].id == point.id
    with pytest.raises(ValueError, match="is not in run 'main'"):
        runs.branch_from_state(main, state, "elsewhere")
    again = runs.create_run(simulation.id, "again", point, parent_run_id=main.id, branch_point_state_id=point.id)
    assert (again.parent_run_id, again.total_steps) == (main.id, 2)


def test_a_run_that_is_completed_takes_no_more_and_a_paused_one_does(
    session: Session, states: StateManager, runs: SimulationManager, simulation: Simulation, server: Server
) -> None:
    run = path_of(states, runs, simulation, 1)
    runs.pause_run(run)
    assert run.status == "paused"
    following = states.create_state([2], 2, parent_state_id=run.current_state_id)
    runs.add_state_to_run(run, following)
    runs.complete_run(run, total_reward=99.5)
    assert (run.status, run.total_reward, run.total_steps) == ("completed", 99.5, 2)
    assert run.completed_at is not None
    with pytest.raises(TrajectorySealed):
        runs.add_state_to_run(run, states.create_state([3], 3, parent_state_id=following.id))
    found = session.get(SimulationRun, run.id)
    assert found is not None and (found.status, found.total_steps) == ("completed", 2)
    assert session.client.get(run.message.main_trajectory_id).status == "completed"
    other = path_of(states, runs, simulation, 2)
    runs.complete_run(other)
    assert other.total_reward == 2.0


def test_states_form_a_tree(states: StateManager, session: Session) -> None:
    root = states.create_state({"x": 0}, 0)
    first, second, third = (
        states.create_state({"x": i}, 1, root.id, action=i, reward=math.nan, done=i == 2, truncated=i == 3)
        for i in (1, 2, 3)
    )
    leaf = states.create_state({"x": 9}, 42, second.id, info={"env_state": [1]}, extra_metadata={"q": [0.5]})
    assert len({root.id, first.id, second.id, third.id, leaf.id}) == 5
    assert [each.id for each in states.get_children(root)] == [first.id, second.id, third.id]
    assert [each.id for each in states.get_children(second)] == [leaf.id]
    assert states.get_children(leaf) == []
    assert [each.id for each in states.get_state_path(leaf)] == [root.id, second.id, leaf.id]
    assert [each.id for each in leaf.get_lineage(session)] == [root.id, second.id, leaf.id]
    assert (root.get_depth(), leaf.get_depth(), leaf.step_number) == (0, 2, 42)
    assert (root.parent_state_id, leaf.parent_state_id) == (None, second.id)
    assert (leaf.observation, leaf.info, leaf.extra_metadata) == ({"x": 9}, {"env_state": [1]}, {"q": [0.5]})
    found = states.get_state(leaf.id)
    assert found is not None and (found.id, found.extra_metadata) == (leaf.id, leaf.extra_metadata)
    assert found.created_at == leaf.created_at
    assert [each.id for each in states.get_terminal_states()] == [second.id]


@pytest.mark.parametrize(
    "id", ["", "none", "0199aaaa-0000-7000-8000-00000000dead@0", "0199aaaa-0000-7000-8000-00000000dead@x", 7]
)
def test_an_unknown_state_is_none_and_no_parent(states: StateManager, id: Any) -> None:
    assert states.get_state(id) is None
    with pytest.raises(ValueError, match="parent_state_id is .*: no state has this id"):
        states.create_state([1], 1, parent_state_id=id)


def test_what_cannot_be_stored_raises_and_stores_nothing(states: StateManager) -> None:
    root = states.create_state([0], 0)
    for values in (
        {"observation": object()},
        {"observation": [1], "action": object()},
        {"observation": [1], "info": object()},
    ):
        with pytest.raises(TypeError):
            states.create_state(step_number=1, parent_state_id=root.id, **values)
    with pytest.raises(TypeError, match="^`step_number` is '1': expected an integer$"):
        states.create_state([1], "1", parent_state_id=root.id)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="^`reward` is 'much': expected a number$"):
        states.create_state([1], 1, root.id, reward="much")  # pyright: ignore[reportArgumentType]
    assert states.get_children(root) == []
    with pytest.raises(ValueError, match="no state has this id"):
        states.create_state([1], 5, parent_state_id=root.id.replace("@0", "@4"))


def test_arrays_come_back(states: StateManager) -> None:
    state = states.create_state(np.arange(4, dtype=np.float32), 0)
    for found in (state, states.get_state(state.id)):
        assert isinstance(found, State) and found.observation.tolist() == [0, 1, 2, 3]


def test_sessions_need_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(next(iter(get_db())), Session)
    monkeypatch.delenv("ANABRANCH_ADDRESS")
    with pytest.raises(RuntimeError, match="DATABASE_URL is not set"):
        SessionLocal()
    monkeypatch.setenv("DATABASE_URL", "mysql://x/y")
    with pytest.raises(ValueError, match="scheme 'mysql': expected postgresql:// or sqlite:///FILE"):
        SessionLocal()


def test_eight_processes_lose_no_state_and_file_none_under_another_run(
    session: Session, states: StateManager, runs: SimulationManager, simulation: Simulation
) -> None:
    program = dedent(
        """
        import sys
        from anabranch.compat.simulation_db.database import SessionLocal
        from anabranch.compat.simulation_db.managers.simulation_manager import SimulationManager
        from anabranch.compat.simulation_db.managers.state_manager import StateManager
        from anabranch.compat.simulation_db.models import SimulationRun

        session, process, simulation, shared = SessionLocal(), *sys.argv[1:]
        runs, states = SimulationManager(session), StateManager(session)
        run = runs.create_run(simulation, "main", states.create_state(process, 0))
        shared = session.get(SimulationRun, shared)
        for number in range(1, 11):
            state = states.create_state(process, number, parent_state_id=run.current_state_id)
            runs.add_state_to_run(run, state)
            runs.add_state_to_run(shared, states.create_state("any", 1, parent_state_id=shared.root_state_id))
        print(run.id)
        """
    )
    shared = path_of(states, runs, simulation, 0)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(process), simulation.id, shared.id], stdout=subprocess.PIPE, text=True
        )
        for process in range(8)
    ]
    ids = [process.communicate(timeout=120)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0] * 8
    for process, id in enumerate(ids):
        run = session.get(SimulationRun, id)
        assert run is not None
        assert [each.observation for each in run.get_state_sequence(session)] == [str(process)] * 11
    path = shared.get_state_sequence(session)
    assert Counter(str(each.observation) for each in path) == {"any": 80, "[0]": 1}
    assert len({each.id for each in path}) == 81
    assert len(states.get_children(path[0])) == 80
