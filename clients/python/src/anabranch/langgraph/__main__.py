"""`python -m anabranch.langgraph import SOURCE`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from anabranch._wire.errors import AnabranchError
from anabranch._wire.outage import retried
from anabranch.compat._source import Source, SourceError, open_source
from anabranch.langgraph import AnabranchSaver
from anabranch.langgraph._import import import_checkpoints, kind_of

_DESCRIPTION = """\
Imports the checkpoints and pending writes of LangGraph's savers for SQLite and
Postgres. A thread keeps its id, and a fork becomes a branch. Values are copied
as they are, and not deserialized.
The source is only read. Run the command again to continue an import that was
interrupted, or to import what was added since: nothing is imported twice."""
_EXAMPLES = """\
examples:
  python -m anabranch.langgraph import checkpoints.sqlite
  python -m anabranch.langgraph import checkpoints.sqlite --thread 7 --dry-run
  python -m anabranch.langgraph import postgres://user:secret@localhost/agents --json"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 1 after an error, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m anabranch.langgraph")
    command = parser.add_subparsers(required=True, metavar="import").add_parser(
        "import",
        help="imports the checkpoints of LangGraph's own savers",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = "SQLite file, or a URL such as postgres://USER:PASSWORD@HOST:PORT/DATABASE"
    command.add_argument("source", metavar="SOURCE", help=f"{source} (needs anabranch[compat-postgres])")
    command.add_argument("--thread", metavar="ID", help="thread to import; default: all")
    command.add_argument("--address", help="server to import into; default: ANABRANCH_ADDRESS, else 127.0.0.1:50051")
    command.add_argument("--dry-run", action="store_true", help="print what would be imported, and write nothing")
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    try:
        saver = AnabranchSaver(options.address)
        opened = open_source(options.source)
    except ValueError as error:
        command.error(str(error))
    except (SourceError, ImportError) as error:
        return _failed(error)
    try:
        return _import(saver, opened, options)
    except (SourceError, AnabranchError) as error:
        return _failed(error)
    except KeyboardInterrupt:
        return _failed("Interrupted. Run the command again to continue.")
    finally:
        opened.close()
        saver.close()


def _import(saver: AnabranchSaver, source: Source, options: argparse.Namespace) -> int:
    kind = kind_of(source)
    connection = saver.client.connection
    # Checks that the server answers, because reading the source can take minutes.
    retried(connection, lambda: None)

    def show(imported: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if imported == total else ""
            print(f"\r{imported} of {total} threads", end=end, file=sys.stderr, flush=True)

    threads = import_checkpoints(
        connection, saver.operations, source, thread=options.thread, dry_run=options.dry_run, on_progress=show
    )
    totals: dict[str, Any] = {name: sum(each[name] for each in threads) for name in ("checkpoints", "writes")}
    if options.json:
        result = {"source": source.description, "saver": kind, "dry_run": options.dry_run, **totals}
        print(json.dumps({**result, "threads": threads}))
        return 0
    print(f"{len(threads)} threads, {totals['checkpoints']} checkpoints, {totals['writes']} writes")
    print("Nothing was written (--dry-run)." if options.dry_run else f"Imported into {saver.client.address}.")
    return 0


def _failed(error: object) -> int:
    print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
