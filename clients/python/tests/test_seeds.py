"""The code of the three earlier systems, as their documents have it, runs with only its import lines changed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, Server

import anabranch as ab

SEEDS = Path(__file__).parent / "seeds"
#: The documents themselves, where they lie beside the checkout.
DOCUMENTS = ROOT.parent / "shared/seeds"
#: What an import line becomes.
IMPORTS = {
    "from fle.commons.db_client import": "from anabranch.compat.fle import",
    "from tinker_cookbook.recipes.cua_rl.database import": "from anabranch.compat.cua import",
    "from tinker_cookbook.recipes.cua_rl.database_dao import": "from anabranch.compat.cua import",
    "from simulation_db.": "from anabranch.compat.simulation_db.",
}


def originals(document: str) -> dict[str, str]:
    """Returns the snippets of a document by their headings."""
    text = (SEEDS / f"{document}.txt").read_text()
    return dict(re.findall(r"^## (.+?)\n\n```python\n(.+?)```", text, re.MULTILINE | re.DOTALL))


def snippets(document: str) -> dict[str, str]:
    """Returns the snippets of a document by their headings, with its import lines changed."""
    found = originals(document)
    for theirs, ours in IMPORTS.items():
        found = {
            heading: re.sub(rf"^{re.escape(theirs)}", ours, code, flags=re.MULTILINE) for heading, code in found.items()
        }
    return found


def run(code: str, names: dict[str, Any]) -> None:
    exec(code, names)  # noqa: S102 - the code of our own test data


@pytest.fixture(autouse=True)
def settings(server: Server, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of the tests, with a namespace for each, and a working directory without an `.env`."""
    monkeypatch.setenv("ANABRANCH_ADDRESS", server.address)
    monkeypatch.setenv("ANABRANCH_NAMESPACE", request.node.name.replace("_", "-").strip("-")[:60])
    monkeypatch.chdir(tmp_path)


@pytest.mark.skipif(not DOCUMENTS.exists(), reason="no documents of the three systems beside the checkout")
@pytest.mark.parametrize("document", ["fle", "cua-rl", "simulator-state-db"])
def test_the_copies_of_the_snippets_are_those_of_the_documents(document: str) -> None:
    def without_space(text: str) -> str:
        return "".join(text.split())

    text = (DOCUMENTS / f"{document}.txt").read_text()
    copies = [without_space(code) for code in originals(document).values()]
    assert [code for code in copies if code not in without_space(text)] == []
    # Blocks of Python, and where the document has lost its marks, lines that use the client.
    blocks = re.findall(r"```python\n(.+?)```", text, re.DOTALL)
    blocks += re.findall(r"^.*(?:\bdb\.\w+\(|db_client import).*$", text, re.MULTILINE) if document == "fle" else []
    assert blocks != []
    assert [block for block in blocks if not any(without_space(block) in code for code in copies)] == []


class Environment:
    """What the snippets of FLE name `env`."""

    def load_state(self, state: Any) -> None:
        self.state = state

    def step(self, action: str) -> tuple[Any, ...]:
        return action, 1.0, False, False, {}


