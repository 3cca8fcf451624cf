"""Bundles the server into wheels and source distributions. Needs a checkout after `npm ci`."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

APP = "anabranch_server/app"


class ServerHook(BuildHookInterface[Any]):
    _built = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the server. A source distribution contains it, and an editable installation runs the checkout."""
        if version == "editable" or Path(self.root, "src", APP).is_dir():
            return
        checkout = Path(self.root).parent
        self._built = tempfile.mkdtemp()
        node = checkout / "node_modules/.bin/node"
        subprocess.run([node, "pip/build.ts", self._built], cwd=checkout, check=True)
        build_data["force_include"][self._built] = f"src/{APP}" if self.target_name == "sdist" else APP

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the files that `initialize` has made."""
        if self._built:
            shutil.rmtree(self._built)
