"""What the commands that import from other programs share: their arguments, their errors and their progress."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from anabranch._wire.errors import AnabranchError
from anabranch.compat._source import Source, SourceError, open_source


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


def import_command(
    prog: str, summary: str, description: str, examples: str, *flags: str, **option: Any
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Returns the parser of a program and that of its command `import`, which has one option of its own."""
    parser = argparse.ArgumentParser(prog=prog)
    command = parser.add_subparsers(required=True, metavar="import").add_parser(
        "import",
        help=summary,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = "SQLite file, or a URL such as postgres://USER:PASSWORD@HOST:PORT/DATABASE"
    command.add_argument("source", metavar="SOURCE", help=f"{source} (needs anabranch[compat-postgres])")
    command.add_argument(*flags, **option)
    command.add_argument("--address", help="server to import into; default: ANABRANCH_ADDRESS, else 127.0.0.1:50051")
    command.add_argument("--dry-run", action="store_true", help="print what would be imported, and write nothing")
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser, command


def run_import(
    command: argparse.ArgumentParser,
    source: str,
    open_target: Callable[[], T],
    perform: Callable[[T, Source], None],
) -> int:
    """Imports a source into a target, and closes both. Returns the exit code: 1 after an error, 2 for wrong arguments."""
    try:
        target = open_target()
        opened = open_source(source)
    except ValueError as error:
        command.error(str(error))
    except (SourceError, ImportError) as error:
        return _failed(error)
    try:
        perform(target, opened)
    except (SourceError, AnabranchError) as error:
        return _failed(error)
    except KeyboardInterrupt:
        return _failed("Interrupted. Run the command again to continue.")
    finally:
        opened.close()
        target.close()
    return 0


def progress_of(noun: str) -> Callable[[int, int], None]:
    """Returns a function that shows on a terminal how many were imported."""

    def show(imported: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if imported == total else ""
            print(f"\r{imported} of {total} {noun}", end=end, file=sys.stderr, flush=True)

    return show


def _failed(error: object) -> int:
    print(error, file=sys.stderr)
    return 1
