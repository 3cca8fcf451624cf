"""Fixtures: a real server, started from this repository, and a spool folder for each test."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from anabranch._recording.recorder import _process
from anabranch._wire import local
from anabranch._wire.connection import Stubs, open_stubs
from anabranch.v1.admin_service_pb2 import VerifyDatabaseRequest
from anabranch.v1.trajectory_pb2 import Step, Trajectory
from anabranch.v1.trajectory_service_pb2 import GetTrajectoryRequest, ListTrajectoriesRequest, ReadStepsRequest

ROOT = Path(__file__).resolve().parents[3]
NODE = ROOT / "node_modules/.bin/node"
# Programs that tests start import the package from this checkout too.
os.environ["PYTHONPATH"] = str(ROOT / "clients/python/src")
# Servers that tests start load compiled modules, as those of `npm test` do (test/support/run-vitest.ts): that takes
# half of the time of stripping the types from every file again.
os.environ.setdefault("NODE_COMPILE_CACHE", str(ROOT / "node_modules/.cache/node-compile"))
# Test modules import grpc before the package does. grpc reads this when it is imported.
assert "grpc" not in sys.modules, "an import above imports grpc too early"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "1"
# The end of the tests does not wait for servers that are gone.
os.environ["ANABRANCH_EXIT_SECONDS"] = "0"


#: Whether all tests do more. `npm run test:faults` also runs files that ask for it.
IS_LARGE_DOSE = os.environ.get("TEST_DOSE") == "large"


def dose(usual: int, large: int) -> int:
    """Returns the dose of a test that is marked `faults`: the large one, unless TEST_DOSE=usual."""
    return usual if os.environ.get("TEST_DOSE") == "usual" else large


def pytest_configure(config: pytest.Config) -> None:
    """Bundles the service, unless TEST_SERVER names a bundle. Processes of pytest-xdist inherit the variable."""
    if "TEST_SERVER" in os.environ:
        return
    (ROOT / "dist").mkdir(exist_ok=True)
    folder = tempfile.mkdtemp(prefix="server-", dir=ROOT / "dist")
    config.add_cleanup(lambda: shutil.rmtree(folder))
    command = [NODE, "test/support/bundle.ts", folder, "src/main.ts", "test/support/server_host.ts"]
    subprocess.run(command, cwd=ROOT, check=True)
    os.environ["TEST_SERVER"] = folder


def program(name: str) -> list[str]:
    """Returns the command of a program of the bundle."""
    return [str(NODE), f"{os.environ['TEST_SERVER']}/{name}.js"]


class Host:
    """A process that runs servers. A server in a process of its own takes five times the CPU time to start."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "host.log"
        pipe = subprocess.PIPE
        with self._log.open("w") as log:
            self._process = subprocess.Popen(program("server_host"), stdin=pipe, stdout=pipe, stderr=log, text=True)

    def ask(self, **request: object) -> None:
        """Sends a request (test/support/server_host.ts) and returns when it is done."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise RuntimeError(f"the process of the servers has ended: {self._log.read_text()}")

    def close(self) -> None:
        self._process.communicate(timeout=60)


class Server:
    """A server of its own database, which can be killed and started again on the same port. A host runs it."""

    def __init__(self, folder: Path, host: Host, database: str = "") -> None:
        self.folder = folder
        self._database = database or f"sqlite:{folder}/data.db"
        self.port = free_port()
        self.is_running = False
        self._host = host
        self._stubs: Stubs | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the server and returns when it serves."""
        self._stubs = None
        self._start(["--listen", self.address, "--database", self._database])
        self.is_running = True

    def kill(self) -> None:
        """Ends the server at once: its connections are reset, and no further one is accepted."""
        if self.is_running:
            self._kill()
        self.is_running = False

    def restart(self) -> None:
        self.kill()
        self.start()

    def stubs(self) -> Stubs:
        """Returns stubs on one connection until the server is started again."""
        if self._stubs is None:
            self._stubs = open_stubs(self.address)
        return self._stubs

    def stored(self, trajectory_id: str) -> Trajectory:
        """Returns what the server has of a trajectory."""
        request = GetTrajectoryRequest(trajectory_id=trajectory_id)
        return self.stubs().trajectories.GetTrajectory(request).trajectory

    def listed(self) -> list[Trajectory]:
        """Returns all trajectories."""
        return list(self.stubs().trajectories.ListTrajectories(ListTrajectoriesRequest()).trajectories)

    def verify(self) -> None:
        """Fails if the database is damaged. A server that was ended is started for it. One that never ran has none."""
        if not self.is_running:
            if not (self.folder / "data.db").exists():
                return
            self.start()
        # Not at the top, which would import grpc too early.
        from anabranch.v1.admin_service_pb2_grpc import AdminServiceStub

        admin = AdminServiceStub(self.stubs().channel)
        messages = admin.VerifyDatabase(VerifyDatabaseRequest(), timeout=100)
        assert [fault.message for message in messages for fault in message.faults] == []

    def _start(self, arguments: list[str]) -> None:
        self._host.ask(serve=arguments)

    def _kill(self) -> None:
        self._host.ask(cut=self.port)


