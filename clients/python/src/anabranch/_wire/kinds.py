"""Decides by its type how a Python value is stored. Recognizes NumPy, PyTorch and Pillow without importing them."""

from __future__ import annotations

import enum
import functools
import os
from array import array
from collections.abc import Mapping, MappingView, Sequence
from collections.abc import Set as AbstractSet


class Kind(enum.Enum):
    """How values of a type are stored."""

    NUMBER = enum.auto()
    """None, bool, int and float: JSON."""
    TEXT = enum.auto()
    BYTES = enum.auto()
    ARRAY = enum.auto()
    """A NumPy array or scalar."""
    TORCH = enum.auto()
    IMAGE = enum.auto()
    """An image of Pillow."""
    MAPPING = enum.auto()
    SEQUENCE = enum.auto()
    SET = enum.auto()
    """A sorted list."""
    TABLE = enum.auto()
    """A table of pandas, polars or Arrow: a list of its rows as dicts; a column of Arrow: a list."""
    NAMESPACE = enum.auto()
    """A dict of its attributes."""
    DATACLASS = enum.auto()
    PYDANTIC = enum.auto()
    PLAIN = enum.auto()
    """Replaced by its plain form (`plain_form`)."""
    OTHER = enum.auto()
    """Stored as an array if the value has the buffer protocol, unsupported otherwise."""
    UNSUPPORTED = enum.auto()


CONTAINERS = frozenset(
    {Kind.MAPPING, Kind.SEQUENCE, Kind.SET, Kind.TABLE, Kind.NAMESPACE, Kind.DATACLASS, Kind.PYDANTIC}
)


def kind_of(value: object) -> Kind:
    try:
        return _kind_of_type(type(value))
    except Exception:  # noqa: BLE001 - the metaclass fails
        return Kind.UNSUPPORTED


@functools.lru_cache(maxsize=4096)
def _kind_of_type(cls: type) -> Kind:
    bases = {f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__}
    # MaskedArray is a subclass of ndarray whose mask would be lost. Scalars of text and bytes are subclasses of str
    # and bytes, those of float64 are a subclass of float.
    if bases & {"numpy.ma.MaskedArray", "numpy.ma.core.MaskedArray"}:
        return Kind.UNSUPPORTED
    for base, kind in _PLAIN:
        if issubclass(cls, base) and not (base is float and "numpy.generic" in bases):
            return kind
    for name, kind in _NAMED.items():
        if name in bases:
            return kind
    for abstract, kind in _ABSTRACT:
        if issubclass(cls, abstract):
            return kind
    if hasattr(cls, "__dataclass_fields__"):
        return Kind.DATACLASS
    if hasattr(cls, "model_dump") and hasattr(cls, "__pydantic_validator__"):
        return Kind.PYDANTIC
    return Kind.OTHER


_PLAIN: tuple[tuple[type, Kind], ...] = (
    (type(None), Kind.NUMBER),
    (int, Kind.NUMBER),
    (float, Kind.NUMBER),
    (str, Kind.TEXT),
    (bytes, Kind.BYTES),
    (bytearray, Kind.BYTES),
    (dict, Kind.MAPPING),
    (list, Kind.SEQUENCE),
    (tuple, Kind.SEQUENCE),
)

_NAMED = {
    "numpy.ndarray": Kind.ARRAY,
    "numpy.generic": Kind.ARRAY,
    "torch.Tensor": Kind.TORCH,
    "PIL.Image.Image": Kind.IMAGE,
    **dict.fromkeys(("pandas.DataFrame", "pandas.core.frame.DataFrame"), Kind.TABLE),
    **dict.fromkeys(("pandas.Series", "pandas.core.series.Series"), Kind.SEQUENCE),
    **dict.fromkeys(("pandas.Index", "pandas.core.indexes.base.Index"), Kind.SEQUENCE),
    "polars.dataframe.frame.DataFrame": Kind.TABLE,
    "polars.series.series.Series": Kind.SEQUENCE,
    **dict.fromkeys((f"pyarrow.lib.{name}" for name in ("Table", "RecordBatch", "Array", "ChunkedArray")), Kind.TABLE),
    **dict.fromkeys(("types.SimpleNamespace", "argparse.Namespace"), Kind.NAMESPACE),
    **dict.fromkeys(("datetime.date", "datetime.time", "datetime.timedelta"), Kind.PLAIN),
    **dict.fromkeys(("uuid.UUID", "decimal.Decimal", "fractions.Fraction", "collections.UserString"), Kind.PLAIN),
    "ipaddress._IPAddressBase": Kind.PLAIN,
    **dict.fromkeys(("pandas.api.typing.NAType", "pandas._libs.missing.NAType"), Kind.PLAIN),
}

# memoryview and array.array count as sequences; they are buffers here. The views of a dict keep its order.
_ABSTRACT: tuple[tuple[type, Kind], ...] = (
    (enum.Enum, Kind.PLAIN),
    (os.PathLike, Kind.PLAIN),
    (BaseException, Kind.PLAIN),
    (Mapping, Kind.MAPPING),
    (memoryview, Kind.OTHER),
    (array, Kind.OTHER),
    (MappingView, Kind.SEQUENCE),
    (Sequence, Kind.SEQUENCE),
    (AbstractSet, Kind.SET),
)


def is_a(value: object, cls: type | tuple[type, ...]) -> bool:
    """isinstance for values of any type: it does not narrow the static type to one with unknown members."""
    return isinstance(value, cls)


def type_name(value: object) -> str:
    """Returns the name of a value's type for markers and messages, for example `socket.socket`."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
