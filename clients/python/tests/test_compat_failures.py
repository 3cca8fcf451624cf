"""What every compat module does when a call cannot succeed: a clear error, and nothing is half done."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest
from conftest import Host, Server, free_port
from front import Front, info_of
from test_access import KeyServer

import anabranch as ab
from anabranch.compat import cua
from anabranch.compat.fle import get_db_client
from anabranch.compat.simulation_db.database import SessionLocal, init_db
from anabranch.compat.simulation_db.managers.simulation_manager import SimulationManager
from anabranch.compat.simulation_db.managers.state_manager import StateManager
from anabranch.errors import IncompatibleVersion, InvalidRequest, StepTooLarge, Unauthenticated, Unreachable


class System(Protocol):
    """How the code of one system uses its module."""

    def begin(self) -> None:
        """Makes what values are added to."""
        ...

    def add(self, value: str) -> None:
        """Stores a value, or reads the one that is stored."""
        ...

    def stored(self) -> list[str]:
        """Returns all values in order."""
        ...


class Fle:
    def begin(self) -> None:
        self.db = get_db_client()
        self.trajectory = self.db.create_trajectory("task")

    def add(self, value: str) -> None:
        self.db.save_checkpoint(self.trajectory, self.db.count_steps(self.trajectory) + 1, value, None, {"x": 1})

    def stored(self) -> list[str]:
        steps = self.db.get_trajectory_steps(self.trajectory)
        assert all(step["game_state"] == {"x": 1} for step in steps)
        return [step["agent_code"] for step in steps]


class Cua:
    """Trainings are recorded with the package, and read by the queries of CUA."""

    def begin(self) -> None:
        cua.init_database()
        self.client = ab.connect(spool=False)

    def add(self, value: str) -> None:
        cua.init_database()
        assert cua.get_training_by_run_name(cua.get_session_direct(), value) is None
        self.client.run(value, config={})
        training = cua.get_training_by_run_name(cua.get_session_direct(), value)
        assert training is not None and training.run_name == value

    def stored(self) -> list[str]:
        return sorted(run.name for run in self.client.runs())


class SimulationDb:
    def begin(self) -> None:
        init_db()
        self.session = SessionLocal()
        self.states, self.runs = StateManager(self.session), SimulationManager(self.session)
        simulation = self.runs.create_simulation("sweep", "CartPole-v1", "DQN", {})
        self.run = self.runs.create_run(simulation.id, "main", self.states.create_state("", 0))

    def add(self, value: str) -> None:
        init_db()
        state = self.states.create_state(value, self.run.total_steps + 1, self.run.current_state_id, reward=1.0)
        self.runs.add_state_to_run(self.run, state)

    def stored(self) -> list[str]:
        return [state.observation for state in self.run.get_state_sequence(self.session)[1:]]


@pytest.fixture(params=[Fle, Cua, SimulationDb])
def system(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cua, "_client", None)
    monkeypatch.setattr("anabranch._wire.access._given", {})
    return request.param()


def use(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names the server, and a namespace that no other test has."""
    monkeypatch.setenv("ANABRANCH_ADDRESS", address)
    monkeypatch.setenv("ANABRANCH_NAMESPACE", f"n{uuid.uuid4().hex}")


def begin_and_kill(system: System, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores a record on the server, and kills it."""
    use(server.address, monkeypatch)
    server.start()
    system.begin()
    system.add("a")
    server.kill()


def test_calls_wait_for_a_server_that_is_started_again(
    system: System, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_and_kill(system, own_server, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(system.add, "b")
        own_server.start()
        waiting.result()
    assert system.stored() == ["a", "b"]


def test_an_outage_beyond_the_limit_is_an_error(
    system: System, own_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin_and_kill(system, own_server, monkeypatch)
    with monkeypatch.context() as limited:
        limited.setenv("ANABRANCH_CALL_SECONDS", "0.3")
        for call in (lambda: system.add("b"), system.stored, *([] if isinstance(system, Fle) else [system.begin])):
            with pytest.raises(Unreachable, match=f"the server at {own_server.address}.* has not answered for 0 s"):
                call()
    assert "reachable again" not in caplog.text
    own_server.start()
    assert system.stored() == ["a"]
    system.add("b")
    assert system.stored() == ["a", "b"]
    assert caplog.text.count("reachable again") == 1


def test_where_no_server_has_ever_answered_the_error_names_the_setting(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(address := f"127.0.0.1:{free_port()}", monkeypatch)
    with pytest.raises(Unreachable, match=f"no server answers at {address}.*ANABRANCH_ADDRESS"):
        system.begin()


def test_a_wrong_token_is_an_error(system: System, tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = KeyServer(tmp_path, host)
    guarded.start()
    use(guarded.address, monkeypatch)
    # The file is read at each call.
    token = tmp_path / "token"
    monkeypatch.setenv("ANABRANCH_TOKEN_FILE", str(token))
    token.write_text("wrong")
    with pytest.raises(Unauthenticated, match="not .* an API key or a token that this server accepts"):
        system.begin()
    token.write_text(guarded.key_file.read_text())
    system.begin()
    token.write_text("wrong")
    with pytest.raises(Unauthenticated, match="not .* an API key or a token that this server accepts"):
        system.add("a")
    token.write_text(guarded.key_file.read_text())
    assert system.stored() == []
    guarded.kill()


@pytest.fixture
def front(server: Server) -> Iterator[Front]:
    running = Front(server)
    yield running
    running.stop()


def test_a_server_of_another_version_is_an_error(
    system: System, server: Server, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(front.address, monkeypatch)
    front.info = info_of(server, version="9.9.9")
    with pytest.raises(IncompatibleVersion, match="client version .* cannot use server version 9.9.9"):
        system.begin()
    assert front.methods == []


def test_a_value_that_is_too_large_is_an_error(system: System, front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    use(front.address, monkeypatch)
    front.info.limits["stateBytes"] = 200
    system.begin()
    with pytest.raises(
        (StepTooLarge, InvalidRequest), match=r"(agent_code|observation|name)\b.* at most 2(00|56) bytes"
    ):
        system.add("x" * 300)
    assert system.stored() == []
