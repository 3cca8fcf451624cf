"""Each way to install the package brings the stubs."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

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


@functools.cache
def downloads() -> str:
    """Returns the folder in which pip keeps what it has downloaded."""
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def environment(folder: Path, path: str = "/usr/bin:/bin") -> dict[str, str]:
    # Each test has its own home. Python compiles what is imported: to compile all that is installed takes longer.
    return {"PATH": path, "HOME": str(folder), "PIP_CACHE_DIR": downloads(), "PIP_NO_COMPILE": "1"}


def run(command: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, env=environment(folder), check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def installed(folder: Path, *what: str) -> str:
    python = folder / "venv/bin/python"
    # The pip of the tests installs into the venv: an own pip would take longer to install than the package.
    run([sys.executable, "-m", "venv", "--without-pip", "venv"], folder)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, *what], folder)
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
    assert sorted(set(contents(wheel))) == contents(wheel)
    assert [name for name in contents(wheel) if "v1/" in name] == [f"anabranch/v1/{name}" for name in STUBS]
    assert "site-packages/anabranch/v1" in installed(tmp_path, str(wheel))


STUBS = sorted(path.name for path in (ROOT / "gen/python/anabranch/v1").iterdir() if path.suffix in (".py", ".pyi"))


def contents(wheel: Path) -> list[str]:
    """Returns the names of the files in a wheel, in order."""
    return sorted(zipfile.ZipFile(wheel).namelist())


def test_the_wheels_bring_the_server_and_run_the_readme_without_node_on_the_path(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    for package in (PACKAGE, ROOT / "pip"):
        run([sys.executable, "-m", "build", "--no-isolation", "--outdir", wheels, package], tmp_path)
    (server,) = wheels.glob("anabranch-*.whl")
    assert server.stat().st_size <= 12 * 1024 * 1024
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "download", "--dest", wheels, "--find-links", wheels, "--prefer-binary", server], tmp_path)

    began = time.monotonic()
    python = tmp_path / "venv/bin/python"
    run([sys.executable, "-m", "venv", "--without-pip", "venv"], tmp_path)
    run([*pip, "--python", python, "install", "--no-index", "--find-links", wheels, "anabranch"], tmp_path)
    path = str(python.parent)
    assert shutil.which("node", path=path) is None
    without_node = {"cwd": tmp_path, "env": environment(tmp_path, path)}
    program = re.findall(r"```python\n(.+?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    ran = subprocess.run([python, "-c", program], **without_node, check=True, stdout=subprocess.PIPE, text=True)
    assert re.findall(r"@(\d+) left .+ completed", ran.stdout) == ["6", "12", "18"]
    seconds = time.monotonic() - began
    print(f"from the wheels ({server.stat().st_size / 1e6:.1f} MB) to the tree: {seconds:.1f} s")
    assert seconds <= 60
    holder = re.match(r"process (\d+) ", (tmp_path / "runs.db.holder").read_text())
    assert holder is not None
    os.kill(int(holder[1]), signal.SIGTERM)

    # The command is the process of the server, which gets its signals and has its exit code.
    anabranch = python.with_name("anabranch")
    serve = [anabranch, "serve", "--json", "--listen", "127.0.0.1:0", "--database", "sqlite:served.db"]
    with subprocess.Popen(serve, **without_node, stdout=subprocess.PIPE) as serving:
        assert serving.stdout is not None
        url = json.loads(serving.stdout.readline())["url"]
        assert (tmp_path / "served.db.holder").read_text().startswith(f"process {serving.pid} ")
        assert b"anabranch-page" in urlopen(f"{url}/").read()
        subprocess.run([anabranch, "tree", "--address", url], **without_node, check=True)
        serving.terminate()
        assert serving.wait(60) == 0
    assert subprocess.run([anabranch, "nonsense"], **without_node, check=False).returncode == 2


#: Imports the package and OpenTelemetry's stubs in both orders. Both need google/rpc/status.proto.
BESIDE_OPENTELEMETRY = """
import sys
def ours():
    import anabranch.v1.trajectory_service_pb2_grpc
    from anabranch._wire import failures
    import grpc
    failures.error_from_rpc(grpc.RpcError("translated"))
    from google.rpc.status_pb2 import Status
    from google.rpc.error_details_pb2 import ErrorInfo
def theirs():
    import opentelemetry.exporter.otlp.proto.grpc.trace_exporter
    import google.rpc.status_pb2, google.rpc.code_pb2
for load in {"ours": (ours, theirs), "theirs": (theirs, ours)}[sys.argv[1]]:
    load()
"""


def test_beside_opentelemetry_in_both_orders(tmp_path: Path) -> None:
    installed(tmp_path, PACKAGE, "opentelemetry-exporter-otlp-proto-grpc")
    for first in ("ours", "theirs"):
        run([tmp_path / "venv/bin/python", "-c", BESIDE_OPENTELEMETRY, first], tmp_path)
    owners = run([tmp_path / "venv/bin/python", "-c", OWNERS], tmp_path)
    assert owners == "googleapis-common-protos"


#: Prints the distributions that install google/rpc/status.proto: one alone, so that none overwrites another one's.
OWNERS = """
from importlib.metadata import distributions
for each in distributions():
    if any(str(file) == "google/rpc/status_pb2.py" for file in each.files or ()):
        print(each.metadata["Name"])
"""


@pytest.fixture
def without_links(tmp_path: Path) -> Path:
    """The package in a checkout where the link to the stubs is a file, as Git on Windows and archives of GitHub have it."""
    package, stubs = tmp_path / "checkout/clients/python", "src/anabranch/v1"
    leave_out = shutil.ignore_patterns("__pycache__", "v1", ".*", "tests")
    shutil.copytree(PACKAGE, package, ignore=leave_out)
    shutil.copytree(ROOT / "gen/python", tmp_path / "checkout/gen/python", ignore=shutil.ignore_patterns("__pycache__"))
    (package / stubs).write_text(str((ROOT / "clients/python" / stubs).readlink()))
    return package


def test_from_a_checkout_without_links(tmp_path: Path, without_links: Path) -> None:
    assert "site-packages/anabranch/v1" in installed(tmp_path, str(without_links))


def test_editable_from_a_checkout_without_links(tmp_path: Path, without_links: Path) -> None:
    assert installed(tmp_path, "-e", str(without_links)).startswith(str(without_links))


def test_the_source_distribution_of_a_checkout_without_links(tmp_path: Path, without_links: Path) -> None:
    run([sys.executable, "-m", "build", "--outdir", tmp_path, without_links], tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert [name for name in contents(wheel) if "v1/" in name] == [f"anabranch/v1/{name}" for name in STUBS]
