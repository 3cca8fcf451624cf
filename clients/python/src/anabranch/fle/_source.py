"""Databases of FLE. They are read page by page and never written."""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from anabranch._wire.tensors import optional


class Cell(NamedTuple):
    """A value as the source stores it. Texts are bytes: SQLite does not guarantee that they are valid UTF-8."""

    #: Storage class of SQLite, or the Postgres type.
    type: str
    value: int | float | bytes | None


#: A row of the table `programs`, by column.
Row = dict[str, Cell]

#: Columns that decide where a program is stored.
HEAD_COLUMNS = ("id", "parent_id", "version", "instance", "model", "meta", "created_at")
#: Columns that the import reads by name. Other columns are stored unchanged.
_REQUIRED_COLUMNS = (*HEAD_COLUMNS, "code", "response", "value", "state_json", "conversation_json")
#: Rows that are read at once. Heads are small, except `meta`.
_HEAD_ROWS = 1000
_CONNECT_SECONDS = 10
#: How long to wait for an FLE process that writes to the same file.
_BUSY_SECONDS = 30


class FleImportError(Exception):
    """The source cannot be imported, or not into this store. The message is for the person who chose the source."""


class Source(ABC):
    """A database of FLE. `description` names it in messages, without a password."""

    description: str
    #: The base of the driver's errors.
    _driver_error: type[Exception]

    def heads(self) -> Iterator[Row]:
        """Yields HEAD_COLUMNS of all programs in the order of their ids."""
        after: float = -(2**63)
        while True:
            rows = self._heads_after(after)
            yield from rows
            last = rows[-1]["id"].value if rows else None
            if len(rows) < _HEAD_ROWS or last is None or isinstance(last, bytes):
                return
            after = last

    def rows(self, ids: Sequence[int]) -> list[Row]:
        """Returns whole rows in the order of the ids. Raises FleImportError if a program no longer exists."""
        rows = {whole_of(row, "id"): row for row in self._rows_with(ids)}
        for id in ids:
            if id not in rows:
                text = f"program {id} was deleted during the import. Run the command again."
                raise FleImportError(f"{self.description}: {text}")
        return [rows[id] for id in ids]

    @contextmanager
    def _reading(self, url: str = "") -> Generator[None, None, None]:
        """Explains errors of the driver in one line."""
        try:
            yield
        except self._driver_error as error:
            # libpq explains over several lines, and quotes a URL that it cannot parse.
            message = _without_secrets(" ".join(str(error).split()), url).rstrip(".")
            raise FleImportError(f"{self.description} cannot be read: {message}.") from None

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _heads_after(self, id: float) -> list[Row]: ...

    @abstractmethod
    def _rows_with(self, ids: Sequence[int]) -> list[Row]: ...

    def _require_columns(self, columns: Sequence[str]) -> None:
        missing = [name for name in _REQUIRED_COLUMNS if name not in columns]
        if missing:
            self.close()
            found = f'lacks the columns {", ".join(missing)} in "programs"' if columns else 'has no table "programs"'
            raise FleImportError(f"{self.description} is not a database of FLE: it {found}.")


def open_source(text: str) -> Source:
    """Opens a SQLite file, or a Postgres by its URL. Raises FleImportError, and ValueError for another URL."""
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
            names = self._database.execute("SELECT name FROM pragma_table_info('programs') ORDER BY cid").fetchall()
        self._columns = [name.decode() for (name,) in names]
        self._require_columns(self._columns)

    def close(self) -> None:
        self._database.close()

    def _heads_after(self, id: float) -> list[Row]:
        return self._read(HEAD_COLUMNS, "WHERE id > ? ORDER BY id LIMIT ?", id, _HEAD_ROWS)

    def _rows_with(self, ids: Sequence[int]) -> list[Row]:
        return [row for id in ids for row in self._read(self._columns, "WHERE id = ?", id)]

    def _read(self, columns: Sequence[str], condition: str, *values: object) -> list[Row]:
        cells = ", ".join(f"typeof({name}), {name}" for name in map(_quoted, columns))
        with self._reading(), closing(self._database.cursor()) as cursor:
            found = cursor.execute(f"SELECT {cells} FROM programs {condition}", values).fetchall()
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
        options |= {"connect_timeout": _CONNECT_SECONDS, "application_name": "anabranch fle import"}
        with self._reading(url):
            self._connection = psycopg.connect(url, **options)
            self._connection.execute(_SESSION)
            columns = self._connection.execute(
                """SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
                   WHERE attrelid = to_regclass('programs') AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
            )
            self._types: dict[str, str] = dict(columns.fetchall())
        self._require_columns(list(self._types))

    def close(self) -> None:
        self._connection.close()

    def _heads_after(self, id: float) -> list[Row]:
        return self._read(HEAD_COLUMNS, "WHERE id > %s ORDER BY id LIMIT %s", id, _HEAD_ROWS)

    def _rows_with(self, ids: Sequence[int]) -> list[Row]:
        return self._read(list(self._types), "WHERE id = ANY (%s::bigint[])", list(ids))

    def _read(self, columns: Sequence[str], condition: str, *values: object) -> list[Row]:
        names = ", ".join(_quoted(name).replace("%", "%%") for name in columns)
        with self._reading():
            # The result as Postgres sends it: values that psycopg has converted would not all be exact.
            result = self._connection.execute(f"SELECT {names} FROM programs {condition}", values).pgresult
        return [
            {name: self._cell(name, result.get_value(row, i)) for i, name in enumerate(columns)}
            for row in range(result.ntuples)
        ]

    def _cell(self, column: str, text: bytes | None) -> Cell:
        name = self._types[column]
        if text is None:
            return Cell("null", None)
        if name in _WHOLE:
            return Cell(name, int(text))
        if name in _REAL:
            return Cell(name, float(text))
        return Cell(name, bytes.fromhex(text[2:].decode()) if name == "bytea" else text)


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
