"""Generates src/anabranch/errors.py from error.proto: a subclass of AnabranchError for each reason.

python generate_errors.py           writes the file
python generate_errors.py --print   prints it
"""

import re
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROTO = HERE.parents[1] / "proto/anabranch/v1/error.proto"
TARGET = HERE / "src/anabranch/errors.py"

HEAD = '''"""The errors that calls raise: one class for each reason. Generated from error.proto by generate_errors.py."""

# ruff: noqa: PLC0414 (type checkers take an alias of the same name as an export)

from __future__ import annotations

from anabranch._wire.errors import AnabranchError as AnabranchError
from anabranch._wire.errors import Diverged as Diverged
from anabranch._wire.errors import IncompatibleVersion as IncompatibleVersion
from anabranch._wire.errors import NoLocalServer as NoLocalServer
from anabranch._wire.errors import RecorderClosed as RecorderClosed
from anabranch._wire.errors import SpoolFull as SpoolFull
from anabranch._wire.errors import StepTooLarge as StepTooLarge
from anabranch._wire.errors import Unreachable as Unreachable
'''

REASON = re.compile(r"((?: *//.*\n)+) *ERROR_REASON_(\w+) = ([0-9]+);")


def generate() -> str:
    reasons = [
        (comment_of(comment), name) for comment, name, number in REASON.findall(PROTO.read_text()) if int(number)
    ]
    classes = [f"\n\nclass {class_of(name)}(AnabranchError):\n{docstring(text)}\n" for text, name in reasons]
    table = "".join(f'    "{name}": {class_of(name)},\n' for _, name in reasons)
    return f"{HEAD}{''.join(classes)}\n\nBY_REASON: dict[str, type[AnabranchError]] = {{\n{table}}}\n"


def class_of(reason: str) -> str:
    """Returns the name of the class of a reason: StepGap for STEP_GAP."""
    return "".join(word.capitalize() for word in reason.split("_"))


def comment_of(comment: str) -> str:
    return " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines())


def docstring(text: str) -> str:
    lines = textwrap.wrap(text, 113, initial_indent='    """', subsequent_indent="    ")
    return "\n".join(lines) + '"""' if len(lines) == 1 else "\n".join([*lines, '    """'])


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(generate(), end="")
    else:
        TARGET.write_text(generate())
