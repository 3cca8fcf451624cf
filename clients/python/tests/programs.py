"""Programs that tests start, and `python -m anabranch spool`."""

from __future__ import annotations

import os
import subprocess
import sys


def start(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *arguments]
    environ = {**os.environ, **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def spool_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anabranch", "spool", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)


def run_spool(*arguments: str) -> str:
    """Returns what the command prints. It must succeed."""
    done = spool_command(*arguments)
    assert done.returncode == 0, done
    return done.stdout
