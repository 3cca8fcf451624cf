"""Writes Python values into steps: observations, actions, info. `decode` reads them back.

| value | stored as |
|---|---|
| str | text |
| None, bool, int, float | JSON; NaN and infinities with the media type `VALUE_TYPE` |
| bytes, bytearray | data, `application/octet-stream` |
| NumPy arrays and scalars, CPU tensors, other values with the buffer protocol | a tensor |
| images of Pillow | data, `image/png` |
| dict, list, tuple, set, table, namespace, dataclass, Pydantic model of such values | one JSON; if it has arrays, \
bytes or images: one item per leaf, with the leaf's path as its type |
| values of enums, dates, paths, UUIDs, decimals and others that `plain` lists | their plain form |

JSON without a media type is plain: it is read as it is, whatever it contains. In JSON of `VALUE_TYPE`, objects with a
single key that begins with `$` hold what JSON cannot: `$tensor`, `$bytes`, `$png`, `$float` (NaN and infinities),
`$surrogates` (text that UTF-8 cannot hold), `$tuple`, `$items` (a dict with keys that are not text, or with a single key
that begins with `$`) and `$unstored` (the type of a value that cannot be stored). In JSON of `TUPLES_TYPE`, all arrays are
tuples too. Dataclasses and models are read back as dicts. Nothing is ever pickled.

Info, metadata and configs have no media type, so they are plain JSON: arrays become lists, bytes and images become data
URLs, and keys become text.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

from anabranch._wire.errors import StepTooLarge
from anabranch._wire.kinds import CONTAINERS, Kind, is_a, type_name
from anabranch._wire.limits import Limits
from anabranch._wire.paths import Path, format_path, subject_of
from anabranch._wire.plain import resolved, rows_of, sorted_members
from anabranch._wire.tensors import OversizedValue, UnsupportedValue, form_of, items_of, png_of, tensor_of
from anabranch.v1.trajectory_pb2 import Content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anabranch.v1.trajectory_pb2 import Step

BYTES_TYPE = "application/octet-stream"
PNG_TYPE = "image/png"
TEXT_TYPE = "text/plain; charset=utf-8"
SURROGATES_TYPE = "text/plain; charset=x-utf-8-surrogatepass"
JSON_TYPE = "application/json"
VALUE_TYPE = "application/vnd.anabranch.value+json"
TUPLES_TYPE = f"{VALUE_TYPE};arrays=tuple"
TENSOR_TYPE = "application/vnd.anabranch.tensor"

MAX_DEPTH = 64
_SMALL = 1 << 63
#: Dimensions of tensors are shorter.
_LONGEST = 1 << 31
#: Types of values whose result was meant.
_AWAITED = frozenset(
    {"coroutine", "_asyncio.Task", "_asyncio.Future", "anabranch._wire.waiting.Call", "anabranch._wire.waiting.Opening"}
)
_SURROGATE = re.compile("[\ud800-\udfff]")
#: The types that JSON arrays stand for in values that are written as they are, and the media type of the JSON.
_Arrays: TypeAlias = tuple[type, ...]
_LISTS: _Arrays = (list,)
_TUPLES: _Arrays = (tuple,)
_VALUES = ((_LISTS, ""), (_TUPLES, TUPLES_TYPE))
_INFO = (((list, tuple), ""),)

_logger = logging.getLogger("anabranch")
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class ValueEncoder:
    """Writes values into steps. A client has one.

    A value that cannot be stored is replaced by a marker, counted in `unstored`, and reported once per type. With
    `strict`, the call raises TypeError with the path and the type of the value instead.
    """

    def __init__(self, *, strict: bool = False, limits: Limits | None = None) -> None:
        self.strict = strict
        #: Those of the server that the values go to.
        self.limits = limits or Limits()
        self.unstored: Counter[str] = Counter()
        self._reported: set[str] = set()

    def add_observation(self, step: Step, value: object) -> None:
        self._add(step.observations, value, "observation")

    def add_action(self, step: Step, value: object) -> None:
        self._add(step.actions, value, "action")

    def set_content(self, content: Content, value: object, root: str) -> None:
        """Writes one value of any kind into one content. `root` names the value in errors."""
        self._fill(content, *resolved(value), root, ())

    def info_json(self, value: Any, root: str = "info") -> str:
        """Returns a value as plain JSON text. NaN and infinities become "NaN", "Infinity" and "-Infinity", arrays lists,
        bytes and images data URLs, and keys text."""
        return "{}" if _is_empty_dict(value) else self._tree_json(_Tree(self, root, is_info=True), value, ())[0]

    def value_json(self, value: Any, root: str) -> tuple[str, str]:
        """Returns a value as JSON text from which it is read back, and the media type of the text: empty for plain JSON."""
        return self._tree_json(_Tree(self, root), value, ())

    def image_content(self, content: Content, value: object, root: str = "screenshot") -> None:
        """Writes an image: of Pillow, or the bytes of a PNG, JPEG, WebP or GIF file. Other values as `set_content`."""
        media_type = image_type(value) if isinstance(value, (bytes, bytearray)) else None
        if media_type is None:
            self.set_content(content, value, root)
            return
        try:
            self._set_data(content, bytes(value), media_type)  # pyright: ignore[reportArgumentType]
        except UnsupportedValue as unsupported:
            _set_json(content, _to_json(self.marker(unsupported, root, ())), VALUE_TYPE)

    def state(self, value: object, root: str) -> tuple[bytes, str]:
        """Returns the bytes and the media type of a value as a state of a step."""
        content = Content()
        self.set_content(content, value, root)
        data, media_type = content_bytes(content)
        if len(media_type) > self.limits["mediaTypeBytes"]:
            # The type of an array has its shape.
            content.Clear()
            self._fill_json(content, value, root, ())
            return content_bytes(content)
        return data, media_type

    def is_state(self, data: bytes, part: str) -> bool:
        """Returns whether a state can hold the bytes of a part of a step. If not, reports that the part is left out."""
        most = self.limits["stateBytes"]
        if len(data) <= most:
            return True
        fault = f"{part} has {len(data)} bytes: expected at most {most}"
        self.misfit(part.partition("[")[0], fault, "It is left out.", step_too_large)
        return False

    def marker(self, unsupported: UnsupportedValue, root: str, path: Iterable[object]) -> dict[str, str]:
        """Returns what replaces a value that cannot be stored. With `strict`, raises StepTooLarge for one that is too large,
        and TypeError otherwise."""
        hint = ". Was `await` forgotten?" if unsupported.name in _AWAITED else ""
        text = f"{subject_of(root, path)} is a {unsupported.name}, which cannot be stored"
        if self.strict:
            if isinstance(unsupported, OversizedValue):
                raise step_too_large(f"{text}: expected at most {self.limits['stateBytes']} bytes") from None
            raise TypeError(text + hint) from None
        if not self.unstored[unsupported.name]:
            _logger.warning("%s. A marker replaces it%s", text, hint or ".")
        self.unstored[unsupported.name] += 1
        return {"$unstored": unsupported.name}

    def misfit(self, kind: str, fault: str, outcome: str, error: Callable[[str], Exception] = ValueError) -> None:
        """Reports a part of a step that is stored otherwise than it was given, once for each kind of parts. `fault` names
        the part, its value and the bound, `outcome` says what becomes of it. With `strict`, raises the error."""
        if self.strict:
            raise error(fault)
        if not self.unstored[kind]:
            _logger.warning("%s. %s", fault, outcome)
        self.unstored[kind] += 1

    def report(self, kind: str, message: str) -> None:
        """Logs a warning, once for each kind."""
        if kind not in self._reported:
            self._reported.add(kind)
            _logger.warning("anabranch: %s", message)

    def _add(self, items: Any, value: object, root: str) -> None:
        value, kind = resolved(value)
        # A screenshot or logprobs may follow the leaves.
        room = self.limits["stepParts"] - len(items) - 1
        leaves = _leaves_of(value, kind, room, self.limits["typeBytes"]) if kind in CONTAINERS else None
        if leaves is None:
            self._fill(items.add().content, value, kind, root, ())
            return
        for item_type, path, leaf, leaf_kind in leaves:
            item = items.add()
            item.type = item_type
            self._fill(item.content, leaf, leaf_kind, root, path)

    def _fill(self, content: Content, value: Any, kind: Kind, root: str, path: Path) -> None:
        try:
            if kind is Kind.ARRAY and (form := form_of(value.dtype)) and self._has_shape(value.shape):
                self._set_tensor(content, form, value.shape, value.tobytes())
            elif kind is Kind.TEXT:
                self._set_text(content, value)
            elif kind is Kind.NUMBER and type(value) is int and -_SMALL < value < _SMALL:
                _set_json(content, str(value))
            elif kind is Kind.BYTES:
                self._set_data(content, bytes(value), BYTES_TYPE)
            elif kind is Kind.IMAGE:
                self._set_data(content, png_of(value), PNG_TYPE)
            elif kind is Kind.TORCH or kind is Kind.OTHER:
                tensor = tensor_of(value, kind)
                if self._has_shape(tensor.shape):
                    self._set_tensor(content, *tensor)
                else:
                    self._fill_json(content, value, root, path)
            else:
                self._fill_json(content, value, root, path)
        except Exception as error:  # noqa: BLE001 - the value's own code fails
            _set_json(content, _to_json(self.marker(self.unsupported(error, value), root, path)), VALUE_TYPE)

    def unsupported(self, error: Exception, value: object) -> UnsupportedValue:
        """Returns why a value is not stored. Its own code may have failed: with `strict`, raises such an error."""
        if isinstance(error, UnsupportedValue):
            return error
        if self.strict:
            raise error
        return UnsupportedValue(type_name(value))

    def _fill_json(self, content: Content, value: Any, root: str, path: Path) -> None:
        _set_json(content, *self._tree_json(_Tree(self, root), value, path))

    def _has_shape(self, shape: tuple[int, ...]) -> bool:
        """Returns whether a tensor of the server can have a shape. Arrays of others are JSON."""
        return len(shape) <= self.limits["tensorDimensions"] and max(shape, default=0) < _LONGEST

    # One method for each form of content.

    def _set_text(self, content: Content, value: str) -> None:
        text = str.__str__(value)
        self._require_size("str", text)
        try:
            if "\0" not in text:
                content.text = text
                return
            self._set_data(content, text.encode(), TEXT_TYPE)
        except UnicodeEncodeError:
            self._set_data(content, text.encode("utf-8", "surrogatepass"), SURROGATES_TYPE)

    def _set_data(self, content: Content, data: bytes, media_type: str) -> None:
        if len(data) > self.limits["stateBytes"]:
            raise OversizedValue(f"{media_type} of {len(data)} bytes")
        content.data = data
        content.media_type = media_type

    def _set_tensor(self, content: Content, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        if len(data) > self.limits["stateBytes"]:
            raise OversizedValue(f"array of {len(data)} bytes")
        tensor = content.tensor
        tensor.dtype = dtype
        tensor.shape.extend(shape)
        tensor.data = data

    def _require_size(self, name: str, text: str) -> None:
        """Raises OversizedValue if a text has more bytes than a state."""
        most = self.limits["stateBytes"]
        if 4 * len(text) > most and (size := len(text.encode("utf-8", "surrogatepass"))) > most:
            raise OversizedValue(f"{name} of {size} bytes")

    def _tree_json(self, tree: _Tree, value: object, path: Path) -> tuple[str, str]:
        """Returns the JSON text of a value and its media type."""
        text, media_type = self._json_of_any_size(tree, value, path)
        try:
            self._require_size(f"{type_name(value)} as JSON", text)
        except OversizedValue as oversized:
            return _to_json(tree.marker(oversized, path)), VALUE_TYPE if tree.has_tags else ""
        return text, media_type

    def _json_of_any_size(self, tree: _Tree, value: object, path: Path) -> tuple[str, str]:
        try:
            for arrays, media_type in _INFO if tree.is_info else _VALUES:
                if _is_json(value, MAX_DEPTH - len(path), arrays):
                    return _to_json(value), media_type
        except Exception:  # noqa: BLE001, S110 - its own code fails, or another thread changes it
            # The tree copies each container before it looks into it.
            pass
        try:
            text = _to_json(tree.plain(value, path))
        except RecursionError:
            # The caller's stack is nearly full.
            unsupported = UnsupportedValue(f"{type_name(value)} that is nested too deep")
            text = _to_json(tree.marker(unsupported, path))
        except Exception as error:  # noqa: BLE001 - the value's own code fails
            text = _to_json(tree.marker(self.unsupported(error, value), path))
        return text, VALUE_TYPE if tree.has_tags else ""


class _Tree:
    """Turns nested values into values that JSON has. Info has no tags."""

    def __init__(self, encoder: ValueEncoder, root: str, *, is_info: bool = False) -> None:
        self._encoder = encoder
        self.root = root
        self.is_info = is_info
        self.has_tags = False
        self._open: set[int] = set()

    def plain(self, value: Any, path: tuple[object, ...] = ()) -> Any:
        try:
            return self._convert(*resolved(value), path)
        except Exception as error:  # noqa: BLE001 - the value's own code fails
            return self.marker(self._encoder.unsupported(error, value), path)

    def marker(self, unsupported: UnsupportedValue, path: tuple[object, ...]) -> dict[str, str]:
        self.has_tags = not self.is_info
        return self._encoder.marker(unsupported, self.root, path)

    def _tag(self, name: str, value: object) -> dict[str, object]:
        self.has_tags = True
        return {name: value}

    def _convert(self, value: Any, kind: Kind, path: tuple[object, ...]) -> Any:
        if kind is Kind.TEXT:
            return self._text(str.__str__(value))
        if kind is Kind.NUMBER:
            return self._number(value)
        if kind in CONTAINERS:
            return self._container(value, kind, path)
        if kind is Kind.BYTES:
            return self._bytes("$bytes", bytes(value), BYTES_TYPE)
        if kind is Kind.IMAGE:
            return self._bytes("$png", png_of(value), PNG_TYPE)
        if kind is Kind.UNSUPPORTED:
            raise UnsupportedValue(type_name(value))
        if kind is Kind.ARRAY and value.dtype.kind in "OT":
            return self._container(value, kind, path)
        dtype, shape, data = tensor_of(value, kind)
        if self.is_info:
            items = items_of(value, kind)
            return items if _is_json(items, MAX_DEPTH - len(path)) else self.plain(items, path)
        return self._tag("$tensor", {"dtype": dtype, "shape": list(shape), "base64": _base64(data)})

    def _text(self, text: str) -> Any:
        if text.isascii() or not _SURROGATE.search(text):
            return text
        if self.is_info:
            return text.encode("utf-8", "backslashreplace").decode()
        return self._tag("$surrogates", _base64(text.encode("utf-8", "surrogatepass")))

    def _bytes(self, name: str, data: bytes, media_type: str) -> Any:
        return f"data:{media_type};base64,{_base64(data)}" if self.is_info else self._tag(name, _base64(data))

    def _number(self, value: Any) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, int):
            try:
                int.__repr__(value)
            except ValueError:
                raise UnsupportedValue("int of too many digits") from None
            return int(value)
        if math.isfinite(value):
            return float(value)
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return name if self.is_info else self._tag("$float", name)

    def _container(self, value: Any, kind: Kind, path: tuple[object, ...]) -> Any:
        if len(path) >= MAX_DEPTH or id(value) in self._open:
            raise UnsupportedValue(f"{type_name(value)} that contains itself or is nested too deep")
        self._open.add(id(value))
        try:
            members = members_of(value, kind)
            if not isinstance(members, list):
                return self._object(members, path)
            items = [self.plain(member, (*path, index)) for index, member in enumerate(members)]
            return self._tag("$tuple", items) if is_a(value, tuple) and not self.is_info else items
        finally:
            self._open.discard(id(value))

    def _object(self, members: dict[Any, Any], path: tuple[object, ...]) -> Any:
        plain = [(self._key(key), self.plain(member, (*path, key))) for key, member in members.items()]
        items = [[key, member] for key, member in plain]
        if self.is_info:
            named = {key if isinstance(key, str) else _to_json(key): member for key, member in plain}
            return named if len(named) == len(items) else items
        if all(isinstance(key, str) for key, _ in plain) and not (len(plain) == 1 and plain[0][0].startswith("$")):
            return dict(plain)
        return self._tag("$items", items)

    def _key(self, key: Any) -> Any:
        key, kind = resolved(key)
        if kind is Kind.SEQUENCE or kind is Kind.SET:
            return [self._key(part) for part in members_of(key, kind)]
        if kind in CONTAINERS:
            raise UnsupportedValue(f"dict with keys of {type_name(key)}")
        return self._convert(key, kind, ())


def step_too_large(text: str) -> StepTooLarge:
    return StepTooLarge(text, reason="STEP_TOO_LARGE")


def members_of(value: Any, kind: Kind) -> dict[Any, Any] | list[Any]:
    """Returns what a container contains. Raises UnsupportedValue if its own code fails."""
    try:
        if kind is Kind.SEQUENCE or kind is Kind.ARRAY:
            return list(value)
        if kind is Kind.SET:
            return sorted_members(value)
        if kind is Kind.TABLE:
            return rows_of(value)
        if kind is Kind.DATACLASS:
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if kind is Kind.PYDANTIC:
            return dict(value.model_dump())
        return dict(value.__dict__ if kind is Kind.NAMESPACE else value)
    except Exception as error:
        raise UnsupportedValue(type_name(value)) from error


_Leaf = tuple[str, Path, Any, Kind]


def _leaves_of(value: Any, kind: Kind, room: int, type_bytes: int) -> list[_Leaf] | None:
    """Returns the leaves of a container that has arrays, bytes or images, with their types. None if it is stored as
    one JSON: it has none, or the leaves have no room or do not fit the limit of types."""
    leaves: list[_Leaf] = []

    def add(path: Path, leaf: Any, leaf_kind: Kind) -> None:
        item_type = format_path(path)
        if len(leaves) >= room or not _fits(item_type, type_bytes):
            raise _NotSplit
        leaves.append((item_type, path, leaf, leaf_kind))

    try:
        binary = _collect(value, kind, (), add)
    except Exception:  # noqa: BLE001 - _NotSplit, or the value's own code fails
        return None
    return leaves if binary else None


class _NotSplit(Exception):
    pass


def _collect(value: Any, kind: Kind, path: Path, add: Callable[[Path, Any, Kind], None]) -> bool:
    """Adds the leaves of a value. Returns whether a leaf is an array, bytes or an image."""
    if kind in CONTAINERS:
        if len(path) >= MAX_DEPTH:
            raise _NotSplit
        try:
            members = members_of(value, kind)
        except UnsupportedValue:
            raise _NotSplit from None
        # A list of plain values is one JSON, so that it is read as a list.
        if members and (is_a(value, tuple) or not isinstance(members, list) or any(map(_has_binary, members))):
            binary = False
            for key, member in enumerate(members) if isinstance(members, list) else members.items():
                if not isinstance(key, (str, int)) or (isinstance(key, int) and isinstance(members, dict)):
                    raise _NotSplit
                binary |= _collect(*resolved(member), (*path, _bare(key)), add)
            return binary
    add(path, value, kind)
    return _is_binary(value, kind)


def _is_binary(value: Any, kind: Kind) -> bool:
    """Returns whether a leaf is an array, bytes or an image."""
    if kind is not Kind.OTHER:
        return kind not in _JSON_KINDS
    try:
        memoryview(value).release()
    except Exception:  # noqa: BLE001 - the value's own code fails
        return False
    return True


def _has_binary(value: Any, depth: int = 1) -> bool:
    """Returns whether a value is or contains an array, bytes or an image. Raises _NotSplit if it cannot be known."""
    value, kind = resolved(value)
    if kind not in CONTAINERS:
        return _is_binary(value, kind)
    if depth >= MAX_DEPTH:
        raise _NotSplit
    try:
        members = members_of(value, kind)
    except UnsupportedValue:
        raise _NotSplit from None
    return any(
        _has_binary(member, depth + 1) for member in (members if isinstance(members, list) else members.values())
    )


def _bare(key: str | int) -> str | int:
    """Returns a key of a path as `str` or `int` itself: the text of a subclass, such as an enum, can be another one."""
    return str.__str__(key) if isinstance(key, str) else int(key)


def _fits(item_type: str, type_bytes: int) -> bool:
    try:
        return len(item_type.encode()) <= type_bytes
    except UnicodeEncodeError:
        return False


_JSON_KINDS = CONTAINERS | {Kind.NUMBER, Kind.TEXT, Kind.UNSUPPORTED}


def _set_json(content: Content, text: str, media_type: str = "") -> None:
    content.json = text
    if media_type:
        content.media_type = media_type


def content_bytes(content: Content) -> tuple[bytes, str]:
    """Returns the bytes and the media type of a content, from which `decode` reads the value as a state."""
    if content.HasField("tensor"):
        tensor = content.tensor
        sizes = ",".join(map(str, tensor.shape))
        return tensor.data, f"{TENSOR_TYPE};dtype={tensor.dtype};shape={sizes}"
    if content.HasField("text"):
        return content.text.encode(), TEXT_TYPE
    if content.HasField("json"):
        return content.json.encode(), content.media_type or JSON_TYPE
    return content.data, content.media_type


def _is_json(value: Any, depth: int, arrays: _Arrays = _LISTS) -> bool:
    """Returns whether JSON has the value as it is, with arrays for these types. Most values are so; those nested deeper
    than `depth` are not."""
    cls: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if cls is str:
        return value.isascii() or not _SURROGATE.search(value)
    if cls is int:
        return -_SMALL < value < _SMALL
    if cls is float:
        return math.isfinite(value)
    if cls is dict:
        for key, member in value.items():
            if type(key) is not str or not _is_json(key, 0) or not _is_json(member, depth - 1, arrays):
                return False
            # Where arrays are tuples, it would be read as a tag.
            if arrays is _TUPLES and len(value) == 1 and key.startswith("$"):
                return False
        return depth > 0
    if cls in arrays:
        return depth > 0 and all(_is_json(member, depth - 1, arrays) for member in value)
    return cls is bool or value is None


def _is_empty_dict(value: object) -> bool:
    return type(value) is dict and not value


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def image_type(data: bytes | bytearray) -> str | None:
    """Returns the media type of the file of an image, by its first bytes."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for magic, media_type in _MAGIC.items() if data.startswith(magic)), None)


_MAGIC = {b"\x89PNG\r\n\x1a\n": PNG_TYPE, b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
