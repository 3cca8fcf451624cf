"""Servers of this machine that this package starts, and starts again when they have ended.

- The server of a database file is found by the name of its holder. The address `sqlite:PATH` names the file, and stays
  the same wherever the server of the file listens.
- That of a Postgres database has a socket of its own, which is its address.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from anabranch._wire.errors import NoLocalServer
from anabranch._wire.proxies import place_of
from anabranch._wire.scope import sleep

SCHEME = "sqlite:"

#: A server that this package has started ends after this time without a client.
_UNUSED_SECONDS = 10
#: How long a server may take to start, and the holder of a file to answer or to end.
_PATIENT_SECONDS = 30.0
_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.02
_LOG_BYTES = 1024 * 1024
#: Room for the path of a socket in its address.
_SOCKET_BYTES = 103 if sys.platform == "darwin" else 107

_HOLDER = re.compile(r"process (?P<pid>\d+) on (?P<host>\S+), since \S+?(?:, at (?P<address>.+))?\n")
#: Calls Health.Watch over HTTP/1.1: an envelope of two bytes, and a response that ends with the server.
_WATCH = (
    b"POST /grpc.health.v1.Health/Watch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/connect+json\r\n"
    b"Content-Length: 7\r\n\r\n\x00\x00\x00\x00\x02{}"
)
_SERVING = re.compile(rb'"SERVING"\s*}\r\n\Z')
_REFUSED = re.compile(rb"HTTP/1\.1 4")

# Where SQLite's locks of a file are: https://sqlite.org/src/file/src/os.h.
_LOCKS_BEGIN = 0x4000_0000
_LOCKS_BYTES = 512


@dataclass(frozen=True)
class Place:
    """Where the server of an address listens."""

    #: HOST:PORT, https://HOST:PORT or unix:PATH.
    target: str
    #: Another one for each server of a file that this process has found.
    serial: int = 0


def found(address: str) -> Place:
    """Returns where the server of an address listens. Starts the server of a file, if no process has the file open, and
    that of `address_on_postgres`, if it does not run.

    Raises NoLocalServer.
    """
    place = place_of(address)
    server = _server_of(place)
    return Place(place) if server is None else server.found()


def last_found(address: str) -> str:
    """Returns where the server of an address listens, as far as this process knows. Empty if it does not know."""
    place = place_of(address)
    server = _server_of(place)
    if server is None:
        return place
    return "" if server.last is None else server.last.target


def address_on_postgres(url: str) -> str:
    """Returns the address of the server of this user on a Postgres database. Starts it, if it does not run.

    The URL is passed in the environment, where other users cannot read its password. Raises NoLocalServer.
    """
    files = _files_of(url)
    if not files.listen.startswith("unix:"):
        raise NoLocalServer(f"no server can be started: the path of {files.log.parent} is too long: set TMPDIR")
    _servers.setdefault(files.listen, _PostgresServer(url)).found()
    return files.listen


def keep(address: str) -> None:
    """Keeps the server of a file running until `leave`, also while this process makes no calls."""
    if (server := _server_of(place_of(address))) is not None:
        server.keep()


def leave(address: str) -> None:
    """Ends what the last `keep` began. Without clients, the server ends after ten seconds."""
    if (server := _server_of(place_of(address))) is not None:
        server.leave()


def path_from(text: str) -> str | None:
    """Returns the absolute path, without links, of a file that `sqlite:PATH` or `sqlite:///PATH` names, as the server
    reads it. None if it names none."""
    # As in SQLAlchemy: three slashes begin a relative path, and a fourth slash makes it absolute.
    path = text.removeprefix("sqlite:///" if text.startswith("sqlite:///") else SCHEME)
    if not path or path.startswith("//") or path.endswith("/") or re.search(r"[#?\n\0]|:memory:", path):
        return None
    return os.path.realpath(path)


class _Held:
    """A call that lasts as long as the server, whose connection counts as a client."""

    def __init__(self, target: str, connection: socket.socket | None) -> None:
        self.target = target
        #: None for a server that answers no strangers: nobody has started it for this file only.
        self._connection = connection

    @property
    def lasts(self) -> bool:
        """Whether the server has neither ended nor said that it stops."""
        try:
            if self._connection is None:
                _connected(self.target).close()
                return True
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


@dataclass(frozen=True)
class _Holder:
    """The process that has a file open."""

    text: str
    #: Where it serves the file. Empty if it does not, or not yet.
    address: str


class _Server:
    """The server of one database, as this process knows it."""

    def __init__(self, database: str) -> None:
        #: What it serves: the path of a file, or the URL of a Postgres database.
        self._database = database
        self.last: Place | None = None
        self.forget()

    def forget(self) -> None:
        """Leaves the connection and the started process to the parent: a copy of the connection would keep the server
        running when the parent has ended."""
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._keepers = 0
        self._process: subprocess.Popen[bytes] | None = None

    def _name(self) -> str:
        """Returns what errors call the database."""
        raise NotImplementedError

    def _holder(self) -> _Holder | None:
        """Returns the process that serves the database, or keeps others from it. None if there is none."""
        raise NotImplementedError

    def _settings(self) -> tuple[list[str], dict[str, str]]:
        """Returns the arguments and the environment of a server besides those of all."""
        raise NotImplementedError

    def found(self) -> Place:
        with self._lock:
            if self._held is None or not self._held.lasts or self.last is None:
                self.drop()
                self._held = self._reach()
                self.last = Place(self._held.target, 1 if self.last is None else self.last.serial + 1)
            return self.last

    def keep(self) -> None:
        self.found()
        with self._lock:
            self._keepers += 1

    def leave(self) -> None:
        with self._lock:
            # A forked child leaves what its parent has begun.
            self._keepers = max(0, self._keepers - 1)
            if self._keepers == 0:
                self.drop()

    def drop(self) -> None:
        """Ends the call that keeps the server running."""
        if self._held is not None:
            self._held.close()
        self._held = None

    def _reach(self) -> _Held:
        """Returns a call to the server of the database."""
        deadline = time.monotonic() + _PATIENT_SECONDS
        log: _Log | None = None
        while True:
            holder = self._holder()
            if holder is not None and holder.address:
                held = _held_at(holder.address)
                if held is not None:
                    return held
            elif holder is None and self._has_ended(log):
                log = self._start()
            if time.monotonic() > deadline:
                raise self._unreached(holder, log)
            sleep(_POLL_SECONDS)

    def _has_ended(self, log: _Log | None) -> bool:
        """Returns whether no server of this process is starting. Raises NoLocalServer if the last one has failed."""
        process = self._process
        if process is None:
            return True
        code = process.poll()
        if code is None:
            return False
        self._process = None
        said = "" if log is None else log.said()
        # Another process was faster, and has ended since.
        was_late = "is in use by" in said or "another server uses the socket" in said
        if code > 0 and log is not None and not was_late:
            raise NoLocalServer(f"the server of {self._name()} has not started: {said or f'exit code {code}'}")
        return True

    def _start(self) -> _Log:
        """Starts a server in a session of its own, with default settings: those of this process do not count. Returns
        its log."""
        files = _files_of(self._database)
        arguments, settings = self._settings()
        command = [*_server_command(), "serve", "--listen", files.listen, *arguments]
        command += ["--exit-when-unused", str(_UNUSED_SECONDS), "--log-level", "warn"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
        log = _Log(files.log)
        with log.file as errors:
            self._process = subprocess.Popen(
                command,
                cwd=files.log.parent,
                env={**environment, **settings, "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        return log

    def _unreached(self, holder: _Holder | None, log: _Log | None) -> NoLocalServer:
        seconds, name = f"for {_PATIENT_SECONDS:.0f} s", self._name()
        if holder is None:
            seen = "" if log is None else f": see {log.path}"
            return NoLocalServer(f"the server of {name} has not started {seconds}{seen}")
        if not holder.address:
            text = (
                f"{name} is in use by {holder.text}, which serves it at no address {seconds}: wait until it has ended"
            )
        else:
            text = (
                f"{name} is in use by {holder.text}, which does not answer {seconds}: stop it, or name another database"
            )
        return NoLocalServer(text)


class _FileServer(_Server):
    """The server of a database file."""

    def _name(self) -> str:
        return self._database

    def _holder(self) -> _Holder | None:
        if not hasattr(fcntl, "F_GETLK") or sys.platform not in _FLOCK:
            raise NoLocalServer(f"the server of {self._database} cannot be started: it needs Linux or macOS")
        return _holder_of(self._database)

    def _settings(self) -> tuple[list[str], dict[str, str]]:
        return ["--database", f"{SCHEME}{self._database}"], {}


class _PostgresServer(_Server):
    """The server of this user on a Postgres database."""

    def _name(self) -> str:
        # The URL has a password.
        return "the Postgres database"

    def _holder(self) -> _Holder | None:
        listen = _files_of(self._database).listen
        try:
            _connected(listen).close()
        except OSError:
            return None
        return _Holder(f"the process at {listen}", listen)

    def _settings(self) -> tuple[list[str], dict[str, str]]:
        return [], {"DATABASE_URL": self._database}


class _Log:
    """What one server of a database writes into the log of them all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The log, to append to.
        self.file: BinaryIO = path.open("ab")
        if self.file.tell() > _LOG_BYTES:
            self.file.truncate(0)
        self._begin = self.file.seek(0, os.SEEK_END)

    def said(self) -> str:
        """Returns what was written, without line breaks."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._begin)
                return " ".join(file.read(8192).decode(errors="replace").split())
        except OSError:
            return ""


@dataclass(frozen=True)
class _Files:
    log: Path
    #: The Unix socket for the server, or any port of loopback if the path of a socket would be too long.
    listen: str


def _files_of(path: str) -> _Files:
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    folder = _private_folder()
    sock = folder / f"{name}.sock"
    fits = hasattr(socket, "AF_UNIX") and len(os.fsencode(sock)) <= _SOCKET_BYTES
    return _Files(folder / f"{name}.log", f"unix:{sock}" if fits else "127.0.0.1:0")


def _private_folder() -> Path:
    """Returns the folder of this user for sockets and logs."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime if runtime and os.access(runtime, os.W_OK) else tempfile.gettempdir()).absolute()
    folder = base / f"anabranch-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise NoLocalServer(f"no server can be started: {folder} cannot be created ({error}): set TMPDIR") from error
    # Another user could have created it, and would replace the socket.
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise NoLocalServer(
            f"no server can be started: {folder} belongs to another user, or others may enter it: set TMPDIR"
        )
    return folder


