"""The documents about Python: the tests and the calls that they name exist, and their programs run."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import minari
import pytest
from conftest import ROOT, Server, end_server

import anabranch as ab
from anabranch.groups import Group
from anabranch.rollouts import RolloutRecord
from anabranch.runs import Experiment
from anabranch.tasks import Tasks

CITED = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs/python.md").read_text())


def test_every_cited_test_exists() -> None:
    assert len(CITED) > 20
    for file, name in CITED:
        assert re.search(
            rf"^(async )?def {name}\(", (ROOT / "clients/python/tests" / file).read_text(), re.MULTILINE
        ), f"{file}::{name}"


def test_the_readme_and_the_training_page_show_parts_of_programs() -> None:
    blocks = blocks_of("README.md")[1:] + blocks_of("docs/training.md")
    programs = [path.read_text() for path in (ROOT / "examples/python").glob("*.py")]
    assert len(blocks) == 4
    for block in blocks:
        assert any(f"\n{block}" in program for program in programs), block


def without_ids(text: str) -> str:
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)


def blocks_of(document: str) -> list[str]:
    """Returns the blocks of Python in a document."""
    return re.findall(r"```python\n(.+?)```", (ROOT / document).read_text(), re.DOTALL)


def run(program: str, server: Server) -> str:
    """Runs a program and returns its output."""
    environment = {**os.environ, "ANABRANCH_ADDRESS": server.address, "ANABRANCH_EXIT_SECONDS": "30"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, check=True, text=True, timeout=110, stdout=subprocess.PIPE).stdout


def test_the_first_program_of_the_readme_starts_its_server_and_draws_its_picture(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    picture = re.findall(r"\n\n```\n([^`]+)```", readme)[0]
    assert readme.index("pip install anabranch") < readme.index("import anabranch") < readme.index(picture)
    done = subprocess.run(
        [sys.executable, "-c", blocks_of("README.md")[0]], check=True, text=True, timeout=60, stdout=subprocess.PIPE
    )
    assert without_ids(done.stdout) == without_ids(picture)
    end_server(tmp_path / "runs.db")


def test_the_first_program_of_the_document_runs(own_server: Server) -> None:
    own_server.start()
    run(blocks_of("docs/python.md")[0], own_server)
    sums = {(each.name, each.status, each.next_step_number): each.reward_sum for each in own_server.listed()}
    assert sums == {("main", 5, 4): 3.0, ("left", 3, 4): 1.0}


def test_the_program_of_the_package_runs(own_server: Server) -> None:
    own_server.start()
    (block,) = blocks_of("clients/python/README.md")
    run(block, own_server)
    assert [(each.name, each.status, each.reward_sum) for each in own_server.listed()] == [("main", 5, 3.0)]


def test_the_programs_of_the_integrations_run_and_print_what_they_say(own_server: Server) -> None:
    own_server.start()
    for program in blocks_of("docs/integrations.md"):
        printed = re.findall(r"^ *print\(.+  # (.+)$", program, re.MULTILINE)
        assert run(program, own_server).splitlines() == printed != [], program


def test_integrations_name_the_versions_that_are_tried() -> None:
    required = (ROOT / "clients/python/requirements-test.txt").read_text().splitlines()
    table = re.findall(r"^.*\| `anabranch\.\w+` \|(.+)$", (ROOT / "docs/integrations.md").read_text(), re.MULTILINE)
    assert len(table) == 3
    rows = [found for row in table for found in re.findall(r"`([\w-]+)` (?:\| )?([\d.]+)\b", row)]
    assert len(rows) == 4
    assert [f"{name}=={version}" for name, version in rows if f"{name}=={version}" not in required] == []


def test_the_program_with_asyncio_runs(server: Server) -> None:
    (block,) = [block for block in blocks_of("docs/python.md") if "ab.aio" in block]
    program = f"import asyncio\nimport anabranch as ab\nasync def main():\n{indent(block, '    ')}\nasyncio.run(main())"
    assert run(program, server) == "[1.]\n"


#: What `docs/coming-from.md` leaves to its readers: an environment that counts, an agent, and a device with a screen.
OWN_CODE = """
import json


class Environment:
    count = 0

    def reset(self):
        return [self.count]

    def step(self, action):
        self.count += 1
        return [self.count], 1.0, False, False, {}

    def save_state(self):
        return json.dumps({"count": self.count}).encode()

    def load_state(self, data):
        self.count = json.loads(data)["count"]
        print("restored", self.count)


class Agent:
    def act(self, observation=None):
        return "right"


def play(task_id):
    for turn in range(3):
        yield {"x": turn}, b"\\x89PNG\\r\\n\\x1a\\n" + b"pixels" * 4_000


