"""What the server returns about a resource, as an object with attributes."""

from __future__ import annotations

import datetime
from collections.abc import MutableSequence
from typing import TYPE_CHECKING, Any, cast

from anabranch._wire.decode import decode_json
from anabranch._wire.shown import Shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

_JSON = "_json"
#: Longer texts are left out of what `repr` shows.
_SHORT = 60


class Record(Shown):
    """A resource as the server returned it last, in `proto`. The fields of the message are attributes, whatever their
    form there: times are datetimes in UTC, enums are small letters (`running`), JSON texts are values under a name without
    `_json`, and what is not set is None. Raises AttributeError for other names.
    """

    def __init__(self, message: Any) -> None:
        self._proto = message

    if TYPE_CHECKING:
        #: The message itself.
        proto: Any
    else:

        @property
        def proto(self) -> Any:
            """The message itself."""
            return self._proto

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            fields = self.proto.DESCRIPTOR.fields_by_name
            field = fields.get(name + _JSON)
            if field is not None:
                text = getattr(self.proto, field.name)
                return decode_json(text) if text else None
            field = fields.get(name)
            if field is None:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            return _value_of(self.proto, field)

    def __dir__(self) -> list[str]:
        fields = self.proto.DESCRIPTOR.fields_by_name
        return sorted({*super().__dir__(), *(name.removesuffix(_JSON) for name in fields)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self.proto == other.proto

    __hash__ = None  # pyright: ignore[reportAssignmentType] - the message changes

    def __repr__(self) -> str:
        fields = ((field.name, value) for field, value in self.proto.ListFields() if _is_short(field, value))
        shown = ", ".join(
            f"{name.removesuffix(_JSON)}={getattr(self, name.removesuffix(_JSON))!r}" for name, _ in fields
        )
        return f"{type(self).__name__}({shown})"


def _is_short(field: FieldDescriptor, value: object) -> bool:
    """Whether a field is shown: names, numbers and words, as opposed to ids of others, texts and messages."""
    return isinstance(value, (str, int, float)) and len(str(value)) <= _SHORT


def _value_of(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    of = field.message_type
    if of is not None and of.GetOptions().map_entry:
        member = of.fields_by_name["value"]
        return {key: _converted(each, member) for key, each in value.items()}
    if isinstance(value, MutableSequence):
        return tuple(_converted(each, field) for each in cast("Iterable[Any]", value))
    if field.has_presence and not message.HasField(field.name):
        return None
    return _converted(value, field)


def _converted(value: Any, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return enum_word(field.enum_type, value)
    if field.message_type is None:
        return value
    if field.message_type.full_name == "google.protobuf.Timestamp":
        return value.ToDatetime(datetime.timezone.utc)
    if field.message_type.full_name == "google.protobuf.Duration":
        return value.ToTimedelta()
    from anabranch.v1 import records

    return getattr(records, field.message_type.name)(value)


def enum_word(enum: Any, number: int) -> str:
    """Returns a value of an enum as clients name it: STATUS_RUNNING is `running`; empty if it is not set."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    name: str = enum.values_by_number[number].name
    return "" if number == 0 else name.removeprefix(prefix).lower()
