"""Lock files as tests read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
TORCH = "images/torch/requirements.lock"
FAMILIES = ("shared", "waiv", "rudolfv2")


def lock_paths() -> list[Path]:
    return sorted((*REPOSITORY.glob("requirements/*.lock"), *REPOSITORY.glob("images/*/*.lock")))


def locks_of(image: str) -> list[Path]:
    """What is installed in an image, in this order."""
    own = REPOSITORY / "images" / image / "requirements.lock"
    return [REPOSITORY / TORCH, own] if image in FAMILIES else [own]


def entries(lock: Path) -> dict[Requirement, set[str]]:
    """Every pin of a lock with its hashes."""
    text = re.sub(r"(?m)^ *#.*\n?", "", lock.read_text(encoding="utf-8")).replace("\\\n", " ")
    lines = [line.split("--hash=") for line in text.splitlines() if line.strip()]
    return {Requirement(pin.strip()): {each.strip() for each in hashes} for pin, *hashes in lines}


def pins(*locks: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Package → version, of the pins that hold in an environment (default: the one that runs this)."""
    held = [pin for lock in locks for pin in entries(lock) if pin.marker is None or pin.marker.evaluate(environment)]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in held}


def hashes(*locks: Path) -> dict[str, set[str]]:
    """Package → the hashes of its archives."""
    found: dict[str, set[str]] = {}
    for lock in locks:
        for pin, values in entries(lock).items():
            found.setdefault(canonicalize_name(pin.name), set()).update(values)
    return found
