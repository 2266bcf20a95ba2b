"""Scored benchmarks written by hand: `metrics.csv` and `run.json` with any figures, as if `score` had made them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Benchmark, Tileset
from croma_bundle.scoring.record import RUN_SCHEMA
from croma_bundle.scoring.tables import METRICS
from croma_bundle.verification.panel import Cohort, Generation, Panel

NEW, OLD = "new-1", "old-1"
COHORT = "toy"
UNITS, K, M = 100, 11, 5
FIGURES = {
    "croma_median": "0.300000",
    "croma_ltm10": "-0.100000",
    "croma_f0": "0.200000",
    "ri": "0.800000",
    "mari": "0.820000",
    "support": "0.600000",
    "bio_bacc": "0.900000",
    "conf_bacc": "0.700000",
}


def figures(**changed: str) -> dict[str, Decimal]:
    return {metric: Decimal(value) for metric, value in (FIGURES | changed).items()}


def toy_panel() -> Panel:
    """Two generations of a toy cohort: `Alpha`, `Beta`, `Gamma`, `Half` (float16 on CUDA) and the control `Natural`.

    Gamma's recipe changed; the shared k moved from 7 to 11; Omega was added; the old generation has no conf_bacc.
    """
    new = {
        "Alpha": figures(),
        "Beta": figures(croma_median="0.290000"),
        "Gamma": figures(croma_median="0.200000"),
        "Half": figures(croma_median="0.100000"),
        "Omega": figures(croma_median="0.000000"),
        "Natural": figures(croma_median="0.250000"),
    }
    old = {name: dict(of) for name, of in new.items() if name != "Omega"}
    for of in old.values():
        del of["conf_bacc"]
    old["Gamma"]["croma_median"] = Decimal("0.240000")
    return Panel(
        target=NEW,
        generations={
            NEW: _generation(NEW, K, len(new), OLD, {"Gamma"}),
            OLD: _generation(OLD, 7, len(old), None, set()),
        },
        figures={(NEW, COHORT): new, (OLD, COHORT): old},
    )


def _generation(name: str, k: int, size: int, since: str | None, recipes: set[str]) -> Generation:
    return Generation(
        name=name,
        exported="2026-01-01",
        panel_size=size,
        controls=frozenset({"Natural"}),
        m=M,
        mixed_float16=frozenset({"Half"}),
        cohorts={COHORT: Cohort(size, UNITS, "median-k", k)},
        since=since,
        recipes=frozenset(recipes),
    )


PANEL = ["Alpha", "Beta", "Gamma", "Half", "Natural", "Omega"]


def row(encoder: str, panel: Panel, **changed: str) -> dict[str, str]:
    """An encoder's row that is the published one to every digit, less what is changed."""
    name, _, recipe = encoder.partition("@")
    generation = recipe or NEW
    published = panel.cohort(generation, COHORT).get(name, figures())
    half = name == "Half"
    facts = {
        "benchmark": COHORT,
        "encoder": encoder,
        "is_control": "true" if name == "Natural" else "false",
        "external": "false",
        "protocol": "median-k",
        "k": str(K),
        "m": str(M),
        "n_units": str(UNITS),
        "confounder": "medical_center",
        "generation": generation,
        "precision": "mixed-float16" if half else "float32",
        "device": "cuda:0" if half else "cpu",
        **{metric: format(value, "f") for metric, value in published.items()},
    }
    return {column: {**facts, **changed}.get(column, "") for column in METRICS}


def write_scored(
    volume: Volume,
    rows: Sequence[Mapping[str, str]],
    *,
    protocol: str = "median-k",
    panel: Sequence[str] = PANEL,
    at: int | None = K,
    rule: str = "lower median of 6 voters' k*",
    **replay: Any,
) -> Path:
    """Write the folder of a run of benchmark `toy`; `panel` are those that decided k, `at` is k, `replay` its knobs."""
    folder = volume.metrics(protocol, COHORT)
    folder.mkdir(parents=True)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, METRICS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    content = buffer.getvalue().encode()
    (folder / "metrics.csv").write_bytes(content)
    knobs = {"benchmark": COHORT, "protocol": protocol, "confounder": "medical_center", "k": None, "tau": None, "m": M}
    run = {
        "schema": RUN_SCHEMA,
        "replay": {**knobs, **replay},
        "resolved": {"k": at, "k_rule": rule, "k_panel": list(panel)},
        "inputs": {},
        "outputs": {"metrics.csv": hashlib.sha256(content).hexdigest()},
    }
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    return folder


def catalogue(published: str | None = COHORT) -> Catalogue:
    """A benchmark `toy` that reproduces the cohort."""
    tileset = Tileset(name=COHORT, source="folder", confounder="medical_center", images=False)
    benchmark = Benchmark(name=COHORT, tileset=COHORT, published=published)
    return Catalogue({}, {COHORT: tileset}, {COHORT: benchmark}, {})
