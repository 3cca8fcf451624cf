"""The tree and the comparison of trajectories."""

from __future__ import annotations

import os
import subprocess

import pytest
from conftest import ROOT, Server, program
from recorded import branch, episode_steps, new_step, record

from anabranch._reading.compare import Comparison, Difference, compare
from anabranch._reading.tree import short_number, tree_text
from anabranch._wire.connection import Connection


@pytest.fixture(scope="module")
def connection(server: Server) -> Connection:
    return Connection(server.address)


def trunk(connection: Connection, name: str) -> str:
    return record(connection, episode_steps(5, lambda number: number, lambda number: number), name=name)


def test_the_tree_is_the_picture_of_the_command_line(connection: Connection, server: Server) -> None:
    root = trunk(connection, "main 主")
    late = branch(connection, root, 3, [new_step(4, action=9, reward=0.5)], name="late")
    early = branch(connection, root, 1, [new_step(2, action=9)], name="")
    branch(connection, late, 4, [], name="leaf")
    branch(connection, early, 1, [], name="same point")
    command = [*program("main"), "tree", root, "--address", server.address]
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    drawn = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert tree_text(connection, early) == drawn.stdout.rstrip("\n")


def test_comparison_of_a_branch_with_its_trunk(connection: Connection) -> None:
    root = trunk(connection, "main")
    other = branch(connection, root, 3, [new_step(4, action=7, observation=4, reward=8.5)])
    found = compare(connection, other, root)
    assert found == Comparison(4, Difference(4, "actions[0].content.json", '"7"', '"4"'), 14.5, 15.0)
    assert str(found) == "4 shared steps, first difference at 4 in actions[0], reward -0.5"


def test_comparison_with_itself_and_with_a_longer_trajectory(connection: Connection) -> None:
    root = trunk(connection, "main")
    assert str(compare(connection, root, root)) == "6 shared steps, no difference, reward 0"
    longer = branch(connection, root, 5, [new_step(6, reward=1.0)])
    assert str(compare(connection, longer, root)) == (
        "6 shared steps, first difference at 6, where one of them ends, reward +1"
    )


def test_short_numbers() -> None:
    shown = [short_number(value) for value in (0.0, 200.0, -1.5, 1 / 3, float("nan"), float("-inf"), 1e12)]
    assert shown == ["0", "200", "-1.5", "0.333333", "NaN", "-∞", "1e+12"]
