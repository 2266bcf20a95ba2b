"""Private encoders whose files lie on the loopback hub, and `croma-bundle weights` as a process that knows only it."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from croma_bundle.layout import Volume, WeightsFolder
from loopback_hub import LoopbackHub

ENCODER = """
["{name}"]
family = "private"
backend = "classical"
model = "ColourStatistics"
width = 72
pooling = "none"
batch_size = 8
generation = "test-1"
control = false
votes = false
licence = "CC0-1.0"
citation = "none"
{source}
files = [{files}]
"""
WEIGHTS = b"\x08\0\0\0\0\0\0\0{}      weights"
CONFIG = b'{"architecture": "toy"}\n'


def declare(
    volume: Volume,
    name: str,
    files: Sequence[str] | Mapping[str, str | None],
    *,
    repository: str | None = None,
    revision: str | None = None,
    code_repository: str | None = None,
    code_revision: str | None = None,
    wheel: Mapping[str, str] | None = None,
) -> None:
    """Declare a private encoder; `files` maps names to their pinned sha256, or lists names without one."""
    pins = dict(files) if isinstance(files, Mapping) else dict.fromkeys(files)
    keys = {
        "repository": repository,
        "revision": revision,
        "code_repository": code_repository,
        "code_revision": code_revision,
    }
    source = [f"{key} = {json.dumps(value)}" for key, value in keys.items() if value]
    if wheel:
        source.append("wheel = {" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in wheel.items()) + "}")
    rows = ", ".join(
        f"{{name = {json.dumps(file)}" + (f', sha256 = "{pin}"}}' if pin else "}") for file, pin in pins.items()
    )
    path = volume.encoder_declarations / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ENCODER.format(name=name, source="\n".join(source), files=rows), "utf-8")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress and do not repeat."""
    return random.Random(seed).randbytes(size)


class Bundle:
    """The command line as processes that reach this hub, as this caller."""

    def __init__(self, volume: Volume, hub: LoopbackHub, home: Path) -> None:
        self.volume, self.hub, self.home = volume, hub, home

    @property
    def weights(self) -> WeightsFolder:
        return WeightsFolder(self.volume.weights)

    def command(self, *args: str | Path) -> list[str]:
        return [sys.executable, "-m", "croma_bundle", "--volume", str(self.volume.root), *map(str, args)]

    def run(
        self, *args: str | Path, exits: int = 0, token: str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; asserts the exit code and that nobody saw a traceback."""
        environment = {**self.hub.environment(self.home, token=token), **(env or {})}
        done = subprocess.run(self.command(*args), capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == exits, f"exit {done.returncode}, wanted {exits}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def fetch(self, *encoders: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run("weights", "--encoders", ",".join(encoders), **options)

    def record(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The rows of weights.lock.json by encoder and file."""
        rows = json.loads(self.weights.record.read_text("utf-8"))["files"]
        return {(row["encoder"], row["file"]): row for row in rows}


def one_line(text: str) -> str:
    return " ".join(text.split())
