"""The columns of the actions and observations of steps, and the forms of their values.

What was recorded decides them: the spaces in the metadata of an episode (`anabranch.gym`), the turns of a conversation,
and the values of all other steps. So a selection has one set of columns, whichever episode comes first.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from anabranch._reading.turn import action_of, is_conversation, observation_of
from anabranch._wire.decode import Undecodable, decode_content, decode_json, no_states
from anabranch._wire.kinds import Kind, is_a, kind_of
from anabranch._wire.paths import Path, format_path, parse_path
from anabranch._wire.tensors import optional
from anabranch._wire.values import JSON_TYPE, SURROGATES_TYPE, TEXT_TYPE, TUPLES_TYPE, VALUE_TYPE

if TYPE_CHECKING:
    from anabranch._wire.decode import Decode
    from anabranch.v1.trajectory_pb2 import Content, Step

_PURPOSE = "for tables of steps"
_ROOTS = ("action", "observation")
#: Values with more members are not split: their keys are data.
_MOST_COLUMNS = 1000


class Form(NamedTuple):
    """What a column has: arrays of a dtype and a shape (numbers have no dimension), or what a word names."""

    kind: str
    shape: tuple[int, ...] = ()

    @property
    def is_array(self) -> bool:
        return self.kind[0] in "<>|"


TEXT, BYTES, JSON = Form("text"), Form("bytes"), Form("json")
TOOL_CALLS, TOOL_RESULTS = Form("tool_calls"), Form("tool_results")
_SCALARS: dict[type, Form] = {bool: Form("|b1"), int: Form("<i8"), float: Form("<f8"), str: TEXT, bytes: BYTES}

Forms = Mapping[str, Form]
_OF_CONVERSATIONS: Forms = {
    "action.text": TEXT,
    "action.tool_calls": TOOL_CALLS,
    "action.messages": JSON,
    "observation.messages": JSON,
    "observation.tool_results": TOOL_RESULTS,
}


class Columns:
    """The columns of the actions and observations of a selection. All of its steps must be added."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Form | None]] = {root: {} for root in _ROOTS}
        #: Columns whose values are not split.
        self._whole: set[str] = set()

    @functools.cached_property
    def forms(self) -> dict[str, Form]:
        """The form of each column, those of actions first. A column whose values say nothing is JSON."""
        return {
            name: form or JSON
            for root in _ROOTS
            for name, form in (self._found[root] or {root: None}).items()
            if name in _OF_CONVERSATIONS or not any(name.startswith((f"{each}.", f"{each}[")) for each in self._whole)
        }

    def add(self, metadata_json: str, steps: Iterable[Step]) -> None:
        """Adds the columns of an episode. Reads none of the states that its contents name."""
        self.__dict__.pop("forms", None)
        added: Forms = {}
        for step in steps:
            declared = _declared(metadata_json, step)
            if declared != added:
                added = declared
                for name, form in declared.items():
                    self._add(name, form)
                self._whole.update(name for name, form in declared.items() if form == JSON)
            for root, value in _values_of(step, _sketch):
                for name, part in _parts(root, (), value, declared):
                    self._add(name, _form_of(part, declared.get(name)))

    def cells(self, metadata_json: str, step: Step, decode: Decode) -> dict[str, Any]:
        """Returns the values of a step by their columns. What was not added before has columns that are not in `forms`."""
        declared = _declared(metadata_json, step)
        return {
            name: part
            for root, value in _values_of(step, decode)
            for name, part in _parts(root, (), value, declared, self.forms)
        }

    def _add(self, name: str, form: Form | None) -> None:
        root = next(root for root in _ROOTS if name.startswith(root))
        found = self._found[root]
        if root in self._whole and name not in _OF_CONVERSATIONS:
            found[root] = JSON
            return
        known = found.get(name)
        found[name] = form if known is None else known if form is None else _joined(known, form)
        if len(found) > _MOST_COLUMNS:
            found.clear()
            found[root] = JSON
            self._whole.add(root)


def _values_of(step: Step, decode: Decode) -> Iterator[tuple[str, Any]]:
    for root, value in zip(_ROOTS, (action_of(step, decode), observation_of(step, decode)), strict=True):
        if value is not None:
            yield root, value


