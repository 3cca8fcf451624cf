"""Fits what a program records to the rules of the server, before it is recorded: a part that breaks a rule costs itself only.

Text that is too long is cut between two characters, and characters that no text can have are escaped. The end of an id
becomes a hash, so that different ids stay different. Of maps, and of lists whose items have names, the entries that break a
rule are left out, and so are those that are too many.
"""

from __future__ import annotations

import functools
import json
import operator
import re
import sys
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from anabranch._wire.kinds import type_name
from anabranch._wire.plain import resolved
from anabranch._wire.values import MAX_DEPTH
from anabranch.v1.rules import RULES

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

    from anabranch._wire.limits import Limits
    from anabranch._wire.values import ValueEncoder

#: Messages that are named within their list: the field with the name, and its default.
_NAMED = {"StepState": ("name", "env")}
#: Messages that keep their rules already: `ValueEncoder` writes contents.
_KEPT = ("Content", "Timestamp")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MARKED = re.compile("\0(u[0-9a-f]{4})?")
_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_UNSTORED = '{"$unstored":"JSON that is too large"}'
_SHOWN = 40


def text_of(value: Any) -> str:
    """Returns a name as text that a message can hold: U+0000, which no rule accepts, marks lone surrogates. The name of the
    type if the value has no text."""
    try:
        plain, _ = resolved(value)
        # Other methods of a subclass can return another text.
        text = str.__str__(plain) if isinstance(plain, str) else str(plain)
    except Exception:  # noqa: BLE001 - the value's own code fails
        text = type_name(value)
    return text if text.isascii() else _SURROGATE.sub(lambda found: f"\0u{ord(found[0]):04x}", text)


def fit(message: Message, values: ValueEncoder) -> None:
    """Changes the parts of a message that the server would reject, and reports them. With `strict`, raises ValueError."""
    _fit(message, _fields_of(message.DESCRIPTOR), None, values)


def fits(rule: str, text: str, part: str, values: ValueEncoder) -> bool:
    """Returns whether a name keeps a rule, for example `StepTag.name`. If not, reports that the part is left out."""
    fault = _text_rule(rule, "").fault_of(text, values.limits)
    if fault:
        values.misfit(part.partition("[")[0], f"{part} {fault}", "It is left out.")
    return not fault


def fitted_tags(names: Iterable[str], values: ValueEncoder) -> list[str]:
    """Returns the tags of a step that the server accepts, each once."""
    kept = [name for name in dict.fromkeys(names) if fits("StepTag.name", name, f"tags[{shown(name)}]", values)]
    most = values.limits["tagsPerStep"]
    if len(kept) > most:
        values.misfit("tags", f"tags has {len(kept)} names: expected at most {most}", f"{kept[most:]} are left out.")
    return kept[:most]


def fitted_text(rule: str, text: str, limits: Limits) -> str:
    """Returns text as the rule of its field accepts it: escaped, and without its end."""
    return _text_rule(rule, "").fitted(text_of(text or ""), limits)


def is_same_id(recorded: str, original: str) -> bool:
    """Returns whether an id of a recorded step stands for an id of a reply."""
    return recorded == original or recorded.endswith(_mark(text_of(original)))


def is_plain_json(text: str) -> bool:
    """Returns whether every client can read a text as JSON: strict, not nested too deep, no integer of too many digits."""
    try:
        if not _SURROGATE.search(text) and not _is_too_deep(text):
            json.loads(text, parse_constant=_refuse)
            return True
    except (ValueError, RecursionError):
        pass
    return False


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _is_too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for found in _BRACKET.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > MAX_DEPTH:
            return True
    return False


