"""Databases to import. They are read page by page and never written."""

from __future__ import annotations

import base64
import json
import math
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from anabranch._wire.kinds import is_a
from anabranch._wire.tensors import optional


class Cell(NamedTuple):
    """A value as the source stores it. Texts are bytes: SQLite does not guarantee that they are valid UTF-8."""

    #: Storage class of SQLite, or the Postgres type.
    type: str
    value: int | float | bytes | None


#: A row of a table, by column.
Row = dict[str, Cell]

#: Rows that are read at once. A row can have a megabyte.
ROWS = 16
_CONNECT_SECONDS = 10
#: How long to wait for a process that writes to the same file.
_BUSY_SECONDS = 30


class SourceError(Exception):
    """The source cannot be imported, or not into this store. The message is for the person who chose the source."""


class Source(ABC):
    """A database to import. `description` names it in messages, without a password."""

    description: str
    #: The base of the driver's errors.
    _driver_error: type[Exception]

    @abstractmethod
    def columns(self, table: str) -> list[str]:
        """Returns the columns of a table in order; none if there is no such table."""

    @abstractmethod
    def read(self, table: str, columns: Sequence[str], condition: str, *values: object) -> list[Row]:
        """Reads rows. The condition is SQL, with `?` for the values."""

    @abstractmethod
    def close(self) -> None: ...

    def rows(self, table: str, key: str = "id", *, of: tuple[str, object] | None = None) -> Iterator[Row]:
        """Yields the rows of a table by a key, in pages. `of` is a column and the value that it must have."""
        columns = self.columns(table)
        conditions, values = ([f"{_quoted(of[0])} = ?"], [of[1]]) if of else ([], list[object]())
        after: tuple[str, ...] = ()
        last: list[object] = []
        while True:
            where = f"WHERE {' AND '.join([*conditions, *after])}" if conditions or after else ""
            page = self.read(table, columns, f"{where} ORDER BY {_quoted(key)} LIMIT {ROWS}", *values, *last)
            yield from page
            if len(page) < ROWS:
                return
            cell = page[-1][key]
            after, last = (f"{_quoted(key)} > ?",), [cell.value if not isinstance(cell.value, bytes) else text_of(cell)]

    @contextmanager
    def _reading(self, url: str = "") -> Generator[None, None, None]:
        """Explains errors of the driver in one line."""
        try:
            yield
        except self._driver_error as error:
            # libpq explains over several lines, and quotes a URL that it cannot parse.
            message = _without_secrets(" ".join(str(error).split()), url).rstrip(".")
            raise SourceError(f"{self.description} cannot be read: {message}.") from None


def open_source(text: str) -> Source:
    """Opens a SQLite file, or a Postgres by its URL. Raises SourceError, and ValueError for another URL."""
    if re.match(r"postgres(ql)?(\+\w+)?://", text):
        return _Postgres(re.sub(r"^\w+(\+\w+)?", "postgresql", text))
    if "://" in text:
        expected = "expected a SQLite file or postgres://USER:PASSWORD@HOST:PORT/DATABASE"
        raise ValueError(f'SOURCE is "{_without_secrets(text)}": {expected}.')
    return _Sqlite(text)


class _Sqlite(Source):
    """A file that is opened read-only: its journal mode and its content do not change. Each page is read in its own
    transaction, because in rollback mode one transaction for all would lock out FLE."""

    _driver_error = sqlite3.Error

    def __init__(self, path: str) -> None:
        self.description = f"SQLite {path}"
        uri = f"{Path(path).resolve().as_uri()}?mode=ro"
        with self._reading():
            self._database = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
            self._database.text_factory = bytes
            # Only now is the file read.
            self._database.execute("SELECT 1 FROM sqlite_master").fetchone()

    def close(self) -> None:
        self._database.close()

    def columns(self, table: str) -> list[str]:
        with self._reading():
            names = self._database.execute("SELECT name FROM pragma_table_info(?) ORDER BY cid", (table,)).fetchall()
        return [name.decode() for (name,) in names]

    def read(self, table: str, columns: Sequence[str], condition: str, *values: object) -> list[Row]:
        cells = ", ".join(f"typeof({name}), {name}" for name in map(_quoted, columns))
        with self._reading(), closing(self._database.cursor()) as cursor:
            found = cursor.execute(f"SELECT {cells} FROM {_quoted(table)} {condition}", values).fetchall()
        return [{name: Cell(row[2 * i].decode(), row[2 * i + 1]) for i, name in enumerate(columns)} for row in found]


_WHOLE = ("smallint", "integer", "bigint")
_REAL = ("real", "double precision")
#: Makes the session read-only, with an exact text form of every value.
_SESSION = """SET default_transaction_read_only = on; SET extra_float_digits = 3; SET bytea_output = 'hex';
  SET DateStyle = 'ISO'; SET TimeZone = 'UTC'"""


class _Postgres(Source):
    def __init__(self, url: str) -> None:
        self.description = f"Postgres {_without_secrets(url)}"
        psycopg = optional("psycopg", "to read a Postgres")
        self._driver_error = psycopg.Error
        options: dict[str, Any] = {"autocommit": True, "prepare_threshold": None, "client_encoding": "utf8"}
        options |= {"connect_timeout": _CONNECT_SECONDS, "application_name": "anabranch compat import"}
        with self._reading(url):
            self._connection = psycopg.connect(url, **options)
            self._connection.execute(_SESSION)
        self._types: dict[str, dict[str, str]] = {}

    def close(self) -> None:
        self._connection.close()

    def columns(self, table: str) -> list[str]:
        return list(self._types_of(table))

    def read(self, table: str, columns: Sequence[str], condition: str, *values: object) -> list[Row]:
        types = self._types_of(table)
        statement = f"SELECT {', '.join(map(_quoted, columns))} FROM {_quoted(table)} ".replace("%", "%%")
        with self._reading():
            # The result as Postgres sends it: values that psycopg has converted would not all be exact.
            result = self._connection.execute(statement + condition.replace("?", "%s"), values).pgresult
        return [
            {name: _cell(types[name], result.get_value(row, i)) for i, name in enumerate(columns)}
            for row in range(result.ntuples)
        ]

    def _types_of(self, table: str) -> dict[str, str]:
        if table not in self._types:
            with self._reading():
                found = self._connection.execute(
                    """SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
                       WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum""",
                    (_quoted(table),),
                )
                self._types[table] = dict(found.fetchall())
        return self._types[table]


