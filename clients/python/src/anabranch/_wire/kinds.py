"""Decides by its type how a Python value is stored. Recognizes NumPy, PyTorch and Pillow without importing them."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping


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
    DATACLASS = enum.auto()
    PYDANTIC = enum.auto()
    OTHER = enum.auto()
    """Stored as an array if the value has the buffer protocol, unsupported otherwise."""
    UNSUPPORTED = enum.auto()


CONTAINERS = frozenset({Kind.MAPPING, Kind.SEQUENCE, Kind.DATACLASS, Kind.PYDANTIC})


def kind_of(value: object) -> Kind:
    return _kind_of_type(type(value))


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
}

# memoryview, array.array and others count as sequences from Python 3.12 on; they are buffers here.
_ABSTRACT: tuple[tuple[type, Kind], ...] = ((Mapping, Kind.MAPPING), (range, Kind.SEQUENCE))


def is_a(value: object, cls: type | tuple[type, ...]) -> bool:
    """isinstance for values of any type: it does not narrow the static type to one with unknown members."""
    return isinstance(value, cls)


def type_name(value: object) -> str:
    """Returns the name of a value's type for markers and messages, for example `socket.socket`."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
