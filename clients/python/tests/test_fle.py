"""Imports of databases of FLE, from both of its engines. The role of a Postgres source may only read."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import IS_LARGE_DOSE, ROOT, Server
from fle_database import (
    EXTREMES,
    GPT,
    NOT_UTF8,
    OPEN,
    PATHS,
    PLATES,
    SONNET,
    SQLITE_EXTREMES,
    STATE_OF_TWO,
    TREES,
    FleDatabase,
    postgres_database,
    running_postgres,
    sqlite_database,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch._reading.read import fetch_state_of, fetch_states
from anabranch._wire.connection import Connection
from anabranch.compat import __main__ as command
from anabranch.compat._fle_import.plan import (
    Chain,
    End,
    Program,
    StepPosition,
    Stored,
    TrajectoryKey,
    id_of,
    plan_version,
)
from anabranch.compat._fle_import.store import import_programs
from anabranch.compat._source import SourceError, open_source
from anabranch.v1.run_service_pb2 import GetExperimentRequest, GetRunRequest, ListRunsRequest, SummarizeRequest
from anabranch.v1.status_pb2 import STATUS_COMPLETED
from anabranch.v1.trajectory_pb2 import Content, Step
from anabranch.v1.trajectory_pb2 import Trajectory as TrajectoryMessage
from anabranch.v1.trajectory_service_pb2 import (
    BranchTrajectoryRequest,
    ListTrajectoriesRequest,
    ReadStepsRequest,
    Seal,
    SealTrajectoryRequest,
)

IDS = [row["id"] for row in TREES]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """A Postgres of the tests of this process."""
    with running_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> FleDatabase:
    """An empty database of FLE on each of its engines."""
    if request.param == "sqlite":
        return sqlite_database(tmp_path)
    return postgres_database(request.getfixturevalue("postgres"))


@pytest.fixture
def file(tmp_path: Path) -> FleDatabase:
    """An SQLite file of FLE with `TREES`."""
    database = sqlite_database(tmp_path)
    database.insert(*TREES)
    return database


@pytest.fixture
def experiment(request: pytest.FixtureRequest) -> str:
    """An experiment of this test."""
    return request.node.name


@pytest.fixture
def run(server: Server, experiment: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Imports by the command, and returns what it prints as JSON."""

    def run_import(source: FleDatabase | str) -> Any:
        name = source if isinstance(source, str) else source.source
        code = command.main(["import", name, "-e", experiment, "--address", server.address, "--json"])
        output = capsys.readouterr()
        assert (code, output.err) == (0, "")
        return json.loads(output.out)

    return run_import


# What is stored


def trajectories_of(server: Server, experiment: str) -> list[TrajectoryMessage]:
    stubs = server.stubs()
    found = stubs.runs.GetExperiment(GetExperimentRequest(name=experiment)).experiment
    request = ListTrajectoriesRequest(experiment_id=found.id, page_size=1000)
    return list(stubs.trajectories.ListTrajectories(request).trajectories)


def steps_of(server: Server, trajectory_id: str) -> list[Step]:
    messages = server.stubs().trajectories.ReadSteps(ReadStepsRequest(trajectory_id=trajectory_id))
    return [step for message in messages for step in message.steps]


def paths_of(server: Server, experiment: str) -> dict[str, list[int]]:
    """By name of the trajectory, the ids of the programs on its path."""
    paths: dict[str, list[int]] = {}
    for trajectory in trajectories_of(server, experiment):
        first, *steps = steps_of(server, trajectory.id)
        assert not first.metrics
        paths[trajectory.name] = [int(step.metrics["program_id"]) for step in steps]
    return paths


def owned_programs_of(server: Server, experiment: str) -> list[tuple[str, Step]]:
    """All programs of an experiment by id, each as often as it is stored, with their trajectories."""
    own: list[tuple[str, Step]] = []
    for trajectory in trajectories_of(server, experiment):
        start = trajectory.branch_point + 1 if trajectory.HasField("branch_point") else 1
        own += [(trajectory.id, step) for step in steps_of(server, trajectory.id)[start:]]
    return sorted(own, key=lambda owned: owned[1].metrics["program_id"])


