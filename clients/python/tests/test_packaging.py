"""Each way to install the package brings the stubs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = str(ROOT / "clients/python")
#: Prints where the stubs are, which names have to be importable without the checkout.
WORKS = """
import anabranch, anabranch.v1.trajectory_pb2, anabranch.v1.state_service_pb2_grpc
anabranch.connect()
print(anabranch.v1.trajectory_pb2.__file__)
"""
LOWEST = ("grpcio==1.71.2", "protobuf==5.29.1")

pytestmark = pytest.mark.packaging


def run(command: Sequence[str | Path], folder: Path) -> str:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def installed(folder: Path, *what: str) -> str:
    python = folder / "venv/bin/python"
    run([sys.executable, "-m", "venv", "venv"], folder)
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what], folder)
    return run([python, "-c", WORKS], folder)


def test_from_the_checkout(tmp_path: Path) -> None:
    assert "site-packages/anabranch/v1" in installed(tmp_path, PACKAGE)


def test_on_the_lowest_versions(tmp_path: Path) -> None:
    assert "site-packages/anabranch/v1" in installed(tmp_path, PACKAGE, *LOWEST)


def test_editable(tmp_path: Path) -> None:
    assert installed(tmp_path, "-e", PACKAGE).startswith(PACKAGE)


def test_from_git(tmp_path: Path) -> None:
    assert "site-packages" in installed(tmp_path, f"git+file://{ROOT}#subdirectory=clients/python")


def test_from_the_wheel_of_a_source_distribution(tmp_path: Path) -> None:
    run([sys.executable, "-m", "build", "--outdir", tmp_path, PACKAGE], tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert "site-packages/anabranch/v1" in installed(tmp_path, str(wheel))