def test_the_snippets_of_fle_run() -> None:
    code = snippets("fle")
    # The preamble: the names that the snippets leave undefined, and the settings of the document.
    names: dict[str, Any] = {
        "task_id": "iron_ore_throughput",
        "metadata": {"model": "gpt"},
        "step_data": {"agent_code": "craft()", "environment_feedback": "crafted"},
        "step_num": 1,
        "step_number": 1,
        "code": "move()",
        "feedback": "moved",
        "state": {"x": 1},
        "env": Environment(),
        "next_action": "mine()",
        "trajectory_id": None,
    }

    run(code["Accessing the Database"], names)
    assert (names["trajectories"], names["trajectory"], names["steps"]) == ([], None, [])

    run(code["SQLite Optimization"], names)
    id = names["trajectory_id"] = names["db"].create_trajectory("iron_ore_throughput", {"model": "gpt"})
    run(code["Saving Checkpoints"], names)
    run(code["Resuming from Checkpoint"], names)
    assert (names["env"].state, names["obs"]) == ({"x": 1}, "mine()")

    run(code["Accessing the Database"], names)
    assert [each["id"] for each in names["trajectories"]] == [id]
    trajectory, (step,) = names["trajectory"], names["steps"]
    assert (trajectory["task_id"], trajectory["status"], trajectory["end_time"]) == (names["task_id"], "running", None)
    assert {key: step[key] for key in ("trajectory_id", "step_number", "agent_code", "environment_feedback")} == {
        "trajectory_id": id,
        "step_number": 1,
        "agent_code": "move()",
        "environment_feedback": "moved",
    }

    run(code["Query Methods"], names)
    assert names["checkpoint"] == step
    assert (names["count"], names["exists"]) == (1, True)

    run(code["Core Methods"], names)
    assert names["trajectory_id"] != id
    assert [each["id"] for each in names["trajectories"]] == [id, names["trajectory_id"]]
    assert not names["db"].trajectory_exists(names["trajectory_id"])

    run(code["Switching Databases: export"], names)
    exported = names["trajectories"]
    assert [(each["id"], each["steps"]) for each in exported] == [(id, [step])]
    run(code["Switching Databases: import"], names)
    assert names["pg_db"].export_all() == exported


def test_the_snippet_of_cua_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = snippets("cua-rl").values()
    # The preamble: a training with the name of the document, of which one of two rollouts is played.
    client = ab.connect()
    plan = ab.Plan(train_steps=1, groups=1, group_size=2, max_turns=1)
    training = client.run("cua_rl-...", config={"learning_rate": 1e-5}, plan=plan)
    stage = training.stage("train_step", 0)
    stage.start()
    stage.rollouts([(0, 1, "")])
    with stage.rollout(0, 0) as rollout:
        rollout.reset(observation="screen")
        rollout.step(action="tap", observation="screen", reward=1.0)
    names: dict[str, Any] = {}

    run(code, names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [f"Training ID: {training.id}", "Status: running", "Progress: 50.0%", "Step 0 has 2 rollouts"]
    assert len(lines) == 5 and re.fullmatch(r"\d{4}-\d\d-\d\d .+: None -> running", lines[4])
    assert names["training"].learning_rate == 1e-5
    assert [(each.group_num, each.env_index, each.status, each.reward) for each in names["rollouts"]] == [
        (0, 0, "completed", 1.0),
        (0, 1, "pending", None),
    ]


def test_the_snippet_of_simulator_state_db_runs() -> None:
    (code,) = snippets("simulator-state-db").values()
    # The preamble: what the document calls `create_run`, `run_until_step` and `state_200`.
    names: dict[str, Any] = {}

    def create_run(name: str, config: dict[str, Any]) -> Any:
        names["states"] = StateManager(names["session"])
        simulation = names["sim_manager"].create_simulation("CartPole sweep", "CartPole-v1", "DQN", {"gamma": 0.99})
        names["current"] = names["states"].create_state(observation=[0], step_number=0)
        return names["sim_manager"].create_run(simulation.id, name, names["current"], config_overrides=config)

    def run_until_step(run: Any, step: int) -> None:
        for number in range(names["current"].step_number + 1, step + 1):
            names["current"] = names["states"].create_state(
                observation=[number], step_number=number, parent_state_id=names["current"].id, action=1, reward=1.0
            )
            names["sim_manager"].add_state_to_run(run, names["current"])
        names[f"state_{step}"] = names["current"]

    from anabranch.compat.simulation_db.managers.state_manager import StateManager

    names |= {"create_run": create_run, "run_until_step": run_until_step}
    run(code, names)
    made = SimpleNamespace(**names)
    assert (made.main_run.total_steps, made.main_run.total_reward) == (200, 200.0)
    assert (made.branch.name, made.branch.config_overrides) == ("high-lr-experiment", {"lr": 0.01})
    assert made.branch.description == "Branched from main at step 200"

    # "They share history up to step 200, then diverge!"
    for each in (made.main_run, made.branch):
        names["current"] = names["state_200"]
        run_until_step(each, 201)
    compared = made.states.compare_runs(made.main_run, made.branch)
    assert [len(compared[part]) for part in ("shared", "run1_only", "run2_only")] == [201, 1, 1]
    assert compared["divergence_point"].id == names["state_200"].id