def programs_of(server: Server, experiment: str) -> list[Step]:
    return [step for _, step in owned_programs_of(server, experiment)]


def row_of(server: Server, trajectory_id: str, step: Step) -> dict[str, tuple[str, Any]]:
    """The row of the source, computed from the step and its states only."""
    metadata = json.loads(step.metadata_json)
    states = {state.name for state in step.states}

    def cell_of(column: str, kind: str) -> Any:
        if kind == "null":
            return None
        if column in metadata["programs"]:
            return value_of(kind, metadata["programs"][column])
        if column in ("code", "response"):
            return data_of(server, (step.actions if column == "code" else step.observations)[0].content)
        name = {"state_json": "env", "conversation_json": "agent"}.get(column, column)
        if name in states:
            return fetch_state_of(Connection(server.address), trajectory_id, step.step_number, name)
        assert column == "meta"
        return step.info_json.encode()

    return {column: (kind, cell_of(column, kind)) for column, kind in metadata["types"].items()}


def value_of(kind: str, value: Any) -> Any:
    if kind in ("integer", "bigint", "smallint"):
        return int(value)
    if kind in ("real", "double precision"):
        return float(value)
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])


def data_of(server: Server, content: Content) -> bytes:
    if content.state_digest:
        return fetch_states(Connection(server.address), [content.state_digest])[content.state_digest]
    return content.text.encode() if content.HasField("text") else content.data


def assert_all_values(server: Server, source: FleDatabase, experiment: str) -> None:
    """Compares every value of every program with the source."""
    programs = owned_programs_of(server, experiment)
    rows = source.rows()
    assert [step.metrics["program_id"] for _, step in programs] == sorted(rows)
    for trajectory_id, step in programs:
        row = rows[int(step.metrics["program_id"])]
        # repr tells NaN, -0.0 and types apart. Megabytes are not to be printed.
        stored = row_of(server, trajectory_id, step)
        assert [name for name in row if repr(stored.pop(name)) != repr(row[name])] == [] == list(stored)


# From both engines


def test_versions_become_runs_and_later_children_branches(
    server: Server, source: FleDatabase, run: Callable[..., Any], experiment: str
) -> None:
    source.insert(*TREES)
    done = run(source)
    assert {**done, "runs": [{**each, "run_id": ""} for each in done["runs"]]} == {
        "source": done["source"],
        "system": "FLE",
        "experiment": experiment,
        "dry_run": False,
        "programs": 12,
        "imported": 12,
        "runs": [
            {"run_name": "fle-1", "run_id": "", "programs": 8, "imported": 8, "trajectories": 2, "branches": 2},
            {"run_name": "fle-2", "run_id": "", "programs": 4, "imported": 4, "trajectories": 1, "branches": 2},
        ],
    }
    assert "secret" not in done["source"]
    assert paths_of(server, experiment) == PATHS
    trajectories = trajectories_of(server, experiment)
    assert {each.name: each.branch_point for each in trajectories if each.parent_id} == {
        "fle-1, instance 0, process 0, program 4": 2,
        "fle-1, instance 1, process 1, program 7": 2,
        "fle-2, instance 0, process 0, program 11": 0,
        "fle-2, instance 0, process 0, program 12": 0,
    }
    assert_all_values(server, source, experiment)


def test_i3_every_value_is_kept_exactly(
    server: Server, source: FleDatabase, run: Callable[..., Any], experiment: str
) -> None:
    """I3: every value is kept, whatever the columns hold."""
    source.insert(*EXTREMES)
    if source.engine == "sqlite":
        source.insert(*SQLITE_EXTREMES)
        source.exec(NOT_UTF8)
    count = len(source.rows())
    assert run(source)["imported"] == count
    assert_all_values(server, source, experiment)
    trajectory_id, second = owned_programs_of(server, experiment)[1]
    assert second.info_json == '{"model": "m",  "n": 1.0}'
    assert not second.HasField("reward")
    state = fetch_state_of(Connection(server.address), trajectory_id, second.step_number, "env")
    assert state.decode() == STATE_OF_TWO


