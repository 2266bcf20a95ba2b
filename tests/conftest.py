"""Fixtures shared by all tests: a real command line in a real process, and a volume of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from croma_bundle.layout import Volume

OFFLINE = "HF_HUB_OFFLINE" in os.environ
REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    """An empty volume."""
    root = tmp_path / "volume"
    root.mkdir()
    return Volume(root)


@pytest.fixture
def cli(volume: Volume) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `croma-bundle --volume <volume> …` as a process; asserts the exit code, returns the finished process."""

    def run(*args: str | Path, exits: int = 0, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "croma_bundle", "--volume", str(volume.root), *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, timeout=300)
        assert done.returncode == exits, f"exit {done.returncode}, wanted {exits}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def shared() -> Path:
    """Development data that may lie in a folder `shared` beside the checkout; skips where it does not."""
    folder = Path(os.environ.get("CROMA_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no development data: {folder} does not exist (CROMA_SHARED names it)")
    return folder


@pytest.fixture(autouse=True)
def online_again() -> Iterator[None]:
    """A command that computes takes its whole process offline, and some tests run commands in their own."""
    yield
    if not OFFLINE:
        os.environ.pop("HF_HUB_OFFLINE", None)