def _parts(root: str, path: Path, value: Any, declared: Forms, known: Forms | None = None) -> Iterator[tuple[str, Any]]:
    """Yields the parts of a value that have columns: the leaves of dicts and tuples, unless a column has them together."""
    name = column_of(root, path)
    if name in declared or not isinstance(value, (dict, tuple)) or not value or not _has_text_keys(value):
        yield name, value
        return
    items: Any = members.items() if is_a(members := cast("Any", value), dict) else enumerate(members)
    parts: list[tuple[str, Any]] = [
        part for key, member in items for part in _parts(root, (*path, key), member, declared, known)
    ]
    if known is not None and name in known and any(part not in known for part, _ in parts):
        parts = [(name, value)]
    yield from parts


def column_of(root: str, path: Path) -> str:
    """Returns the name of the column of a leaf: `observation.robot.arm[0]`."""
    text = readable(format_path(path))
    return root + (f".{text}" if text and not text.startswith("[") else text)


def readable(text: Any) -> Any:
    """Returns text that UTF-8 can hold: lone surrogates are replaced. Other values as they are."""
    if not isinstance(text, str) or text.isascii():
        return text  # pyright: ignore[reportUnknownVariableType]
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _has_text_keys(value: Any) -> bool:
    return isinstance(value, tuple) or all(isinstance(key, str) for key in value)


def _declared(metadata_json: str, step: Step) -> Forms:
    """Returns the columns that do not depend on values: those of recorded spaces and of conversations."""
    declared: Forms = _of_spaces(metadata_json) if '"spaces"' in metadata_json else {}
    return {**declared, **_OF_CONVERSATIONS} if is_conversation(step) else declared


@functools.lru_cache(maxsize=64)
def _of_spaces(metadata_json: str) -> Forms:
    """Returns the forms of the leaves of spaces. Empty if the metadata describes none: it can be anything."""
    try:
        spaces = decode_json(metadata_json)["spaces"]
        return {
            column_of(root, parse_path(path) or ()): _described(kind, tuple(map(abs, shape)))
            for root in _ROOTS
            for path, (kind, shape) in spaces.get(root, {}).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _described(kind: str, shape: tuple[int, ...]) -> Form:
    if kind == TEXT.kind:
        return TEXT
    return JSON if kind == JSON.kind else _of_array(optional("numpy", _PURPOSE).dtype(kind), shape)


def _form_of(value: Any, declared: Form | None) -> Form | None:
    """Returns the form of a value. None if it says nothing about its column."""
    if declared is not None and not declared.is_array:
        return declared
    if value is None or isinstance(value, Undecodable):
        return None
    cls: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if cls is int and not -(2**63) <= value < 2**63:
        return JSON
    form = _SCALARS.get(cls) or (_of_array(value.dtype, value.shape) if kind_of(value) is Kind.ARRAY else None)
    if form is None and declared is not None and isinstance(value, list):
        return declared
    return form or (BYTES if kind_of(value) is Kind.IMAGE else JSON)


def _of_array(dtype: Any, shape: tuple[int, ...]) -> Form:
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        return JSON
    return Form(dtype.newbyteorder("<").str, tuple(shape))


def _joined(one: Form, other: Form) -> Form:
    """Returns the form that has the values of both without loss; JSON if no array has."""
    if one == other:
        return one
    if not (one.is_array and other.is_array and one.shape == other.shape):
        return JSON
    numpy = optional("numpy", _PURPOSE)
    dtypes = numpy.dtype(one.kind), numpy.dtype(other.kind)
    joined = numpy.promote_types(*dtypes)
    are_alike = all((dtype.kind == "b") == (joined.kind == "b") for dtype in dtypes)
    are_integers = all(dtype.kind in "iu" for dtype in dtypes)
    return _of_array(joined, one.shape) if are_alike and are_integers == (joined.kind in "iu") else JSON


def _sketch(content: Content) -> Any:
    """Returns a value of the form that the content has, without what a state has of it."""
    if content.HasField("pruned_time"):
        return None
    if content.HasField("tensor"):
        numpy = optional("numpy", _PURPOSE)
        try:
            sketch = numpy.broadcast_to(numpy.zeros((), content.tensor.dtype), tuple(content.tensor.shape))
        except (TypeError, ValueError):
            return None
        return sketch if sketch.shape else sketch[()]
    if content.HasField("state_digest"):
        return _SKETCHES.get(content.media_type, b"")
    return b"" if content.media_type.startswith("image/") else decode_content(content, no_states)


_SKETCHES: dict[str, Any] = {
    TEXT_TYPE: "",
    SURROGATES_TYPE: "",
    JSON_TYPE: [],
    VALUE_TYPE: [],
    TUPLES_TYPE: [],
}
