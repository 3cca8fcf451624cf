"""The modules of `anabranch.compat` without ANABRANCH_ADDRESS: on a local server of the database of the settings."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from urllib.parse import quote

import pytest
from conftest import end_server
from fle_database import TREES, running_postgres, sqlite_database

from anabranch._wire import local
from anabranch._wire.errors import NoLocalServer
from anabranch.compat import __main__ as command
from anabranch.compat import cua
from anabranch.compat.fle import PostgreSQLClient, get_db_client
from anabranch.compat.simulation_db.database import SessionLocal, init_db
from anabranch.compat.simulation_db.managers.simulation_manager import SimulationManager
from anabranch.compat.simulation_db.managers.state_manager import StateManager


@pytest.fixture(autouse=True)
def settings(runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ANABRANCH_ADDRESS", raising=False)
    monkeypatch.setattr(local, "_servers", {})
    monkeypatch.chdir(tmp_path)
    yield
    for address in [each for each in local._servers if each.startswith("unix:")]:
        with suppress(OSError):
            end_server_at(address)
    for file in tmp_path.rglob("*.anabranch.db"):
        end_server(file)


def process_at(address: str) -> int:
    """Returns the process that listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(address.removeprefix("unix:"))
        return struct.unpack("3i", own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def end_server_at(address: str) -> int:
    """Kills the server on a Unix socket, and returns its process id."""
    process = process_at(address)
    os.kill(process, signal.SIGKILL)
    return process


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with running_postgres() as url:
        yield url


def test_eight_processes_save_into_the_file_beside_that_of_fle_and_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = sqlite_database(tmp_path)
    file.insert(*TREES)
    before = Path(file.source).read_bytes()
    monkeypatch.setenv("SQLITE_DB_FILE", file.source)
    program = dedent(
        """
        import sys
        from anabranch.compat.fle import get_db_client

        db = get_db_client()
        id = db.create_trajectory(sys.argv[1])
        for number in range(1, 6):
            db.save_checkpoint(id, number, f"code {number}", "feedback", {"process": sys.argv[1]})
        """
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, f"task {process}"], stderr=subprocess.PIPE, text=True)
        for process in range(8)
    ]
    said = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 8, said
    own = f"sqlite:{file.source.removesuffix('.db')}.anabranch.db"
    assert sum(f"import {file.source} --address {own}" in text for text in said) == 1

    assert command.main(["import", file.source, "--address", own]) == 0
    assert "fle-1" in capsys.readouterr().out
    db = get_db_client()
    for process in range(8):
        (trajectory,) = db.get_task_trajectories(f"task {process}")
        states = [step["game_state"] for step in db.get_trajectory_steps(trajectory["id"])]
        assert states == [{"process": f"task {process}"}] * 5
    imported = [each for each in db.get_all_trajectories() if not each["task_id"].startswith("task ")]
    assert len(imported) == 7
    assert max(db.count_steps(each["id"]) for each in imported) == 4
    assert Path(file.source).read_bytes() == before


def test_simulations_are_in_the_file_beside_that_of_the_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "sqlite:///runs/simulations.db")
    init_db()
    session = SessionLocal()
    states, runs = StateManager(session), SimulationManager(session)
    simulation = runs.create_simulation("sweep", "CartPole-v1", "DQN", {"gamma": 0.99})
    run = runs.create_run(simulation.id, "main", states.create_state([0], 0))
    runs.add_state_to_run(run, states.create_state([1], 1, run.root_state_id, action=1, reward=1.0))
    runs.complete_run(run)
    assert (tmp_path / "runs/simulations.anabranch.db").exists()
    assert not (tmp_path / "runs/simulations.db").exists()


@pytest.mark.parametrize("name", [":memory:", "a#b.db", "a?b.db", "a\nb.db"])
def test_a_name_that_is_none_of_a_file_is_refused_and_creates_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLITE_DB_FILE", f"runs/{name}")
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///runs/{quote(name)}")
    before = set(tmp_path.rglob("*"))
    for connect in (get_db_client, SessionLocal):
        with pytest.raises(ValueError, match="the SQLite file is 'runs/.*': expected the path of a file, without #"):
            connect()
    assert set(tmp_path.rglob("*")) == before


#: Prints where the server on Postgres is.
ASK = """
from anabranch.compat import cua
cua.init_database()
assert cua.get_training_by_run_name(cua.get_session_direct(), "x") is None
print(cua.get_session_direct().connection.address)
"""


def test_the_processes_of_a_user_share_a_server_on_the_postgres_of_the_settings(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    asking = [subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    cua.init_database()
    address = cua.get_session_direct().connection.address
    process = process_at(address)
    assert [each.communicate(timeout=60)[0] for each in asking] == [f"{address}\n"] * 3
    assert process_at(address) == process


def test_calls_start_a_killed_server_on_postgres_again(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    cua.init_database()
    session = SessionLocal()
    states = StateManager(session)
    state = states.create_state([0], 0)
    for _ in range(2):
        killed = end_server_at(session.connection.address)
        state = states.create_state([1], 1, parent_state_id=state.id)
        assert cua.get_training_by_run_name(cua.get_session_direct(), "none") is None
        assert process_at(session.connection.address) != killed
    assert state.get_depth() == 2


def test_a_postgres_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(NoLocalServer, match="the server of the Postgres database has not started: ") as raised:
        PostgreSQLClient(host="127.0.0.1", port=1, database="fle_database", user="fle_user", password="fle123")
    assert "fle123" not in str(raised.value)


def test_a_folder_for_sockets_with_a_long_path_is_an_error(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runtime / ("long-" * 20)
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with pytest.raises(NoLocalServer, match="is too long: set TMPDIR"):
        cua.init_database("postgres://user@host/name")
