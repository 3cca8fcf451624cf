"""The programs of examples/python run as they are, after the preamble that defines what they leave undefined."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import ROOT, Server, stored_steps

EXAMPLES = ROOT / "examples/python"


def run(name: str, server: Server, end: str = "", *, fails: bool = False, **environment: str) -> str:
    """Runs a program, then `end`, and returns its output. Lines with torch are left out if it is not installed."""
    program = (EXAMPLES / "preambles" / name).read_text() + (EXAMPLES / name).read_text() + end
    if importlib.util.find_spec("torch") is None:
        program = re.sub(r"^.*\btorch\b.*$", "", program, flags=re.MULTILINE)
    environ = {**os.environ, "ANABRANCH_ADDRESS": server.address, "ANABRANCH_EXIT_SECONDS": "30", **environment}
    done = subprocess.run(
        [sys.executable, "-"], input=program, env=environ, check=False, capture_output=True, text=True, timeout=110
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout


def test_every_program_has_a_preamble() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {path.name for path in EXAMPLES.glob("preambles/*.py")}


def test_an_llm_agent(own_server: Server) -> None:
    own_server.start()
    printed = run("llm_agent.py", own_server)
    main, again = sorted(own_server.listed(), key=lambda each: each.next_step_number, reverse=True)
    assert (main.task_id, dict(main.labels), main.status, main.reward_sum) == (
        "swe-42",
        {"model": "counting-model"},
        5,
        1,
    )
    assert (main.next_step_number, again.next_step_number, again.branch_point) == (6, 4, 3)
    steps = stored_steps(own_server, again.id)
    assert [list(step.actions[0].token_ids) for step in steps[1:]] == [[1, 2], [2, 3], [3, 4]]
    assert [step.observations[0].call_id for step in steps[1:]] == ["call-1", "call-2", "call-3"]
    assert [len(step.actions[0].prompt_token_ids) for step in steps[1:]] == [10, 2, 2]
    assert printed.startswith("Tokens(1 rows, 20 tokens, 6 generated")


def test_checkpoints_of_environment_and_agent(own_server: Server) -> None:
    own_server.start()
    for crash_at in ("150", "420"):
        run("checkpoints.py", own_server, fails=True, CRASH_AT=crash_at)
    run("checkpoints.py", own_server)
    (t,) = own_server.listed()
    assert (t.name, t.next_step_number) == ("run 7", 5000)
    steps = stored_steps(own_server, t.id)
    totals = [number * (number + 1) // 2 for number in range(5000)]
    assert [step.observations[0].content.text for step in steps] == [f"total {total}" for total in totals]
    assert [state.name for state in steps[4999].states] == ["agent", "env"]


def test_cartpole_is_recorded_branched_and_resumed(own_server: Server) -> None:
    own_server.start()
    *comparisons, _, root, one, two = run("cartpole_branching.py", own_server).splitlines()
    assert [line.split(",")[0] for line in comparisons] == ["101 shared steps"] * 2
    assert all("first difference at" in line and "in actions[0], reward" in line for line in comparisons)
    assert root.startswith("main ")
    assert [line.split(" gain")[0] for line in (one, two)] == ["├─@100", "└─@100"]


def test_a_trainer_and_two_workers(own_server: Server) -> None:
    own_server.start()
    assert run("training.py", own_server) == "6 groups, 24 rows, 3 checkpoints\n"


def test_reading(own_server: Server, tmp_path: Path) -> None:
    own_server.start()
    program = "print(len(list(episodes)), len(frame), len(list(hf)), sorted(batch['input_ids'].tolist()))\n"
    printed = run("reading.py", own_server, program, MINARI_DATASETS_PATH=str(tmp_path / "minari"))
    episodes, frame, hf, ids = printed.split(maxsplit=3)
    assert (int(episodes) > 0, frame == hf) == (True, True)
    assert ids == "[[1, 2, 1], [1, 2, 2]]\n"