class _ServerPackage(Protocol):
    def command(self) -> list[str]: ...


def _server_command() -> list[str]:
    try:
        package = cast(_ServerPackage, importlib.import_module("anabranch_server"))
    except ModuleNotFoundError as error:
        raise NoLocalServer("the server is not installed: pip install anabranch") from error
    return package.command()


#: The type `struct flock`, and where its parts are: type, begin, length, process.
_FLOCK = {"linux": ("@hhqqi4x", (0, 2, 3, 4)), "darwin": ("@qqihh", (3, 0, 1, 2))}


def _holder_of(path: str) -> _Holder | None:
    """Returns the process that has locked a file. None if no process has."""
    pid = _locked_by(f"{path}.lock")
    if pid is None:
        return None
    try:
        text = Path(f"{path}.holder").read_text(encoding="utf-8")
    except OSError:
        text = ""
    written = _HOLDER.fullmatch(text)
    # A process writes the text when it has locked the file. 0: it has no number in this namespace of processes.
    is_its_own = written is not None and (pid in (0, int(written["pid"])) or written["host"] != socket.gethostname())
    if written is None or not is_its_own:
        return _Holder(f"process {pid}", "")
    return _Holder(text.strip(), written["address"] or "")


def _locked_by(path: str) -> int | None:
    """Returns the process that has locked a database of SQLite exclusively. None if no process has. Locks nothing."""
    layout, (kind, begin, length, process) = _FLOCK[sys.platform]
    asked = [0, 0, 0, 0, 0]
    asked[kind], asked[begin], asked[length] = fcntl.F_RDLCK, _LOCKS_BEGIN, _LOCKS_BYTES
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NoLocalServer(f"{path} cannot be read: {error}") from error
    try:
        told = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(layout, *asked)))
    finally:
        os.close(file)
    return None if told[kind] == fcntl.F_UNLCK else int(told[process])


