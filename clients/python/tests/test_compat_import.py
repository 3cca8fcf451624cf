"""`python -m anabranch.compat import`: databases of CUA RL and simulator-state-db, from both engines. Those of FLE have
tests of their own (test_fle.py)."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import predecessors
import pytest
from conftest import IS_LARGE_DOSE
from fle_database import running_postgres
from predecessors import CUA, SSDB, Database

import anabranch as ab
from anabranch._wire import outage
from anabranch.compat import __main__ as command
from anabranch.compat import _strict, cua
from anabranch.compat.simulation_db.database import SessionLocal
from anabranch.compat.simulation_db.managers.simulation_manager import SimulationManager
from anabranch.compat.simulation_db.managers.state_manager import StateManager
from anabranch.compat.simulation_db.models import Simulation, SimulationRun

Make = Callable[[Mapping[str, str]], Database]


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes an empty database with some tables on each engine."""
    if request.param == "sqlite":
        return lambda tables: predecessors.sqlite(tmp_path, tables)
    url = request.getfixturevalue("postgres_url")
    return lambda tables: predecessors.postgres(url, tables)


pytestmark = pytest.mark.usefixtures("own_namespace")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Imports by the command, and returns what it prints as JSON."""

    def run_import(source: Database, *arguments: str) -> Any:
        code = command.main(["import", source.source, "--json", *arguments])
        output = capsys.readouterr()
        assert (code, output.err) == (0, "")
        return json.loads(output.out)

    return run_import


# Interruptions


class Interrupted:
    """Interrupts an import when the call with a number has returned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        original = outage.retried

        def counting(*arguments: Any) -> Any:
            result = original(*arguments)
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return result

        monkeypatch.setattr(outage, "retried", counting)
        monkeypatch.setattr(_strict, "retried", counting)

    def run(self, source: Database, calls: int) -> bool:
        """Returns whether the import was interrupted; otherwise it has ended before."""
        self.left = calls
        code = command.main(["import", source.source])
        self.left = 0
        return code == 1


