"""`python -m anabranch spool`: lists, sends or sets aside what dead processes left in the spool."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from anabranch._recording.abandoned import SET_ASIDE, Abandoned, Owner, resolved, spool_root
from anabranch._recording.recorder import recorder_for
from anabranch._recording.spool import size_of
from anabranch._wire.connection import address_from


def main(arguments: list[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m anabranch")
    spool = parser.add_subparsers(required=True).add_parser("spool", help="steps that are not on a server yet")
    spool.add_argument("--folder", type=Path, help="default: ANABRANCH_SPOOL, else $XDG_STATE_HOME/anabranch/spool")
    commands = spool.add_subparsers(required=True)
    commands.add_parser("list", help="lists the spools and their owners").set_defaults(run=_list)
    send = commands.add_parser("send", help="sends what dead processes left for a server")
    send.add_argument("--address", help="default: ANABRANCH_ADDRESS, else 127.0.0.1:50051")
    send.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="default: 600")
    send.set_defaults(run=_send)
    aside = commands.add_parser("set-aside", help="moves spools of dead processes away, so that nothing sends them")
    aside.add_argument("name", nargs="+", help="names that `list` prints")
    aside.set_defaults(run=_set_aside)
    options = parser.parse_args(arguments)
    result: int = options.run(resolved(options.folder) if options.folder else spool_root(), options)
    return result


def _list(root: Path, _: argparse.Namespace) -> int:
    for folder in _folders(root):
        size = size_of(folder, "*.seg")
        print(f"{unquote(folder.parent.name)}  {folder.name}  {size / 1e6:.1f} MB  {_contents(folder)}")
    aside = root / SET_ASIDE
    for path in sorted(aside.iterdir()) if aside.exists() else ():
        print(f"set aside: {path}")
    return 0


def _contents(folder: Path) -> str:
    owner = Owner.lock(folder)
    if owner is None:
        return "in use"
    try:
        found = Abandoned(owner)
        of_runs = [each for each in found.left if each.calls]
        text = f"abandoned: {found.steps} steps of {len(found.left) - len(of_runs)} trajectories"
        return text + (f", {sum(each.calls for each in of_runs)} logs of metrics" if of_runs else "")
    finally:
        owner.release()


def _send(root: Path, options: argparse.Namespace) -> int:
    recorder = recorder_for(address_from(options.address), root)
    sent = recorder.send_abandoned(options.timeout)
    print(f"{recorder.sender.durable} steps were sent" + ("" if sent else "; others are left"))
    return 0 if sent else 1


def _set_aside(root: Path, options: argparse.Namespace) -> int:
    code = 0
    folders = list(_folders(root))
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


def _folders(root: Path) -> Iterator[Path]:
    for folder in sorted(root.glob("*/[!.]*")) if root.exists() else ():
        if folder.is_dir() and folder.parent.name != SET_ASIDE:
            yield folder


if __name__ == "__main__":
    sys.exit(main())
