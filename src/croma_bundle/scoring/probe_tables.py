"""`probe.csv`, `curves.csv` and `accuracies/<Encoder>.json` of a swept benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from croma_bundle.errors import BundleError
from croma_bundle.probe.reduce import Floats, apd, degradation, nipd
from croma_bundle.scoring.probe_cohort import ProbeCohort
from croma_bundle.scoring.probe_units import made_with
from croma_bundle.scoring.roster import Member

PROBE = [
    *["benchmark", "encoder", "is_control", "external", "regime", "apd", "nipd", "baseline", "chance"],
    *["change_at_max_v", "n_splits", "iterations", "matrix_sha256"],
]
CURVES = ["benchmark", "encoder", "regime", "split", "v", "mean_accuracy", "degradation", "spread"]
Rows = list[list[Any]]
SCHEMA = 1


@dataclass(frozen=True)
class Swept:
    """An encoder's accuracy matrices by regime, `id` and `ood`."""

    member: Member
    matrices: dict[str, Floats]


def reduced(cohort: ProbeCohort, swept: Swept) -> tuple[Rows, Rows, list[BundleError]]:
    """The rows of both tables, and why a reduction does not exist (its cells are None)."""
    schedule, member = cohort.schedule, swept.member
    v = np.array(schedule.v())
    key = [cohort.benchmark, member.name]
    rows: Rows = []
    curves: Rows = []
    faults: list[BundleError] = []
    for regime, matrix in swept.matrices.items():
        subject = f"probe {cohort.benchmark} · {member.name} ({regime})"
        drop: float | None = None
        g: Floats | None = None
        try:
            drop = apd(matrix, subject)
        except BundleError as fault:
            faults.append(fault)
        try:
            g = degradation(matrix, schedule.chance, subject)
        except BundleError as fault:
            faults.append(fault)
        mean, spread = matrix.mean(axis=1), matrix.std(axis=1, ddof=1 if matrix.shape[1] > 1 else 0)
        area, last = (nipd(g, v), float(g[-1])) if g is not None else (None, None)
        facts = [drop, area, float(mean[0]), schedule.chance, last, *matrix.shape, member.sidecar["matrix_sha256"]]
        rows.append([*key, member.is_control, member.external, regime, *facts])
        curves += [
            [*key, regime, s, float(v[s]), float(mean[s]), None if g is None else float(g[s]), float(spread[s])]
            for s in range(len(v))
        ]
    return rows, curves, faults


def record(cohort: ProbeCohort, swept: Swept, seed: int, seeds: Sequence[int]) -> dict[str, Any]:
    """`accuracies/<Encoder>.json`: the matrices [split][replicate], and all they were made of."""
    matrices = {regime: matrix.tolist() for regime, matrix in swept.matrices.items()}
    return {
        "schema": SCHEMA,
        "benchmark": cohort.benchmark,
        "encoder": swept.member.name,
        "accuracies": {"id": matrices["id"], "ood": matrices.get("ood")},
        "seed": seed,
        "seeds": list(seeds),
        "schedule": asdict(cohort.schedule),
        "cramers_v": cohort.schedule.v(),
        "cohort_sha256": cohort.sha256(),
        "matrix_sha256": swept.member.sidecar["matrix_sha256"],
        "versions": made_with(),
    }
