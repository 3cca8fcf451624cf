"""The catalogue of tasks and their validators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from anabranch._reading.listing import Listing
from anabranch._wire.outage import call
from anabranch._wire.shown import Shown
from anabranch._wire.values import ValueEncoder
from anabranch.v1 import records
from anabranch.v1.rollout_service_pb2 import (
    GetTaskRequest,
    ListTasksRequest,
    TaskUpsert,
    UpsertTasksRequest,
    ValidatorUpsert,
)

if TYPE_CHECKING:
    from anabranch._wire.connection import Connection

_BATCH = 200
_TEXTS = ("name", "description", "difficulty", "category", "app_name", "source_type")
_LISTS = ("tags", "prerequisites")


class Task(records.Task):
    """A task of the catalogue, as the server returned it."""


class Tasks(Shown):
    """The catalogue of tasks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __repr__(self) -> str:
        return f"Tasks({self._connection.address!r})"

    def put(
        self,
        tasks: Iterable[Mapping[str, Any] | str],
        *,
        validators: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Creates or updates tasks.

        A task is its id, or a dict with `id` and any of `name`, `description`, `difficulty`, `category`, `app_name`,
        `source_type`, `max_turns`, `tags`, `prerequisites`, `input` and `metadata` (values that JSON can hold). Fields
        that are absent keep their value. `validators` are put for each task: by type, dicts with any of `query`,
        `method`, `expected_result`, `config` and `advisory`. Other validators of a task are kept.
        """
        upserts = [_task_upsert({"id": task} if isinstance(task, str) else task) for task in tasks]
        for upsert in upserts:
            for kind, fields in (validators or {}).items():
                upsert.validators[kind].CopyFrom(_validator_upsert(fields))
        for start in range(0, len(upserts), _BATCH):
            request = UpsertTasksRequest(tasks=upserts[start : start + _BATCH])
            call(self._connection, lambda stubs: stubs.rollouts.UpsertTasks, request)

    def get(self, task_id: str) -> Task:
        """Returns a task. Raises TaskNotFound."""
        request = GetTaskRequest(task_id=task_id)
        return Task(call(self._connection, lambda stubs: stubs.rollouts.GetTask, request).task)

    def list(
        self, *, category: str = "", difficulty: str = "", source_type: str = "", tags: Iterable[str] = ()
    ) -> Listing[Task]:
        """Lists the tasks that match all filters that are set."""
        request = ListTasksRequest(category=category, difficulty=difficulty, source_type=source_type, tags=tags)
        return Listing(
            self._connection, lambda stubs: stubs.rollouts.ListTasks, request, lambda page: map(Task, page.tasks)
        )


def json_text(value: object, name: str) -> str:
    """Returns a value as JSON text; empty for None. Raises TypeError if JSON cannot hold it."""
    return "" if value is None else ValueEncoder(strict=True).info_json(value, name)


def _task_upsert(fields: Mapping[str, Any]) -> Any:
    upsert = TaskUpsert(id=fields["id"])
    for name, value in fields.items():
        if name in _LISTS:
            getattr(upsert, name).values.extend(value)
            getattr(upsert, name).SetInParent()
        elif name in ("input", "metadata"):
            setattr(upsert, f"{name}_json", json_text(value, name))
        elif name in (*_TEXTS, "max_turns"):
            setattr(upsert, name, value)
        elif name != "id":
            raise TypeError(f"a task has no field {name!r}")
    return upsert


def _validator_upsert(fields: Mapping[str, Any]) -> Any:
    upsert = ValidatorUpsert()
    for name, value in fields.items():
        if name == "config":
            upsert.config_json = json_text(value, name)
        elif name in ("query", "method", "expected_result", "advisory"):
            setattr(upsert, name, value)
        else:
            raise TypeError(f"a validator has no field {name!r}")
    return upsert
