"""Reads the tables of a folder with DuckDB, pandas and sqlite3, and prints what each of them found."""

import json
import math
import sqlite3
import sys

import duckdb
import numpy
import pandas
import pyarrow.parquet

import anabranch as ab

folder, address, trajectory = sys.argv[1:]


def plain(value):
    """Returns a value that JSON has."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def rows(values):
    return [[plain(value) for value in row] for row in values]


query = """SELECT step, is_first, is_last, is_terminal, reward::DOUBLE, observation->>'$.n'
  FROM '{}' WHERE trajectory_id = '{}' ORDER BY step"""
# A column of JSON Lines has the type that DuckDB infers; the types of the others are in the file.
lines = f"""(SELECT * FROM read_json('{folder}/steps.jsonl', columns = {{
  trajectory_id: 'VARCHAR', step: 'BIGINT', is_first: 'BOOLEAN', is_last: 'BOOLEAN', is_terminal: 'BOOLEAN',
  reward: 'VARCHAR', observation: 'JSON'}}))"""
found = {
    "duckdb parquet": rows(duckdb.sql(query.format(f"{folder}/steps.parquet", trajectory)).fetchall()),
    "duckdb jsonl": rows(duckdb.sql(query.replace("'{}' WHERE", "{} WHERE").format(lines, trajectory)).fetchall()),
    "duckdb inferred": duckdb.sql(f"SELECT count(*), max(step) FROM '{folder}/steps.jsonl'").fetchall(),
    "sqlite3": rows(
        sqlite3.connect(f"{folder}/steps.sqlite").execute(
            """SELECT step, is_first, is_last, is_terminal, reward, CAST(observation ->> '$.n' AS TEXT) FROM steps
               WHERE trajectory_id = ? ORDER BY step""",
            (trajectory,),
        )
    ),
    "join": duckdb.sql(
        f"""SELECT t.name, count(*), sum(s.reward) FILTER (isfinite(s.reward)) FROM '{folder}/steps.parquet' s
            JOIN '{folder}/trajectories.parquet' t USING (trajectory_id) GROUP BY ALL ORDER BY ALL"""
    ).fetchall(),
    "rollouts": duckdb.sql(f"SELECT number, status, input->>'$.seed' FROM '{folder}/rollouts.parquet'").fetchall(),
}

frame = pandas.read_parquet(f"{folder}/steps.parquet")
found["pandas types"] = {
    name: str(frame[name].dtype) for name in ("step", "is_first", "reward", "start_time", "writer_epoch")
}
found["pandas rewards"] = [plain(value) for value in frame[frame.trajectory_id == trajectory].reward]
read = pandas.read_json(f"{folder}/steps.jsonl", lines=True)
found["pandas jsonl"] = [len(read), plain(float(pandas.to_numeric(read.reward).iloc[1]))]

# What the package recorded is the same in its own table and in the written one.
with ab.connect(address) as client:
    own_table = client.episodes(task="counting").to_arrow().read_all()
own = own_table.to_pylist()
written = pyarrow.parquet.read_table(f"{folder}/steps.parquet")
both = [row for row in written.to_pylist() if row["trajectory_id"] == own[0]["trajectory_id"]]
names = written.column_names
types = {field.name: field.type for field in own_table.schema}
found["same types"] = all(
    written.schema.field(name).type == types[name] for name in ("trajectory_id", "step", "is_first", "reward", "info")
)
found["first columns"] = names[:10] == list(own[0])
plain_columns = ["trajectory_id", "step", "is_first", "is_last", "is_terminal", "truncated", "reward", "info"]
found["same cells"] = all(a[name] == b[name] for a, b in zip(own, both, strict=True) for name in plain_columns)
found["same values"] = all(
    numpy.array_equal(
        numpy.array(a["observation"], numpy.float32), numpy.array(json.loads(b["observation"]), numpy.float32)
    )
    and a["action"] == (None if b["action"] is None else json.loads(b["action"]))
    for a, b in zip(own, both, strict=True)
)
print(json.dumps(found))
