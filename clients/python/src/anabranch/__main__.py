"""`python -m anabranch spool`: sends what waits, sets it aside, or settles what a server has refused."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from urllib.parse import unquote

from anabranch._recording.abandoned import (
    SET_ASIDE,
    Abandoned,
    Owner,
    folder_of,
    folders_of,
    refusals_of,
    resolved,
    spool_root,
)
from anabranch._recording.creation import Creation
from anabranch._recording.recorder import send_spool
from anabranch._recording.refused import Changes, export, refused, rename
from anabranch._recording.spool import SpoolFullError, size_of
from anabranch._wire.connection import address_from


def main(arguments: list[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m anabranch")
    spool = parser.add_subparsers(required=True).add_parser("spool", help="steps that are not on a server yet")
    spool.add_argument("--folder", type=Path, help="default: ANABRANCH_SPOOL, else $XDG_STATE_HOME/anabranch/spool")
    commands = spool.add_subparsers(required=True)
    listing = commands.add_parser("list", help="lists the spools, their owners, and trajectories that were refused")
    listing.set_defaults(command=_list)
    send = commands.add_parser("send", help="sends what dead processes left for a server")
    send.add_argument("--address", help="default: ANABRANCH_ADDRESS, else 127.0.0.1:50051")
    send.add_argument(
        "--recorded-for", metavar="ADDRESS", help="the server of the recording programs; default: --address"
    )
    send.add_argument("--to", metavar="ADDRESS", help="the server that gets the steps; default: --address")
    send.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="default: 600")
    send.set_defaults(command=_send)
    aside = commands.add_parser("set-aside", help="moves spools of dead processes away, so that nothing sends them")
    aside.add_argument("name", nargs="+", help="names that `list` prints")
    aside.set_defaults(command=_set_aside)
    renaming = commands.add_parser(
        "rename", help="lets a refused trajectory be sent again, with another name, task or run"
    )
    renaming.add_argument("id", help="an id that `list` prints")
    renaming.add_argument("--name")
    renaming.add_argument("--task")
    renaming.add_argument("--run", metavar="ID", help="id of a run; '' for none")
    renaming.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="adds or replaces a label")
    renaming.set_defaults(command=_rename)
    dropping = commands.add_parser("drop", help="deletes refused trajectories")
    dropping.add_argument("id", nargs="+", help="ids that `list` prints")
    dropping.set_defaults(command=_drop)
    exporting = commands.add_parser("export", help="writes a refused trajectory as lines of JSON, and keeps it")
    exporting.add_argument("id", help="an id that `list` prints")
    exporting.add_argument("--output", type=Path, metavar="FILE", help="a new file; default: the standard output")
    exporting.set_defaults(command=_export)
    options = parser.parse_args(arguments)
    try:
        result: int = options.command(resolved(options.folder) if options.folder else spool_root(), options)
    except (OSError, SpoolFullError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return result


def _list(root: Path, _: argparse.Namespace) -> int:
    for folder in folders_of(root):
        print(f"{_address_of(folder)}  {folder.name}  {size_of(folder, '*.seg') / 1e6:.1f} MB  {_contents(folder)}")
    aside = root / SET_ASIDE
    for path in sorted(aside.iterdir()) if aside.exists() else ():
        print(f"set aside: {path}")
    return 0


def _contents(folder: Path) -> str:
    owner = Owner.lock(folder)
    if owner is None:
        refusals = [
            f"\n  refused: {trajectory_id}: {problem}" for trajectory_id, problem in refusals_of(folder).values()
        ]
        return "".join(["in use", *refusals])
    found = Abandoned(owner)
    try:
        lines = [
            f"\n  refused: {left.identity.trajectory_id} {left.identity.name!r}, {left.steps} steps: {left.refused}"
            for left in found.left
            if left.refused
        ]
        to_send = [left for left in found.left if not left.refused]
        calls = sum(left.calls for left in to_send)
        trajectories = sum(1 for left in to_send if not left.calls)
        text = f"abandoned: {found.steps} steps of {trajectories} trajectories"
        return "".join([text, f", {calls} logs of metrics" if calls else "", *lines])
    finally:
        found.release()


def _send(root: Path, options: argparse.Namespace) -> int:
    recorded_for, to = (address_from(each or options.address) for each in (options.recorded_for, options.to))
    owned, others = _spools(root, recorded_for)
    sent = send_spool(root, recorded_for, to, options.timeout)
    print(f"{sent.steps} steps were sent")
    for text in sent.kept:
        print(f"kept: {text}", file=sys.stderr)
    if owned:
        print(f"{owned} spools are in use by the processes that record or send them", file=sys.stderr)
    elif others:
        hint = f"`spool send --recorded-for {others[0]} --to {to}` sends them there"
        text = f"nothing was recorded for {recorded_for}, but for {', '.join(others)}: {hint}"
        print(text, file=sys.stderr)
    return 1 if sent.refused or sent.kept or (not owned and others) else 0


def _spools(root: Path, address: str) -> tuple[int, list[str]]:
    """Returns how many spools for a server live processes own, and, if it has none, the servers that others are for."""
    folders = [folder for folder in folders_of(root) if not Abandoned.is_settled(folder)]
    own = [folder for folder in folders if folder.parent == folder_of(root, address)]
    others = sorted({_address_of(folder) for folder in folders}) if not own else []
    owned = 0
    for folder in own:
        owner = Owner.lock(folder)
        if owner is None:
            owned += 1
        else:
            owner.release()
    return owned, others


def _set_aside(root: Path, options: argparse.Namespace) -> int:
    code = 0
    folders = list(folders_of(root))
    for name in set(options.name) - {folder.name for folder in folders}:
        print(f"{name} does not exist in {root}: `list` prints the names", file=sys.stderr)
        code = 1
    for folder in folders:
        if folder.name not in options.name:
            continue
        owner = Owner.lock(folder)
        if owner is None:
            print(f"{folder.name} is in use", file=sys.stderr)
            code = 1
            continue
        (root / SET_ASIDE).mkdir(mode=0o700, exist_ok=True)
        folder.rename(root / SET_ASIDE / folder.name)
        owner.release()
    return code


def _rename(root: Path, options: argparse.Namespace) -> int:
    labels: dict[str, str] = {}
    for text in options.label:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--label is {text!r}: expected KEY=VALUE")
        labels[key] = value
    Creation.checked(name=options.name or "", task=options.task or "", labels=labels, run=options.run)
    with refused(root, options.id) as (found, left):
        rename(found, left, Changes(options.name, options.task, options.run, labels))
        address = _address_of(found.owner.folder)
    print(f"the next process that records for {address} sends it, or `spool send --address {address}`")
    return 0


def _drop(root: Path, options: argparse.Namespace) -> int:
    for trajectory_id in options.id:
        with refused(root, trajectory_id) as (found, left):
            found.drop(left)
    return 0


def _export(root: Path, options: argparse.Namespace) -> int:
    with refused(root, options.id) as (_, left):
        lines = (f"{json.dumps(line)}\n" for line in export(left))
        if options.output is None:
            sys.stdout.writelines(lines)
        else:
            with options.output.open("x", encoding="utf-8") as file:
                file.writelines(lines)
    return 0


def _address_of(folder: Path) -> str:
    return unquote(folder.parent.name)


if __name__ == "__main__":
    sys.exit(main())
