"""Converts programs to steps without loss."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, cast

from anabranch._wire.values import JSON_TYPE, TEXT_TYPE
from anabranch.compat._source import Cell, Row, bytes_of, exact_text, json_of, text_of, time_of
from anabranch.v1.trajectory_pb2 import Content, Step

#: The metric with the id of a program. A later import finds by it what is stored already.
PROGRAM_ID = "program_id"

#: Longer values are data of contents, or states.
_LONG_BYTES = 64 * 1024
_METRIC_KEY_BYTES = 128
#: Columns that become states, and the names of these.
_STATES = {"state_json": "env", "conversation_json": "agent"}
#: Numbers whose sums and means have no meaning.
_NO_METRICS = ("id", "parent_id", "version", "instance", "value")


def step_of(row: Row) -> Step:
    """Returns the step of a program, without its number. `metadata_json` has the type of each column, and the values of
    columns without a field."""
    step = Step()
    if content := _content_of(row["code"]):
        step.actions.add(type="code", content=content)
    response, error_occurred = _content_of(row["response"]), meta_of(row["meta"]).error_occurred
    if response or error_occurred:
        step.observations.add(type="response", is_error=error_occurred, content=response)
    value = row["value"].value
    if isinstance(value, (int, float)):
        step.reward = value
    if created := time_of(row["created_at"]):
        step.end_time.CopyFrom(created)
    for name, cell in row.items():
        if isinstance(cell.value, (int, float)) and name not in _NO_METRICS and len(name.encode()) <= _METRIC_KEY_BYTES:
            step.metrics[name] = cell.value
    step.metrics[PROGRAM_ID] = float(row["id"].value or 0)
    step.info_json = _info_of(row["meta"])
    kept: dict[str, Any] = {}
    for name, cell in row.items():
        if name in _STATES:
            if (data := bytes_of(cell)) is not None:
                step.states.add(name=_STATES[name], data=data, media_type=JSON_TYPE)
        elif name in ("code", "response") or (name == "meta" and step.info_json):
            continue
        elif _is_long(cell):
            step.states.add(name=name, data=bytes_of(cell))
        else:
            kept[name] = json_of(cell)
    metadata = {"programs": kept, "types": {name: cell.type for name, cell in row.items()}}
    step.metadata_json = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
    return step


class Meta(NamedTuple):
    """The parts of `meta` that the import uses."""

    task_key: str | None
    process_id: str | None
    error_occurred: bool


def meta_of(cell: Cell) -> Meta:
    """Reads `meta`. Text that is not a JSON object has no parts."""
    try:
        # Python writes NaN and infinities, which JSON does not have: they name nothing.
        found: Any = json.loads(text_of(cell) or "", parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        found = None
    meta = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return Meta(_name_of(meta.get("task_key")), _name_of(meta.get("process_id")), meta.get("error_occurred") is True)


def _name_of(value: object) -> str | None:
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None


def _info_of(meta: Cell) -> str:
    """Returns `meta` byte for byte if it is JSON that the store accepts; else empty."""
    data = None if _is_long(meta) else bytes_of(meta)
    text = exact_text(data) if data else None
    try:
        json.loads(text or "", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return ""
    return text or ""


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _content_of(cell: Cell) -> Content | None:
    data = bytes_of(cell)
    if data is None:
        return None
    text = None if len(data) > _LONG_BYTES else exact_text(data)
    return Content(data=data, media_type=TEXT_TYPE) if text is None else Content(text=text)


def _is_long(cell: Cell) -> bool:
    return isinstance(cell.value, bytes) and len(cell.value) > _LONG_BYTES
