"""Steps as rows, for Arrow, pandas and Hugging Face datasets.

| column | type | value |
|---|---|---|
| `trajectory_id` | string | the episode |
| `step` | int64 | number of the step: 0 for the result of a reset |
| `is_first` | bool | true for step 0 |
| `is_last` | bool | true for the last step of the episode |
| `is_terminal` | bool | the environment reached a terminal state (`terminated`) |
| `truncated` | bool | the episode was cut off |
| `action` | see below | the action that led to the observation; null for a reset |
| `observation` | see below | the observation after the action |
| `reward` | float64 | null without a reward |
| `info` | string | JSON text as stored; null without info |

All episodes of a selection decide the types of `action` and `observation`, so each table reads them first: without the
bytes of images and other large contents. Arrays of one dtype and shape are `fixed_shape_tensor`, arrays without dimension
plain numbers. Numbers, text and bytes are columns of their own type, images are the bytes of their file. Values of Dict and
Tuple spaces have one column per leaf: `observation.robot.arm[0]`. All other values are JSON text, and so are those of a
column whose values agree in no type. Episodes of `anabranch.gym` have the columns of the spaces of their environment.

Turns of a conversation have the columns `action.text`, `action.tool_calls` (a list of structs of `id`, `name` and
`arguments`), `action.messages`, `observation.messages` (both JSON text) and `observation.tool_results` (a list of structs of
`id`, `is_error` and `content`).

A value that cannot be decoded is null, or what is stored if the column has text or bytes. In pandas and Hugging Face
datasets it is `Undecodable`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from anabranch._reading.columns import BYTES, JSON, TEXT, TOOL_CALLS, TOOL_RESULTS, Columns, Form, readable
from anabranch._reading.episode import decoder_of
from anabranch._wire.decode import Undecodable
from anabranch._wire.kinds import Kind, kind_of
from anabranch._wire.tensors import optional, png_of
from anabranch._wire.values import ValueEncoder

if TYPE_CHECKING:
    import pandas as pd

    from anabranch._reading.episode import RecordedEpisode, Step
    from anabranch._wire.decode import Decode
    from anabranch.v1.trajectory_pb2 import Content

_PURPOSE = "for tables of steps"
_BATCH_ROWS = 1024
_FIRST = ("trajectory_id", "step", "is_first", "is_last", "is_terminal", "truncated")
Row = dict[str, Any]

_logger = logging.getLogger("anabranch")


def frame_of(episodes: Iterable[RecordedEpisode]) -> pd.DataFrame:
    """Returns a frame whose cells have the values as they were recorded."""
    pandas = optional("pandas", _PURPOSE)
    read = list(episodes)
    columns = Columns()
    for episode in read:
        columns.add(episode.trajectory.metadata_json, [step.message for step in episode.steps])
    table = _Table(columns)
    rows = [row for episode in read for row in table.rows(episode)]
    return pandas.DataFrame({name: _series_of([row[name] for row in rows], pandas) for name in table.names})


def reader_of(episodes: Iterable[RecordedEpisode], read_columns: Callable[[], Columns]) -> Any:
    """Returns a `pyarrow.RecordBatchReader` that reads the episodes as it is read."""
    pyarrow = optional("pyarrow", _PURPOSE)
    table = _Table(read_columns())
    schema = table.schema(pyarrow)

    def batches() -> Iterator[Any]:
        pending: list[Row] = []
        for episode in episodes:
            if len(pending) >= _BATCH_ROWS:
                yield table.batch(pending, schema, pyarrow)
                pending = []
            pending += table.rows(episode, with_files=True)
        if pending:
            yield table.batch(pending, schema, pyarrow)

    return pyarrow.RecordBatchReader.from_batches(schema, batches())


def hugging_face_of(episodes: Iterable[RecordedEpisode], read_columns: Callable[[], Columns]) -> Any:
    """Returns an iterable dataset. Its columns have the values as they were recorded; arrays stay arrays."""
    datasets = optional("datasets", "for Hugging Face datasets")
    arguments = {"episodes": episodes, "columns": read_columns()}
    return datasets.IterableDataset.from_generator(_generate_rows, gen_kwargs=arguments)


def _generate_rows(episodes: Iterable[RecordedEpisode], columns: Columns) -> Iterator[Row]:
    table = _Table(columns)
    for episode in episodes:
        yield from table.rows(episode)


class _Unfit(Exception):
    """A value has no cell in its column."""


class _Table:
    """Makes rows of one set of columns. Warns once for each column that cannot have a value."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._absent = dict.fromkeys(columns.forms)
        self.names = [*_FIRST, *columns.forms, "reward", "info"]
        self._warned: set[str] = set()

    def rows(self, episode: RecordedEpisode, *, with_files: bool = False) -> list[Row]:
        """Returns a row per step. `with_files`: images are the bytes of their files."""
        steps = episode.steps
        episode.prefetch()
        return [
            {
                "trajectory_id": episode.id,
                "step": step.number,
                "is_first": step.number == 0,
                "is_last": step is steps[-1],
                "is_terminal": step.terminated,
                "truncated": step.truncated,
                **self._absent,
                **self._cells(episode, step, _file_or_value(step) if with_files else decoder_of(step)),
                "reward": step.reward,
                "info": step.info_text,
            }
            for step in steps
        ]

    def _cells(self, episode: RecordedEpisode, step: Step, decode: Decode) -> Row:
        cells = self._columns.cells(episode.trajectory.metadata_json, step.message, decode)
        for name in [name for name in cells if name not in self._absent]:
            del cells[name]
            self._warn(name, episode.id, step.number, "it was recorded after the columns were read, and is left out")
        return cells

    def schema(self, pyarrow: Any) -> Any:
        fixed = {
            "trajectory_id": pyarrow.string(),
            "step": pyarrow.int64(),
            "is_first": pyarrow.bool_(),
            "is_last": pyarrow.bool_(),
            "is_terminal": pyarrow.bool_(),
            "truncated": pyarrow.bool_(),
            "reward": pyarrow.float64(),
            "info": pyarrow.string(),
        }
        forms = self._columns.forms
        return pyarrow.schema([(name, fixed.get(name) or _type_of(forms[name], pyarrow)) for name in self.names])

    def batch(self, rows: list[Row], schema: Any, pyarrow: Any) -> Any:
        arrays: list[Any] = []
        for field in schema:
            form = self._columns.forms.get(field.name)
            values = [row[field.name] for row in rows]
            cells = values if form is None else [self._cell(*each, field.name, form) for each in zip(values, rows)]
            if isinstance(field.type, pyarrow.FixedShapeTensorType):
                storage = pyarrow.array(cells, field.type.storage_type)
                arrays.append(pyarrow.ExtensionArray.from_storage(field.type, storage))
            else:
                arrays.append(pyarrow.array(cells, field.type))
        return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)

    def _cell(self, value: Any, row: Row, name: str, form: Form) -> Any:
        if value is None:
            return None
        try:
            return _cell_of(value, form)
        except _Unfit as error:
            self._warn(name, row["trajectory_id"], row["step"], f"{error}: the cell is null")
            return None

    def _warn(self, name: str, trajectory_id: str, step: int, problem: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            place = f"step {step} of trajectory {trajectory_id}"
            _logger.warning("column %r has no value of %s: %s. Further ones are not reported.", name, place, problem)


def _file_or_value(step: Step) -> Decode:
    """Returns how to decode contents of a step if images stay files."""

    def decode_file(content: Content) -> Any:
        if not content.media_type.startswith("image/") or content.HasField("uri"):
            return decode(content)
        as_bytes = type(content)()
        as_bytes.CopyFrom(content)
        as_bytes.media_type = ""
        return decode(as_bytes)

    decode = decoder_of(step)
    return decode_file


def _series_of(values: list[Any], pandas: Any) -> Any:
    try:
        return pandas.Series(values)
    except UnicodeEncodeError:
        # The type for text has no lone surrogates.
        return pandas.Series(values, dtype=object)


def _type_of(form: Form, pyarrow: Any) -> Any:
    text = pyarrow.string()
    if form == TOOL_CALLS:
        return pyarrow.list_(pyarrow.struct([("id", text), ("name", text), ("arguments", text)]))
    if form == TOOL_RESULTS:
        return pyarrow.list_(pyarrow.struct([("id", text), ("is_error", pyarrow.bool_()), ("content", text)]))
    if not form.is_array:
        return pyarrow.binary() if form == BYTES else text
    item = pyarrow.from_numpy_dtype(_dtype_of(form))
    return pyarrow.fixed_shape_tensor(item, form.shape) if form.shape else item


def _dtype_of(form: Form) -> Any:
    return optional("numpy", _PURPOSE).dtype(form.kind).newbyteorder("=")


def _cell_of(value: Any, form: Form) -> Any:
    if form in (TEXT, JSON):
        return _text_of(value)
    if form == TOOL_CALLS:
        return [{name: readable(text) for name, text in call.items()} for call in value]
    if form == TOOL_RESULTS:
        return [{**result, "id": readable(result["id"]), "content": _text_of(result["content"])} for result in value]
    return _bytes_of(value) if form == BYTES else _array_of(value, form)


def _text_of(value: Any) -> str | None:
    """Returns text as it is, and other values as JSON."""
    if value is None or isinstance(value, str):
        return readable(value)
    if isinstance(value, Undecodable):
        return value.bytes.decode("utf-8", "replace") or None
    try:
        return readable(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except (RecursionError, TypeError, ValueError):
        return ValueEncoder().info_json(value)


def _bytes_of(value: Any) -> bytes | None:
    if isinstance(value, Undecodable):
        return value.bytes or None
    if kind_of(value) is Kind.IMAGE:
        return png_of(value)
    if not isinstance(value, bytes):
        raise _Unfit(f"a {type(value).__name__} is no bytes")
    return value


def _array_of(value: Any, form: Form) -> Any:
    if isinstance(value, Undecodable):
        raise _Unfit(value.reason)
    numpy = optional("numpy", _PURPOSE)
    dtype = _dtype_of(form)
    try:
        array = numpy.asarray(value)
        cast = array.astype(dtype, copy=False)
    except (OverflowError, TypeError, ValueError) as error:
        raise _Unfit(str(error)) from None
    fits = numpy.can_cast(array.dtype, dtype) or array.dtype.kind == dtype.kind == "f" or numpy.array_equal(cast, array)
    if array.shape != form.shape or array.dtype.kind not in "biuf" or not fits:
        raise _Unfit(f"an array of dtype {array.dtype} and shape {array.shape} is no {form.kind} of shape {form.shape}")
    return cast.reshape(-1) if form.shape else cast[()]