class _TextRule(NamedTuple):
    """The rule of a text. `most` is a number of bytes, or the name of the limit; 0 if there is none."""

    is_id: bool
    is_json: bool
    least: int
    most: int | str
    pattern: re.Pattern[str] | None

    def fault_of(self, text: str, limits: Limits) -> str:
        """Returns what is wrong with a text; empty if nothing."""
        if "\0" in text:
            return "has U+0000 or a lone surrogate"
        most = limits[self.most] if isinstance(self.most, str) else self.most
        if most and (size := len(text) if text.isascii() else len(text.encode())) > most:
            return f"has {size} bytes: expected at most {most}"
        if len(text) < self.least:
            return "is empty"
        if self.pattern is not None and not self.pattern.fullmatch(text):
            return f"is unexpected: expected a match of {self.pattern.pattern}"
        return ""

    def fitted(self, text: str, limits: Limits) -> str:
        """Returns the text as the rule accepts it."""
        most = limits[self.most] if isinstance(self.most, str) else self.most
        if self.is_json:
            return _UNSTORED
        end = _mark(text) if self.is_id and self.fault_of(text, limits) else ""
        whole = _escaped(text)
        kept = whole.encode()[: max(0, most - len(end))].decode("utf-8", "ignore") if most else whole
        return "" if self.pattern is not None and not self.pattern.fullmatch(kept) else kept + end


class _Map(NamedTuple):
    """A map of a message. `most` is the number of entries; 0 if there is no rule."""

    name: str
    keys: _TextRule
    #: Unset if the values are no texts.
    members: _TextRule | None
    most: int | str


class _Part(NamedTuple):
    """A message within a message, or a list of messages. `most` is the number of items; 0 if there is no rule."""

    name: str
    is_list: bool
    fields: _Fields
    #: The field with the name of each item, and the default of that, if the items have different names.
    named: tuple[str, str] | None
    most: int | str


class _Fields(NamedTuple):
    """The fields of a message that can break a rule."""

    texts: tuple[tuple[str, _TextRule], ...]
    #: Returns the values of the texts.
    texts_of: Callable[[Message], tuple[str, ...]]
    maps: tuple[_Map, ...]
    parts: tuple[_Part, ...]


#: The way to a message: that to the message around it, its field there, and its index in a list. None at the beginning.
_Way = tuple["_Way | None", str, "int | None"]


def _fit(message: Message, fields: _Fields, way: _Way | None, values: ValueEncoder) -> None:
    if any(fields.texts_of(message)):
        for name, rule in fields.texts:
            _fit_text(message, name, rule, way, values)
    for each in fields.maps:
        if entries := getattr(message, each.name):
            _fit_map(entries, each, (way, each.name, None), values)
    for part in fields.parts:
        if part.is_list:
            if items := getattr(message, part.name):
                _fit_list(items, part, way, values)
        elif message.HasField(part.name):
            _fit(getattr(message, part.name), part.fields, (way, part.name, None), values)


def _fit_text(message: Message, name: str, rule: _TextRule, way: _Way | None, values: ValueEncoder) -> None:
    text: str = getattr(message, name)
    if text and (fault := rule.fault_of(text, values.limits)):
        fitted = rule.fitted(text, values.limits)
        outcome = f"It is stored with {len(fitted.encode())} bytes: {shown(fitted)}."
        _report((way, name, None), f" {shown(text)} {fault}", outcome, values)
        setattr(message, name, fitted)


def _report(way: _Way, fault: str, outcome: str, values: ValueEncoder) -> None:
    parts: list[str] = []
    names: list[str] = []
    at: _Way | None = way
    while at is not None:
        at, name, index = at
        names.append(name)
        parts.append(name if index is None else f"{name}[{index}]")
    values.misfit(".".join(reversed(names)), f"{'.'.join(reversed(parts))}{fault}", outcome)


def _fit_map(entries: Any, field: _Map, way: _Way, values: ValueEncoder) -> None:
    limits = values.limits
    for key in sorted(entries):
        fault = field.keys.fault_of(key, limits)
        if not fault and field.members is not None:
            fault = field.members.fault_of(entries[key], limits)
        if fault:
            _report(way, f"[{shown(key)}] {fault}", "It is left out.", values)
            del entries[key]
    most = _bound(field.most, limits)
    if len(entries) > most:
        excess = sorted(entries)[most:]
        outcome = f"The last ones are left out, from {shown(excess[0])} on."
        _report(way, f" has {len(entries)} entries: expected at most {most}", outcome, values)
        for key in excess:
            del entries[key]


