"""`anabranch.compat.fle`: results, errors, and what is stored of what several processes save."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from conftest import Server
from fle_database import TREES, sqlite_database

from anabranch._wire.errors import StepTooLarge
from anabranch._wire.limits import limits_of
from anabranch.compat import _settings
from anabranch.compat.fle import DBClient, PostgreSQLClient, get_db_client
from anabranch.errors import (
    InvalidRequest,
    StateConflict,
    StepConflict,
    StepGap,
    TrajectoryNotFound,
    TrajectorySealed,
)
from anabranch.v1.status_pb2 import STATUS_FAILED
from anabranch.v1.trajectory_service_pb2 import Seal, SealTrajectoryRequest


@pytest.fixture(autouse=True)
def settings(own_namespace: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def db() -> DBClient:
    return get_db_client()


@pytest.fixture
def trajectory(db: DBClient) -> str:
    return db.create_trajectory("iron_ore_throughput", {"model": "gpt"})


# Steps


def test_steps_are_numbered_from_1_above_a_root_that_is_not_counted(db: DBClient, trajectory: str) -> None:
    assert (db.count_steps(trajectory), db.get_trajectory_steps(trajectory)) == (0, [])
    assert [db.save_step(trajectory, {"agent_code": f"code {i}"}) for i in range(3)] == [1, 2, 3]
    assert db.count_steps(trajectory) == 3
    steps = db.get_trajectory_steps(trajectory)
    assert [(step["step_number"], step["agent_code"]) for step in steps] == [
        (1, "code 0"),
        (2, "code 1"),
        (3, "code 2"),
    ]
    assert len({step["id"] for step in steps}) == 3


@pytest.mark.parametrize(
    "value",
    ["text", "", 'JSON {"x": 1}', {"x": [1, 2.5, None, True]}, [1, 2], 3, b"\0bytes", ("a", 1), {"x": {1: "y"}}],
)
def test_values_come_back_as_they_were_saved(db: DBClient, trajectory: str, value: Any) -> None:
    db.save_checkpoint(trajectory, 1, agent_code=value, environment_feedback=value, game_state=value)
    (step,) = db.get_trajectory_steps(trajectory)
    assert [step[key] for key in ("agent_code", "environment_feedback", "game_state")] == [value] * 3


@dataclass
class Inventory:
    ore: int


class Direction(Enum):
    NORTH = "north"


#: What comes back of values with a plain form, as docs/coming-from.md says.
PLAIN = [
    ({"b", "a"}, ["a", "b"]),
    (deque([1, 2]), [1, 2]),
    (Inventory(3), {"ore": 3}),
    (datetime(2025, 7, 1, tzinfo=timezone.utc), "2025-07-01T00:00:00+00:00"),
    (Path("/a/b"), "/a/b"),
    (Direction.NORTH, "north"),
]


@pytest.mark.parametrize(("value", "plain"), PLAIN, ids=lambda value: type(value).__name__)
def test_a_value_with_a_plain_form_comes_back_as_that(db: DBClient, trajectory: str, value: Any, plain: Any) -> None:
    db.save_checkpoint(trajectory, 1, agent_code=value, environment_feedback=[value], game_state={"in": value})
    db.save_step(trajectory, {"other": value, "array": (np.arange(2), b"")})
    first, second = db.get_trajectory_steps(trajectory)
    assert [first[key] for key in ("agent_code", "environment_feedback", "game_state")] == [
        plain,
        [plain],
        {"in": plain},
    ]
    assert (second["other"], second["array"]) == (plain, [[0, 1], "data:application/octet-stream;base64,"])


def test_arrays_and_large_values_come_back(db: DBClient, trajectory: str) -> None:
    state = {"map": np.arange(6).reshape(2, 3), "log": "x" * 2_000_000}
    db.save_checkpoint(trajectory, 1, "y" * 2_000_000, "z" * 1_500_000, state)
    found = db.get_checkpoint(trajectory, 1)
    assert found is not None
    assert (found["agent_code"], found["environment_feedback"]) == ("y" * 2_000_000, "z" * 1_500_000)
    assert found["game_state"]["log"] == state["log"]
    assert found["game_state"]["map"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_step_has_what_its_data_has(db: DBClient, trajectory: str) -> None:
    time = datetime(2025, 7, 1, 12, 30, tzinfo=timezone.utc)
    data = {"agent_code": "x", "reward": 0.0, "timestamp": time, "ticks": 7, "model": {"name": "gpt"}}
    db.save_step(trajectory, {**data, "step_number": 1})
    (step,) = db.get_trajectory_steps(trajectory)
    assert {key: step[key] for key in data} == data
    assert db.save_step(trajectory, {"timestamp": "2025-07-01T12:30:00Z"}) == 2
    assert db.get_trajectory_steps(trajectory)[1]["timestamp"] == time
    db.save_step(trajectory, {})
    assert abs(db.get_trajectory_steps(trajectory)[2]["timestamp"] - datetime.now(timezone.utc)) < timedelta(minutes=5)


# Checkpoints


def test_a_step_can_be_saved_before_its_checkpoint(db: DBClient, trajectory: str) -> None:
    for number, extra in ((1, {}), (None, {"ticks": 5, "reward": 1.5})):
        data = {"agent_code": "c" * 20_000, "environment_feedback": "f", "step_number": number, **extra}
        saved = db.save_step(trajectory, data)
        assert db.get_checkpoint(trajectory, saved) is None
        for _ in range(2):
            db.save_checkpoint(trajectory, saved, "c" * 20_000, "f", {"x": saved})
        found = db.get_checkpoint(trajectory, saved)
        assert found is not None and found["game_state"] == {"x": saved}
        assert {key: found[key] for key in extra} == extra
    assert db.count_steps(trajectory) == 2


def test_a_checkpoint_of_another_step_is_refused(db: DBClient, trajectory: str) -> None:
    db.save_step(trajectory, {"step_number": 1, "agent_code": "a", "environment_feedback": "f"})
    with pytest.raises(StepConflict):
        db.save_checkpoint(trajectory, 1, "b", "f", "state")
    assert db.get_checkpoint(trajectory, 1) is None
    db.save_checkpoint(trajectory, 1, "a", "f", "state")
    with pytest.raises(StateConflict):
        db.save_checkpoint(trajectory, 1, "a", "f", "another state")
    assert db.get_trajectory_steps(trajectory)[0]["game_state"] == "state"


def test_saving_a_step_again_changes_nothing_and_another_one_is_refused(db: DBClient, trajectory: str) -> None:
    for _ in range(2):
        assert db.save_step(trajectory, {"step_number": 1, "agent_code": "a"}) == 1
    with pytest.raises(StepConflict):
        db.save_step(trajectory, {"step_number": 1, "agent_code": "b"})
    with pytest.raises(StepConflict):
        db.save_step(trajectory, {"step_number": 1, "agent_code": "a", "reward": 1.0})
    assert [step["agent_code"] for step in db.get_trajectory_steps(trajectory)] == ["a"]


def test_checkpoints_are_found_at_any_step_and_at_the_latest(db: DBClient, trajectory: str) -> None:
    assert db.get_latest_checkpoint(trajectory) is None
    db.save_checkpoint(trajectory, 1, "a", "f", {"x": 1})
    db.save_checkpoint(trajectory, 2, "b", "g", {"x": 2})
    db.save_step(trajectory, {"agent_code": "c"})
    steps = db.get_trajectory_steps(trajectory)
    assert db.get_latest_checkpoint(trajectory) == steps[1]
    assert [db.get_checkpoint(trajectory, number) for number in (-1, 0, 1, 2, 3, 4)] == [
        None,
        None,
        *steps[:2],
        None,
        None,
    ]


# Trajectories


def test_trajectories_are_listed_in_order_and_by_task(db: DBClient) -> None:
    ids = [db.create_trajectory(task, {"n": n}) for n, task in enumerate(["a", "b", "a"])]
    found = db.get_all_trajectories()
    assert [(each["id"], each["task_id"], each["metadata"]) for each in found] == [
        (ids[0], "a", {"n": 0}),
        (ids[1], "b", {"n": 1}),
        (ids[2], "a", {"n": 2}),
    ]
    assert found[0] == db.get_trajectory(ids[0])
    assert [each["id"] for each in db.get_task_trajectories("a")] == [ids[0], ids[2]]
    assert db.get_task_trajectories("none") == []


def test_a_trajectory_that_is_deleted_is_gone(db: DBClient, trajectory: str) -> None:
    db.save_checkpoint(trajectory, 1, "a", "f", "state")
    assert db.trajectory_exists(trajectory)
    for _ in range(2):
        db.delete_trajectory(trajectory)
    assert not db.trajectory_exists(trajectory)
    with pytest.raises(TrajectoryNotFound):
        db.save_step(trajectory, {"agent_code": "late"})


@pytest.mark.parametrize("id", ["", "no uuid", "0199aaaa-0000-7000-8000-00000000dead", None, 7])
def test_an_unknown_trajectory_has_nothing_and_takes_nothing(db: DBClient, id: Any) -> None:
    assert (db.get_trajectory(id), db.trajectory_exists(id), db.count_steps(id)) == (None, False, 0)
    assert (db.get_trajectory_steps(id), db.get_checkpoint(id, 1), db.get_latest_checkpoint(id)) == ([], None, None)
    db.delete_trajectory(id)
    for save in (
        lambda: db.save_step(id, {"agent_code": "a"}),
        lambda: db.save_step(id, {"step_number": 1, "agent_code": "a"}),
        lambda: db.save_checkpoint(id, 1, "a", "f", "state"),
    ):
        with pytest.raises(TrajectoryNotFound, match="does not exist|not found|no trajectory"):
            save()


def test_what_cannot_be_stored_raises_and_stores_nothing(db: DBClient, trajectory: str) -> None:
    for error, call in (
        (TypeError, lambda: db.save_checkpoint(trajectory, 1, "a", "f", {"lock": object()})),
        (TypeError, lambda: db.save_step(trajectory, {"agent_code": object()})),
        (TypeError, lambda: db.save_step(trajectory, {"agent_code": "a", "others": object()})),
        (TypeError, lambda: db.save_checkpoint(trajectory, "one", "a", "f", "state")),  # pyright: ignore
        (ValueError, lambda: db.save_checkpoint(trajectory, 0, "a", "f", "state")),
        (ValueError, lambda: db.save_checkpoint(trajectory, -1, "a", "f", "state")),
        (ValueError, lambda: db.save_step(trajectory, {"trajectory_id": str(uuid.uuid4())})),
        (ValueError, lambda: db.save_step(trajectory, {"timestamp": "yesterday"})),
        (StepGap, lambda: db.save_checkpoint(trajectory, 3, "a", "f", "state")),
    ):
        with pytest.raises(error):
            call()
    assert db.count_steps(trajectory) == 0
    with pytest.raises(ValueError, match="metadata.* has 1048590 bytes as JSON: expected at most 524288"):
        db.create_trajectory("large", {"t": "x" * (2**20 + 6)})
    with pytest.raises(InvalidRequest, match="task_id"):
        db.create_trajectory("x" * 257)
    with pytest.raises(TypeError):
        db.create_trajectory("task", {"lock": object()})
    assert len(db.get_all_trajectories()) == 1


@pytest.mark.parametrize("number", ["1", None, 1.5, [1]])
def test_what_is_no_number_is_an_error_that_names_the_argument(db: DBClient, trajectory: str, number: Any) -> None:
    for call in (
        lambda: db.get_checkpoint(trajectory, number),
        lambda: db.save_checkpoint(trajectory, number, "a", "f", "state"),
    ):
        with pytest.raises(TypeError, match="^`step_number` is .*: expected"):
            call()
    with pytest.raises(TypeError, match="^`reward` is 'much': expected a number$"):
        db.save_step(trajectory, {"reward": "much"})
    assert db.count_steps(trajectory) == 0


def test_a_value_that_is_too_large_raises_and_stores_nothing(
    db: DBClient, trajectory: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = limits_of(db._connection.address)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(limits, "values", {**limits.values, "stateBytes": 1000})
    for values in (
        ("x" * 2000, "f", "state"),
        ("a", "x" * 2000, "state"),
        ("a", "f", "x" * 2000),
        ("a", "f", b"x" * 2000),
    ):
        with pytest.raises(StepTooLarge):
            db.save_checkpoint(trajectory, 1, *values)
    assert db.count_steps(trajectory) == 0


def test_a_sealed_trajectory_has_an_end_and_takes_no_more(db: DBClient, trajectory: str, server: Server) -> None:
    db.save_step(trajectory, {"agent_code": "a"})
    request = SealTrajectoryRequest(trajectory_id=trajectory, seal=Seal(status=STATUS_FAILED))
    db._connection.stubs.trajectories.SealTrajectory(request)  # pyright: ignore[reportPrivateUsage]
    found = db.get_trajectory(trajectory)
    assert found is not None and (found["status"], found["end_time"] >= found["start_time"]) == ("failed", True)
    for data in ({"agent_code": "b"}, {"step_number": 2}):
        with pytest.raises(TrajectorySealed):
            db.save_step(trajectory, data)


# Copies


def test_an_export_can_be_imported_again_and_again(
    db: DBClient, trajectory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.save_step(trajectory, {"agent_code": "a", "ticks": 3})
    db.save_checkpoint(trajectory, 2, "b", {"x": np.float32(1)}, b"state")
    request = SealTrajectoryRequest(trajectory_id=trajectory, seal=Seal(status=STATUS_FAILED))
    db._connection.stubs.trajectories.SealTrajectory(request)  # pyright: ignore[reportPrivateUsage]
    db.create_trajectory("empty")
    exported = db.export_all()
    assert [len(each["steps"]) for each in exported] == [2, 0]
    db.import_all(exported)
    assert db.export_all() == exported

    monkeypatch.setenv("ANABRANCH_NAMESPACE", f"n{uuid.uuid4().hex}")
    other = PostgreSQLClient(host="localhost", database="fle_database", user="fle_user", password="fle123")
    other.import_all([{**each, "status": "running", "steps": each["steps"][:1]} for each in exported])
    for _ in range(2):
        other.import_all(exported)
    assert other.export_all() == exported
    changed = [{**exported[0], "steps": [{**exported[0]["steps"][0], "agent_code": "other"}]}]
    with pytest.raises(StepConflict):
        other.import_all(changed)
    assert other.export_all() == exported


def test_statements_other_than_upkeep_are_refused(db: DBClient) -> None:
    for statement in ("PRAGMA journal_mode=WAL", " vacuum;", "ANALYZE steps", "CREATE INDEX i ON steps(timestamp)"):
        db.execute(statement)
    with pytest.raises(NotImplementedError, match="'SELECT code' is not executed"):
        db.execute("SELECT code FROM programs")


# Settings


def test_settings_choose_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []
    monkeypatch.delenv("ANABRANCH_ADDRESS")
    monkeypatch.setattr("anabranch.compat.fle.connect_to", lambda database: chosen.append(database) or Client())

    class Client:
        connection = None

    get_db_client()
    (tmp_path / ".env").write_text('FLE_DB_TYPE="sqlite"  # the default\nexport SQLITE_DB_FILE="runs/fle.db"\n')
    get_db_client()
    monkeypatch.setenv("SQLITE_DB_FILE", str(tmp_path / "other.sqlite"))
    get_db_client()
    assert chosen == [
        "sqlite:.fle/data.anabranch.db",
        "sqlite:runs/fle.anabranch.db",
        f"sqlite:{tmp_path}/other.sqlite.anabranch.db",
    ]
    (tmp_path / ".env").write_text("FLE_DB_TYPE=postgres\nSKILLS_DB_HOST=db\nSKILLS_DB_PORT=5432\n")
    with pytest.raises(ValueError, match="expected also SKILLS_DB_NAME, SKILLS_DB_USER, SKILLS_DB_PASSWORD$"):
        get_db_client()
    for part in ("NAME", "USER", "PASSWORD"):
        monkeypatch.setenv(f"SKILLS_DB_{part}", f"{part.lower()}/@")
    get_db_client()
    assert chosen[-1] == "postgres://user%2F%40:password%2F%40@db:5432/name%2F%40"
    monkeypatch.setenv("FLE_DB_TYPE", "mysql")
    with pytest.raises(ValueError, match="Invalid database type: FLE_DB_TYPE is 'mysql'"):
        get_db_client()


def test_the_database_of_fle_is_left_alone_and_its_import_offered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("ANABRANCH_ADDRESS")
    file = sqlite_database(tmp_path)
    file.insert(*TREES)
    before = Path(file.source).read_bytes()
    own = file.source.removesuffix(".db") + ".anabranch.db"
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: _settings.beside(file.source, "FLE", "programs"), range(8)))
    assert found == [f"sqlite:{own}"] * 8
    offered = f"python -m anabranch.compat import {file.source} --address sqlite:{own}"
    assert [offered in record.getMessage() for record in caplog.records] == [True]
    assert Path(file.source).read_bytes() == before

    for text in ("", "no database"):
        (tmp_path / "other.db").write_text(text)
        _settings.beside(str(tmp_path / "other.db"), "FLE", "programs")
        (tmp_path / "other.anabranch.db").unlink()
    assert len(caplog.records) == 1


# Processes


def test_eight_processes_lose_no_step_and_file_none_under_another_trajectory(
    db: DBClient, trajectory: str, server: Server
) -> None:
    program = dedent(
        """
        import sys
        from anabranch.compat.fle import get_db_client

        db, process, shared = get_db_client(), *sys.argv[1:]
        own = [db.create_trajectory(f"task {process}") for _ in range(2)]
        for number in range(1, 16):
            for each in own:
                db.save_checkpoint(each, number, f"code {each}", "feedback", {"process": process, "number": number})
            db.save_step(shared, {"agent_code": "equal", "process": process if number % 2 else "any"})
        """
    )
    commands = [[sys.executable, "-c", program, str(process), trajectory] for process in range(8)]
    running = [subprocess.Popen(command) for command in commands]
    assert [process.wait(120) for process in running] == [0] * 8

    for process in range(8):
        own = db.get_task_trajectories(f"task {process}")
        assert len(own) == 2
        for each in own:
            steps = db.get_trajectory_steps(each["id"])
            assert [step["agent_code"] for step in steps] == [f"code {each['id']}"] * 15
            expected = [{"process": str(process), "number": number} for number in range(1, 16)]
            assert [step["game_state"] for step in steps] == expected
    steps = db.get_trajectory_steps(trajectory)
    assert [step["step_number"] for step in steps] == list(range(1, 121))
    assert Counter(step["process"] for step in steps) == {**{str(process): 8 for process in range(8)}, "any": 56}


def test_a_call_waits_for_a_server_that_is_away_and_what_it_saved_is_durable(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_server.start()
    monkeypatch.setenv("ANABRANCH_ADDRESS", own_server.address)
    db = get_db_client()
    id = db.create_trajectory("task")
    db.save_step(id, {"step_number": 1, "agent_code": "before"})
    own_server.kill()
    with ThreadPoolExecutor() as threads:
        saving = threads.submit(db.save_checkpoint, id, 2, "while it was away", "f", "state")
        own_server.start()
        saving.result(60)
    own_server.restart()
    assert [step["agent_code"] for step in db.get_trajectory_steps(id)] == ["before", "while it was away"]
