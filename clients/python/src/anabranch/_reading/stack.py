"""Joins the values of steps into arrays."""

from __future__ import annotations

from typing import Any

from anabranch._wire.kinds import is_a
from anabranch._wire.tensors import optional


def stack(values: list[Any]) -> Any:
    """Returns an array with the values along its first axis.

    Values that are dicts with the same keys, or tuples of the same length, become a dict or tuple of arrays. Values
    that do not agree in dtype and shape become an array of objects.
    """
    numpy = optional("numpy", "to read arrays")
    first: Any = values[0] if values else None
    if is_a(first, dict) and all(is_a(value, dict) and value.keys() == first.keys() for value in values):
        return {key: stack([value[key] for value in values]) for key in first}
    if is_a(first, tuple) and all(is_a(value, tuple) and len(value) == len(first) for value in values):
        return tuple(stack([value[index] for value in values]) for index in range(len(first)))
    if not values:
        return numpy.empty(0)
    if _agree(values, numpy):
        return numpy.stack(values)
    if all(isinstance(value, (bool, int, float)) for value in values):
        return _numbers(values, numpy)
    if is_a(first, list):
        return _lists(values, numpy)
    return objects(values)


def objects(values: list[Any]) -> Any:
    """Returns an array of objects with one dimension."""
    array = optional("numpy", "to read arrays").empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def _agree(values: list[Any], numpy: Any) -> bool:
    first = values[0]
    return isinstance(first, (numpy.ndarray, numpy.generic)) and all(
        isinstance(value, (numpy.ndarray, numpy.generic)) and (value.dtype, value.shape) == (first.dtype, first.shape)
        for value in values
    )


def _numbers(values: list[Any], numpy: Any) -> Any:
    if all(isinstance(value, bool) for value in values):
        return numpy.array(values)
    if any(isinstance(value, bool) for value in values):
        return objects(values)
    exact = all(isinstance(value, int) for value in values)
    if exact and not all(-(2**63) <= value < 2**63 for value in values):
        return objects(values)
    return numpy.array(values, "int64" if exact else "float64")


def _lists(values: list[Any], numpy: Any) -> Any:
    """Lists of numbers of the same length become one array."""
    try:
        rows = [numpy.array(value) for value in values]
    except ValueError:
        return objects(values)
    numeric = all(row.dtype.kind in "bif" for row in rows)
    if numeric and len({row.shape for row in rows}) == 1:
        return numpy.stack(rows)
    return objects(values)
