"""The queries of the CUA RL database: `tinker_cookbook.recipes.cua_rl.database` and `.database_dao`.

Change only the import lines:

    from anabranch.compat.cua import init_database, get_session
    from anabranch.compat.cua import get_training_by_run_name, list_rollouts_by_step, get_status_history

A training is a run, a step a stage of the kind `train_step`. Ids are UUIDs as text, times are in UTC without a time
zone. `docs/coming-from.md` names the calls of the package for what records trainings.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from anabranch._reading.read import status_name
from anabranch._wire.decode import decode_json
from anabranch._wire.outage import call, pages
from anabranch.compat._settings import ask_server, connect_to, postgres_url, setting
from anabranch.compat._strict import integer_of, is_uuid
from anabranch.errors import EnvironmentNotFound, RolloutNotFound, RunNotFound, StageNotFound
from anabranch.v1.rollout_service_pb2 import ListRolloutsRequest
from anabranch.v1.run_pb2 import STAGE_KIND_TRAIN_STEP
from anabranch.v1.run_service_pb2 import (
    STAGE_ORDER_NUMBER,
    ListRunsRequest,
    ListStagesRequest,
    ListStatusChangesRequest,
)
from anabranch.v1.trajectory_pb2 import VIEW_FULL

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from anabranch._wire.connection import Connection
    from anabranch.client import Client
    from anabranch.v1.rollout_pb2 import Rollout as RolloutMessage
    from anabranch.v1.run_pb2 import Stage
    from anabranch.v1.run_service_pb2 import RunWithProgress
    from anabranch.v1.status_pb2 import StatusChange

__all__ = [
    "Rollout",
    "Session",
    "StatusHistory",
    "Step",
    "Training",
    "get_session",
    "get_session_direct",
    "get_status_history",
    "get_training_by_run_name",
    "init_database",
    "list_rollouts_by_step",
]

_client: Client | None = None
_PAGE = 1000
#: The field of ListStatusChanges for each type of an entity.
_ENTITIES = {
    "training": "run_id",
    "step": "stage_id",
    "eval": "stage_id",
    "baseline": "stage_id",
    "rollout": "rollout_id",
    "environment": "environment_id",
}


def init_database(db_url: str | None = None, echo: bool = False) -> None:
    """Connects to the store. The other functions can be called then.

    `db_url` is that of a Postgres; the default is DATABASE_URL, else POSTGRES_HOST (127.0.0.1), POSTGRES_PORT (5432),
    POSTGRES_DB (training_db), POSTGRES_USER (training_user) and POSTGRES_PASSWORD (training_password). `echo` has no
    effect. Raises ValueError for another URL, and Unreachable if no server answers.
    """
    global _client
    url = db_url or setting("DATABASE_URL") or _url_of_parts()
    if not url.startswith(("postgresql://", "postgres://")):
        scheme = url.partition(":")[0]
        raise ValueError(
            f"Invalid database URL. Must start with 'postgresql://' or 'postgres://', got the scheme {scheme!r}"
        )
    client = connect_to(url)
    ask_server(client)
    _client = client


def _url_of_parts() -> str:
    return postgres_url(
        setting("POSTGRES_HOST", "127.0.0.1"),
        setting("POSTGRES_PORT", "5432"),
        setting("POSTGRES_DB", "training_db"),
        setting("POSTGRES_USER", "training_user"),
        setting("POSTGRES_PASSWORD", "training_password"),
    )


class Session:
    """What the queries take as their first argument. Each query reads what is durable when it is called, so that
    nothing is to be committed or rolled back."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def get_session() -> Generator[Session, None, None]:
    """Yields a session. Raises RuntimeError before `init_database`."""
    yield get_session_direct()


def get_session_direct() -> Session:
    """Returns a session. Raises RuntimeError before `init_database`."""
    if _client is None:
        raise RuntimeError("Database not initialized. Call init_database() first.")
    return Session(_client.connection)


class Training:
    """A training as it was read."""

    def __init__(self, connection: Connection, read: RunWithProgress) -> None:
        self._connection = connection
        run = read.run
        self.id: str = run.id
        self.run_name: str = run.name
        #: `pending`, `initializing`, `running`, `paused`, `completed`, `failed` or `cancelled`.
        self.status: str = status_name(run.status)
        #: 0 to 100, computed from the plan of the run and what is stored; 0 without a plan.
        self.progress_percent: float = read.progress.percent
        self.current_phase: str | None = run.phase or None
        self.status_message: str | None = run.status_message or None
        #: The hyperparameters, as JSON text.
        self.config_json: str | None = run.config_json or None
        self.start_time = _time_of(run, "start_time")
        self.end_time = _time_of(run, "end_time")
        self.last_heartbeat = _time_of(run, "heartbeat_time")
        self.created_at = _time_of(run, "create_time")
        self.updated_at = _time_of(run, "update_time")

    @functools.cached_property
    def steps(self) -> list[Step]:
        """The training steps by their number, read once."""
        request = ListStagesRequest(run_id=self.id, kinds=[STAGE_KIND_TRAIN_STEP], order=STAGE_ORDER_NUMBER)
        request.page_size, request.view = _PAGE, VIEW_FULL
        found = pages(self._connection, lambda stubs: stubs.runs.ListStages, request)
        return [Step(stage) for page in found for stage in page.stages]

    def __getattr__(self, name: str) -> Any:
        """Returns a hyperparameter, such as `learning_rate`: a key of the config."""
        config: Any = {} if name.startswith("_") else decode_json(self.config_json or "{}")
        if name in config:
            return config[name]
        raise AttributeError(
            f"training {self.run_name!r} has no {name!r}: it is neither a field nor a key of its config"
        )

    def __repr__(self) -> str:
        return f"Training({self.run_name!r}, {self.status})"


