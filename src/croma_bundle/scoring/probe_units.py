"""Units of a sweep: one replicate of one encoder each, kept whole or not at all, under what it was made of."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from croma_bundle.artifacts.environment import versions
from croma_bundle.durable import json_bytes, write_json
from croma_bundle.probe.arrange import Order
from croma_bundle.probe.cells import Cells
from croma_bundle.probe.schedules import Schedule
from croma_bundle.probe.sweep import PROBE_VERSION, replicate

Accuracies = dict[str, list[float]]


@dataclass(frozen=True)
class Unit:
    """What a worker needs; `identity` is the hash of everything that decides the accuracies."""

    encoder: str
    replicate: int
    matrix: Path
    path: Path
    identity: str
    schedule: Schedule
    cells: Cells
    order: Order


def made_with() -> dict[str, str]:
    """Versions that may move an accuracy."""
    return {"python": platform.python_version(), **versions(["numpy", "scipy", "scikit-learn"])}


def identity(matrix_sha256: str, cohort_sha256: str, seeds: Sequence[int]) -> str:
    """`seeds`: those of this replicate and all before it, which together arrange its cells."""
    facts = [PROBE_VERSION, matrix_sha256, cohort_sha256, list(seeds), made_with()]
    return hashlib.sha256(json_bytes(facts)).hexdigest()


def run_unit(unit: Unit) -> tuple[str, int, Accuracies]:
    """Run and keep one unit; importable, for a worker process."""
    x = np.load(unit.matrix, mmap_mode="r", allow_pickle=False)
    accuracies = replicate(x, unit.schedule, unit.cells, unit.order)
    write_json(unit.path, {"identity": unit.identity, "accuracies": accuracies})
    return unit.encoder, unit.replicate, accuracies


def kept(unit: Unit) -> Accuracies | None:
    """The accuracies of a unit that was run before; None where there are none, or of something else."""
    try:
        found: dict[str, Any] = json.loads(unit.path.read_bytes())
        accuracies: Accuracies = found["accuracies"]
        return accuracies if found["identity"] == unit.identity else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
