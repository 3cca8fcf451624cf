"""The table `programs` of a database of FLE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anabranch.compat._source import Row, Source, SourceError, whole_of

TABLE = "programs"
#: Columns that decide where a program is stored.
_HEAD_COLUMNS = ("id", "parent_id", "version", "instance", "model", "meta", "created_at")
#: Columns that the import reads by name. Other columns are stored unchanged.
_REQUIRED_COLUMNS = (*_HEAD_COLUMNS, "code", "response", "value", "state_json", "conversation_json")
#: Rows that are read at once. Heads are small, except `meta`.
_HEAD_ROWS = 1000


def require_programs(source: Source) -> None:
    """Raises SourceError if the table lacks columns that the import reads."""
    columns = source.columns(TABLE)
    missing = [name for name in _REQUIRED_COLUMNS if name not in columns]
    if missing:
        lacks = f'it lacks the columns {", ".join(missing)} in "{TABLE}"'
        raise SourceError(f"{source.description} is not a database of FLE: {lacks}.")


def heads(source: Source) -> Iterator[Row]:
    """Yields the columns of all programs that decide where they are stored, in the order of their ids."""
    after: float = -(2**63)
    while True:
        rows = source.read(TABLE, _HEAD_COLUMNS, f"WHERE id > ? ORDER BY id LIMIT {_HEAD_ROWS}", after)
        yield from rows
        last = rows[-1]["id"].value if rows else None
        if len(rows) < _HEAD_ROWS or last is None or isinstance(last, bytes):
            return
        after = last


def rows_of(source: Source, ids: Sequence[int]) -> list[Row]:
    """Returns whole rows in the order of the ids. Raises SourceError if a program no longer exists."""
    marks = ", ".join("?" for _ in ids)
    found = source.read(TABLE, source.columns(TABLE), f"WHERE id IN ({marks})", *ids)
    rows = {whole_of(row, "id"): row for row in found}
    for id in ids:
        if id not in rows:
            text = f"program {id} was deleted during the import. Run the command again."
            raise SourceError(f"{source.description}: {text}")
    return [rows[id] for id in ids]
