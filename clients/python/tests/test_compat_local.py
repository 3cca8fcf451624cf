"""The modules of `anabranch.compat` without ANABRANCH_ADDRESS: on a local server of the database of the settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import end_server
from fle_database import TREES, running_postgres, sqlite_database

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
    monkeypatch.chdir(tmp_path)
    yield
    for file in tmp_path.rglob("*.anabranch.db"):
        end_server(file)


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


def test_a_server_is_started_on_the_postgres_of_the_settings(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cua.init_database(postgres_url)
    with cua.get_session() as session:
        assert cua.get_training_by_run_name(session, "none") is None
    program = "from anabranch.compat import cua; cua.init_database(); print(cua.get_training_by_run_name(cua.get_session_direct(), 'x'))"
    environment = {**os.environ, "DATABASE_URL": postgres_url}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, env=environment, text=True, stdout=subprocess.PIPE, timeout=60
    )
    assert done.stdout == "None\n"


def test_a_postgres_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(NoLocalServer, match="no server has started on the Postgres database") as raised:
        PostgreSQLClient(host="127.0.0.1", port=1, database="fle_database", user="fle_user", password="fle123")
    assert "fle123" not in str(raised.value)
