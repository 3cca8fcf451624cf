"""`python -m anabranch.fle import SOURCE`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from anabranch._wire.connection import Connection, address_from
from anabranch._wire.errors import AnabranchError
from anabranch._wire.outage import retried
from anabranch.fle._source import FleImportError, Source, open_source
from anabranch.fle._store import import_programs

_DESCRIPTION = """\
Imports a database of the Factorio Learning Environment (FLE): a run for each
version, a trajectory for each instance and process, branches where programs
share a parent. The source is only read. Run the command again to import what
was added since, or to continue an import that was interrupted: nothing is
imported twice."""
_EXAMPLES = """\
examples:
  python -m anabranch.fle import .fle/data.db
  python -m anabranch.fle import .fle/data.db --experiment lab-play --dry-run
  python -m anabranch.fle import postgres://fle_user:fle123@localhost/fle --json"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 1 after an error, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m anabranch.fle")
    command = parser.add_subparsers(required=True, metavar="import").add_parser(
        "import",
        help="imports a database of FLE",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = "FLE's SQLite file, or a URL such as postgres://USER:PASSWORD@HOST:PORT/DATABASE"
    command.add_argument("source", metavar="SOURCE", help=f"{source} (needs anabranch[fle-postgres])")
    experiment = "experiment of the runs, created if it does not exist; default: fle"
    command.add_argument("-e", "--experiment", default="fle", metavar="NAME", help=experiment)
    command.add_argument("--address", help="server to import into; default: ANABRANCH_ADDRESS, else 127.0.0.1:50051")
    command.add_argument("--dry-run", action="store_true", help="print what would be imported, and write nothing")
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    if not options.experiment:
        command.error('--experiment is "": expected a name')
    try:
        connection = Connection(address_from(options.address))
        opened = open_source(options.source)
    except ValueError as error:
        command.error(str(error))
    except (FleImportError, ImportError) as error:
        return _failed(error)
    try:
        return _import(connection, opened, options)
    except (FleImportError, AnabranchError) as error:
        return _failed(error)
    except KeyboardInterrupt:
        return _failed("Interrupted. Run the command again to continue.")
    finally:
        opened.close()
        connection.close()


def _import(connection: Connection, source: Source, options: argparse.Namespace) -> int:
    # Checks that the server answers, because reading the source can take minutes.
    retried(connection, lambda: None)

    def show(imported: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if imported == total else ""
            print(f"\r{imported} of {total} programs", end=end, file=sys.stderr, flush=True)

    versions = import_programs(connection, source, options.experiment, dry_run=options.dry_run, on_progress=show)
    if options.json:
        numbers = {name: sum(each[name] for each in versions) for name in ("programs", "imported")}
        result = {"source": source.description, "experiment": options.experiment, "dry_run": options.dry_run}
        print(json.dumps({**result, **numbers, "runs": versions}))
    elif not versions:
        print("The source has no programs.")
    else:
        width = max(8, *(len(each["run_name"]) for each in versions))
        print(f"{'run':{width}} programs imported trajectories branches")
        for each in versions:
            print("{run_name:{0}} {programs:8} {imported:8} {trajectories:12} {branches:8}".format(width, **each))
        print("Nothing was written (--dry-run)." if options.dry_run else f"Imported into {connection.address}.")
    return 0


def _failed(error: object) -> int:
    print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
