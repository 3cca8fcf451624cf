"""`anabranch.local` and `sqlite:PATH`: one server for all processes that open a file, however they and it end."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Host, Server, ServerProcess, end_server, free_port, server_of

import anabranch as ab
from anabranch import aio
from anabranch._wire import local
from anabranch.errors import AnabranchError


@pytest.fixture(autouse=True)
def database(tmp_path: Path, runtime: Path) -> Iterator[Path]:
    """The file of this test. Its server is killed after the test."""
    file = tmp_path / "runs.db"
    yield file
    end_server(file)


def address_of(file: Path) -> str:
    """Returns where the file is served."""
    holder = local._holder_of(str(file))
    assert holder is not None
    return holder.address


def until(condition: Callable[[], bool]) -> None:
    """Waits for an event. The bound is far above its time."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill_server(file: Path) -> int:
    """Kills the server of the file, and returns its process id."""
    pid = server_of(file)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: server_of(file) is None)
    return pid


def record(client: ab.Client, name: str, rewards: int = 3) -> ab.Trajectory:
    with client.trajectory(name=name) as t:
        t.reset(observation=0)
        for _ in range(rewards):
            t.step(action=1, reward=1.0)
    return t


def names(client: ab.Client) -> list[str]:
    return sorted(each.name for each in client.trajectories())


def test_a_block_serves_the_file_and_its_end_makes_all_durable(database: Path, runtime: Path) -> None:
    with ab.local(database) as client:
        assert server_of(database) is not None, "the server is healthy at the beginning of the block"
        t = record(client, "main")
    assert address_of(database).startswith(f"unix:{runtime}/")
    assert client.stats.durable == client.stats.recorded == 4
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as stored:
        assert stored.execute("select name, next_step_number from trajectories").fetchall() == [("main", 4)]
    # The client outlives its block.
    assert client.get(t.id).reward_sum == 3.0


