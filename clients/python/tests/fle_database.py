"""Databases as the Factorio Learning Environment creates them, on both of its engines."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from conftest import NODE, ROOT

Values = Mapping[str, Any]


def schema(id: str, time: str) -> str:
    """The table as FLE creates it; `id` and `created_at` differ between the engines."""
    return f"""CREATE TABLE programs (
    id {id}, code TEXT NOT NULL, value REAL DEFAULT 0.0, visits INTEGER DEFAULT 0, parent_id INTEGER,
    state_json TEXT, conversation_json TEXT NOT NULL, completion_token_usage INTEGER, prompt_token_usage INTEGER,
    token_usage INTEGER, response TEXT, holdout_value REAL, raw_reward REAL, version INTEGER DEFAULT 1,
    version_description TEXT DEFAULT '', model TEXT DEFAULT 'gpt-4o', meta TEXT, achievements_json TEXT,
    instance INTEGER DEFAULT -1, depth REAL DEFAULT 0.0, advantage REAL DEFAULT 0.0, ticks INTEGER DEFAULT 0,
    created_at {time} DEFAULT CURRENT_TIMESTAMP, timing_metrics_json TEXT)"""


class FleDatabase:
    """A database of FLE. `source` is the argument of the import; on Postgres its role has only SELECT."""

    def __init__(self, source: str, database: Any, mark: str) -> None:
        self.source = source
        self.engine = "sqlite" if mark == "?" else "postgres"
        self._database = database
        self._mark = mark

    def insert(self, *rows: Values) -> None:
        """Inserts programs. `code` and `conversation_json` have defaults, because FLE requires them."""
        for row in rows:
            values = {"code": "pass", "conversation_json": '{"messages": []}', **row}
            marks = ", ".join([self._mark] * len(values))
            self.exec(f"INSERT INTO programs ({', '.join(values)}) VALUES ({marks})", *values.values())

    def exec(self, sql: str, *values: object) -> None:
        self._database.execute(sql, values)

    def rows(self) -> dict[int, dict[str, tuple[str, Any]]]:
        """The type and the value of every column of every program, read by SQL of its own."""
        if self.engine == "sqlite":
            cells = "typeof({0}), CASE typeof({0}) WHEN 'text' THEN CAST({0} AS BLOB) ELSE {0} END"
            names = [name for _, name, *_ in self._database.execute("PRAGMA table_info(programs)")]
        else:
            cells = "CASE WHEN {0} IS NULL THEN 'null' ELSE format_type(pg_typeof({0}), NULL) END, {0}::text"
            query = (
                "SELECT attname FROM pg_attribute WHERE attrelid = 'programs'::regclass AND attnum > 0 ORDER BY attnum"
            )
            names = [name for (name,) in self._database.execute(query)]
        columns = ", ".join(cells.format(name) for name in names)
        found: dict[int, dict[str, tuple[str, Any]]] = {}
        for row in self._database.execute(f"SELECT {columns} FROM programs").fetchall():
            values = {name: (row[2 * i], row[2 * i + 1]) for i, name in enumerate(names)}
            if self.engine == "postgres":
                values = {name: (kind, value_of(kind, text)) for name, (kind, text) in values.items()}
            found[values["id"][1]] = values
        return found


def value_of(kind: str, text: str | None) -> Any:
    if text is None:
        return None
    return {"integer": int, "real": float, "double precision": float}.get(kind, str.encode)(text)


def sqlite_database(folder: Path) -> FleDatabase:
    file = folder / f"{uuid.uuid4()}.db"
    database = sqlite3.connect(file, isolation_level=None)
    database.execute(schema("INTEGER PRIMARY KEY AUTOINCREMENT", "DATETIME"))
    return FleDatabase(str(file), database, "?")


@contextmanager
def running_postgres() -> Iterator[str]:
    """Starts the Postgres of npm, and returns its URL."""
    command = [NODE, "test/support/with-postgres.ts", "npm", "sh", "-c", 'echo "$TEST_DATABASE_URL"; cat']
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def postgres_database(server: str) -> FleDatabase:
    name = f"fle_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'".encode())
    database = psycopg.connect(server, dbname=name, autocommit=True)
    database.execute(schema("SERIAL PRIMARY KEY", "TIMESTAMP").encode())
    database.execute(f"GRANT SELECT ON programs TO {name}".encode())
    info = database.info
    return FleDatabase(f"postgresql://{name}:secret@/{name}?host={info.host}&port={info.port}", database, "%s")


PLATES, OPEN = "iron_plate_throughput_16", "open_play"
SONNET, GPT = "claude-3-5-sonnet", "gpt-4o"


def _program(id: int, parent_id: int | None, version: int, process: int, error: bool = False) -> dict[str, Any]:
    task, model = (PLATES, SONNET) if version == 1 else (OPEN, GPT)
    return {
        "id": id,
        "parent_id": parent_id,
        "code": f"print({id})",
        "response": f"1: ({id},)",
        "value": id,
        "token_usage": 100 + id,
        "state_json": f'{{"inventory": {id}}}',
        "version": version,
        "model": model,
        "created_at": f"2025-06-04 01:12:{id:02}",
        "instance": process,
        "version_description": f"version {version}",
        "meta": json.dumps({"task_key": task, "process_id": process, "error_occurred": error}),
    }


#: Two versions. In the first, process 0 played 1–2–3 and, again from 2, 4–6; process 1 played 5–8, and resumed from
#: program 2 of process 0 with 7. In the second version: 9–10. 11 continues a program of the first version, 12 one that
#: was deleted.
TREES = [
    *[_program(1, None, 1, 0), _program(2, 1, 1, 0), _program(3, 2, 1, 0, error=True), _program(4, 2, 1, 0)],
    *[_program(5, None, 1, 1), _program(6, 4, 1, 0), _program(7, 2, 1, 1), _program(8, 5, 1, 1)],
    *[_program(9, None, 2, 0), _program(10, 9, 2, 0), _program(11, 3, 2, 0), _program(12, 999, 2, 0)],
]

#: By name of the trajectory, the programs of its path, including shared ones.
PATHS = {
    "fle-1, instance 0, process 0": [1, 2, 3],
    "fle-1, instance 0, process 0, program 4": [1, 2, 4, 6],
    "fle-1, instance 1, process 1": [5, 8],
    "fle-1, instance 1, process 1, program 7": [1, 2, 7],
    "fle-2, instance 0, process 0": [9, 10],
    "fle-2, instance 0, process 0, program 11": [11],
    "fle-2, instance 0, process 0, program 12": [12],
}


def large(name: str) -> str:
    """More than is sent inline."""
    return json.dumps({"entities": [{"i": i, "name": f"{name} {i}"} for i in range(20_000)]})


#: A state with characters outside ASCII.
STATE_OF_TWO = '{"inventory": {"iron-plate": 2}, "größe": "日本語 🏭"}'
#: Values at the limits of FLE's columns on both engines.
EXTREMES: list[Values] = [
    {"code": 'print("hello")\n', "response": "1: ('hello',)\n", "value": 12.5, "raw_reward": 0.1, "depth": 0.5},
    {"parent_id": 1, "state_json": STATE_OF_TWO, "value": None, "meta": '{"model": "m",  "n": 1.0}', "response": ""},
    {
        "parent_id": 2,
        "code": "",
        "state_json": "",
        "value": 0.25,
        "advantage": float("inf"),
        "depth": float("-inf"),
        "raw_reward": float("nan"),
    },
    {"parent_id": 2, "state_json": large("belt"), "conversation_json": f"{large('belt')} ", "value": 1e30},
    {
        "parent_id": 1,
        "visits": 2147483647,
        "ticks": -2147483648,
        "instance": 2**30,
        "code": f'x = "{"long " * 300_000}"',
    },
    {
        "parent_id": 3,
        "value": -0.0,
        "version_description": "\U0001f3ed é\u0301 end",
        "meta": '{"process_id": NaN, "task_key": "t"}',
    },
    {
        "value": 0,
        "created_at": "2025-06-04 01:12:33.25",
        "achievements_json": "not json {",
        "timing_metrics_json": large("ms"),
    },
    {
        "parent_id": 999,
        "meta": f'{{"pad": "{"p" * 100_000}"}}',
        "model": None,
        "instance": None,
        "version": None,
    },
    {
        "parent_id": 8,
        "response": None,
        "meta": '{"error_occurred": true}',
        "version": None,
        "model": "m" * 300,
        "instance": None,
    },
]
#: Values that only SQLite accepts.
SQLITE_EXTREMES: list[Values] = [
    {
        "visits": 2**63 - 1,
        "ticks": -(2**63),
        "instance": 2**40,
        "raw_reward": 5e-324,
        "version_description": "a \0 b",
    },
    {"state_json": b"\x80\x04\x95\x00\xff", "meta": b"\x00\x01\x02", "value": "not a number"},
    {"response": "a\0b", "parent_id": "none", "created_at": "yesterday"},
]
#: Converts texts to ones that are not UTF-8.
NOT_UTF8 = """UPDATE programs SET code = CAST(x'ff00fe' AS TEXT), model = CAST(x'c328' AS TEXT),
  state_json = CAST(x'efbbbf7b7dff' AS TEXT) WHERE id = 9"""