def _cell(type: str, text: bytes | None) -> Cell:
    if text is None:
        return Cell("null", None)
    if type in _WHOLE:
        return Cell(type, int(text))
    if type in _REAL:
        return Cell(type, float(text))
    return Cell(type, bytes.fromhex(text[2:].decode()) if type == "bytea" else text)


_SECRETS = re.compile(r"(?<=//)([^/:@]*):([^/]*)@|([?&]password=)([^&]*)")


def _without_secrets(text: str, url: str = "") -> str:
    """Returns a text without the passwords that it has in URLs, and without those of a URL."""
    text = _SECRETS.sub(lambda found: f"{found[1]}@" if found[3] is None else found[3], text)
    for found in _SECRETS.finditer(url):
        if secret := found[2] or found[4]:
            text = text.replace(secret, "***")
    return text


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Values of cells

#: The least and the greatest whole number that a metric can represent.
WHOLE_RANGE = (-(2**53) + 1, 2**53 - 1)


def whole_of(row: Row, column: str) -> int | None:
    """Returns a whole number that a metric can represent. None for other values."""
    value = row[column].value
    if not isinstance(value, (int, float)) or not WHOLE_RANGE[0] <= value <= WHOLE_RANGE[1] or value != int(value):
        return None
    return int(value)


def bytes_of(cell: Cell) -> bytes | None:
    """Returns the bytes of a cell, or of its decimal text if it is a number. None for NULL."""
    return cell.value if cell.value is None or isinstance(cell.value, bytes) else str(cell.value).encode()


def text_of(cell: Cell) -> str | None:
    """Returns the text of a cell, with U+FFFD in place of bytes that are not UTF-8. None for NULL."""
    data = bytes_of(cell)
    return None if data is None else data.decode(errors="replace")


def exact_text(data: bytes) -> str | None:
    """Decodes UTF-8. Returns None for other bytes, and for U+0000, which the store does not accept in texts."""
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def bounded(text: str | None, most_bytes: int = 256) -> str:
    """Returns the longest beginning of a text that fits the bounds of a label, a name or a task id."""
    storable = (text or "").replace("\0", "\ufffd").encode(errors="replace")
    return storable[:most_bytes].decode(errors="ignore")


_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|([+-]\d\d)(?::?(\d\d))?)?", re.ASCII)


def time_of(cell: Cell) -> Timestamp | None:
    """Parses a time. Without an offset it is UTC, like SQLite's CURRENT_TIMESTAMP. None for other texts."""
    found = _TIME.fullmatch(text_of(cell) or "")
    if not found:
        return None
    offset = f"{found[5]}:{found[6] or '00'}" if found[5] else "+00:00"
    try:
        seconds = datetime.fromisoformat(f"{found[1]}T{found[2]}{offset}").astimezone(timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None
    return Timestamp(seconds=int(seconds), nanos=int((found[3] or "").ljust(9, "0")))


def json_of(cell: Cell) -> Any:
    """Returns a JSON value; the type is kept beside it. Values that JSON cannot represent exactly become strings, and
    bytes that are no text become base64."""
    value = cell.value
    if isinstance(value, bytes):
        text = exact_text(value)
        return {"base64": base64.b64encode(value).decode()} if text is None else text
    if isinstance(value, int):
        return value if WHOLE_RANGE[0] <= value <= WHOLE_RANGE[1] else str(value)
    return value if value is None or (math.isfinite(value) and str(value) != "-0.0") else str(value)


class Record:
    """A row whose columns are read by name and by the type that they should have. A column that is not there is
    NULL."""

    def __init__(self, row: Row) -> None:
        self.row = row

    def cell(self, name: str) -> Cell:
        return self.row.get(name, Cell("null", None))

    def text(self, name: str) -> str | None:
        return text_of(self.cell(name))

    def number(self, name: str) -> float | None:
        value = self.cell(name).value
        return None if value is None or isinstance(value, bytes) else value

    def whole(self, name: str) -> int | None:
        return whole_of({name: self.cell(name)}, name)

    def flag(self, name: str) -> bool | None:
        text = self.text(name)
        return None if text is None else text in ("t", "1", "true")

    def time(self, name: str) -> Timestamp | None:
        return time_of(self.cell(name))

    def json(self, name: str) -> Any:
        """Returns the value of JSON text; other text as it is."""
        text = self.text(name)
        try:
            return None if text is None else json.loads(text, parse_constant=float)
        except (ValueError, RecursionError):
            return text

    def words(self, name: str) -> list[str]:
        """Returns the members of a JSON list as texts, those that are no texts as JSON. A single value is a list of
        one."""
        found = self.json(name)
        listed: list[Any] = found if is_a(found, list) else [] if found is None else [found]
        return [each if is_a(each, str) else json.dumps(each) for each in listed]

    def values(self, *without: str) -> dict[str, Any]:
        """Returns the columns that are not NULL, for JSON."""
        return {
            name: json_of(cell) for name, cell in self.row.items() if cell.value is not None and name not in without
        }
