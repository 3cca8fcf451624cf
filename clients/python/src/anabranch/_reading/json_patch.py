"""The difference of two JSON values."""

from __future__ import annotations

from typing import Any, cast


def json_patch(one: Any, other: Any, path: str = "") -> list[dict[str, Any]]:
    """Returns the JSON Patch (RFC 6902) that makes the other value of the first. Elements of lists are compared by index,
    between the equal ones at the beginning and at the end."""
    if isinstance(one, dict) and isinstance(other, dict):
        return _object_patch(cast("dict[str, Any]", one), cast("dict[str, Any]", other), path)
    if isinstance(one, list) and isinstance(other, list):
        return _list_patch(cast("list[Any]", one), cast("list[Any]", other), path)
    # In Python, True equals 1.
    equal = isinstance(one, bool) == isinstance(other, bool) and one == other
    return [] if equal else [_operation("replace", path, other)]


def _object_patch(one: dict[str, Any], other: dict[str, Any], path: str) -> list[dict[str, Any]]:
    patch = [{"op": "remove", "path": f"{path}/{_token(key)}"} for key in one if key not in other]
    for key, value in other.items():
        place = f"{path}/{_token(key)}"
        patch += json_patch(one[key], value, place) if key in one else [_operation("add", place, value)]
    return patch


def _list_patch(one: list[Any], other: list[Any], path: str) -> list[dict[str, Any]]:
    shorter = min(len(one), len(other))
    start = 0
    while start < shorter and not json_patch(one[start], other[start]):
        start += 1
    end = 0
    while end < shorter - start and not json_patch(one[-1 - end], other[-1 - end]):
        end += 1
    common = shorter - end
    patch = [each for i in range(start, common) for each in json_patch(one[i], other[i], f"{path}/{i}")]
    patch += [{"op": "remove", "path": f"{path}/{i}"} for i in reversed(range(common, len(one) - end))]
    patch += [_operation("add", f"{path}/{i}", other[i]) for i in range(common, len(other) - end)]
    return patch


def _operation(op: str, path: str, value: Any) -> dict[str, Any]:
    return {"op": op, "path": path, "value": value}


def _token(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