def test_connect_starts_the_server_at_its_first_call(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(database.parent)
    client = ab.connect("sqlite:runs.db")
    assert client.address == f"sqlite:{database}"
    assert server_of(database) is None
    assert names(client) == []
    assert server_of(database) is not None


def test_what_is_only_recorded_starts_the_server_too(database: Path) -> None:
    t = record(ab.connect(f"sqlite:{database}"), "recorded")
    t.flush(60)
    assert server_of(database) is not None


def test_asyncio_has_both_forms(database: Path) -> None:
    async def main() -> None:
        async with aio.local(database) as client, client.trajectory(name="one") as t:
            t.reset(observation=0)
        async with aio.connect(f"sqlite:{database}") as client:
            assert [each.name async for each in client.trajectories()] == ["one"]

    import asyncio

    asyncio.run(main())


#: Records a trajectory in a block, prints the process of the server, and ends when its input does.
CLIENT = """
import os, re, sys
import anabranch as ab
name, file = sys.argv[1:]
with ab.local(file) as client:
    with client.trajectory(name=name) as t:
        t.reset(observation=0)
        t.step(action=1, reward=1.0)
    t.flush()
    print(re.match(r"process (\\d+) ", open(f"{file}.holder").read())[1], flush=True)
    sys.stdin.read()
"""


def begin(program: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Starts a program that ends with its input."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_processes_that_begin_at_the_same_moment_share_one_server(database: Path) -> None:
    processes = [begin(CLIENT, str(number), database) for number in range(4)]
    servers = {first_line(each) for each in processes}
    assert servers == {str(server_of(database))}
    for each in processes:
        each.communicate(timeout=60)
        assert each.returncode == 0
    with ab.local(database) as client:
        assert names(client) == ["0", "1", "2", "3"]


def test_the_server_ends_when_all_clients_were_killed(database: Path) -> None:
    processes = [begin(CLIENT, str(number), database) for number in range(2)]
    for each in processes:
        assert first_line(each) == str(server_of(database))
    began = time.monotonic()
    for each in processes:
        each.kill()
        each.communicate()
    until(lambda: server_of(database) is None)
    assert time.monotonic() - began >= local._UNUSED_SECONDS - 1
    with ab.local(database) as client:
        assert names(client) == ["0", "1"]


def test_a_process_that_has_left_its_block_does_not_keep_the_server(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_UNUSED_SECONDS", 1)
    with ab.local(database) as client:
        record(client, "main").flush()
        assert names(client) == ["main"]
    until(lambda: server_of(database) is None)


def test_after_a_kill_of_the_server_the_next_call_starts_it_again(database: Path) -> None:
    with ab.local(database) as client:
        record(client, "before").flush()
        killed = kill_server(database)
        assert names(client) == ["before"]
        assert server_of(database) not in (None, killed)


def test_streams_continue_after_a_kill_of_the_server_and_nothing_is_lost(database: Path) -> None:
    with ab.local(database) as client:
        t = client.trajectory(name="main")
        t.reset(observation=0)
        t.flush()
        seen: list[int] = []

        def follow() -> None:
            seen.extend(each.number for each in t.steps(follow=True))

        reader = threading.Thread(target=follow)
        reader.start()
        for number in range(1, 61):
            t.step(action=number, reward=1.0)
            if number % 20 == 0:
                t.flush()
                kill_server(database)
        t.seal()
        reader.join(60)
        assert seen == list(range(61))
        assert [each.number for each in t.steps()] == list(range(61))
        assert client.stats.durable == client.stats.recorded


def test_a_server_of_another_kind_is_used_and_keeps_running(database: Path, tmp_path: Path, host: Host) -> None:
    other = ServerProcess(tmp_path, host)
    other._start(["--listen", other.address, "--database", f"sqlite:{database}"])
    try:
        with ab.local(database) as client:
            record(client, "main")
        assert address_of(database) == f"http://{other.address}"
        assert names(ab.connect(other.address)) == ["main"]
        # A place that is found again after its server was started on another port.
        other._kill()
        other.port = free_port()
        other._start(["--listen", other.address, "--database", f"sqlite:{database}"])
        assert names(client) == ["main"]
        assert address_of(database) == f"http://{other.address}"
    finally:
        other._kill()


def test_an_address_that_another_database_has_now_is_not_used(database: Path, server: Server) -> None:
    database.touch()
    Path(f"{database}.lock").touch()
    holder = f"process 1 on {socket.gethostname()}, since 2026-01-01T00:00:00.000Z, at http://{server.address}\n"
    Path(f"{database}.holder").write_text(holder)
    with ab.local(database) as client:
        record(client, "here").flush()
        assert names(client) == ["here"]
    assert "here" not in names(ab.connect(server.address))


@pytest.fixture
def locked(database: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has locked the file, and serves it at no address."""
    database.touch()
    lock = f"""
import sqlite3, sys
held = sqlite3.connect({f"{database}.lock"!r}, isolation_level=None)
held.execute("begin exclusive")
print("locked", flush=True)
sys.stdin.read()
"""
    process = begin(lock)
    assert first_line(process) == "locked"
    yield process
    process.kill()
    process.communicate()


def test_a_file_that_a_process_without_an_address_holds_is_a_clear_error(
    database: Path, locked: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_PATIENT_SECONDS", 0.2)
    for attempt in (lambda: ab.local(database).__enter__(), lambda: names(ab.connect(f"sqlite:{database}"))):
        with pytest.raises(AnabranchError, match=f"is in use by process {locked.pid}, which serves it at no") as raised:
            attempt()
        assert raised.value.reason == "NO_LOCAL_SERVER"


def test_a_server_that_does_not_answer_at_its_address_is_a_clear_error(
    database: Path, locked: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_PATIENT_SECONDS", 0.2)
    address = f"http://127.0.0.1:{free_port()}"
    holder = f"process {locked.pid} on {socket.gethostname()}, since 2026-01-01T00:00:00.000Z, at {address}\n"
    Path(f"{database}.holder").write_text(holder)
    text = f"process {locked.pid} on .+, at {address}, which does not answer"
    with pytest.raises(AnabranchError, match=text), ab.local(database):
        pass


def test_a_holder_that_ends_is_waited_for(database: Path, locked: subprocess.Popen[str]) -> None:
    timer = threading.Timer(0.5, locked.kill)
    timer.start()
    with ab.local(database) as client:
        assert names(client) == []


def test_what_was_recorded_while_the_file_was_busy_is_sent_later(
    database: Path, locked: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_PATIENT_SECONDS", 0.2)
    client = ab.connect(f"sqlite:{database}")
    t = record(client, "main")
    with pytest.raises(TimeoutError):
        t.flush(2)
    locked.kill()
    t.flush(60)
    assert names(client) == ["main"]


def test_a_file_of_another_program_is_a_clear_error(database: Path) -> None:
    with sqlite3.connect(database) as other:
        other.execute("create table steps (id integer)")
    with (
        pytest.raises(AnabranchError, match="has not started: .*it holds tables of another program"),
        ab.local(database),
    ):
        pass


def test_without_the_server_the_error_names_the_package(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anabranch_server", None)
    with pytest.raises(AnabranchError, match="pip install anabranch$"), ab.local(database):
        pass


def test_where_the_path_of_a_socket_is_too_long_the_server_uses_a_port(
    database: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = runtime / ("long-" * 20)
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with ab.local(database) as client:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address_of(database))
        t = client.trajectory(name="main")
        t.reset(observation=0)
        kill_server(database)
        t.step(action=1, reward=1.0)
        t.seal()
        t.flush()
        assert names(client) == ["main"]


def test_a_database_with_a_long_path_has_a_socket_and_a_spool(tmp_path: Path, runtime: Path, spool: Path) -> None:
    folder = tmp_path / ("deep-" * 20) / ("deeper-" * 20)
    folder.mkdir(parents=True)
    file = folder / "runs.db"
    with ab.local(file) as client:
        record(client, "main")
        assert address_of(file).startswith(f"unix:{runtime}/")
        assert [len(each.name) for each in spool.iterdir()] == [255]
    end_server(file)


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_for_sockets_that_others_may_enter_is_refused(database: Path, runtime: Path, mode: int) -> None:
    folder = runtime / f"anabranch-{os.getuid()}"
    folder.mkdir()
    folder.chmod(mode)
    with (
        pytest.raises(AnabranchError, match=f"{folder} belongs to another user, or others may enter"),
        ab.local(database),
    ):
        pass


def test_settings_of_this_process_do_not_count_for_the_server(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_AUTH", "required")
    monkeypatch.setenv("DATABASE_URL", f"sqlite:{tmp_path}/other.db")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("ANABRANCH_TLS_CERT=missing.pem\n")
    with ab.local(database) as client:
        assert names(client) == []
    assert not (tmp_path / "other.db").exists()


def play(database: Path) -> None:
    record(ab.connect(f"sqlite:{database}"), "child").flush()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_share_the_server_of_their_parent(database: Path, method: str) -> None:
    with ab.local(database) as client:
        record(client, "parent").flush()
        before = server_of(database)
        child = multiprocessing.get_context(method).Process(target=play, args=(database,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert names(client) == ["child", "parent"]
        assert server_of(database) == before


@pytest.mark.parametrize("path", ["", "a/", "//a", ":memory:", "a#b", "a?b", "a\nb", "///" if sys.platform else ""])
def test_a_path_that_names_no_file_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT.* or sqlite:PATH"):
        ab.connect(f"sqlite:{path}")


@pytest.mark.parametrize("text", ["sqlite:runs.db", "sqlite:///runs.db", "sqlite:link.db", "sqlite:a/../runs.db"])
def test_the_address_is_the_absolute_path_without_links(
    text: str, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(database.parent)
    Path("link.db").symlink_to("runs.db")
    Path("a").mkdir()
    assert ab.connect(text).address == ab.connect(f"sqlite:///{database}").address == f"sqlite:{database}"