def _held_at(address: str) -> _Held | None:
    """Returns a call to a server. None if it does not answer, or stops."""
    target = address.removeprefix("http://")
    try:
        connection = _connected(target)
    except OSError:
        return None
    if target.startswith("https://"):
        # Its certificate and its credentials are for the calls.
        connection.close()
        return _Held(target, None)
    told = b""
    try:
        connection.sendall(_WATCH)
        while _SERVING.search(told) is None:
            received = connection.recv(4096)
            told += received
            if not received or b"NOT_SERVING" in told or _REFUSED.match(told):
                connection.close()
                return _Held(target, None) if _REFUSED.match(told) else None
    except OSError:
        connection.close()
        return None
    connection.setblocking(False)
    return _Held(target, connection)


def _connected(target: str) -> socket.socket:
    if target.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_CONNECT_SECONDS)
        try:
            connection.connect(target.removeprefix("unix:"))
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = target.removeprefix("https://").rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS)


#: By the place of their addresses.
_servers: dict[str, _Server] = {}


def _server_of(place: str) -> _Server | None:
    """Returns the server of an address, if this package starts it."""
    known = _servers.get(place)
    if known is None and place.startswith(SCHEME):
        known = _servers.setdefault(place, _FileServer(place.removeprefix(SCHEME)))
    return known


def _forked() -> None:
    for server in _servers.values():
        server.drop()
        server.forget()


os.register_at_fork(after_in_child=_forked)
