"""`anabranch.compat.cua`: what its queries return."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import anabranch as ab
from anabranch.compat import cua


@pytest.fixture(autouse=True)
def settings(own_namespace: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cua, "_client", None)


def test_nothing_can_be_asked_before_the_database_is_initialised() -> None:
    with (
        pytest.raises(RuntimeError, match=r"Database not initialized\. Call init_database\(\) first\."),
        cua.get_session(),
    ):
        pass
    with pytest.raises(ValueError, match="Must start with 'postgresql://' or 'postgres://', got the scheme 'sqlite'"):
        cua.init_database("sqlite:///x.db")


def test_the_settings_name_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    def connect_to(database: str) -> Any:
        chosen.append(database)
        return ab.connect(spool=False)

    monkeypatch.setattr(cua, "connect_to", connect_to)
    cua.init_database()
    monkeypatch.setenv("POSTGRES_HOST", "db")
    monkeypatch.setenv("POSTGRES_PASSWORD", "a/b")
    cua.init_database()
    monkeypatch.setenv("DATABASE_URL", "postgres://user@host/name")
    cua.init_database()
    cua.init_database("postgresql://other@host/name")
    assert chosen == [
        "postgres://training_user:training_password@127.0.0.1:5432/training_db",
        "postgres://training_user:a%2Fb@db:5432/training_db",
        "postgres://user@host/name",
        "postgresql://other@host/name",
    ]


def test_what_does_not_exist_is_none_or_empty() -> None:
    cua.init_database()
    with cua.get_session() as session:
        assert cua.get_training_by_run_name(session, "none") is None
        for id in ("", "7", str(uuid.uuid4())):
            assert cua.list_rollouts_by_step(session, id) == []
            assert cua.get_status_history(session, "training", id) == []
            assert cua.get_status_history(session, "environment", id) == []
        with pytest.raises(ValueError, match="entity_type is 'group': expected one of training, step"):
            cua.get_status_history(session, "group", str(uuid.uuid4()))


def test_a_training_is_found_in_any_experiment_with_its_steps_and_history() -> None:
    client = ab.connect()
    plan = ab.Plan(train_steps=2, groups=1, group_size=1, max_turns=2)
    run = client.run("cua_rl-1", config={"learning_rate": 1e-5}, plan=plan, experiment="mine")
    for number in (1, 0):
        stage = run.stage("train_step", number)
        stage.start()
    stage.checkpoint("tinker://0")
    run.stage("eval", 0)
    run.pause("lunch")
    run.resume()
    run.complete()
    cua.init_database()
    session = cua.get_session_direct()
    training = cua.get_training_by_run_name(session, "cua_rl-1")
    assert training is not None
    assert (training.id, training.run_name, training.status, training.progress_percent) == (
        run.id,
        "cua_rl-1",
        "completed",
        100.0,
    )
    assert training.learning_rate == 1e-5
    with pytest.raises(AttributeError, match="training 'cua_rl-1' has no 'lora_rank'"):
        _ = training.lora_rank
    assert [(step.step, step.status, step.checkpoint_path) for step in training.steps] == [
        (0, "running", "tinker://0"),
        (1, "running", None),
    ]
    history = cua.get_status_history(session, "training", training.id)
    assert [(each.old_status, each.new_status) for each in history] == [
        ("running", "completed"),
        ("paused", "running"),
        ("running", "paused"),
        (None, "running"),
    ]
    assert history[2].status_message == "lunch"
    now = datetime.now(timezone.utc).replace(tzinfo=None)
    assert all(abs(each.changed_at - now) < timedelta(minutes=5) for each in history)
    assert len(cua.get_status_history(session, "training", training.id, limit=1)) == 1
    assert [each.new_status for each in cua.get_status_history(session, "step", training.steps[0].id)] == [
        "running",
        "pending",
    ]
