"""The programs of examples/python run as they are."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
from conftest import ROOT, Server, stored_steps

import anabranch as ab

EXAMPLES = ROOT / "examples/python"


#: Those that the README shows come first.
PROGRAMS = [
    *["llm_agent", "gymnasium_resume", "cartpole_branching", "checkpoints", "training", "reading"],
    *["langgraph_fork", "openai_agents_session", "claude_agent_session"],
]


def start(name: str, server: Server, *arguments: str, text: str = "") -> subprocess.Popen[str]:
    """Starts a program, or its text after a change."""
    environ = {**os.environ, "ANABRANCH_ADDRESS": server.address, "ANABRANCH_EXIT_SECONDS": "30"}
    command = [sys.executable, *(["-c", text] if text else [str(EXAMPLES / f"{name}.py")]), *arguments]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(name: str, server: Server, *arguments: str, fails: bool = False) -> str:
    """Runs a program as it is, and returns its output. One that succeeds has reported nothing."""
    process = start(name, server, *arguments)
    printed, errors = process.communicate(timeout=110)
    assert process.returncode == (1 if fails else 0), errors
    assert fails or not errors, errors
    return printed


def test_all_programs_run_as_they_are_in_order_and_twice(own_server: Server) -> None:
    """In the presence of an episode of the same task that another program has recorded."""
    own_server.start()
    client = ab.connect(own_server.address)
    with client.trajectory(task="CartPole-v1") as other:
        other.reset(observation="another form")
        other.step(action={"push": "left"}, observation=None, reward=400.0, terminated=True)
    other.flush(30)
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PROGRAMS)
    for _ in range(2):
        for name in PROGRAMS:
            assert run(name, own_server) != "", name


def test_a_thread_of_langgraph_is_resumed_and_forked(own_server: Server) -> None:
    own_server.start()
    assert run("langgraph_fork", own_server).splitlines() == [
        "crashed: the tool did not answer",
        "resumed: It is Paris.",
        "forked: It is Lima.",
        "copied: 9 states",
        "branch after step 0: 5 steps",
        "thread: 5 steps",
    ]


def test_an_llm_agent(own_server: Server) -> None:
    own_server.start()
    printed = run("llm_agent", own_server)
    main, again = sorted(own_server.listed(), key=lambda each: each.next_step_number, reverse=True)
    assert (main.task_id, dict(main.labels), main.status, main.reward_sum) == (
        "swe-42",
        {"model": "counting-model"},
        5,
        1,
    )
    assert (main.next_step_number, again.next_step_number, again.branch_point) == (7, 4, 3)
    results = [step.observations[0] for step in stored_steps(own_server, main.id)[1:]]
    assert [(each.call_id, each.is_error) for each in results] == [(f"call-{turn}", turn == 3) for turn in range(1, 7)]
    steps = stored_steps(own_server, again.id)
    assert [list(step.actions[0].token_ids) for step in steps[1:]] == [[0, 0], [1, 1], [2, 2]]
    assert [len(step.actions[0].prompt_token_ids) for step in steps[1:]] == [10, 2, 2]
    assert "tool: TimeoutError: the counter did not answer\nassistant: Now 3.\n" in printed
    assert printed.endswith("Tokens(1 rows, 20 tokens, 6 generated)\n")


def test_sessions_of_agent_frameworks(own_server: Server) -> None:
    own_server.start()
    answered, *counts = run("openai_agents_session", own_server).splitlines()
    assert (answered, [line.split()[-2] for line in counts]) == ("There are no belts.", ["6", "8"])
    assert run("claude_agent_session", own_server) == "the session has 4 entries, its fork 2\n"
    stored = {each.labels["integration"]: each for each in own_server.listed() if each.parent_id}
    assert {name: each.branch_point for name, each in stored.items()} == {"openai-agents": 4, "claude-agent-sdk": 2}


def test_checkpoints_of_environment_and_agent(own_server: Server) -> None:
    own_server.start()
    for crash_at in ("150", "420"):
        run("checkpoints", own_server, crash_at, fails=True)
    process = start("checkpoints", own_server)
    assert process.communicate(timeout=110)[0].splitlines() == [
        "continues after step 419",
        "501 steps, total 125250, reward 2742.0",
    ]
    (t,) = own_server.listed()
    assert (t.name, t.next_step_number) == ("run 7", 501)
    steps = stored_steps(own_server, t.id)
    totals = [number * (number + 1) // 2 for number in range(501)]
    assert [step.observations[0].content.text for step in steps] == [f"total {total}" for total in totals]
    assert [state.name for state in steps[500].states] == ["agent", "env"]


def test_cartpole_is_recorded_branched_and_resumed(own_server: Server) -> None:
    own_server.start()
    *comparisons, _, root, one, two = run("gymnasium_resume", own_server).splitlines()
    assert [line.split(",")[0] for line in comparisons] == ["101 shared steps"] * 2
    assert all("first difference at" in line and "in actions[0], reward" in line for line in comparisons)
    assert root.startswith("main ")
    assert [line.split(" gain")[0] for line in (one, two)] == ["├─@100", "└─@100"]


def steps_without_anabranch(lr: float, folder: Path) -> int:
    """Returns the number of steps that CartPole lasts if the learning rate becomes `lr` at step 200."""
    agent_alone = folder / "agent.py"
    agent_alone.write_text((EXAMPLES / "cartpole_branching.py").read_text().partition("client = ")[0])
    new_agent = runpy.run_path(str(agent_alone))["Agent"]
    env, agent, count, ended = gym.make("CartPole-v1"), new_agent(0.001), 0, False
    observation, _ = env.reset(seed=7)
    while not ended:
        agent = agent.copy(lr) if count == 200 else agent
        observation, _, terminated, truncated, _ = env.step(agent.act(observation))
        count, ended = count + 1, terminated or truncated
    return count


def test_cartpole_branches_with_other_learning_rates(own_server: Server, tmp_path: Path) -> None:
    own_server.start()
    slow, fast = steps_without_anabranch(0.01, tmp_path), steps_without_anabranch(0.1, tmp_path)
    assert 200 < fast < slow == 500
    *comparisons, _, root, one, two = run("cartpole_branching", own_server).splitlines()
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


#: The beginning of the model, which kills its process when it is asked for the nth time.
DIES = """    import os, signal
    globals()["samples"] = globals().get("samples", 0) + 1
    if samples == {}:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trainer_and_workers_that_are_killed(own_server: Server) -> None:
    """With leases of 2 s, so that the rollouts of killed workers soon return."""
    own_server.start()
    text = (EXAMPLES / "training.py").read_text()
    text = text.replace("concurrency=32", "concurrency=8, lease_seconds=2, wait_seconds=1")
    trainer = start("training", own_server, "trainer", text=text)
    model = "async def sample(messages):\n"
    dying = [text.replace(model, model + DIES.format(samples)) for samples in (5, 20)]
    killed = [start("training", own_server, "worker", text=each) for each in dying]
    for worker in killed:
        worker.communicate(timeout=110)
        assert worker.returncode == -signal.SIGKILL
    last = start("training", own_server, "worker", text=text)
    printed, errors = trainer.communicate(timeout=110)
    assert printed == "trained on 4 groups with 16 rows, saved 2 checkpoints\n", errors
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


def test_reading(own_server: Server) -> None:
    own_server.start()
    lines = run("reading", own_server).splitlines()
    assert lines[:5] == [
        *["(501, 4) (500,) 500.0"] * 3,
        "(335, 4) (334,) 334.0",
        "1838 rows, mean reward of an episode 458.5",
    ]
    assert lines[5].startswith("1838 rows, the first one: {'trajectory_id': ")
    assert lines[6] == "4 episodes of Minari, 1834 steps"
    assert lines[-2:] == ["[[1 2 1]", " [1 2 2]]"]
