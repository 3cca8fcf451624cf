"""Where the settings of a system say that its data is."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from anabranch._wire.limits import limits_of
from anabranch._wire.local import SCHEME, address_on_postgres, path_from
from anabranch._wire.outage import call
from anabranch.client import Client, connect
from anabranch.v1.server_service_pb2 import GetServerInfoRequest

_logger = logging.getLogger("anabranch")
_LINE = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)", re.ASCII)
_QUOTED = re.compile(r"""(['"])(?P<value>.*?)\1""")
#: Files of other systems whose import this process has offered.
_offered: set[str] = set()


def setting(name: str, default: str = "") -> str:
    """Returns an environment variable, else the value in the file `.env`, else the default. An empty value counts as
    none."""
    return os.environ.get(name) or _dotenv().get(name) or default


def _dotenv() -> dict[str, str]:
    """Reads the file `.env` of the working directory or the nearest folder above it. Empty if there is none."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / ".env"
        if file.is_file():
            lines = map(_LINE.fullmatch, file.read_text(errors="replace").splitlines())
            return {line["name"]: _value_of(line["value"]) for line in lines if line}
    return {}


def _value_of(text: str) -> str:
    quoted = _QUOTED.match(text)
    return quoted["value"] if quoted else text.partition(" #")[0].strip()


def connect_to(database: str, namespace: str = "") -> Client:
    """Returns a client of the server at ANABRANCH_ADDRESS, else of the local server of a database:
    `sqlite:FILE` or `postgres://…`. Nothing is recorded in the background, and what cannot be stored raises."""
    address = setting("ANABRANCH_ADDRESS") or database
    if address.startswith(("postgres://", "postgresql://")):
        address = address_on_postgres(address)
    return connect(address, strict=True, spool=False, namespace=namespace or setting("ANABRANCH_NAMESPACE") or None)


def ask_server(client: Client) -> None:
    """Returns when the server has answered. Raises Unreachable, Unauthenticated and IncompatibleVersion."""
    info = call(client.connection, lambda stubs: stubs.server.GetServerInfo, GetServerInfoRequest())
    # The server may be another one than at the first call of this process.
    limits_of(client.connection.address).take(info)


def beside(file: str, system: str, table: str) -> str:
    """Returns the database for a file that another system writes: `data.anabranch.db` for `data.db`, in the same
    folder, which is created. Offers once to import the other file if it has a table of this name. Raises ValueError if
    the name is none of a file."""
    own = Path(f"{file.removesuffix('.db')}.anabranch.db")
    address = setting("ANABRANCH_ADDRESS") or f"{SCHEME}{own}"
    if not setting("ANABRANCH_ADDRESS"):
        if path_from(address) is None:
            raise ValueError(f"the SQLite file is {file!r}: expected the path of a file, without #, ? and line breaks")
        own.parent.mkdir(parents=True, exist_ok=True)
        # Of several processes, the one that creates the file offers. SQLite uses an empty file as a new database.
        try:
            own.open("x").close()
        except FileExistsError:
            return f"{SCHEME}{own}"
    if file not in _offered and _has_table(file, table):
        _offered.add(file)
        _logger.warning(
            "%s is a database of %s and stays as it is. To import it, run once: "
            "python -m anabranch.compat import %s --address %s",
            file,
            system,
            file,
            address,
        )
    return f"{SCHEME}{own}"


def _has_table(file: str, table: str) -> bool:
    if not Path(file).is_file():
        return False
    uri = f"{Path(file).resolve().as_uri()}?mode=ro"
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True, timeout=1)) as database:
        found = database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
        return found.fetchone() is not None
    return False


def postgres_url(host: str, port: str | int, database: str, user: str, password: str) -> str:
    """Returns the URL of a Postgres database."""
    return f"postgres://{quote(user, '')}:{quote(password, '')}@{host}:{port}/{quote(database, '')}"


def database_of(url: str, system: str, table: str) -> str:
    """Returns the database for a URL of SQLAlchemy: the same Postgres, or the file beside an SQLite file. Raises
    ValueError for other URLs."""
    if re.match(r"postgres(ql)?(\+\w+)?://", url):
        return re.sub(r"^\w+(\+\w+)?", "postgres", url)
    parts = urlsplit(url)
    if parts.scheme.partition("+")[0] == "sqlite" and parts.path.strip("/"):
        return beside(unquote(parts.path.removeprefix("/")), system, table)
    raise ValueError(
        f"the URL of the database has the scheme {parts.scheme!r}: expected postgresql:// or sqlite:///FILE"
    )