def _fit_list(items: Any, part: _Part, way: _Way | None, values: ValueEncoder) -> None:
    name = part.name
    if part.named is not None:
        _leave_out_names(items, part.named, (way, name, None), values)
    most = _bound(part.most, values.limits)
    if len(items) > most:
        fault, outcome = (
            f"has {len(items)} items: expected at most {most}",
            f"Those from {name}[{most}] on are left out.",
        )
        _report((way, name, None), f" {fault}", outcome, values)
        del items[most:]
    for index, item in enumerate(items):
        _fit(item, part.fields, (way, name, index), values)


def _leave_out_names(items: Any, named: tuple[str, str], way: _Way, values: ValueEncoder) -> None:
    """Leaves items out whose names break their rule, or are those of earlier items."""
    field, default = named
    names: set[str] = set()
    excess: list[int] = []
    for index, item in enumerate(items):
        name: str = getattr(item, field) or default
        fault = _text_rule(f"{item.DESCRIPTOR.name}.{field}", "").fault_of(name, values.limits)
        if name in names:
            fault = "is the name of an earlier one"
        if fault:
            _report(way, f"[{shown(name)}] {fault}", "It is left out.", values)
            excess.append(index)
        names.add(name)
    for index in reversed(excess):
        del items[index]


@functools.cache
def _fields_of(descriptor: Descriptor) -> _Fields:
    """Returns the fields of a message that have rules, and the messages in it."""
    proto = DescriptorProto()
    descriptor.CopyToProto(proto)
    texts: list[tuple[str, _TextRule]] = []
    maps: list[_Map] = []
    parts: list[_Part] = []
    for each in proto.field:
        name, field = each.name, f"{descriptor.name}.{each.name}"
        rules = RULES.get(field, {})
        inner = descriptor.fields_by_name[name].message_type
        is_list = each.label == FieldDescriptorProto.LABEL_REPEATED
        if inner is not None and inner.GetOptions().map_entry:
            has_texts = inner.fields_by_name["value"].type == FieldDescriptorProto.TYPE_STRING
            members = _text_rule(field, "values.") if has_texts else None
            maps.append(_Map(name, _text_rule(field, "keys."), members, rules.get("max_pairs", 0)))
        elif inner is not None and inner.name not in _KEPT:
            parts.append(_Part(name, is_list, _fields_of(inner), _NAMED.get(inner.name), rules.get("max_items", 0)))
        elif each.type == FieldDescriptorProto.TYPE_STRING and rules:
            texts.append((name, _text_rule(field, "")))
    names = [name for name, _ in texts]
    # With one name, the getter would return no tuple.
    texts_of: Callable[[Message], tuple[str, ...]] = operator.attrgetter(*names, *names[:1]) if names else _no_texts
    return _Fields(tuple(texts), texts_of, tuple(maps), tuple(parts))


def _no_texts(_: Message) -> tuple[str, ...]:
    return ()


@functools.cache
def _text_rule(field: str, prefix: str) -> _TextRule:
    rules = RULES.get(field, {})
    pattern = rules.get(f"{prefix}pattern")
    return _TextRule(
        field.endswith(".call_id"),
        field.endswith("_json"),
        int(rules.get(f"{prefix}min_bytes", 0)),
        rules.get(f"{prefix}max_bytes", 0),
        None if pattern is None else re.compile(str(pattern)),
    )


def _bound(bound: int | str, limits: Limits) -> int:
    return limits[bound] if isinstance(bound, str) else bound or sys.maxsize


def _mark(text: str) -> str:
    """Returns what the end of a changed id has of the whole id."""
    return f"~{sha256(text.encode()).hexdigest()[:16]}"


def _escaped(text: str) -> str:
    """Returns text with U+0000 and marked surrogates as in literals of Python."""
    return _MARKED.sub(lambda found: f"\\{found[1] or 'x00'}", text)


def shown(text: str) -> str:
    """Returns the beginning of a text, in quotes."""
    plain = _escaped(text)
    return json.dumps(plain[:_SHOWN] + ("…" if len(plain) > _SHOWN else ""), ensure_ascii=False).replace("\\\\", "\\")
