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

The types of `action` and `observation` follow the first episode. Arrays of one dtype and shape are
`fixed_shape_tensor`, arrays without dimension plain numbers. Numbers, text and bytes are columns of their own type,
images are the bytes of their file. Values of Dict and Tuple spaces have one column per leaf: `observation.robot.arm[0]`.
All other values are JSON text. A later value that does not fit raises an error that names its step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from anabranch._wire.kinds import is_a
from anabranch._wire.paths import format_path
from anabranch._wire.tensors import optional, png_of
from anabranch._wire.values import ValueEncoder

if TYPE_CHECKING:
    import pandas as pd

    from anabranch._reading.episode import RecordedEpisode

_PURPOSE = "for tables of steps"
_BATCH_ROWS = 1024
Row = dict[str, Any]


def rows_of(episode: RecordedEpisode) -> list[Row]:
    """Returns a row per step, with values as they were recorded."""
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
            **_columns("action", step.action),
            **_columns("observation", step.observation),
            "reward": step.reward,
            "info": step.info_text,
        }
        for step in steps
    ]


def frame_of(episodes: Iterable[RecordedEpisode]) -> pd.DataFrame:
    """Returns a frame whose cells have the values as they were recorded."""
    pandas = optional("pandas", _PURPOSE)
    rows = [row for episode in episodes for row in rows_of(episode)]
    names = dict.fromkeys(name for row in rows for name in row)
    return pandas.DataFrame({name: [row.get(name) for row in rows] for name in names})


def reader_of(episodes: Iterable[RecordedEpisode]) -> Any:
    """Returns a `pyarrow.RecordBatchReader` that reads the episodes as it is read. The first episode is read at once, for the schema."""
    pyarrow = optional("pyarrow", _PURPOSE)
    iterator = iter(episodes)
    first = next(iterator, None)
    rows = [] if first is None else rows_of(first)
    schema = _schema_of(rows)

    def batches() -> Iterator[Any]:
        pending = rows
        for episode in iterator:
            if len(pending) >= _BATCH_ROWS:
                yield _batch_of(pending, schema)
                pending = []
            pending = pending + rows_of(episode)
        if pending:
            yield _batch_of(pending, schema)

    return pyarrow.RecordBatchReader.from_batches(schema, batches())


def hugging_face_of(episodes: Iterable[RecordedEpisode]) -> Any:
    """Returns an iterable dataset. Its columns have the values as they were recorded; arrays stay arrays."""
    datasets = optional("datasets", "for Hugging Face datasets")
    return datasets.IterableDataset.from_generator(_generate_rows, gen_kwargs={"episodes": episodes})


def _generate_rows(episodes: Iterable[RecordedEpisode]) -> Iterator[Row]:
    for episode in episodes:
        yield from rows_of(episode)


def _columns(name: str, value: Any) -> Row:
    """Returns the columns of a value: one per leaf of a Dict or Tuple space."""
    if not isinstance(value, (dict, tuple)):
        return {name: value}
    leaves: Row = {}

    def collect(member: Any, path: tuple[str | int, ...]) -> None:
        items: Any = member.items() if is_a(member, dict) else enumerate(member)
        for key, inner in items:
            if isinstance(inner, (dict, tuple)) and inner and _has_text_keys(inner):
                collect(inner, (*path, key))
            else:
                leaves[name + _joint(format_path((*path, key)))] = inner

    if not value or not _has_text_keys(value):
        return {name: value}
    collect(value, ())
    return leaves


def _joint(path: str) -> str:
    return path if path.startswith("[") else f".{path}"


def _has_text_keys(value: Any) -> bool:
    return isinstance(value, tuple) or all(isinstance(key, str) for key in value)


def _schema_of(rows: list[Row]) -> Any:
    pyarrow = optional("pyarrow", _PURPOSE)
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
    names = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys(fixed)
    return pyarrow.schema(
        [(name, fixed.get(name) or _type_of([row.get(name) for row in rows], pyarrow)) for name in names]
    )


def _type_of(values: list[Any], pyarrow: Any) -> Any:
    types = {_type_of_value(value, pyarrow) for value in values if value is not None}
    return types.pop() if len(types) == 1 else pyarrow.string()


def _type_of_value(value: Any, pyarrow: Any) -> Any:
    for python, arrow in ((bool, "bool_"), (int, "int64"), (float, "float64"), (str, "string"), (bytes, "binary")):
        if type(value) is python:
            return getattr(pyarrow, arrow)()
    if hasattr(value, "dtype") and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        item = pyarrow.from_numpy_dtype(value.dtype.newbyteorder("="))
        return pyarrow.fixed_shape_tensor(item, value.shape) if value.shape else item
    return pyarrow.binary() if _is_image(value) else pyarrow.string()


def _batch_of(rows: list[Row], schema: Any) -> Any:
    pyarrow = optional("pyarrow", _PURPOSE)
    for row in rows:
        if unknown := row.keys() - set(schema.names):
            raise ValueError(f"{_place(row)} has a column {min(unknown)!r}, which the first episode does not have")
    arrays = [_array_of([row.get(field.name) for row in rows], field, rows) for field in schema]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _array_of(values: list[Any], field: Any, rows: list[Row]) -> Any:
    pyarrow = optional("pyarrow", _PURPOSE)
    cells = [_cell_of(value, field, row, pyarrow) for value, row in zip(values, rows, strict=True)]
    if isinstance(field.type, pyarrow.FixedShapeTensorType):
        storage = pyarrow.array(cells, field.type.storage_type)
        return pyarrow.ExtensionArray.from_storage(field.type, storage)
    return pyarrow.array(cells, field.type)


def _cell_of(value: Any, field: Any, row: Row, pyarrow: Any) -> Any:
    if value is None:
        return None
    if field.type == pyarrow.string():
        return value if isinstance(value, str) else ValueEncoder().info_json(value)
    if _type_of_value(value, pyarrow) != field.type:
        raise ValueError(f"{field.name!r} of {_place(row)} does not fit {field.type}, the type of the first episode")
    if isinstance(field.type, pyarrow.FixedShapeTensorType):
        return value.reshape(-1).astype(value.dtype.newbyteorder("="), copy=False)
    return _file_of(value) if _is_image(value) else value


def _place(row: Row) -> str:
    return f"step {row['step']} of trajectory {row['trajectory_id']}"


def _is_image(value: Any) -> bool:
    return hasattr(value, "tobytes") and hasattr(value, "mode") and hasattr(value, "save")


def _file_of(image: Any) -> bytes:
    return png_of(image)