env, agent = Environment(), Agent()
"""
#: What the programs print when they run for the first time, and again.
PRINTED = {
    "fle": (
        ["continues at step 1", "restored 1", "the branch continues at step 2"],
        ["restored 3", "continues at step 4", "restored 1", "the branch continues at step 2"],
    ),
    "cua": (["100.0", "[3, 3]", "2 1.0"],) * 2,
    "ssdb": (["restored 200", "201", "0.0"],) * 2,
}


def test_the_loops_of_coming_from_run_twice_in_a_row(own_server: Server) -> None:
    own_server.start()
    text = (ROOT / "docs/coming-from.md").read_text()
    programs = dict(re.findall(r"<!-- snippet: (\w+)-python -->\n```python\n(.+?)```", text, re.DOTALL))
    assert programs.keys() == PRINTED.keys()
    for system, program in programs.items():
        for printed in PRINTED[system]:
            assert run(OWN_CODE + program, own_server).splitlines() == printed, system
    assert not [each for each in own_server.listed() if "anabranch.spooled_from" in each.labels]


def test_the_loop_of_python_coming_from_runs_twice_in_a_row(own_server: Server) -> None:
    own_server.start()
    (block,) = blocks_of("docs/python-coming-from.md")
    assert [run(block, own_server) for _ in range(2)] == ["4 2\n", "4 2\n"]


#: What the names in the tables of docs/python-coming-from.md and docs/coming-from.md are.
NAMES: dict[str, Any] = {
    "ab": ab,
    "client": ab.Client,
    "client.tasks": Tasks,
    "episode": ab.Episode,
    "episodes": ab.Episodes,
    "experiment": Experiment,
    "group": Group,
    "record": RolloutRecord,
    "rollout": ab.Rollout,
    "run": ab.Run,
    "stage": ab.Stage,
    "t": ab.Trajectory,
    "turn": ab.Turn,
}
ROW = re.compile(r"^\| (?!your call)(.+) \| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs/python-coming-from.md").read_text())
COMING_FROM = (ROOT / "docs/coming-from.md").read_text()
#: The calls of CUA, and the rows that list them again, with what is called here.
CUA_ROWS = [
    *ROW.findall(re.findall(r"\n### CUA\n(.+?)\n### ", COMING_FROM, re.DOTALL)[0]),
    *re.findall(r"^\| (C-3\d|C-4[0-5]) \| .+? \| (.+) \|$", COMING_FROM, re.MULTILINE),
    *re.findall(r"^\| (`session\.delete\(run\).+?) \| (.+) \|$", COMING_FROM, re.MULTILINE),
]
OURS = re.compile(rf"({'|'.join(map(re.escape, NAMES))})\.")
#: Where rollouts pass their arguments on to.
PASSED_ON = {"Rollout.reset": ab.Trajectory.reset, "Rollout.step": ab.Trajectory.step}


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_rows_of_cua_name_the_call_of_the_package_where_it_has_one() -> None:
    assert len(CUA_ROWS) > 50
    sources = [path.read_text() for path in (ROOT / "clients/python/src/anabranch").rglob("*.py")]
    made = {name for source in sources for name in re.findall(r"\bstubs\.\w+\.([A-Z]\w+)", source)}
    without: list[str] = []
    for theirs, ours in CUA_ROWS:
        named = re.findall(r"`anabranch\.v1\.\w+Service\.(\w+)`", ours)
        is_named = "anabranch.compat.cua" in ours or any(map(OURS.match, codes(ours)))
        if made.intersection(named) and not is_named:
            without.append(theirs)
    assert without == []


@pytest.mark.parametrize("cell", [ours for _, ours in ROWS + CUA_ROWS])
def test_our_calls_in_coming_from_exist(cell: str) -> None:
    for code in codes(cell):
        if OURS.match(code):
            for node in ast.walk(ast.parse(code, mode="eval")):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    check_call(resolve(node.func), [word.arg for word in node.keywords])
                elif isinstance(node, ast.Attribute):
                    resolve(node)


def resolve(node: ast.expr) -> Any:
    name = ast.unparse(node)
    if name in NAMES:
        return NAMES[name]
    assert isinstance(node, ast.Attribute), name
    owner = resolve(node.value)
    found = getattr(owner, node.attr, None)
    declared = [hint for each in getattr(owner, "__mro__", ()) for hint in vars(each).get("__annotations__", ())]
    assert (
        found is not None
        or node.attr in declared
        or re.search(rf"self\.{node.attr}\b", inspect.getsource(owner.__init__))
    ), name
    return PASSED_ON.get(getattr(found, "__qualname__", ""), found)


def check_call(function: Any, words: list[str | None]) -> None:
    parameters = inspect.signature(function).parameters
    for word in words:
        is_field = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        assert word in parameters or is_field, f"{function}: {word}"


def test_calls_of_minari_in_coming_from_exist() -> None:
    text = (ROOT / "docs/python-coming-from.md").read_text()
    section = text[text.index("## From Minari") : text.index("## From agent-lightning")]
    names = re.findall(
        r"`(minari|dataset|env|episode)\.(\w+)", "".join(theirs for theirs, _ in re.findall(ROW, section))
    )
    assert len(names) > 8
    owners: dict[str, Any] = {
        "minari": minari,
        "dataset": minari.MinariDataset,
        "env": minari.DataCollector,
        "episode": minari.EpisodeData,
    }
    for owner, name in names:
        known = {field.name for field in fields(owners[owner])} if is_dataclass(owners[owner]) else set()
        assert name in known or hasattr(owners[owner], name), f"{owner}.{name}"