@pytest.mark.parametrize("system", ["CUA", "SSDB"])
def test_i3_an_import_that_is_interrupted_after_any_call_continues(
    system: str, tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = predecessors.sqlite(tmp_path, CUA if system == "CUA" else SSDB)
    (training_of if system == "CUA" else simulation_of)(database)
    run(database)
    whole = contents()
    interrupted = Interrupted(monkeypatch)
    calls = 1
    while True:
        monkeypatch.setenv("ANABRANCH_NAMESPACE", f"n{uuid.uuid4().hex}")
        if not interrupted.run(database, calls):
            break
        assert not interrupted.run(database, 0)
        assert contents() == whole, calls
        calls += 1 if IS_LARGE_DOSE else 3
    assert calls > 10


def contents() -> list[Any]:
    """Returns what an import has stored, without ids and times that the server chooses."""
    client = ab.connect()
    found: list[Any] = []
    for run in client.runs():
        rollouts = client.rollouts(run=run)
        stages = [(stage.kind, stage.number, stage.status, dict(stage.metrics)) for stage in run.stages()]
        played = [(each.number, each.status, each.attempt, each.reward, each.turns) for each in rollouts]
        found.append((run.name, run.status, run.refresh().config, run.next_step_number, stages, played))
    episodes = [(each.task, each.status, [step.message.reward for step in each.steps]) for each in client.episodes()]
    return [found, sorted(episodes)]


# CUA

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 4000
DATA_URI = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
ROLLOUTS = [str(uuid.UUID(int=number)) for number in range(1, 5)]


def training_of(database: Database) -> None:
    """A training with a baseline and two steps: the first is completed, the second has a rollout that is running."""
    time = "2025-11-02 10:00:00.5"
    database.insert(
        "training",
        id=1,
        run_name="cua_rl-1",
        log_path="/logs",
        model_name="Qwen3",
        learning_rate=1e-5,
        group_size=2,
        groups_per_batch=1,
        max_turns=3,
        total_steps=2,
        status="running",
        config_json='{"lr_schedule": "constant"}',
        created_at=time,
    )
    database.insert("status_history", id=1, entity_type="training", entity_id=1, new_status="pending", changed_at=time)
    database.insert(
        "task", id=7, task_id="dark_mode", name="Dark", description="Turn on dark mode.", max_steps=9, tags='["ui"]'
    )
    database.insert("validator", id=3, task_id=7, validator_type="screen", validation_query="is it dark?")
    database.insert("environment", id=5, env_type="android", status="running", gbox_id="box-1")
    database.insert("baseline", id=1, training_id=1, model_path="base", status="completed", success_rate=0.25)
    database.insert(
        "step",
        id=11,
        training_id=1,
        step=0,
        batch=4,
        status="completed",
        loss=0.5,
        model_path="m0",
        checkpoint_path="tinker://0",
        metrics_json='{"kl": 0.1}',
    )
    database.insert("step", id=12, training_id=1, step=1, status="rollout_running", current_phase="rollout_execution")
    common = {"env_id": 5, "task_id": 7, "model_path": "m0", "group_num": 0, "source_type": "step", "max_turns": 3}
    database.insert(
        "rollout",
        id=21,
        rollout_id=ROLLOUTS[0],
        step_id=11,
        env_index=0,
        status="completed",
        reward=1.5,
        task_success=True,
        num_turns=2,
        errors='["late"]',
        summary_json='{"turns": 2}',
        trajectory_data_json="everything again",
        **common,
    )
    database.insert(
        "rollout",
        id=22,
        rollout_id=ROLLOUTS[1],
        step_id=11,
        env_index=1,
        status="failed",
        error_message="box",
        **common,
    )
    database.insert("rollout", id=23, rollout_id="no uuid", step_id=12, env_index=0, status="running", **common)
    database.insert(
        "turn", id=31, rollout_id=21, turn=1, reward=0.5, start_time=time, model_response="tap it", turn_time=2.5
    )
    database.insert("turn", id=32, rollout_id=21, turn=2, reward=1.0, episode_done=True)
    database.insert(
        "action",
        id=41,
        turn_id=31,
        action_type="tool_call",
        tool_name="tap",
        tool_args='{"x": 1}',
        tokens="[5, 6]",
        logprobs="[-0.1, -0.2]",
    )
    database.insert("obs", id=51, turn_id=31, obs_type="screenshot_before", screenshot_uri=DATA_URI)
    database.insert("obs", id=52, turn_id=31, obs_type="screenshot_after", screenshot_uri="rollout_1/turn_1/obs_2.png")
    database.insert("obs", id=53, turn_id=32, obs_type="checks", text_content="dark", model_input_json='{"m": []}')
    database.insert(
        "validation", id=61, rollout_id=21, validator_id=3, success=True, actual_result="dark", execution_time=0.25
    )


def test_i3_trainings_become_runs_with_their_stages_rollouts_and_turns(make: Make, run: Callable[..., Any]) -> None:
    database = make(CUA)
    training_of(database)
    planned = run(database, "--dry-run")["runs"]
    assert [(each["run_name"], each["rollouts"], each["imported"]) for each in planned] == [("cua_rl-1", 3, 2)]
    client = ab.connect()
    assert list(client.runs()) == []
    done = run(database)
    assert (done["system"], done["experiment"], done["rollouts"], done["imported"]) == ("CUA", "cua", 3, 2)

    cua.init_database("postgresql://unused")
    with cua.get_session() as session:
        training = cua.get_training_by_run_name(session, "cua_rl-1")
        assert training is not None
        assert (training.status, training.learning_rate, training.lr_schedule) == ("running", 1e-5, "constant")
        assert [(step.step, step.status, step.checkpoint_path) for step in training.steps] == [
            (0, "completed", "tinker://0"),
            (1, "running", None),
        ]
        assert training.steps[0].metrics == {"loss": 0.5, "kl": 0.1}
        assert training.steps[1].current_phase == "rollout_execution"
        found = cua.list_rollouts_by_step(session, training.steps[0].id)
        assert [(each.rollout_id, each.status, each.reward, each.task_success) for each in found] == [
            (ROLLOUTS[0], "completed", 1.5, True),
            (ROLLOUTS[1], "failed", None, False),
        ]
        assert cua.list_rollouts_by_step(session, training.steps[1].id) == []
    (stored,) = client.runs()
    assert stored.refresh().metadata["cua"]["log_path"] == "/logs"
    assert [each["new_status"] for each in stored.metadata["status_history"]] == ["pending"]
    assert (stored.plan.stage_plans[0].stages, stored.plan.stage_plans[0].group_size) == (2, 2)
    assert [stage.status for stage in stored.stages(kind="baseline")] == ["completed"]
    (task,) = client.tasks.list()
    assert (task.id, task.description, task.tags, task.max_turns) == ("dark_mode", "Turn on dark mode.", ("ui",), 9)


def test_i3_turns_have_their_actions_observations_and_validations(make: Make, run: Callable[..., Any]) -> None:
    database = make(CUA)
    training_of(database)
    run(database, "--experiment", "mine")
    client = ab.connect()
    (stored,) = client.runs()
    (record,) = client.rollouts(run=stored, status="completed")
    (attempt,) = record.attempts()
    (validation,) = attempt.validations
    assert (validation.name, validation.success, validation.actual_result) == ("screen", True, "dark")
    assert (attempt.result.errors, json.loads(attempt.result.proto.summary_json)) == (("late",), {"turns": 2})
    root, first, second = record.episode().steps
    assert (root.action, root.observation) == (None, None)
    model, action = first.message.actions
    assert (model.type, model.content.text) == ("model_response", "tap it")
    assert (action.type, action.name, json.loads(action.content.json)) == ("tool_call", "tap", {"x": 1})
    assert (list(action.token_ids), [round(each, 6) for each in action.logprobs]) == ([5, 6], [-0.1, -0.2])
    before, after = first.message.observations
    assert (before.type, first.blob(before.content.state_digest)) == ("screenshot_before", PNG)
    assert (after.type, after.content.uri) == ("screenshot_after", "rollout_1/turn_1/obs_2.png")
    assert (first.reward, first.metrics, first.message.start_time.ToDatetime()) == (
        0.5,
        {},
        datetime(2025, 11, 2, 10, 0, 0, 500_000),
    )
    assert [(each.type, each.content.text or each.content.json) for each in second.message.observations] == [
        ("checks", "dark"),
        ("model_input", '{"m":[]}'),
    ]
    assert (second.terminated, second.reward) == (True, 1.0)


def test_i3_what_has_ended_since_is_added_and_nothing_is_imported_twice(make: Make, run: Callable[..., Any]) -> None:
    database = make(CUA)
    training_of(database)
    assert [run(database)["imported"] for _ in range(2)] == [2, 0]
    database.insert("turn", id=33, rollout_id=23, turn=1, reward=2.0)
    database.update("training", 1, status="failed", error_message="killed")
    assert [run(database)["imported"] for _ in range(2)] == [1, 0]
    client = ab.connect()
    (stored,) = client.runs()
    found = {each.id: each for each in client.rollouts(run=stored)}
    assert len(found) == 3
    (late,) = [each for id, each in found.items() if id not in ROLLOUTS]
    assert (late.status, late.status_message, late.reward) == ("failed", "running when it was imported. ", 2.0)
    assert (stored.status, stored.status_message) == ("failed", "killed")


# SSDB

SIMULATION, MAIN, BRANCH = (str(uuid.UUID(int=number)) for number in (100, 101, 102))


def simulation_of(database: Database) -> None:
    """A run of five states, a branch from the third with one more, and a state that is in no run."""
    database.insert(
        "simulations",
        id=SIMULATION,
        name="sweep",
        environment_name="CartPole-v1",
        agent_type="DQN",
        agent_config='{"gamma": 0.99}',
        max_steps="500",
        tags='["a", "b"]',
        created_at="2025-11-01 09:00:00",
    )
    paths = {MAIN: ["s0", "s1", "s2", "s3", "s4"], BRANCH: ["s0", "s1", "s2", "b3"]}
    states = {**dict(zip(paths[MAIN], [None, *paths[MAIN]], strict=False)), "b3": "s2", "orphan": "s2"}
    for number, (id, parent) in enumerate(states.items()):
        database.insert(
            "states",
            id=id,
            parent_state_id=parent,
            observation=json.dumps([number, 0.5]),
            action=None if parent is None else "1",
            reward=None if parent is None else 1.0,
            done=id in ("s4", "b3"),
            truncated=False,
            step_number=int(id[1:]) if id != "orphan" else 3,
            info='{"env_state": "x"}',
            extra_metadata='{"q": [1, 2]}' if id == "s1" else None,
            created_at=f"2025-11-01 10:00:{number:02}",
        )
    database.insert(
        "simulation_runs",
        id=MAIN,
        simulation_id=SIMULATION,
        name="main",
        root_state_id="s0",
        current_state_id="s4",
        config_overrides='{"lr": 0.001}',
        status="completed",
        total_steps=4,
        total_reward="7.5",
        created_at="2025-11-01 10:00:00",
    )
    database.insert(
        "simulation_runs",
        id=BRANCH,
        simulation_id=SIMULATION,
        name="main",
        root_state_id="s2",
        current_state_id="b3",
        parent_run_id=MAIN,
        branch_point_state_id="s2",
        config_overrides='{"lr": 0.01}',
        status="active",
        total_steps=1,
        created_at="2025-11-01 11:00:00",
    )
    for run_id, path in paths.items():
        for order, state in enumerate(path):
            database.insert(
                "run_state_sequence", id=f"{run_id} {order}", run_id=run_id, state_id=state, sequence_order=order
            )


def test_i3_simulations_become_experiments_with_runs_branches_and_states(make: Make, run: Callable[..., Any]) -> None:
    database = make(SSDB)
    simulation_of(database)
    assert [each["imported"] for each in run(database, "--dry-run")["runs"]] == [5, 1]
    assert list(ab.connect().runs()) == []
    done = run(database)
    assert (done["system"], done["states"], done["imported"]) == ("SSDB", 9, 6)
    assert [(each["run_name"], each["branches"]) for each in done["runs"]] == [("main", 0), ("main-2", 1)]
    assert [each["imported"] for each in run(database)["runs"]] == [0, 0]

    session = SessionLocal()
    simulation, main, branch = (
        session.get(model, id)
        for model, id in ((Simulation, SIMULATION), (SimulationRun, MAIN), (SimulationRun, BRANCH))
    )
    assert isinstance(simulation, Simulation) and isinstance(main, SimulationRun) and isinstance(branch, SimulationRun)
    assert (simulation.name, simulation.agent_config, simulation.max_steps) == ("sweep", {"gamma": 0.99}, 500)
    assert (main.status, main.total_steps, main.total_reward) == ("completed", 4, 7.5)
    assert (branch.status, branch.total_steps, branch.parent_run_id) == ("active", 3, MAIN)
    assert branch.config_overrides == {"lr": 0.01}

    states = StateManager(session)
    path = main.get_state_sequence(session)
    assert [(each.step_number, each.observation, each.action, each.reward, each.done) for each in path] == [
        (number, [number, 0.5], 1 if number else None, 1.0 if number else None, number == 4) for number in range(5)
    ]
    assert (path[1].extra_metadata, path[1].info) == ({"q": [1, 2]}, {"env_state": "x"})
    assert path[2].created_at == datetime(2025, 11, 1, 10, 0, 2)
    compared = states.compare_runs(main, branch)
    assert [len(compared[part]) for part in ("shared", "run1_only", "run2_only")] == [3, 2, 1]
    assert branch.branch_point_state_id == path[2].id == compared["divergence_point"].id
    children = states.get_children(path[2])
    assert [each.observation for each in children] == [[3, 0.5], [5, 0.5], [6, 0.5]]
    assert len(states.get_terminal_states()) == 2

    # The branch continues.
    state = states.create_state([9], 4, parent_state_id=branch.current_state_id, action=1, reward=1.0)
    SimulationManager(session).add_state_to_run(branch, state)
    assert [each.id for each in states.get_state_path(state)] == [
        each.id for each in branch.get_state_sequence(session)
    ]


def test_i3_states_that_were_added_since_are_appended(make: Make, run: Callable[..., Any]) -> None:
    database = make(SSDB)
    simulation_of(database)
    run(database)
    database.insert(
        "states",
        id="b4",
        parent_state_id="b3",
        observation="[4]",
        done=True,
        truncated=False,
        step_number=4,
        created_at="2025-11-02 10:00:00",
    )
    database.insert("run_state_sequence", id="more", run_id=BRANCH, state_id="b4", sequence_order=4)
    database.update("simulation_runs", BRANCH, status="completed")
    assert [each["imported"] for each in run(database)["runs"]] == [0, 1]
    session = SessionLocal()
    branch = session.get(SimulationRun, BRANCH)
    assert branch is not None
    assert (branch.status, branch.total_steps) == ("completed", 4)
    assert branch.get_state_sequence(session)[-1].observation == [4]


def test_an_experiment_is_refused_for_simulations(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    database = make(SSDB)
    assert command.main(["import", database.source, "-e", "mine"]) == 1
    assert "--experiment is not used for SSDB" in capsys.readouterr().err