def test_i3_nothing_is_imported_twice_and_programs_added_since_are_appended(
    server: Server, source: FleDatabase, run: Callable[..., Any], experiment: str
) -> None:
    """I3: nothing is imported twice."""
    source.insert(*TREES[:5])
    assert run(source)["imported"] == 5
    assert run(source)["imported"] == 0
    source.insert(*TREES[5:])
    added = run(source)
    assert [(each["imported"], each["trajectories"], each["branches"]) for each in added["runs"]] == [
        (3, 0, 1),
        (4, 1, 2),
    ]
    assert paths_of(server, experiment) == PATHS
    assert run(source)["imported"] == 0
    assert [step.metrics["program_id"] for step in programs_of(server, experiment)] == IDS


def test_steps_are_numbered_along_the_parents_whatever_their_depths_and_times_are(
    server: Server, source: FleDatabase, run: Callable[..., Any], experiment: str
) -> None:
    shape = [(1, None, 0.5), (2, 1, 0.5), (3, 2, 7), (4, 2, -1.25), (5, 3, 7), (6, 4, None)]
    for id, parent_id, depth in shape:
        time = f"2025-06-04 01:12:0{9 - id}"
        source.insert({"id": id, "parent_id": parent_id, "depth": depth, "instance": 0, "created_at": time})
    run(source)
    paths = {"fle-1, instance 0": [1, 2, 3, 5], "fle-1, instance 0, program 4": [1, 2, 4, 6]}
    assert paths_of(server, experiment) == paths
    programs = programs_of(server, experiment)
    assert [(step.step_number, step.metrics.get("depth")) for step in programs] == [
        *[(1, 0.5), (2, 0.5), (3, 7), (3, -1.25), (4, 7), (4, None)]
    ]
    assert_all_values(server, source, experiment)


# From SQLite


def test_fields_labels_and_summaries_have_the_values(
    server: Server, file: FleDatabase, run: Callable[..., Any], experiment: str
) -> None:
    runs = run(file)["runs"]
    step = programs_of(server, experiment)[2]
    assert (step.step_number, step.reward, step.info_json) == (3, 3, TREES[2]["meta"])
    assert (step.actions[0].type, step.actions[0].content.text) == ("code", "print(3)")
    observation = step.observations[0]
    assert (observation.type, observation.is_error, observation.content.text) == ("response", True, "1: (3,)")
    assert dict(step.metrics) == {
        "program_id": 3,
        "token_usage": 103,
        "depth": 0,
        "advantage": 0,
        "ticks": 0,
        "visits": 0,
    }
    assert step.end_time.ToJsonString() == "2025-06-04T01:12:03Z"
    assert [(each.name, each.media_type) for each in step.states] == [
        ("agent", "application/json"),
        ("env", "application/json"),
    ]
    stubs = server.stubs()
    found = stubs.runs.GetExperiment(GetExperimentRequest(name=experiment)).experiment

    def named(**filters: Any) -> list[str]:
        request = ListTrajectoriesRequest(experiment_id=found.id, **filters)
        return sorted(each.name for each in stubs.trajectories.ListTrajectories(request).trajectories)

    first, second = (sorted(name for name in PATHS if name.startswith(run)) for run in ("fle-1", "fle-2"))
    assert named(task_id=PLATES) == named(labels={"model": SONNET}) == first
    assert named(task_id=OPEN) == named(labels={"version": "2"}) == second
    of_process = [name for name in first if name.startswith("fle-1, instance 1, process 1")]
    assert named(labels={"instance": "1", "process_id": "1"}) == of_process
    request = SummarizeRequest(experiment_id=found.id)
    request.dimensions.add(label="model")
    request.dimensions.add(label="version")
    # Roots: 1–2–3, 5–8 and 9–10, each with a step 0.
    summaries = [
        [*each.values, each.trajectory_count, each.step_count, each.final_reward_mean, each.metric_sums["token_usage"]]
        for each in stubs.runs.Summarize(request).summaries
    ]
    assert summaries == [[SONNET, "1", 2, 7, 9.5, 519], [GPT, "2", 1, 3, 19, 219]]
    listed = stubs.runs.ListRuns(ListRunsRequest(experiment_name=experiment, labels={"model": GPT})).runs
    assert [each.run.name for each in listed] == ["fle-2"]
    first_run = stubs.runs.GetRun(GetRunRequest(run_id=runs[0]["run_id"])).run
    assert (first_run.description, dict(first_run.labels)) == ("version 1", {"version": "1", "model": SONNET})


