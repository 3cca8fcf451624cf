"""docs/python.md names tests that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from conftest import ROOT, Server

CITED = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs/python.md").read_text())


def test_every_cited_test_exists() -> None:
    assert len(CITED) > 20
    for file, name in CITED:
        assert f"\ndef {name}(" in (ROOT / "clients/python/tests" / file).read_text(), f"{file}::{name}"


def test_the_readme_shows_the_first_lines_of_programs() -> None:
    blocks = re.findall(r"```python\n(.+?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    programs = [path.read_text() for path in (ROOT / "examples/python").glob("*.py")]
    assert len(blocks) == 4
    for block in blocks:
        assert any(block in program for program in programs), block


def test_the_first_program_of_the_document_runs(own_server: Server) -> None:
    own_server.start()
    program = re.findall(r"```python\n(.+?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)[0]
    environment = {**os.environ, "ANABRANCH_ADDRESS": own_server.address, "ANABRANCH_EXIT_SECONDS": "30"}
    subprocess.run([sys.executable, "-"], input=program, env=environment, check=True, text=True, timeout=60)
    sums = {(each.name, each.status, each.next_step_number): each.reward_sum for each in own_server.listed()}
    assert sums == {("main", 5, 4): 3.0, ("left", 3, 4): 1.0}
