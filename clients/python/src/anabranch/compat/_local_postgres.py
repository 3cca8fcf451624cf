"""A server of this process on a Postgres database. Postgres has as many servers as there are processes."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from anabranch._wire.errors import NoLocalServer
from anabranch._wire.local import Held, held_at, server_command

#: The server ends after this time without a client, also if this process is killed.
_UNUSED_SECONDS = 10
_PATIENT_SECONDS = 30.0
_POLL_SECONDS = 0.02

_lock = threading.Lock()
#: The servers of this process by the URL of their database, and the calls that keep them running.
_servers: dict[str, Held] = {}


def address_of(url: str) -> str:
    """Returns the address of a server on a Postgres database. Starts it, unless this process has one.

    The URL is passed in the environment, where other users cannot read its password. Raises NoLocalServer.
    """
    with _lock:
        held = _servers.get(url)
        if held is None or not held.lasts:
            held = _servers[url] = _started(url)
        return held.target


def _started(url: str) -> Held:
    folder = Path(tempfile.mkdtemp(prefix="anabranch-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    listen = f"unix:{folder / 'server.sock'}"
    command = [*server_command(), "serve", "--listen", listen, "--exit-when-unused", str(_UNUSED_SECONDS)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--log-level", "warn"],
            cwd=folder,
            env={**environment, "DATABASE_URL": url, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + _PATIENT_SECONDS
    while time.monotonic() < deadline:
        held = held_at(listen)
        if held is not None:
            return held
        if process.poll() is not None:
            break
        time.sleep(_POLL_SECONDS)
    process.kill()
    said = " ".join((folder / "server.log").read_text(errors="replace").split())
    raise NoLocalServer(f"no server has started on the Postgres database: {said or f'exit code {process.wait()}'}")


def _forked() -> None:
    """Leaves the connections to the parent: copies would keep the servers running when it has ended."""
    global _lock
    _lock = threading.Lock()
    for held in _servers.values():
        held.close()
    _servers.clear()


os.register_at_fork(after_in_child=_forked)
