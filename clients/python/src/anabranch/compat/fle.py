"""The database client of the Factorio Learning Environment: `fle.commons.db_client`.

Change only the import line:

    from anabranch.compat.fle import get_db_client

A trajectory has the steps 1, 2, 3, … without gaps. In Anabranch they follow an empty step 0, which is not counted.
A call returns when its data is durable. Ids of trajectories are UUIDs as text; another id is that of no trajectory.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from google.protobuf.timestamp_pb2 import Timestamp

from anabranch._reading.read import status_name
from anabranch._recording.digest import step_digest
from anabranch._wire.decode import decode_content, decode_json, state_of
from anabranch._wire.kinds import is_a
from anabranch._wire.outage import call, pages
from anabranch.compat._settings import beside, connect_to, postgres_url, setting
from anabranch.compat._strict import (
    append_step,
    float_of,
    integer_of,
    is_uuid,
    put_state,
    state_of_value,
    store_large_parts,
)
from anabranch.episodes import Step, steps_of
from anabranch.errors import CheckpointNotFound, StepConflict, StepGap, TrajectoryExists, TrajectoryNotFound
from anabranch.trajectory import step_number as number_of
from anabranch.v1.status_pb2 import STATUS_CANCELLED, STATUS_COMPLETED, STATUS_FAILED, STATUS_RUNNING
from anabranch.v1.trajectory_pb2 import VIEW_BASIC, VIEW_FULL, Content, StepState
from anabranch.v1.trajectory_pb2 import Step as StepMessage
from anabranch.v1.trajectory_service_pb2 import (
    AttachStateRequest,
    CreateTrajectoryRequest,
    GetCheckpointRequest,
    GetTrajectoryRequest,
    ListTrajectoriesRequest,
    Seal,
    SealTrajectoryRequest,
)

if TYPE_CHECKING:
    from anabranch.client import Client
    from anabranch.v1.trajectory_pb2 import Action, Observation, Trajectory

__all__ = ["DBClient", "PostgreSQLClient", "SQLiteClient", "get_db_client"]

_STATE = "env"
#: Keys of a step that have a place in Anabranch. Others are kept as they are.
_KNOWN = frozenset(
    {"id", "trajectory_id", "step_number", "agent_code", "environment_feedback", "game_state", "reward", "timestamp"}
)
#: The key of the metadata of a step that has other keys of `step_data`, and the label of a step that got its number
#: when it was stored.
_OTHERS, _CALL = "step_data", "fle.call"
#: Labels of an imported trajectory, with the times that it had.
_START, _END = "fle.start_time", "fle.end_time"
_SEALS = {"completed": STATUS_COMPLETED, "failed": STATUS_FAILED, "cancelled": STATUS_CANCELLED}
#: Statements that the server needs nobody to send.
_UPKEEP = re.compile(r"\s*(PRAGMA|ANALYZE|VACUUM|CREATE\s+(UNIQUE\s+)?INDEX|REINDEX)\b", re.IGNORECASE)


def get_db_client() -> DBClient:
    """Returns the client that the settings name.

    FLE_DB_TYPE is `sqlite` (the default) or `postgres`. With `sqlite`, SQLITE_DB_FILE names the file of FLE, by default
    `.fle/data.db`. With `postgres`, SKILLS_DB_HOST, SKILLS_DB_PORT, SKILLS_DB_NAME, SKILLS_DB_USER and
    SKILLS_DB_PASSWORD are required. Raises ValueError for another type and for missing settings.
    """
    kind = setting("FLE_DB_TYPE", "sqlite").lower()
    if kind == "sqlite":
        return SQLiteClient(setting("SQLITE_DB_FILE", ".fle/data.db"))
    if kind != "postgres":
        raise ValueError(f"Invalid database type: FLE_DB_TYPE is {kind!r}, expected sqlite or postgres")
    names = [f"SKILLS_DB_{part}" for part in ("HOST", "PORT", "NAME", "USER", "PASSWORD")]
    host, port, database, user, password = map(setting, names)
    missing = [name for name in names if not setting(name)]
    if missing and not setting("ANABRANCH_ADDRESS"):
        raise ValueError(f"FLE_DB_TYPE is postgres: expected also {', '.join(missing)}")
    return PostgreSQLClient(host, port, database, user, password)


class DBClient:
    """A client of trajectories with steps and game states. Threads and processes can share trajectories: no step is
    lost, and each has a number of its own."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connection = client.connection

    # Trajectories

    def create_trajectory(self, task_id: str, metadata: object = None) -> str:
        """Creates a trajectory and returns its id.

        `task_id` has at most 256 bytes, `metadata` at most 512 KiB as JSON. Raises InvalidRequest and ValueError for
        more, and TypeError for metadata that JSON cannot hold.
        """
        created = self._creation(str(uuid.uuid4()), task_id, metadata)
        call(self._connection, lambda stubs: stubs.trajectories.CreateTrajectory, created)
        return created.trajectory_id

    def get_trajectory(self, trajectory_id: str) -> dict[str, Any] | None:
        """Returns a trajectory; None if there is none with this id.

        It has `id`, `task_id`, `start_time`, `end_time` (None until it has ended), `status` (`running`, `completed`,
        `failed` or `cancelled`) and `metadata` (None without). Times are datetimes in UTC.
        """
        found = self._find(trajectory_id)
        return None if found is None else _trajectory_of(found)

    def get_all_trajectories(self) -> list[dict[str, Any]]:
        """Returns all trajectories, the oldest first, each as `get_trajectory` does."""
        return [_trajectory_of(each) for each in self._list("")]

    def get_task_trajectories(self, task_id: str) -> list[dict[str, Any]]:
        """Returns the trajectories of a task, the oldest first, each as `get_trajectory` does."""
        return [_trajectory_of(each) for each in self._list(task_id)] if task_id else []

    def trajectory_exists(self, trajectory_id: str) -> bool:
        """Returns whether there is a trajectory with this id."""
        return self._find(trajectory_id) is not None

    def delete_trajectory(self, trajectory_id: str) -> None:
        """Deletes a trajectory with its steps and game states. Branches of it keep the steps that they share. No
        effect if there is none with this id."""
        if is_uuid(trajectory_id):
            with suppress(TrajectoryNotFound):
                self._client.delete(trajectory_id, branches="keep_shared")

    # Steps

    def save_step(self, trajectory_id: str, step_data: Mapping[str, Any]) -> int:
        """Saves a step and returns its number.

        `step_data` can have `step_number` (default: the next one), `agent_code`, `environment_feedback`, `game_state`,
        `reward` (a number), `timestamp` (a datetime or ISO text; default: the time when the step is stored), and other
        keys, which are stored as plain JSON. All are optional. A step without a game state is no checkpoint until
        `save_checkpoint` is called with the same number.

        No effect if the same step is saved under this number. Raises StepConflict if another one is, StepGap if the
        step before it is missing, TrajectoryNotFound, ValueError for a number below 1, TypeError for a value that
        cannot be stored and StepTooLarge for one that is too large. Nothing is saved then.
        """
        data = dict(step_data)
        if data.get("trajectory_id", trajectory_id) != trajectory_id:
            raise ValueError(f"step_data names trajectory {data['trajectory_id']!r}: expected {trajectory_id!r}")
        number = data.get("step_number")
        if number is not None:
            return self._save(trajectory_id, self._message(number_of(number, "step_number", trajectory_id), data))
        step = self._message(1, data)
        # Processes may save equal steps at the same moment. A name of its own tells each from the others.
        step.labels[_CALL] = str(uuid.uuid4())
        while True:
            step.step_number = max(1, self._require(trajectory_id).next_step_number)
            with suppress(StepConflict, StepGap):
                append_step(self._connection, trajectory_id, step)
                return step.step_number

    def save_checkpoint(
        self,
        trajectory_id: str,
        step_number: int,
        agent_code: object = None,
        environment_feedback: object = None,
        game_state: object = None,
    ) -> None:
        """Saves a step with its game state, both or neither. `game_state` has at most 256 MiB; text and bytes are stored
        as they are.

        If `save_step` has saved the same step, the game state is added to it. Raises what `save_step` raises, and
        StateConflict if the step has another game state.
        """
        data = {"agent_code": agent_code, "environment_feedback": environment_feedback, "game_state": game_state}
        self._save(trajectory_id, self._message(number_of(step_number, "step_number", trajectory_id), data))

    def get_trajectory_steps(self, trajectory_id: str) -> list[dict[str, Any]]:
        """Returns the steps of a trajectory in order; none if there is no such trajectory.

        A step has `id`, `trajectory_id`, `step_number`, `agent_code`, `environment_feedback`, `game_state` (None
        without) and `timestamp` (a datetime in UTC), and what else `save_step` was given.
        """
        if not self.count_steps(trajectory_id):
            return []
        return [_step_of(trajectory_id, step) for step in steps_of(self._connection, trajectory_id, 1)]

    def count_steps(self, trajectory_id: str) -> int:
        """Returns the number of steps of a trajectory; 0 if there is no such trajectory."""
        found = self._find(trajectory_id, VIEW_BASIC)
        return 0 if found is None else max(0, found.next_step_number - 1)

    # Checkpoints

    def get_checkpoint(self, trajectory_id: str, step_number: int) -> dict[str, Any] | None:
        """Returns a step that has a game state, as `get_trajectory_steps` does; None if there is none with this
        number. Raises TypeError for what is no number."""
        number = integer_of(step_number, "step_number")
        if not 0 < number <= self.count_steps(trajectory_id):
            return None
        found = _step_of(trajectory_id, self._step(trajectory_id, number))
        return found if found["game_state"] is not None else None

    def get_latest_checkpoint(self, trajectory_id: str) -> dict[str, Any] | None:
        """Returns the step with the highest number that has a game state, as `get_trajectory_steps` does; None if
        there is none."""
        if not is_uuid(trajectory_id):
            return None
        request = GetCheckpointRequest(trajectory_id=trajectory_id, state_names=[_STATE])
        try:
            latest = call(self._connection, lambda stubs: stubs.trajectories.GetCheckpoint, request).step
        except (TrajectoryNotFound, CheckpointNotFound):
            return None
        return self.get_checkpoint(trajectory_id, latest.step_number) if latest.step_number else None

    # Copies

    def export_all(self) -> list[dict[str, Any]]:
        """Returns all trajectories as `get_all_trajectories` does, each with its `steps`. Everything is in memory."""
        return [{**each, "steps": self.get_trajectory_steps(each["id"])} for each in self.get_all_trajectories()]

    def import_all(self, trajectories: Iterable[Mapping[str, Any]]) -> None:
        """Stores trajectories that `export_all` has returned, with their ids, order, times and statuses.

        What is stored already is not stored again, so that an interrupted import can be repeated. Raises StepConflict
        if a trajectory with the same id has other steps.
        """
        for each in trajectories:
            self._import(each)

    def execute(self, statement: str) -> None:
        """Accepts PRAGMA, ANALYZE, VACUUM and CREATE INDEX, which have no effect: the server does what they are for.
        Raises NotImplementedError for other statements."""
        if not _UPKEEP.match(statement):
            words = " ".join(statement.split()[:2])
            raise NotImplementedError(f"{words!r} is not executed: read with the methods of this client")

    def close(self) -> None:
        """Closes the connection. The next call connects again."""
        self._client.close()

    # Details

    def _creation(self, id: str, task_id: str, metadata: object) -> CreateTrajectoryRequest:
        request = CreateTrajectoryRequest(trajectory_id=id, request_id=str(uuid.uuid4()), task_id=task_id)
        request.metadata_json = self._client.metadata_json(metadata)
        request.root.SetInParent()
        return request

    def _find(self, trajectory_id: str, view: Any = VIEW_FULL) -> Trajectory | None:
        with suppress(TrajectoryNotFound):
            return self._require(trajectory_id, view) if is_uuid(trajectory_id) else None
        return None

    def _require(self, trajectory_id: str, view: Any = VIEW_BASIC) -> Trajectory:
        """Returns a trajectory. Raises TrajectoryNotFound."""
        request = GetTrajectoryRequest(trajectory_id=_checked(trajectory_id), view=view)
        return call(self._connection, lambda stubs: stubs.trajectories.GetTrajectory, request).trajectory

    def _list(self, task_id: str) -> Iterator[Trajectory]:
        request = ListTrajectoriesRequest(task_id=task_id, view=VIEW_FULL, ascending=True, page_size=1000)
        for page in pages(self._connection, lambda stubs: stubs.trajectories.ListTrajectories, request):
            yield from page.trajectories

    def _step(self, trajectory_id: str, number: int) -> Step:
        (step,) = steps_of(self._connection, trajectory_id, number, number + 1)
        return step

    def _message(self, number: int, data: Mapping[str, Any]) -> StepMessage:
        """Returns a step to store. Raises TypeError, ValueError and StepTooLarge."""
        if number < 1:
            raise ValueError(f"step_number is {number}: expected 1 or above")
        values, step = self._client.values, StepMessage(step_number=number)
        if data.get("agent_code") is not None:
            values.set_content(step.actions.add(type="code").content, data["agent_code"], "agent_code")
        if data.get("environment_feedback") is not None:
            content = step.observations.add(type="response").content
            values.set_content(content, data["environment_feedback"], "environment_feedback")
        if data.get("reward") is not None:
            step.reward = float_of(data["reward"], "reward")
        if data.get("timestamp") is not None:
            step.end_time.CopyFrom(_timestamp_of(data["timestamp"]))
        if data.get("game_state") is not None:
            state, media_type = state_of_value(values, data["game_state"], "game_state")
            step.states.add(name=_STATE, data=state, media_type=media_type)
        if others := {key: value for key, value in data.items() if key not in _KNOWN}:
            step.metadata_json = values.info_json({_OTHERS: others}, "step_data")
        return step

    def _save(self, trajectory_id: str, step: StepMessage) -> int:
        """Stores a step under its number, or its game state if the step without it is stored there."""
        given = StepMessage()
        given.CopyFrom(step)
        try:
            append_step(self._connection, _checked(trajectory_id), step)
        except StepConflict:
            # As `save_step` has stored it.
            store_large_parts(self._connection, without_states := _without_states(given))
            if not _same(self._step(trajectory_id, given.step_number).message, without_states):
                raise
            for state in given.states:
                self._attach(trajectory_id, given.step_number, state)
        return given.step_number

    def _attach(self, trajectory_id: str, number: int, state: StepState) -> None:
        """Adds a game state to a step. No effect if the step has it."""
        request = AttachStateRequest(trajectory_id=trajectory_id, step_number=number, state=state)
        if len(state.data) > self._client.values.limits["inlineStateBytes"]:
            put_state(self._connection, state.data)
            request.state.digest = sha256(state.data).hexdigest()
            request.state.ClearField("data")
        call(self._connection, lambda stubs: stubs.trajectories.AttachState, request)

    def _import(self, trajectory: Mapping[str, Any]) -> None:
        id = trajectory["id"]
        created = self._creation(id, trajectory["task_id"], trajectory.get("metadata"))
        for label, key in ((_START, "start_time"), (_END, "end_time")):
            if trajectory.get(key) is not None:
                created.labels[label] = _timestamp_of(trajectory[key]).ToJsonString()
        with suppress(TrajectoryExists):
            call(self._connection, lambda stubs: stubs.trajectories.CreateTrajectory, created)
        for step in trajectory["steps"]:
            self._save(id, self._message(number_of(step["step_number"], "step_number", id), step))
        if (status := _SEALS.get(trajectory["status"])) and self._require(id).status == STATUS_RUNNING:
            request = SealTrajectoryRequest(trajectory_id=id, seal=Seal(status=status))
            call(self._connection, lambda stubs: stubs.trajectories.SealTrajectory, request)