def test_a_sealed_trajectory_is_continued_in_a_branch(
    server: Server, tmp_path: Path, run: Callable[..., Any], experiment: str
) -> None:
    source = sqlite_database(tmp_path)
    source.insert(*TREES[:2])
    run(source)
    (trajectory,) = trajectories_of(server, experiment)
    seal = SealTrajectoryRequest(trajectory_id=trajectory.id, seal=Seal(status=STATUS_COMPLETED))
    server.stubs().trajectories.SealTrajectory(seal)
    source.insert(TREES[2])
    assert run(source)["runs"][0]["branches"] == 1
    name = "fle-1, instance 0, process 0"
    assert paths_of(server, experiment) == {name: [1, 2], f"{name}, program 3": [1, 2, 3]}


def test_steps_and_branches_of_others_stay_and_a_writer_that_was_granted_is_continued(
    server: Server, tmp_path: Path, run: Callable[..., Any], experiment: str
) -> None:
    source = sqlite_database(tmp_path)
    source.insert(*TREES[:2])
    run(source)
    (trajectory,) = trajectories_of(server, experiment)
    branch = BranchTrajectoryRequest(trajectory_id=trajectory.id, step_number=1, name="mine")
    server.stubs().trajectories.BranchTrajectory(branch)
    attempt = ab.connect(server.address, spool=False).attempt(trajectory.id)
    attempt.tag("mine", 1)
    attempt.flush(60)
    source.insert(TREES[2])
    assert run(source)["imported"] == 1
    assert paths_of(server, experiment) == {"fle-1, instance 0, process 0": [1, 2, 3], "mine": [1]}


