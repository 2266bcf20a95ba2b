"""The command line as processes that know only a loopback hub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from croma_bundle.layout import Volume
from loopback_hub import LoopbackHub

SOURCES = Path(__file__).resolve().parents[2] / "src"


class Bundle:
    """`croma-bundle` with this volume, hub and home folder."""

    def __init__(self, volume: Volume, hub: LoopbackHub, home: Path) -> None:
        self.volume, self.hub, self.home = volume, hub, home

    def run(self, *args: str | Path, exits: int = 0) -> subprocess.CompletedProcess[str]:
        """Run to the end; asserts the exit code and that nobody saw a traceback."""
        command = [sys.executable, "-m", "croma_bundle", "--volume", str(self.volume.root), *map(str, args)]
        environment = self.hub.environment(self.home)
        environment["PYTHONPATH"] = os.pathsep.join([str(SOURCES), *filter(None, [environment.get("PYTHONPATH")])])
        environment.pop("CROMA_WEIGHTS", None)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        assert done.returncode == exits, f"exit {done.returncode}, wanted {exits}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done
