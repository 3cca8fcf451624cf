"""`python -m anabranch.langgraph import SOURCE`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from anabranch._wire.outage import retried
from anabranch.compat._command import import_command, progress_of, run_import
from anabranch.compat._source import Source
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
    parser, command = import_command(
        "python -m anabranch.langgraph",
        "imports the checkpoints of LangGraph's own savers",
        _DESCRIPTION,
        _EXAMPLES,
        "--thread",
        metavar="ID",
        help="thread to import; default: all",
    )
    options = parser.parse_args(arguments)
    return run_import(
        command,
        options.source,
        lambda: AnabranchSaver(options.address),
        lambda saver, source: _import(saver, source, options),
    )


def _import(saver: AnabranchSaver, source: Source, options: argparse.Namespace) -> None:
    kind = kind_of(source)
    connection = saver.client.connection
    # Checks that the server answers, because reading the source can take minutes.
    retried(connection, lambda: None)

    threads = import_checkpoints(
        connection,
        saver.operations,
        source,
        thread=options.thread,
        dry_run=options.dry_run,
        on_progress=progress_of("threads"),
    )
    totals: dict[str, Any] = {name: sum(each[name] for each in threads) for name in ("checkpoints", "writes")}
    if options.json:
        result = {"source": source.description, "saver": kind, "dry_run": options.dry_run, **totals}
        print(json.dumps({**result, "threads": threads}))
        return
    print(f"{len(threads)} threads, {totals['checkpoints']} checkpoints, {totals['writes']} writes")
    print("Nothing was written (--dry-run)." if options.dry_run else f"Imported into {saver.client.address}.")


if __name__ == "__main__":
    sys.exit(main())