def test_another_source_with_the_same_ids_is_refused_before_anything_is_written(
    server: Server, tmp_path: Path, run: Callable[..., Any], experiment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = sqlite_database(tmp_path), sqlite_database(tmp_path)
    one.insert(*TREES[:2])
    other.insert({**TREES[0], "created_at": "2026-01-01 00:00:00"}, *TREES[1:])
    run(one)
    assert command.main(["import", other.source, "-e", experiment, "--address", server.address]) == 1
    printed, explained = capsys.readouterr()
    assert printed == ""
    assert explained == (
        f'Run "fle-1" of experiment "{experiment}" holds program 1 of another database: it was created at '
        f"2025-06-04T01:12:01Z there, and at 2026-01-01T00:00:00Z in SQLite {other.source}. Choose another --experiment.\n"
    )
    assert len(programs_of(server, experiment)) == 2
    assert len(server.stubs().runs.ListRuns(ListRunsRequest(experiment_name=experiment)).runs) == 1


#: A real database: FLE_DB names it.
REAL = os.environ.get("FLE_DB") or str(ROOT.parent / "shared/data/fle/skills.db")


@pytest.mark.skipif(not Path(REAL).exists(), reason="FLE_DB names no database of FLE")
def test_a_real_database_is_imported_with_every_value(server: Server, run: Callable[..., Any], experiment: str) -> None:
    database = sqlite3.connect(f"{Path(REAL).resolve().as_uri()}?mode=ro", uri=True)
    count = database.execute("SELECT count(*) FROM programs").fetchone()[0]
    assert run(REAL)["imported"] == count > 0
    assert_all_values(server, FleDatabase(REAL, database, "?"), experiment)
    assert run(REAL)["imported"] == 0


# Interruptions

#: Imports, and is killed when the call with this number has returned.
KILLED = """
import os, signal, sys
from anabranch._wire import outage
from anabranch.compat import _strict
from anabranch.compat._fle_import import store
from anabranch.compat.__main__ import main
left = int(sys.argv.pop(1))
def counting(call):
    def counted(*arguments):
        global left
        result = call(*arguments)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return counted
store.call = outage.call = counting(outage.call)
_strict.retried = counting(_strict.retried)
sys.exit(main(sys.argv[1:]))
"""


def killed_after(calls: int, file: FleDatabase, server: Server, experiment: str) -> bool:
    """Returns whether the import was killed; otherwise it has ended before."""
    arguments = ["import", file.source, "-e", experiment, "--address", server.address]
    command = [sys.executable, "-c", KILLED, str(calls), *arguments]
    code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    assert code in (0, -9)
    return code == -9


def import_all(server: Server, source: str, experiment: str, **options: Any) -> Any:
    connection, opened = Connection(server.address), open_source(source)
    try:
        return import_programs(connection, opened, experiment, **options)
    finally:
        opened.close()
        connection.close()


def test_i3_an_import_that_is_killed_after_any_call_continues(
    server: Server, file: FleDatabase, experiment: str
) -> None:
    """I3: it continues where it was killed."""
    # The import has 18 calls.
    calls = range(2, 19) if IS_LARGE_DOSE else range(3, 19, 3)

    def kill_and_continue(count: int) -> None:
        name = f"{experiment} {count}"
        assert killed_after(count, file, server, name)
        import_all(server, file.source, name)
        assert paths_of(server, name) == PATHS
        assert [step.metrics["program_id"] for step in programs_of(server, name)] == IDS

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(kill_and_continue, calls))


def test_i3_an_import_that_is_killed_again_and_again_ends(server: Server, file: FleDatabase, experiment: str) -> None:
    """I3: each program once, although the import is killed six times."""
    chance = random.Random(7)
    # Each import reads what is stored by at most eight calls.
    killed = [killed_after(chance.randint(9, 11), file, server, experiment) for _ in range(6)]
    assert any(killed)
    import_all(server, file.source, experiment)
    assert paths_of(server, experiment) == PATHS
    assert [step.metrics["program_id"] for step in programs_of(server, experiment)] == IDS


def test_i3_an_import_outlives_restarts_of_the_server(own_server: Server, file: FleDatabase) -> None:
    """I3: connections that are lost are opened again."""
    own_server.start()
    seen: list[tuple[int, int]] = []

    def restart(imported: int, total: int) -> None:
        seen.append((imported, total))
        if len(seen) <= 3:
            own_server.restart()

    import_all(own_server, file.source, "restarts", on_progress=restart)
    assert seen[0] == (0, 12)
    assert seen[-1] == (12, 12)
    assert paths_of(own_server, "restarts") == PATHS


def test_i3_two_imports_at_the_same_time_store_nothing_twice(
    server: Server, file: FleDatabase, experiment: str
) -> None:
    """I3: an import beside another one."""
    for number in range(10 if IS_LARGE_DOSE else 3):
        name = f"{experiment} {number}"

        def one(_: int, name: str = name) -> None:
            try:
                import_all(server, file.source, name)
            except SourceError as error:
                assert 'Another import writes to run "fle-' in str(error)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(one, range(2)))
        import_all(server, file.source, name)
        assert paths_of(server, name) == PATHS
        assert [step.metrics["program_id"] for step in programs_of(server, name)] == IDS


# The command


