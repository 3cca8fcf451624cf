"""The programs of examples/python run as they are, after the preamble that defines what they leave undefined."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
from conftest import ROOT, Server, stored_steps

import anabranch as ab

EXAMPLES = ROOT / "examples/python"


def program(name: str, end: str = "") -> str:
    """Returns a program with its preamble, and `end`. Lines with torch are left out if it is not installed."""
    text = (EXAMPLES / "preambles" / name).read_text() + (EXAMPLES / name).read_text() + end
    if importlib.util.find_spec("torch") is None:
        text = re.sub(r"^.*\btorch\b.*$", "", text, flags=re.MULTILINE)
    return text


def start(text: str, server: Server, **environment: str) -> subprocess.Popen[str]:
    """Starts a program."""
    environ = {**os.environ, "ANABRANCH_ADDRESS": server.address, "ANABRANCH_EXIT_SECONDS": "30", **environment}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", text], env=environ, stdout=pipe, stderr=pipe, text=True)


def run(name: str, server: Server, end: str = "", *, fails: bool = False, **environment: str) -> str:
    """Runs a program, then `end`, and returns its output."""
    process = start(program(name, end), server, **environment)
    printed, errors = process.communicate(timeout=110)
    assert (process.returncode != 0) == fails, errors
    return printed


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
    *comparisons, _, root, one, two = run("gymnasium_resume.py", own_server).splitlines()
    assert [line.split(",")[0] for line in comparisons] == ["101 shared steps"] * 2
    assert all("first difference at" in line and "in actions[0], reward" in line for line in comparisons)
    assert root.startswith("main ")
    assert [line.split(" gain")[0] for line in (one, two)] == ["├─@100", "└─@100"]


def steps_without_anabranch(lr: float) -> int:
    """Returns the number of steps that CartPole lasts if the learning rate becomes `lr` at step 200."""
    new_agent = runpy.run_path(str(EXAMPLES / "preambles/cartpole_branching.py"))["Agent"]
    env, agent, count, ended = gym.make("CartPole-v1"), new_agent(0.001), 0, False
    observation, _ = env.reset(seed=7)
    while not ended:
        agent = agent.copy(lr) if count == 200 else agent
        observation, _, terminated, truncated, _ = env.step(agent.act(observation))
        count, ended = count + 1, terminated or truncated
    return count


def test_cartpole_branches_with_other_learning_rates(own_server: Server) -> None:
    own_server.start()
    slow, fast = steps_without_anabranch(0.01), steps_without_anabranch(0.1)
    assert 200 < fast < slow == 500
    *comparisons, _, root, one, two = run("cartpole_branching.py", own_server).splitlines()
    same = "201 shared steps, first difference at 201, where one of them ends, reward"
    assert comparisons == [f"{same} +{slow - 200}", f"{same} +{fast - 200}"]
    assert [line.split()[-3:] for line in (root, one, two)] == [
        ["201", "200", "running"],
        [str(slow + 1), str(slow), "completed"],
        [str(fast + 1), str(fast), "completed"],
    ]
    assert root.startswith("main ")
    assert [line.split()[:3] for line in (one, two)] == [["├─@200", "lr", "0.01"], ["└─@200", "lr", "0.1"]]
    stored = {each.labels["lr"]: each for each in own_server.listed()}
    assert {lr: each.reward_sum for lr, each in stored.items()} == {"0.001": 200, "0.01": slow, "0.1": fast}
    assert [step.reward for step in stored_steps(own_server, stored["0.1"].id)] == [0.0, *[1.0] * fast]


def test_a_trainer_and_workers_that_are_killed(own_server: Server) -> None:
    """Two training steps instead of 100, and leases of 2 s, so that the rollouts of killed workers soon return."""
    own_server.start()
    text = program("training.py").replace("train_steps=100", "train_steps=2")
    text = text.replace("concurrency=32", "concurrency=8, lease_seconds=2, wait_seconds=1")
    trainer = start(f"{text}\nasyncio.run(trainer())\nprint(learner)", own_server)
    killed = [start(f"{text}\nasyncio.run(worker())", own_server, KILL_AT=at) for at in ("5", "20")]
    for worker in killed:
        worker.communicate(timeout=110)
        assert worker.returncode == -signal.SIGKILL
    last = start(f"{text}\nasyncio.run(worker())", own_server)
    printed, errors = trainer.communicate(timeout=110)
    assert printed == "4 groups, 16 rows, 2 checkpoints\n", errors
    _, errors = last.communicate(timeout=110)
    assert last.returncode == 0, errors

    client = ab.connect(own_server.address)
    assert not [each for each in own_server.listed() if "anabranch.spooled_from" in each.labels]
    played = [*client.run("qwen3-vl-cua").rollouts(success=True)]
    assert len(played) == 16
    for episode in played:
        assert [step.number for step in episode.steps] == [0, 1, 2, 3]
        assert [list(step.message.actions[0].token_ids) for step in episode.moves] == [[1, 2, 3]] * 3
        assert [step.observation["screenshot"].getpixel((0, 0)) for step in episode.steps] == [
            (pressed, 0, 0) for pressed in range(4)
        ]


def test_reading(own_server: Server, tmp_path: Path) -> None:
    own_server.start()
    program = "print(len(list(episodes)), len(frame), len(list(hf)), sorted(batch['input_ids'].tolist()))\n"
    printed = run("reading.py", own_server, program, MINARI_DATASETS_PATH=str(tmp_path / "minari"))
    episodes, frame, hf, ids = printed.split(maxsplit=3)
    assert (int(episodes) > 0, frame == hf) == (True, True)
    assert ids == "[[1, 2, 1], [1, 2, 2]]\n"
