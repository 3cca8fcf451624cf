"""Rollouts to create, from tuples and dicts."""

from __future__ import annotations

from typing import Any

from anabranch._wire.kinds import is_a
from anabranch.tasks import json_text

_TUPLE = ("group", "number", "task")


def new_rollout(rollout: Any) -> Any:
    from anabranch.v1.rollout_service_pb2 import NewRollout

    fields: dict[str, Any] = dict(zip(_TUPLE, rollout, strict=True) if is_a(rollout, tuple) else rollout)
    new = NewRollout(group_number=fields.pop("group"), number=fields.pop("number"))
    task = fields.pop("task", "")
    new.task_id = task if is_a(task, str) else task["id"] if is_a(task, dict) else task.id
    for name, value in fields.items():
        if name == "labels":
            new.labels.update(value)
        elif name in ("input", "metadata"):
            setattr(new, f"{name}_json", json_text(value, name))
        elif name in ("priority", "max_turns", "max_attempts", "model_uri"):
            setattr(new, name, value)
        else:
            raise TypeError(f"a rollout has no field {name!r}")
    return new
