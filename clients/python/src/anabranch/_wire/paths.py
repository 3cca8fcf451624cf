"""Paths of leaves within nested values. Observations and actions have them as types, for example `robot.arm[0]`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

Path = tuple[str | int, ...]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SEGMENT = re.compile(
    r"""(?P<name>(?:\A|\.)[A-Za-z_][A-Za-z0-9_]*) | \[(?P<index>0|[1-9][0-9]*)\] | \[(?P<key>"(?:[^"\\]|\\.)*")\]""",
    re.ASCII | re.VERBOSE | re.DOTALL,
)


def format_path(path: Iterable[str | int]) -> str:
    """Returns the path as text. Different paths have different texts; the empty path has the empty text."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        elif _NAME.fullmatch(key):
            text += f".{key}" if text else key
        else:
            text += f"[{json.dumps(key, ensure_ascii=False)}]"
    return text


def parse_path(text: str) -> Path | None:
    """Returns the path that `format_path` has written as `text`; None if there is none."""
    path: list[str | int] = []
    end = 0
    while end < len(text):
        segment = _SEGMENT.match(text, end)
        if segment is None:
            return None
        try:
            path.append(_key_of(segment))
        except ValueError:
            return None
        end = segment.end()
    return tuple(path)


def subject_of(root: str, path: Iterable[object]) -> str:
    """Returns an expression for messages, for example `info["renderer"]`."""
    return root + "".join(f"[{json.dumps(key) if isinstance(key, str) else repr(key)}]" for key in path)


def _key_of(segment: re.Match[str]) -> str | int:
    if segment["index"] is not None:
        return int(segment["index"])
    if segment["key"] is not None:
        return json.loads(segment["key"])
    return segment["name"].removeprefix(".")
