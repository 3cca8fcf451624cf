"""Imports the checkpoints of LangGraph's savers for SQLite and Postgres. Their values are not deserialized."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import ormsgpack
from langgraph.checkpoint.base import CheckpointMetadata

from anabranch._wire.connection import Connection
from anabranch.compat._source import Record, Source, SourceError, bytes_of
from anabranch.langgraph._calls import run
from anabranch.langgraph._operations import Operations
from anabranch.langgraph._steps import FILTERS, Serialized, Typed, label_of

#: The tables by which a saver is recognised: those of checkpoints and of writes.
_TABLES = {"sqlite": ("checkpoints", "writes"), "postgres": ("checkpoints", "checkpoint_writes")}
_BLOBS = "checkpoint_blobs"

Key = tuple[str, str, str]


def kind_of(source: Source) -> str:
    """Returns which saver has written a database. Raises SourceError if none has."""
    for kind, tables in reversed(_TABLES.items()):
        if all("checkpoint_ns" in source.columns(table) for table in tables):
            return kind
    expected = "; ".join(f"{', '.join(tables)} ({kind})" for kind, tables in _TABLES.items())
    raise SourceError(f"{source.description} has no checkpoints of LangGraph: expected the tables {expected}.")


def import_checkpoints(
    connection: Connection,
    operations: Operations,
    source: Source,
    *,
    thread: str | None,
    dry_run: bool,
    on_progress: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """Imports threads, and returns the counts of each: checkpoints and writes. What is stored already stays."""
    kind = kind_of(source)
    threads = [thread] if thread is not None else sorted(_threads(source))
    counts: list[dict[str, Any]] = []
    for number, thread_id in enumerate(threads):
        written = _writes(source, kind, thread_id)
        checkpoints = writes = 0
        for ns, id, parent_id, serialized in _checkpoints(source, kind, thread_id):
            steps = written.pop((ns, id), [])
            checkpoints, writes = checkpoints + 1, writes + sum(len(each[1]) for each in steps)
            if not dry_run:
                run(connection, operations.put_serialized(thread_id, serialized, parent_id))
                for task_id, values, task_path in steps:
                    run(connection, operations.import_writes(thread_id, ns, id, task_id, values, task_path))
        counts.append({"thread": thread_id, "checkpoints": checkpoints, "writes": writes})
        on_progress(number + 1, len(threads))
    return counts


def _threads(source: Source) -> set[str]:
    found: set[str] = set()
    after = ""
    while True:
        rows = source.read("checkpoints", ["thread_id"], "WHERE thread_id > ? ORDER BY thread_id LIMIT 1", after)
        if not rows:
            return found
        after = str(Record(rows[0]).text("thread_id"))
        found.add(after)


def _rows(source: Source, table: str, thread_id: str) -> Iterator[Record]:
    """Yields the rows of a thread, in order of the keys of the table."""
    columns = source.columns(table)
    keys = ["checkpoint_id", "checkpoint_ns"] + (["task_id", "idx"] if "task_id" in columns else [])
    order = ", ".join(keys)
    offset = 0
    while True:
        condition = f"WHERE thread_id = ? ORDER BY {order} LIMIT 64 OFFSET {offset}"
        rows = source.read(table, columns, condition, thread_id)
        yield from map(Record, rows)
        offset += len(rows)
        if len(rows) < 64:
            return


def _checkpoints(source: Source, kind: str, thread_id: str) -> Iterator[tuple[str, str, str | None, Serialized]]:
    """Yields the checkpoints of a thread, oldest first."""
    for row in _rows(source, "checkpoints", thread_id):
        ns, id, parent_id = (
            str(row.text("checkpoint_ns")),
            str(row.text("checkpoint_id")),
            row.text("parent_checkpoint_id"),
        )
        metadata = cast("dict[str, Any]", row.json("metadata") or {})
        head = _typed(row, "checkpoint") if kind == "sqlite" else _composed(source, thread_id, ns, row)
        labels = {name: metadata.get(key) for name, key in FILTERS.items()}
        kept = {name: label_of(value) for name, value in labels.items() if value is not None}
        packed = ("msgpack", ormsgpack.packb(cast("CheckpointMetadata", metadata), option=ormsgpack.OPT_NON_STR_KEYS))
        yield ns, id, parent_id or None, Serialized(ns, id, parent_id or None, head, {}, packed, kept)


def _typed(row: Record, column: str) -> Typed:
    return str(row.text("type")), bytes_of(row.cell(column)) or b""


def _composed(source: Source, thread_id: str, ns: str, row: Record) -> Typed:
    """Returns a checkpoint of the saver for Postgres, whose large values are in another table, as one value."""
    checkpoint = cast("dict[str, Any]", row.json("checkpoint"))
    inline = cast("dict[str, Any]", checkpoint.pop("channel_values", None) or {})
    values = {channel: ormsgpack.packb(value) for channel, value in inline.items()}
    for channel, version in cast("dict[str, Any]", checkpoint.get("channel_versions", {})).items():
        condition = "WHERE thread_id = ? AND checkpoint_ns = ? AND channel = ? AND version = ?"
        found = source.read(_BLOBS, ["type", "blob"], condition, thread_id, ns, channel, str(version))
        for blob in map(Record, found):
            if blob.text("type") != "empty":
                values[channel] = _packed(_typed(blob, "blob"))
    checkpoint.setdefault("pending_sends", [])
    fields = {name: ormsgpack.packb(value) for name, value in checkpoint.items()}
    return "msgpack", _map({**fields, "channel_values": _map(values)})


def _packed(typed: Typed) -> bytes:
    """Returns a serialized value as MessagePack. Raises SourceError for another form than the serializer's."""
    type, data = typed
    if type == "msgpack":
        return data
    if type == "json":
        return ormsgpack.packb(json.loads(data))
    if type in ("null", "bytes"):
        return ormsgpack.packb(None if type == "null" else data)
    raise SourceError(f'a value has the type "{type}": expected msgpack, json, bytes or null.')


def _map(members: dict[str, bytes]) -> bytes:
    """Returns a map of MessagePack whose values are serialized."""
    return (
        b"\xdf"
        + len(members).to_bytes(4, "big")
        + b"".join(ormsgpack.packb(name) + data for name, data in members.items())
    )


#: Of one call of put_writes: task, (index, channel, value), path.
_Written = tuple[str, list[tuple[int, str, bytes]], str]


def _writes(source: Source, kind: str, thread_id: str) -> dict[tuple[str, str], list[_Written]]:
    """Returns the pending writes of a thread by namespace and checkpoint."""
    table, column = ("writes", "value") if kind == "sqlite" else ("checkpoint_writes", "blob")
    found: dict[tuple[str, str], dict[tuple[str, str], list[tuple[int, str, bytes]]]] = {}
    for row in _rows(source, table, thread_id):
        key = (str(row.text("checkpoint_ns")), str(row.text("checkpoint_id")))
        task = (str(row.text("task_id")), row.text("task_path") or "")
        value = (row.whole("idx") or 0, str(row.text("channel")), _packed(_typed(row, column)))
        found.setdefault(key, {}).setdefault(task, []).append(value)
    return {key: [(id, values, path) for (id, path), values in tasks.items()] for key, tasks in found.items()}
