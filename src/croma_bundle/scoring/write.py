"""Writing a scored benchmark to `metrics/<protocol>/<benchmark>/`; `run.json` is removed first and written last."""

from __future__ import annotations

import gzip
import hashlib
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from croma_bundle.artifacts.environment import bundle_version, versions
from croma_bundle.durable import json_bytes, remove, sweep_temporaries, write_bytes, write_json
from croma_bundle.errors import BundleError
from croma_bundle.layout import Volume
from croma_bundle.scoring.score import BenchmarkScore
from croma_bundle.scoring.tables import (
    K_SWEEP,
    M_SWEEP,
    METRICS,
    PAIRWISE,
    PER_SAMPLE,
    as_records,
    k_sweep_rows,
    m_sweep_rows,
    metrics_rows,
    pairwise_rows,
    per_sample_rows,
)
from croma_bundle.tilemanifest.table import csv_text

RUN_SCHEMA = 1


def write_score(
    volume: Volume,
    score: BenchmarkScore,
    inputs: dict[str, Any],
    folder: Path,
    limited_to: Sequence[str] | None,
    refused: Sequence[BundleError] = (),
) -> None:
    """Write every table of a benchmark.

    `run.json` holds the SHA-256 of every table, of the `.csv.gz` files before compression. Tables of encoders that this
    run did not score are removed, so that the folder is one run. `refused`: why members of the roster were not scored.
    """
    (folder / "per_sample").mkdir(parents=True, exist_ok=True)
    remove(folder / "run.json")
    sweep_temporaries(folder)
    sweep_temporaries(folder / "per_sample")
    outputs: dict[str, str] = {}
    for name, content in _tables(score):
        if name.startswith("per_sample/"):
            write_bytes(folder / f"{name}.gz", gzip.compress(content, compresslevel=4, mtime=0))
        else:
            write_bytes(folder / name, content)
        outputs[name] = hashlib.sha256(content).hexdigest()
    if "pairwise.csv" not in outputs:
        remove(folder / "pairwise.csv")
    for stale in (folder / "per_sample").glob("*.csv.gz"):
        if f"per_sample/{stale.name.removesuffix('.gz')}" not in outputs:
            remove(stale)
    write_json(folder / "run.json", _run(score, inputs, dict(sorted(outputs.items())), limited_to, refused))


def _tables(score: BenchmarkScore) -> Iterator[tuple[str, bytes]]:
    """Name and content of every table, one at a time: a panel's tables of samples do not fit into memory together."""
    metrics = metrics_rows(score)
    yield "metrics.csv", csv_text(METRICS, metrics).encode()
    yield "metrics.json", json_bytes({"columns": METRICS, "rows": as_records(METRICS, metrics)})
    yield "k_sweep.csv", csv_text(K_SWEEP, k_sweep_rows(score)).encode()
    yield "m_sweep.csv", csv_text(M_SWEEP, m_sweep_rows(score)).encode()
    if pairs := pairwise_rows(score):
        yield "pairwise.csv", csv_text(PAIRWISE, pairs).encode()
    for encoder in score.encoders:
        yield f"per_sample/{encoder.member.name}.csv", csv_text(PER_SAMPLE, per_sample_rows(score, encoder)).encode()


def _run(
    score: BenchmarkScore,
    inputs: dict[str, Any],
    outputs: dict[str, str],
    limited_to: Sequence[str] | None,
    refused: Sequence[BundleError],
) -> dict[str, Any]:
    knobs, declared = score.knobs, score.view.benchmark
    return {
        "schema": RUN_SCHEMA,
        "replay": {
            "command": "score",
            "benchmark": declared.name,
            "protocol": score.protocol,
            "confounder": score.view.confounder,
            "encoders": sorted(limited_to) if limited_to is not None else None,
            "k_grid": knobs.k_grid or declared.k_grid,
            "k_max": knobs.k_max or declared.k_max,
            "k": knobs.k,
            "tau": knobs.tau,
            "m": knobs.m,
            "seed": knobs.seed,
        },
        "resolved": _resolved(score, refused),
        "versions": {"bundle": bundle_version(), "python": platform.python_version(), **versions(["numpy"])},
        "inputs": inputs,
        "outputs": outputs,
    }


def _resolved(score: BenchmarkScore, refused: Sequence[BundleError]) -> dict[str, Any]:
    view, cohort = score.view, score.cohort
    cells = Counter(zip(view.labels, view.confounders, strict=True))
    return {
        "k": score.k,
        "k_rule": score.panel_rule,
        "k_panel": list(score.panel),
        "k_star": {e.member.name: e.survey.k_star for e in score.encoders},
        "usable_k": list(score.encoders[0].survey.usable_k),
        "tau": {e.member.name: e.point.tau for e in score.encoders},
        "tau_notes": {e.member.name: e.point.tau_note for e in score.encoders if e.point.tau_note},
        "rows_with_fewer_than_k_candidates": {e.member.name: e.point.capped_rows for e in score.encoders},
        "m_sweep_ends": {e.member.name: e.m_end for e in score.encoders if e.m_end},
        "croma_undefined": {e.member.name: str(e.fault) for e in score.encoders if e.fault},
        "refused": [fault.paragraph() for fault in (*refused, *score.refused)],
        "design": cohort.design,
        "unit": cohort.unit,
        "n_rows": cohort.n_rows,
        "n_units": cohort.n_units,
        "n_groups": len(cohort.group_names),
        "scopes": [scope.name for scope in cohort.scopes],
        "incomplete_subsets": dict(cohort.incomplete),
        "cells": [{"label": a, "confounder": b, "rows": n} for (a, b), n in sorted(cells.items())],
    }
