"""What a program says about a trajectory when it creates it. It is checked at once: a server that refuses it later
would never get the steps."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch._wire.kinds import is_a, type_name

#: The bounds of CreateTrajectory and BranchTrajectory.
_NAME_BYTES = 256
_LABELS = 64
_LABEL_KEY_BYTES = 64
_LABEL_VALUE_BYTES = 256
METADATA_BYTES = 512 * 1024

_UUID = re.compile("[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class Creation:
    """What CreateTrajectory and BranchTrajectory accept."""

    task: str = ""
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    run_id: str = ""

    @staticmethod
    def checked(*, task: Any = "", name: Any = "", labels: Any = None, run: Any = None) -> Creation:
        """Raises TypeError or ValueError, which name the argument, its value and what is expected."""
        return Creation(
            _text("task", task, _NAME_BYTES), _text("name", name, _NAME_BYTES), _labels(labels), _run_id(run)
        )


def checked_id(value: Any) -> str:
    """Returns the id of a trajectory. Raises TypeError or ValueError."""
    if not _UUID.fullmatch(_text("id", value, _NAME_BYTES)):
        raise ValueError(f"`id` is {_shown(value)}: expected a UUID, such as str(uuid.uuid4())")
    return value


def _run_id(run: Any) -> str:
    found = run if run is None or is_a(run, str) else getattr(run, "id", run)
    if found is None or found == "":
        return ""
    if not is_a(found, str):
        raise TypeError(f"`run` is {_shown(run)}: expected a Run, or the id of one")
    if not _UUID.fullmatch(found):
        expected = "a Run, or the id of one, which is a UUID: client.run(name) returns the run of a name"
        raise ValueError(f"`run` is {_shown(found)}: expected {expected}")
    return found


def _labels(labels: Any) -> dict[str, str]:
    if labels is None:
        return {}
    if not is_a(labels, Mapping):
        raise TypeError(f"`labels` is {_shown(labels)}: expected a dict of text")
    own = dict(labels)
    if len(own) > _LABELS:
        raise ValueError(f"`labels` has {len(own)} entries: expected at most {_LABELS}")
    for key, value in own.items():
        if key == "":
            raise ValueError(f"`labels` has an empty key: expected 1 to {_LABEL_KEY_BYTES} bytes")
        _text("a key of labels", key, _LABEL_KEY_BYTES)
        _text(f"labels[{key!r}]", value, _LABEL_VALUE_BYTES)
    return own


def _text(argument: str, value: Any, most: int) -> str:
    if not is_a(value, str):
        raise TypeError(f"`{argument}` is {_shown(value)}: expected text")
    text = str.__str__(value)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        problem = f"has a lone surrogate at index {error.start}, which UTF-8 cannot hold"
        raise ValueError(f"`{argument}` is {_shown(text)}: it {problem}; remove it") from None
    if "\0" in text:
        raise ValueError(f"`{argument}` is {_shown(text)}: it has U+0000 at index {text.index(chr(0))}; remove it")
    if size > most:
        raise ValueError(f"`{argument}` has {size} bytes ({_shown(text)}): expected at most {most}")
    return text


def _shown(value: Any) -> str:
    shown = reprlib.repr(value)
    return shown if is_a(value, str) else f"{shown}, of type {type_name(value)}"
