"""Bytes of arrays, tensors and images. An array is its dtype (as in NumPy's array interface), its shape and its bytes
in C order."""

from __future__ import annotations

import functools
import importlib
import io
import math
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch._wire.kinds import Kind, type_name

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image


class Tensor(NamedTuple):
    """An array as it is stored."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class UnsupportedValue(Exception):
    """The value cannot be stored. Carries what a marker names."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class OversizedValue(UnsupportedValue):
    """The value has more bytes than a state can have."""


# Booleans, integers, floats, complex numbers, text, bytes and times. Others have Python objects or fields.
_KINDS = frozenset("biufcUSMm")
# The server has a form for these dtypes; others are JSON with their bytes.
_UNITS = r"\[[1-9]?\d{0,7}([YMWDhms]|[munpfa]s)\]"
_FORMS = re.compile(rf"[<>|](b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[SU](0|[1-9]\d{{0,6}})|[mM]8({_UNITS})?)")
_MOST_EMPTY_ITEMS = 1 << 24
# PNG has these modes of Pillow without loss.
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
_FORMATS = {"?": "b", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u"), **dict.fromkeys("efd", "f")}
_ORDERS = {"@": "", "=": "", "<": "<", ">": ">", "!": ">"}
_NATIVE_ORDER = "<" if sys.byteorder == "little" else ">"


@functools.lru_cache(maxsize=1024)
def form_of(dtype: Any) -> str:
    """Returns the name that the server has for a dtype; empty if it stores no tensors of it."""
    return dtype.str if _FORMS.fullmatch(dtype.str) and dtype.fields is None else ""


def tensor_of(value: Any, kind: Kind) -> Tensor:
    """Copies an array. Raises UnsupportedValue if the server has no form for it."""
    if kind is Kind.ARRAY:
        return array_tensor(value)
    try:
        return _torch_tensor(value) if kind is Kind.TORCH else _buffer_tensor(value)
    except UnsupportedValue:
        raise
    except Exception as error:
        raise UnsupportedValue(type_name(value)) from error


def array_tensor(value: Any) -> Tensor:
    dtype = value.dtype
    if dtype.kind not in _KINDS:
        raise UnsupportedValue(f"{type_name(value)} of dtype {dtype}")
    return Tensor(dtype.str, value.shape, value.tobytes())


def _torch_tensor(value: Any) -> Tensor:
    if value.device.type != "cpu":
        raise UnsupportedValue(f"{type_name(value)} on {value.device}")
    tensor = value.detach().resolve_conj().resolve_neg()
    # NumPy has no bfloat16; float32 has all of its values.
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return array_tensor(tensor.numpy())


def _buffer_tensor(value: Any) -> Tensor:
    view = memoryview(value)
    order, letter = (_ORDERS.get(view.format[0]), view.format[1:]) if len(view.format) > 1 else ("", view.format)
    kind = _FORMATS.get(letter)
    if order is None or kind is None or view.shape is None:
        raise UnsupportedValue(f"{type_name(value)} of format {view.format}")
    mark = "|" if view.itemsize == 1 else order or _NATIVE_ORDER
    return Tensor(f"{mark}{kind}{view.itemsize}", tuple(view.shape), view.tobytes())


def items_of(value: Any, kind: Kind) -> Any:
    """Returns an array that `tensor_of` accepts as nested lists; its item if it has no dimension."""
    try:
        if kind is Kind.ARRAY and value.dtype.kind in "cmM":
            value = value.astype(str)
        elif kind is Kind.ARRAY and value.dtype.char == "g":
            value = value.astype("float64")
        return (memoryview(value) if kind is Kind.OTHER else value).tolist()
    except Exception as error:
        raise UnsupportedValue(type_name(value)) from error


def array_of(tensor: Tensor) -> np.ndarray[Any, np.dtype[Any]] | np.generic[Any]:
    """Returns the array; a scalar of NumPy if it has no dimension. The array has its own, writable memory."""
    numpy = optional("numpy", "to read arrays")
    dtype = numpy.dtype(tensor.dtype)
    if math.prod(tensor.shape) * dtype.itemsize != len(tensor.data):
        raise ValueError(f"a tensor of {len(tensor.data)} bytes cannot have dtype {dtype} and shape {tensor.shape}")
    if dtype.itemsize == 0:
        # NumPy has at least one byte for each item.
        if math.prod(tensor.shape) > _MOST_EMPTY_ITEMS:
            raise ValueError(f"a tensor of shape {tensor.shape} has too many items")
        array = numpy.zeros(tensor.shape, dtype)
    else:
        array = numpy.frombuffer(tensor.data, dtype).reshape(tensor.shape).copy()
    if dtype.kind == "U" and tensor.data and numpy.frombuffer(tensor.data, f"{dtype.str[0]}u4").max() > sys.maxunicode:
        raise ValueError("a tensor of text has a number that is no character")
    return array if tensor.shape else array[()]


def png_of(image: Any) -> bytes:
    """Returns an image as PNG. Raises UnsupportedValue if PNG cannot hold its mode without loss."""
    if image.mode not in _PNG_MODES:
        raise UnsupportedValue(f"{type_name(image)} of mode {image.mode}")
    file = io.BytesIO()
    try:
        # Level 1 is several times as fast as the default, and the files are a little larger.
        image.save(file, "PNG", compress_level=1)
    except Exception as error:
        raise UnsupportedValue(type_name(image)) from error
    return file.getvalue()


def image_of(data: bytes) -> Image:
    """Returns an image, whose pixels are decoded when they are used. Raises for a file that is none, or is cut off."""
    pillow = optional("PIL.Image", "to read images")
    try:
        pillow.open(io.BytesIO(data)).verify()
        return pillow.open(io.BytesIO(data))
    except pillow.UnidentifiedImageError:
        raise ValueError("Pillow knows no image of this form") from None


#: The packages of modules that have another name.
_PACKAGES = {"PIL": "pillow", "agents": "openai-agents", "claude_agent_sdk": "claude-agent-sdk"}


@functools.cache
def optional(module: str, purpose: str) -> Any:
    """Imports a module that the package does not require. If it is missing, the error names what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        package = _PACKAGES.get(name, name)
        raise ImportError(f"{package} is required {purpose}: pip install {package}") from error