class Step:
    """A training step as it was read."""

    def __init__(self, stage: Stage) -> None:
        self.id: str = stage.id
        self.training_id: str = stage.run_id
        #: The number: 0, 1, 2, …
        self.step: int = stage.number
        self.batch: int | None = stage.batch if stage.HasField("batch") else None
        #: As in `Training`, without `paused`. `current_phase` has what CUA calls `rollout_running` and the like.
        self.status: str = status_name(stage.status)
        self.current_phase: str | None = stage.phase or None
        self.status_message: str | None = stage.status_message or None
        self.model_path: str | None = stage.model_uri or None
        self.checkpoint_path: str | None = stage.model_checkpoint_uri or None
        #: Named numbers, such as `loss`.
        self.metrics: dict[str, float] = dict(stage.metrics)
        self.start_time = _time_of(stage, "start_time")
        self.end_time = _time_of(stage, "end_time")
        self.created_at = _time_of(stage, "create_time")
        self.updated_at = _time_of(stage, "update_time")

    def __repr__(self) -> str:
        return f"Step({self.step}, {self.status})"


class Rollout:
    """A rollout as it was read: that of its last attempt."""

    def __init__(self, rollout: RolloutMessage) -> None:
        self.id: str = rollout.id
        self.rollout_id: str = rollout.id
        self.step_id: str = rollout.stage_id
        self.group_id: str = rollout.group_id
        self.group_num: int = rollout.group_number
        #: Number in the group.
        self.env_index: int = rollout.number
        self.task_id: str = rollout.task_id
        self.model_path: str = rollout.model_uri
        #: As in `Training`, without `paused`.
        self.status: str = status_name(rollout.status)
        self.current_phase: str | None = rollout.phase or None
        self.status_message: str | None = rollout.status_message or None
        #: Number of turns so far.
        self.num_turns: int = rollout.turns
        self.max_turns: int | None = rollout.max_turns if rollout.HasField("max_turns") else None
        self.reward: float | None = rollout.reward if rollout.HasField("reward") else None
        #: The verdict; None if the rollout is not judged.
        self.task_success: bool | None = rollout.success if rollout.HasField("success") else None
        self.validation_passed: bool | None = (
            rollout.validation_passed if rollout.HasField("validation_passed") else None
        )
        self.start_time = _time_of(rollout, "start_time")
        self.end_time = _time_of(rollout, "end_time")
        self.created_at = _time_of(rollout, "create_time")
        self.updated_at = _time_of(rollout, "update_time")

    def __repr__(self) -> str:
        return f"Rollout({self.rollout_id!r}, {self.status})"


class StatusHistory:
    """A change of a status."""

    def __init__(self, entity_type: str, entity_id: str, change: StatusChange) -> None:
        self.entity_type = entity_type
        self.entity_id = entity_id
        #: None for the creation.
        self.old_status: str | None = status_name(change.old_status) if change.old_status else None
        self.new_status: str = status_name(change.new_status)
        #: 0 to 100; None if it is not known.
        self.progress_percent: float | None = change.progress_percent if change.HasField("progress_percent") else None
        self.status_message: str | None = change.message or None
        self.metadata_json: str | None = change.metadata_json or None
        self.changed_at: datetime = change.change_time.ToDatetime()

    def __repr__(self) -> str:
        return f"StatusHistory({self.old_status} -> {self.new_status})"


def get_training_by_run_name(session: Session, run_name: str) -> Training | None:
    """Returns the training with this name, of several the newest; None if there is none."""
    if not run_name:
        return None
    request = ListRunsRequest(name=run_name, page_size=1, view=VIEW_FULL)
    runs = call(session.connection, lambda stubs: stubs.runs.ListRuns, request).runs
    return Training(session.connection, runs[0]) if runs else None


def list_rollouts_by_step(session: Session, step_id: str) -> list[Rollout]:
    """Returns the rollouts of a step by group, then by number; none if there is no step with this id."""
    if not is_uuid(step_id):
        return []
    request = ListRolloutsRequest(stage_id=step_id, page_size=_PAGE)
    with suppress(StageNotFound):
        found = pages(session.connection, lambda stubs: stubs.rollouts.ListRollouts, request)
        return [Rollout(rollout) for page in found for rollout in page.rollouts]
    return []


def get_status_history(
    session: Session, entity_type: str, entity_id: str, limit: int | None = None
) -> list[StatusHistory]:
    """Returns the changes of a status, the newest first, at most `limit` (default: all); none if there is no such
    entity.

    `entity_type` is `training`, `step`, `eval`, `baseline`, `rollout` or `environment`. Raises ValueError for another
    one: the status of a group follows from its rollouts and has no history.
    """
    field = _ENTITIES.get(entity_type)
    if field is None:
        raise ValueError(f"entity_type is {entity_type!r}: expected one of {', '.join(_ENTITIES)}")
    if not is_uuid(entity_id):
        return []
    request = ListStatusChangesRequest(page_size=_PAGE)
    setattr(request, field, entity_id)
    with suppress(RunNotFound, StageNotFound, RolloutNotFound, EnvironmentNotFound):
        found = pages(session.connection, lambda stubs: stubs.runs.ListStatusChanges, request)
        changes = [StatusHistory(entity_type, entity_id, change) for page in found for change in page.changes]
        return changes if limit is None else changes[: integer_of(limit, "limit")]
    return []


def _time_of(message: Any, field: str) -> datetime | None:
    """Returns a time in UTC; None if it is not set."""
    if not message.HasField(field):
        return None
    time: Timestamp = getattr(message, field)
    return time.ToDatetime()
