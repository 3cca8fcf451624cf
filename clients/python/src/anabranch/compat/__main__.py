"""`python -m anabranch.compat import SOURCE`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from anabranch._wire.outage import retried
from anabranch.client import Client, connect
from anabranch.compat._command import import_command, progress_of, run_import
from anabranch.compat._cua_import import import_trainings
from anabranch.compat._fle_import.store import import_programs
from anabranch.compat._simulation_db_import import import_simulations
from anabranch.compat._source import Source, SourceError

_DESCRIPTION = """\
Imports a database of one of three systems, which is recognised by its tables:
  FLE   a run for each version, a trajectory for each instance and process,
        branches where programs share a parent
  CUA   a run for each training, with its stages, tasks, rollouts and turns
  SSDB  an experiment for each simulation, with its runs, branches and states
The source is only read. Run the command again to import what was added since,
or to continue an import that was interrupted: nothing is imported twice."""
_EXAMPLES = """\
examples:
  python -m anabranch.compat import .fle/data.db
  python -m anabranch.compat import .fle/data.db --experiment lab-play --dry-run
  python -m anabranch.compat import postgres://user:secret@localhost/training_db
  python -m anabranch.compat import simulations.db --json"""
#: The tables by which the systems are recognised.
_TABLES = {
    "FLE": ("programs",),
    "CUA": ("training", "rollout", "turn"),
    "SSDB": ("simulations", "simulation_runs", "states", "run_state_sequence"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 1 after an error, 2 for wrong arguments."""
    parser, command = import_command(
        "python -m anabranch.compat",
        "imports a database of FLE, CUA or SSDB",
        _DESCRIPTION,
        _EXAMPLES,
        "-e",
        "--experiment",
        metavar="NAME",
        help="experiment of the runs, created if it does not exist; default: fle or cua. Not for SSDB",
    )
    options = parser.parse_args(arguments)
    if options.experiment == "":
        command.error('--experiment is "": expected a name')
    return run_import(
        command,
        options.source,
        lambda: connect(options.address, spool=False),
        lambda client, source: _import(client, source, options),
    )


def _import(client: Client, source: Source, options: argparse.Namespace) -> None:
    system = _system_of(source)
    # Checks that the server answers, because reading the source can take minutes.
    retried(client.connection, lambda: None)
    runs = _import_as(system, client, source, options)
    if options.json:
        totals = {name: sum(each[name] for each in runs) for name in _counts(runs)[:2]}
        result = {"source": source.description, "system": system, "experiment": _experiment_of(system, options)}
        print(json.dumps({**result, "dry_run": options.dry_run, **totals, "runs": runs}))
    elif not runs:
        print("The source has no programs." if system == "FLE" else "The source has no runs.")
    else:
        counts = _counts(runs)
        width = max(8, *(len(each["run_name"]) for each in runs))
        print(" ".join([f"{'run':{width}}", *(f"{name:>8}" for name in counts)]))
        for each in runs:
            print(" ".join([f"{each['run_name']:{width}}", *(f"{each[name]:{max(8, len(name))}}" for name in counts)]))
        print("Nothing was written (--dry-run)." if options.dry_run else f"Imported into {client.connection.address}.")


def _system_of(source: Source) -> str:
    """Returns whose database it is. Raises SourceError."""
    for system, tables in _TABLES.items():
        if all(source.columns(table) for table in tables):
            return system
    expected = "; ".join(f"{', '.join(tables)} ({system})" for system, tables in _TABLES.items())
    raise SourceError(f"{source.description} is none of the three databases: expected the tables {expected}.")


def _import_as(system: str, client: Client, source: Source, options: argparse.Namespace) -> list[dict[str, Any]]:
    experiment = _experiment_of(system, options)
    if system == "SSDB":
        return import_simulations(client, source, dry_run=options.dry_run)
    if system == "CUA":
        return import_trainings(client, source, experiment, dry_run=options.dry_run)

    return import_programs(
        client.connection, source, experiment, dry_run=options.dry_run, on_progress=progress_of("programs")
    )


def _experiment_of(system: str, options: argparse.Namespace) -> str:
    """Returns the experiment of the runs. Empty for SSDB, whose simulations are experiments. Raises SourceError."""
    if system != "SSDB":
        return options.experiment or system.lower()
    if options.experiment is not None:
        raise SourceError("--experiment is not used for SSDB: each simulation is an experiment.")
    return ""


def _counts(runs: list[dict[str, Any]]) -> list[str]:
    """Returns the names of the counts of the runs: first what there is, then what was imported."""
    return [name for name in (runs[0] if runs else {}) if name not in ("run_name", "run_id")]


if __name__ == "__main__":
    sys.exit(main())