class SQLiteClient(DBClient):
    """The client for an SQLite file of FLE, by default `.fle/data.db`.

    The file itself is neither read nor written: the data is in `data.anabranch.db` beside it. If the file has programs
    of FLE, a warning says once how to import them.
    """

    def __init__(self, db_file: str = ".fle/data.db") -> None:
        super().__init__(connect_to(beside(str(db_file), "FLE", "programs")))


class PostgreSQLClient(DBClient):
    """The client for a Postgres database. Tables of FLE in it are neither read nor written."""

    def __init__(
        self,
        host: str = "localhost",
        port: int | str = 5432,
        database: str = "fle_database",
        user: str = "fle_user",
        password: str = "",
    ) -> None:
        super().__init__(connect_to(postgres_url(host, port, database, user, password)))


def _trajectory_of(message: Trajectory) -> dict[str, Any]:
    end = message.labels.get(_END) or (message.seal_time.ToJsonString() if message.HasField("seal_time") else "")
    return {
        "id": message.id,
        "task_id": message.task_id,
        "start_time": _datetime_of(message.labels.get(_START) or message.create_time.ToJsonString()),
        "end_time": _datetime_of(end) if end else None,
        "status": status_name(message.status),
        "metadata": decode_json(message.metadata_json) if message.metadata_json else None,
    }


