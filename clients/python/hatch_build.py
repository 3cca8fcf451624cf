"""Puts the stubs of gen/python into wheels and source distributions, whether or not the checkout has symbolic links."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StubsHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the stubs. `src/anabranch/v1` is a link to them, and a folder in a source distribution."""
        own = Path(self.root, "src/anabranch/v1")
        generated = Path(self.root, "../../gen/python/anabranch/v1").resolve()
        if version == "editable":
            # Git on Windows, and archives of the repository, have a file in place of the link.
            if not own.is_dir():
                own.unlink(missing_ok=True)
                shutil.copytree(generated, own, ignore=shutil.ignore_patterns("__pycache__"))
            return
        stubs = generated if generated.is_dir() else own
        folder = "src/anabranch/v1" if self.target_name == "sdist" else "anabranch/v1"
        for file in sorted(path for path in stubs.iterdir() if path.suffix in (".py", ".pyi")):
            build_data["force_include"][str(file)] = f"{folder}/{file.name}"