def test_the_command_prints_a_table_and_writes_nothing_with_dry_run(
    server: Server, file: FleDatabase, experiment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["import", file.source, "--experiment", experiment, "--address", server.address]
    table = [
        "run      programs imported trajectories branches",
        "fle-1           8        8            2        2",
        "fle-2           4        4            1        2",
    ]
    assert command.main([*arguments, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [*table, "Nothing was written (--dry-run)."]
    assert command.main([*arguments, "--dry-run", "--json"]) == 0
    assert [each["run_id"] for each in json.loads(capsys.readouterr().out)["runs"]] == ["", ""]
    with pytest.raises(Exception, match="does not exist|not found|no experiment"):
        trajectories_of(server, experiment)
    assert command.main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [*table, f"Imported into {server.address}."]


def all_from(terminal: int) -> str:
    """Returns what was written to a terminal whose other end is closed. One read can return a part of it."""
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 10_000):
            shown += part
    return shown.decode()


def test_the_command_shows_its_progress_on_a_terminal(server: Server, file: FleDatabase, experiment: str) -> None:
    controller, terminal = os.openpty()
    arguments = ["import", file.source, "-e", experiment, "--address", server.address]
    command = [sys.executable, "-m", "anabranch.compat", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    shown = all_from(controller)
    assert "\r0 of 12 programs" in shown
    assert shown.endswith("\r12 of 12 programs\r\n")
    os.close(controller)


def test_the_command_says_how_to_continue_when_it_is_interrupted(
    server: Server, file: FleDatabase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("anabranch.compat.__main__.import_programs", interrupt)
    assert command.main(["import", file.source, "--address", server.address]) == 1
    assert capsys.readouterr().err == "Interrupted. Run the command again to continue.\n"


def test_the_help_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for arguments in (["--help"], ["import", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            command.main(arguments)
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "the following arguments are required: SOURCE"),
        (["a.db", "--experiment", ""], '--experiment is "": expected a name'),
        (["a.db", "--address", "nowhere"], "address is 'nowhere': expected HOST:PORT"),
        (["mysql://ann:secret@x/y"], 'SOURCE is "mysql://ann@x/y": expected a SQLite file or postgres://'),
    ],
)
def test_wrong_arguments_are_explained(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["import", *arguments])
    printed = capsys.readouterr().err
    assert expected in printed and "secret" not in printed


def changed(*statements: str) -> Callable[[Path, pytest.FixtureRequest], str]:
    """A database of FLE that statements have changed."""

    def make(folder: Path, _: pytest.FixtureRequest) -> str:
        database = sqlite_database(folder)
        database.insert(*TREES)
        for statement in statements:
            database.exec(statement)
        return database.source

    return make


def text_file(folder: Path, _: pytest.FixtureRequest) -> str:
    (folder / "text.db").write_text("hello, this is not a database at all")
    return str(folder / "text.db")


SOURCES: dict[str, tuple[Callable[[Path, pytest.FixtureRequest], str], str]] = {
    "no file": (lambda *_: "/nowhere/skills.db", "SQLite /nowhere/skills.db cannot be read: unable to open"),
    "no database": (text_file, "file is not a database"),
    "another program's": (
        changed("DROP TABLE programs"),
        "is none of the three databases: expected the tables programs (FLE)",
    ),
    "another program's, on Postgres": (
        lambda _, request: request.getfixturevalue("postgres"),
        "is none of the three databases: expected the tables programs (FLE)",
    ),
    "columns missing": (
        changed("ALTER TABLE programs DROP COLUMN meta", "ALTER TABLE programs DROP COLUMN model"),
        'it lacks the columns model, meta in "programs".',
    ),
    "own ancestors": (changed("UPDATE programs SET parent_id = 3 WHERE id = 1"), "is its own ancestor (parent_id)"),
    "too large for a step": (
        lambda folder, request: changed(
            *[f"ALTER TABLE programs ADD COLUMN more_{i} TEXT DEFAULT '{'x' * 60_000}'" for i in range(20)]
        )(folder, request),
        "Program 1 is too large for a step",
    ),
    "no answer": (
        lambda *_: "postgres://ann:secret@127.0.0.1:1/fle",
        "Postgres postgresql://ann@127.0.0.1:1/fle cannot be read",
    ),
    "no URL of libpq": (lambda *_: "postgres://ann:secret@[/fle?password=secret", "cannot be read"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_cannot_be_imported_is_explained_in_one_line(
    name: str, server: Server, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    make, expected = SOURCES[name]
    arguments = ["import", make(tmp_path, request), "-e", request.node.name, "--address", server.address]
    assert command.main(arguments) == 1
    printed, explained = capsys.readouterr()
    assert printed == ""
    assert expected in explained and "secret" not in explained
    assert len(explained.splitlines()) == 1


def test_a_source_without_programs_creates_nothing(
    server: Server, tmp_path: Path, experiment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["import", sqlite_database(tmp_path).source, "-e", experiment, "--address", server.address]
    assert command.main(arguments) == 0
    assert capsys.readouterr() == ("The source has no programs.\n", "")
    with pytest.raises(Exception, match="does not exist|not found|no experiment"):
        trajectories_of(server, experiment)


def test_a_file_is_read_without_a_change_or_a_file_beside_it(tmp_path: Path, run: Callable[..., Any]) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    source = sqlite_database(folder)
    source.insert(*TREES)

    def contents() -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}

    before = contents()
    run(source)
    assert contents() == before


def test_a_file_in_wal_mode_is_read_while_fle_writes_to_it(file: FleDatabase, run: Callable[..., Any]) -> None:
    file.exec("PRAGMA journal_mode = WAL")
    file.exec("BEGIN IMMEDIATE")
    file.insert({"code": "late"})
    assert run(file)["imported"] == 12
    file.exec("COMMIT")
    assert run(file)["imported"] == 1


# The plan

LINES = [TrajectoryKey("1", "0", process, "t", None) for process in ("a", "b")]
OTHER_TASK = TrajectoryKey("1", "0", "a", "u", None)
RUN_ID = "5f0c4a51-1df1-4d4f-9c2b-6c1f3b0f0a7e"
ROOTS = {id_of(RUN_ID, f"line {json.dumps(key)}"): name for key, name in zip([*LINES, OTHER_TASK], "abc", strict=True)}


class Store(Stored):
    """A store that contains what chains describe, and refuses what the server would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: dict[str, StepPosition] = {}

    def take(self, chains: list[Chain], count: int = 1_000_000) -> None:
        """Stores the first programs of the plan, as if the import was interrupted after them."""
        for chain in chains:
            if chain.start is not None:
                self._create(chain.trajectory_id, chain.start, chain.is_root)
            assert self.ends[chain.trajectory_id].next_step == chain.first_step
            for number, id in enumerate(chain.ids, chain.first_step):
                if count == 0:
                    return
                count -= 1
                assert id not in self.programs
                self.programs[id] = StepPosition(chain.trajectory_id, number)
                self.ends[chain.trajectory_id] = End(number + 1)

    def _create(self, trajectory_id: str, start: StepPosition, is_root: bool) -> None:
        assert trajectory_id not in self.ends
        assert is_root or self.ends[start.trajectory_id].next_step > start.number
        self.ends[trajectory_id] = End(start.number + 1)
        self.starts[trajectory_id] = start

    def before(self, id: int) -> StepPosition:
        """The step before the program: in its own trajectory, or at the branch point."""
        position = self.programs[id]
        start = self.starts[position.trajectory_id]
        is_first = start.number + 1 == position.number
        return start if is_first else StepPosition(position.trajectory_id, position.number - 1)


def program(id: int, parent_id: int | None = None, key: TrajectoryKey = LINES[0]) -> Program:
    return Program(id, parent_id, None, key)


def plan(programs: list[Program], store: Stored | None = None) -> list[Chain]:
    return plan_version({each.id: each for each in programs}, store or Stored(), RUN_ID)


def texts(chains: list[Chain]) -> list[str]:
    """The chains as text: `a: 1 2 3`, `4 from a@2: 4`."""

    def named(trajectory_id: str, first: int) -> str:
        found = ROOTS.get(trajectory_id)
        assert found or trajectory_id == id_of(RUN_ID, f"program {first}")
        return found or str(first)

    names = {chain.trajectory_id: named(chain.trajectory_id, chain.ids[0]) for chain in chains}
    names.update(ROOTS)
    result: list[str] = []
    for chain in chains:
        start = " again" if chain.start is None else ""
        if chain.start is not None and not chain.is_root:
            start = f" from {names[chain.start.trajectory_id]}@{chain.start.number}"
        result.append(f"{names[chain.trajectory_id]}{start}: {' '.join(map(str, chain.ids))}")
    return result


def test_a_chain_becomes_one_trajectory_and_a_later_child_a_branch() -> None:
    programs = [program(1), program(2, 1), program(3, 2), program(4, 2), program(5, 4), program(6, 1)]
    assert texts(plan(programs)) == ["a: 1 2 3", "4 from a@2: 4 5", "6 from a@1: 6"]


def test_another_process_begins_a_branch_and_another_task_a_root() -> None:
    programs = [program(1), program(2, 1, LINES[1]), program(3, 2, LINES[1]), program(4, 1), program(5, 4, OTHER_TASK)]
    assert texts(plan(programs)) == ["a: 1 4", "2 from a@1: 2 3", "c: 5"]


def test_programs_without_a_parent_in_the_source_follow_step_0() -> None:
    programs = [program(1), program(2), program(3, 999), program(4, 2)]
    assert texts(plan(programs)) == ["a: 1", "2 from a@0: 2 4", "3 from a@0: 3"]


def test_trajectories_that_an_interrupted_import_left_without_a_program_are_used() -> None:
    programs = [program(1), program(2, 1), program(3, 1)]
    store = Store()
    store.take(plan(programs), 0)
    assert texts(plan(programs, store)) == ["a again: 1 2", "3 from a@1: 3"]
    store.take(plan(programs, store), 2)
    assert texts(plan(programs, store)) == ["3 again: 3"]


def test_programs_that_are_their_own_ancestors_are_refused() -> None:
    for programs in ([program(1), program(2, 4), program(3, 2), program(4, 3)], [program(2, 2)]):
        with pytest.raises(SourceError, match=re.escape("Program 2 is its own ancestor (parent_id): correct it.")):
            plan(programs)


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 99), st.sampled_from([*LINES, OTHER_TASK]), st.integers(0, 3)), max_size=30
    ),
    st.lists(st.integers(0, 6), max_size=6),
)
@settings(deadline=None)
def test_i3_each_program_is_planned_once_after_its_parent(
    drawn: list[tuple[int | None, TrajectoryKey, int]], interruptions: list[int]
) -> None:
    """I3: whatever interruptions occur, and whenever programs are added."""
    # A parent has a smaller id. A row may become visible before one with a smaller id, but not before its parent.
    programs: list[Program] = []
    arrivals: list[int] = []
    for id, (parent, key, arrival) in enumerate(drawn):
        parent_id = parent % id if parent is not None and id > 0 else None
        programs.append(program(id, parent_id, key))
        arrivals.append(arrival if parent_id is None else max(arrival, arrivals[parent_id]))
    store = Store()
    for time in range(4):
        visible = [each for each in programs if arrivals[each.id] <= time]
        for count in interruptions:
            store.take(plan(visible, store), count)
        store.take(plan(visible, store))
        assert plan(visible, store) == []
        assert len(store.programs) == len(visible)
    for each in programs:
        parent = None if each.parent_id is None else programs[each.parent_id]
        if parent is not None and parent.key.task_key == each.key.task_key:
            assert store.before(each.id) == store.programs[parent.id]
        else:
            assert store.before(each.id) == StepPosition(id_of(RUN_ID, f"line {json.dumps(each.key)}"), 0)
