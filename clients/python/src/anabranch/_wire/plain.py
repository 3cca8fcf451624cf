"""Plain forms: what is stored of values that have a natural form in JSON but are none of its types."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from typing import Any

from anabranch._wire.kinds import Kind, is_a, kind_of, type_name


def resolved(value: Any) -> tuple[Any, Kind]:
    """Returns what is stored of a value, and how: its plain form if it has one, else the value itself."""
    plain, kind = value, kind_of(value)
    try:
        while kind is Kind.PLAIN:
            plain = _plain_form(plain)
            kind = kind_of(plain)
    except Exception:  # noqa: BLE001 - the value's own code fails
        return value, Kind.UNSUPPORTED
    return plain, kind


def sorted_members(members: Iterable[Any]) -> list[Any]:
    """Returns the members of a set, in an order that depends on them alone. Sets within it become tuples."""
    found = [resolved(member) for member in members]
    plain = [tuple(sorted_members(member)) if kind is Kind.SET else member for member, kind in found]
    try:
        return sorted(plain)
    except Exception:  # noqa: BLE001 - members of different types have no order
        return sorted(plain, key=lambda member: (type_name(member), repr(member)))


def rows_of(table: Any) -> list[Any]:
    """Returns the rows of a table as dicts, or the values of a column of Arrow."""
    for method in ("to_dicts", "to_pylist"):
        if hasattr(table, method):
            return getattr(table, method)()
    return table.to_dict("records")


def text_of_error(error: BaseException) -> str:
    """Returns the type and the text of an exception; the type alone if its own code fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the exception's own code fails
        return type(error).__name__


def _plain_form(value: Any) -> Any:
    if is_a(value, enum.Enum):
        return value.value
    if is_a(value, BaseException):
        return text_of_error(value)
    if is_a(value, os.PathLike):
        return os.fsdecode(value)
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.total_seconds() if hasattr(value, "total_seconds") else str(value)