class ServerProcess(Server):
    """A server in a process of its own, which `kill` ends."""

    _process: subprocess.Popen[str]

    def _start(self, arguments: list[str]) -> None:
        with (self.folder / "server.log").open("a") as log:
            command = [*program("main"), "serve", "--json", *arguments]
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if '"event":"ready"' in line:
                return
        raise RuntimeError(f"the server did not start: {(self.folder / 'server.log').read_text()}")

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def stored_steps(server: Server, trajectory_id: str) -> list[Step]:
    """Returns all steps that the server has of a trajectory."""
    messages = server.stubs().trajectories.ReadSteps(ReadStepsRequest(trajectory_id=trajectory_id))
    return [step for message in messages for step in message.steps]


#: Below the ports that systems give to those who ask for any (from 32,768 on Linux).
_FIRST_PORT, _END_PORT, _PORTS_EACH = 10_000, 32_000, 100
_taken = itertools.count()


def free_port() -> int:
    """Returns a port that nothing listens on, from a range of this process. The system gives it to nobody who asks for
    any port, so it stays free while a server is to be away from it, and for its next start."""
    first = _FIRST_PORT + _PORTS_EACH * (os.getpid() % ((_END_PORT - _FIRST_PORT) // _PORTS_EACH))
    for _ in range(_PORTS_EACH):
        port = first + next(_taken) % _PORTS_EACH
        with socket.socket() as listener, suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no free port from {first} to {first + _PORTS_EACH - 1}")


def package_version() -> str:
    """Returns the version of package.json."""
    return str(json.loads((ROOT / "package.json").read_text())["version"])


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs tests that are coroutines, each in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    # Far above the duration of any test: a busy machine must not fail a test.
    asyncio.run(asyncio.wait_for(test, 300))
    return True


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The process of the servers."""
    running = Host(tmp_path_factory.mktemp("host"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, host: Host) -> Iterator[Server]:
    """A server that all tests share. Tests that stop a server use `own_server`. The database is verified at the end."""
    running = Server(tmp_path_factory.mktemp("server"), host)
    running.start()
    yield running
    running.verify()


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def any_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, host: Host
) -> Iterator[Server]:
    """A server that tests share, of each engine: they use namespaces of their own."""
    if request.param == "sqlite":
        yield request.getfixturevalue("server")
        return
    from fle_database import running_postgres

    with running_postgres() as url:
        running = Server(tmp_path_factory.mktemp("postgres"), host, url)
        running.start()
        yield running
        running.verify()
        running.kill()


def verified(running: Server) -> Iterator[Server]:
    """Lends a server, and verifies its database at the end."""
    yield running
    try:
        running.verify()
    finally:
        running.kill()


@pytest.fixture
def own_namespace(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients without arguments use the server of the tests, in a namespace that no other test has."""
    monkeypatch.setenv("ANABRANCH_ADDRESS", server.address)
    monkeypatch.setenv("ANABRANCH_NAMESPACE", f"n{uuid.uuid4().hex}")


@pytest.fixture
def own_server(tmp_path: Path, host: Host) -> Iterator[Server]:
    """A server of this test alone, not started yet. Its database is verified after the test."""
    yield from verified(Server(tmp_path, host))


@pytest.fixture
def server_process(tmp_path: Path, host: Host) -> Iterator[Server]:
    """The same in a process of its own, for tests of what is left when that is killed."""
    yield from verified(ServerProcess(tmp_path, host))


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Lets the test and its programs start servers of files, from the bundle. Returns the folder for their sockets,
    whose path is shorter than that of other folders of the test."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "anabranch_server.py").write_text(f"def command():\n    return {program('main')!r}\n")
    monkeypatch.setenv("PYTHONPATH", f"{package}:{os.environ['PYTHONPATH']}")
    monkeypatch.syspath_prepend(package)
    folder = Path(tempfile.mkdtemp(prefix="ab-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    sys.modules.pop("anabranch_server", None)
    shutil.rmtree(folder)


def server_of(file: Path) -> int | None:
    """Returns the process that has a database file open."""
    return local._locked_by(f"{file}.lock")


def end_server(file: Path) -> None:
    """Kills the server of a database file, and lets this process forget it."""
    local._forked()
    if (pid := server_of(file)) is not None:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The spool folder of this test. Its recorders end with it: they would try for ever to reach a server that has ended,
    and would reach the one of another test on the same port."""
    folder = tmp_path / "spool"
    monkeypatch.setenv("ANABRANCH_SPOOL", str(folder))
    yield folder
    _process.exit()
