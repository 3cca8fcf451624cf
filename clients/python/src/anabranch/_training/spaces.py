"""Spaces of Gymnasium: the columns that their values have in tables, and the types that their values have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anabranch._reading.columns import JSON, TEXT, Form
from anabranch._wire.kinds import is_a
from anabranch._wire.paths import format_path

if TYPE_CHECKING:
    from anabranch._wire.paths import Path

Described = dict[str, list[Any]]
"""The form of each leaf of a space, by its path: its kind and its shape."""

_ARRAYS = frozenset({"Box", "Discrete", "MultiBinary", "MultiDiscrete"})


def spaces_of(env: Any) -> dict[str, Described]:
    """Returns the forms of an environment's observations and actions, as the metadata of its episodes has them."""
    return {
        name: _described(space) for name in ("observation", "action") if (space := _space_of(env, name)) is not None
    }


def _space_of(env: Any, name: str) -> Any:
    """Returns the space of a single environment, also if `env` is a vector of them."""
    single = getattr(env, f"single_{name}_space", None)
    return getattr(env, f"{name}_space", None) if single is None else single


def _described(space: Any) -> Described:
    found: Described = {}
    _collect(space, (), found)
    return found


def _collect(space: Any, path: Path, found: Described) -> None:
    kind = type(space).__name__
    if kind == "Dict" and len(space.spaces) and all(isinstance(key, str) for key in space.spaces):
        for key, inner in space.spaces.items():
            _collect(inner, (*path, key), found)
    elif kind == "Tuple" and len(space.spaces):
        for index, inner in enumerate(space.spaces):
            _collect(inner, (*path, index), found)
    else:
        form = _form_of(space, kind)
        found[format_path(path)] = [form.kind, list(form.shape)]


def _form_of(space: Any, kind: str) -> Form:
    """Returns the form of a leaf. Values of all other spaces, which can vary in their structure, are JSON."""
    if kind in _ARRAYS and space.dtype is not None:
        return Form(space.dtype.str, tuple(space.shape))
    return TEXT if kind == "Text" else JSON


def member_of(space: Any, value: Any) -> Any:
    """Returns a value that was read as the type that its space has: graphs are named tuples."""
    kind = type(space).__name__
    if kind == "Graph" and is_a(value, tuple):
        from gymnasium.spaces import GraphInstance

        return GraphInstance(*value)
    if kind == "Dict" and is_a(value, dict):
        return {key: member_of(space.spaces.get(key), member) for key, member in value.items()}
    if kind == "Tuple" and is_a(value, tuple) and len(value) == len(space.spaces):
        return tuple(map(member_of, space.spaces, value))
    return value