def _step_of(trajectory_id: str, step: Step) -> dict[str, Any]:
    message = step.message
    time = message.end_time if message.HasField("end_time") else message.commit_time
    found: dict[str, Any] = {
        "id": f"{trajectory_id}@{step.number}",
        "trajectory_id": trajectory_id,
        "step_number": step.number,
        "agent_code": _first(step, message.actions),
        "environment_feedback": _first(step, message.observations),
        "game_state": _game_state(step),
        "timestamp": time.ToDatetime(timezone.utc),
    }
    if step.reward is not None:
        found["reward"] = step.reward
    metadata: Any = decode_json(message.metadata_json) if message.metadata_json else None
    return found | (metadata.get(_OTHERS) or {} if is_a(metadata, dict) else {})


def _first(step: Step, items: Sequence[Action] | Sequence[Observation]) -> Any:
    content = items[0].content if items and items[0].HasField("content") else None
    return None if content is None else decode_content(content, step.blob)


def _game_state(step: Step) -> Any:
    """Returns the game state of a step; None without, and if retention has removed it."""
    state = state_of(step.message, _STATE)
    if state is None or state.HasField("pruned_time"):
        return None
    return decode_content(Content(data=step.state(_STATE), media_type=state.media_type), step.blob)


def _same(stored: StepMessage, given: StepMessage) -> bool:
    """Returns whether a stored step has what is given, apart from states."""
    stored = _without_states(stored)
    # The name of a step that got its number when it was stored.
    stored.labels.clear()
    if given.HasField("end_time"):
        time = stored.end_time if stored.HasField("end_time") else stored.commit_time
        stored.end_time.CopyFrom(time)
    else:
        stored.ClearField("end_time")
    if not given.HasField("reward"):
        stored.ClearField("reward")
    if not given.metadata_json:
        stored.metadata_json = ""
    return step_digest(stored) == step_digest(given)


def _without_states(step: StepMessage) -> StepMessage:
    copy = StepMessage()
    copy.CopyFrom(step)
    copy.ClearField("states")
    return copy


def _checked(trajectory_id: str) -> str:
    """Returns the id of a trajectory. Raises TrajectoryNotFound for what is none."""
    if not is_uuid(trajectory_id):
        message, metadata = f"trajectory {trajectory_id!r} does not exist", {"trajectory_id": str(trajectory_id)}
        raise TrajectoryNotFound(message, reason="TRAJECTORY_NOT_FOUND", metadata=metadata)
    return trajectory_id


def _timestamp_of(time: datetime | str) -> Timestamp:
    """Returns a time: a datetime or ISO text, in UTC unless it says otherwise. Raises ValueError and TypeError."""
    found = datetime.fromisoformat(time.replace("Z", "+00:00")) if isinstance(time, str) else time
    stamp = Timestamp()
    stamp.FromDatetime(found if found.tzinfo else found.replace(tzinfo=timezone.utc))
    return stamp


def _datetime_of(text: str) -> datetime:
    stamp = Timestamp()
    stamp.FromJsonString(text)
    return stamp.ToDatetime(timezone.utc)
