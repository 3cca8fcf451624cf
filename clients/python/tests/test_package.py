"""The package: its version, and what an import of it loads."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Server, package_version

import anabranch

LOADED = "import sys, anabranch; print([name for name in ('grpc', 'google.protobuf', 'numpy') if name in sys.modules])"
CPU_TIME = """
import time
before = time.process_time()
import anabranch
print((time.process_time() - before) * 1000)
"""


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_server_and_sdk_have_one_version(server: Server) -> None:
    from anabranch.v1.server_service_pb2 import GetServerInfoRequest
    from anabranch.v1.server_service_pb2_grpc import ServerServiceStub

    info = ServerServiceStub(anabranch.connect(server.address).connection.stubs.channel)
    assert info.GetServerInfo(GetServerInfoRequest(), timeout=20).version == anabranch.__version__
    project = (ROOT / "clients/python/pyproject.toml").read_text()
    assert re.findall(r'^version = "(.+)"$', project, re.MULTILINE) == [anabranch.__version__] == [package_version()]


def test_import_loads_neither_grpc_nor_numpy() -> None:
    assert run(LOADED) == "[]"


def test_import_takes_at_most_40_ms() -> None:
    assert min(float(run(CPU_TIME)) for _ in range(5)) <= 40


def test_every_public_name_can_be_imported() -> None:
    for name in anabranch.__all__:
        assert getattr(anabranch, name) is not None


def test_the_stubs_are_those_of_the_protos() -> None:
    stubs = Path(anabranch.__file__).parent / "v1"
    assert {path.name for path in stubs.glob("*_pb2.py")} == {
        path.name for path in (ROOT / "gen/python/anabranch/v1").glob("*_pb2.py")
    }


def test_a_client_can_be_pickled() -> None:
    client = anabranch.connect("http://127.0.0.1:7", strict=True, spool=False)
    copy = pickle.loads(pickle.dumps(client))
    assert (copy.address, copy.strict) == ("127.0.0.1:7", True)


def test_connect_names_a_bad_address() -> None:
    with pytest.raises(ValueError, match="'localhost': expected HOST:PORT"):
        anabranch.connect("localhost")


def test_the_server_answers_the_stubs(server: Server) -> None:
    from anabranch.v1.trajectory_service_pb2 import ListTrajectoriesRequest

    stubs = anabranch.connect(server.address).connection.stubs
    assert len(stubs.trajectories.ListTrajectories(ListTrajectoriesRequest()).trajectories) >= 0


def test_the_package_has_types_and_one_style() -> None:
    folder = ROOT / "clients/python"
    styled = ["--config", "pyproject.toml", ".", "../../bench/python", "../../proto"]
    types = ["pyright", "--pythonpath", sys.executable]
    for command in (types, ["ruff", "check", *styled], ["ruff", "format", "--check", *styled]):
        done = subprocess.run([sys.executable, "-m", *command], check=False, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
