"""The tables of a scored benchmark, as header and rows; the columns are a contract (docs/numbers.md)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import to_json

from croma_bundle.metrics.bootstrap import Replicates, interval, win_rate
from croma_bundle.metrics.ranking import resolvable
from croma_bundle.metrics.survey import M_MAX
from croma_bundle.metrics.tail import ALPHA
from croma_bundle.scoring.score import BenchmarkScore, EncoderScore

METRICS = [
    "benchmark",
    "encoder",
    "is_control",
    "external",
    "protocol",
    "k",
    "k_panel",
    "tau",
    "bio_bacc",
    "conf_bacc",
    "ri",
    "mari",
    "delta",
    "support",
    "ss_undefined",
    "oo_undefined",
    "mixed_undefined",
    "croma_median",
    "croma_q10",
    "croma_ltm10",
    "croma_f0",
    "croma_median_lo",
    "croma_median_hi",
    "croma_ltm10_lo",
    "croma_ltm10_hi",
    "croma_f0_lo",
    "croma_f0_hi",
    "m",
    "alpha",
    "n_units",
    "design",
    "unit",
    "confounder",
    "checkpoint_revision",
    "generation",
    "pooling",
    "precision",
    "batch_size",
    "device",
    "exposed",
    "matrix_sha256",
]
K_SWEEP = ["benchmark", "encoder", "confounder", "k", "bio_bacc", "conf_bacc", "ri", "mari", "support", "selected"]
M_SWEEP = ["benchmark", "encoder", "confounder", "m", "croma_median", "croma_q10", "croma_ltm10", "croma_f0"]
PER_SAMPLE = [
    *["row", "sample_id", "subset", "group_id", "label", "confounder", "ri", "mari", "undefined"],
    *(f"croma_m{m}" for m in range(1, M_MAX + 1)),
]
PAIRWISE = [
    *["benchmark", "a", "b", "win_rate_median", "win_rate_ltm10", "resolvable_median", "resolvable_ltm10"],
]

LINES = 2_000
"""Rows of a table of samples that are made at a time."""
Rows = list[list[Any]]
Floats = npt.NDArray[np.float64]


def metrics_rows(score: BenchmarkScore) -> Rows:
    """One row per encoder, in name order; None where a value does not exist."""
    return [[values[name] for name in METRICS] for values in (_metrics(score, e) for e in score.encoders)]


def k_sweep_rows(score: BenchmarkScore) -> Rows:
    return [
        [*_key(score, e), r.k, r.bio_bacc, r.conf_bacc, r.ri, r.mari, r.support, r.selected]
        for e in score.encoders
        for r in e.k_sweep
    ]


def m_sweep_rows(score: BenchmarkScore) -> Rows:
    return [
        [*_key(score, e), r.m, r.croma_median, r.croma_q10, r.croma_ltm10, r.croma_f0]
        for e in score.encoders
        for r in e.m_sweep
    ]


def places(score: BenchmarkScore) -> list[str]:
    """The leading cells of the table of samples, one text per evaluation unit: the same for every encoder."""
    view = score.view
    rows = [i for scope in score.cohort.scopes for i in scope.rows.tolist()]
    columns = (view.rows.tolist(), view.sample_ids, view.subsets, view.groups, view.labels, view.confounders)
    cells = ([column[i] for i in rows] if column is not None else [""] * len(rows) for column in columns)
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(zip(*cells, strict=True))
    return buffer.getvalue().split("\n")[:-1]  # no value holds a newline


def per_sample_text(encoder: EncoderScore, places: Sequence[str]) -> Iterator[str]:
    """The table of samples, some rows at a time: one row per evaluation unit, `row` is the tileset's (and the matrix's)
    row, from 0; a margin stays empty where CRoMa is undefined at that m."""
    yield ",".join(PER_SAMPLE) + "\n"
    point, margins = encoder.point, encoder.unit_margins[:, :M_MAX]
    padding = "," * (M_MAX - max(1, margins.shape[1]))
    for first in range(0, len(places), LINES):
        part = slice(first, first + LINES)
        shares = cells(np.column_stack((point.unit_ri[part], point.unit_mari[part])))
        units = zip(places[part], shares, point.undefined[part].tolist(), cells(margins[part]), strict=True)
        yield "".join(f"{place},{share},{undefined},{of_m}{padding}\n" for place, share, undefined, of_m in units)


def cells(numbers: Floats) -> list[str]:
    """Each row of (n, c) numbers as cells of CSV: by repr, NaN as nothing. JSON's writer is several times faster than
    repr and writes the same digits; the few that repr writes with an exponent, and NaN, are left to repr."""
    size = np.abs(numbers)
    plain = ((size >= 1e-4) & (size < 1e16) | (size == 0)).all(axis=1)
    rows = to_json(numbers.tolist()).decode()[2:-2].split("],[") if numbers.size else [""] * len(numbers)
    for row in np.flatnonzero(~plain).tolist():
        rows[row] = ",".join(repr(value) if value == value else "" for value in numbers[row].tolist())
    return rows


def pairwise_rows(score: BenchmarkScore) -> Rows:
    """One row per pair of ranked encoders that have CRoMa, a before b in name order; a win is a's, strict."""
    rows: Rows = []
    ranked = [(e.member.name, e.margin) for e in score.encoders if e.margin and not e.member.is_control]
    for (a, of_a), (b, of_b) in combinations(sorted(ranked, key=lambda pair: pair[0]), 2):
        one, other = score.replicates[a], score.replicates[b]
        wins = [win_rate(one.median, other.median), win_rate(one.ltm10, other.ltm10)]
        apart = [resolvable(of_a.median, of_b.median), resolvable(of_a.ltm10, of_b.ltm10)]
        rows.append([score.view.benchmark.name, a, b, *wins, *apart])
    return rows


def as_records(header: Sequence[str], rows: Rows) -> list[dict[str, Any]]:
    """The same table for JSON: one object per row, null where a value does not exist."""
    return [{name: None if value != value else value for name, value in zip(header, row, strict=True)} for row in rows]


def _key(score: BenchmarkScore, encoder: EncoderScore) -> list[str]:
    return [score.view.benchmark.name, encoder.member.name, score.view.confounder]


def _intervals(replicates: Replicates | None) -> dict[str, float | None]:
    cells: dict[str, float | None] = {}
    for what in ("median", "ltm10", "f0"):
        found = interval(getattr(replicates, what)) if replicates else None
        cells[f"croma_{what}_lo"] = found.lo if found else None
        cells[f"croma_{what}_hi"] = found.hi if found else None
    return cells


def _metrics(score: BenchmarkScore, encoder: EncoderScore) -> Mapping[str, Any]:
    member, point, margin = encoder.member, encoder.point, encoder.margin
    contract = member.sidecar["extraction_contract"]
    tail = {
        "croma_median": margin.median if margin else None,
        "croma_q10": margin.q10 if margin else None,
        "croma_ltm10": margin.ltm10 if margin else None,
        "croma_f0": margin.f0 if margin else None,
    }
    return {
        "benchmark": score.view.benchmark.name,
        "encoder": member.name,
        "is_control": member.is_control,
        "external": member.external,
        "protocol": score.protocol,
        "k": point.k,
        "k_panel": len(score.panel) if score.panel else None,
        "tau": point.tau,
        "bio_bacc": point.bio_bacc,
        "conf_bacc": point.conf_bacc,
        "ri": point.ri,
        "mari": point.mari,
        "delta": point.mari - point.ri,
        "support": point.support,
        "ss_undefined": point.ss_undefined,
        "oo_undefined": point.oo_undefined,
        "mixed_undefined": point.mixed_undefined,
        **tail,
        **_intervals(score.replicates.get(member.name)),
        "m": score.knobs.m,
        "alpha": ALPHA,
        "n_units": point.n_units,
        "design": score.view.benchmark.design,
        "unit": score.cohort.unit,
        "confounder": score.view.confounder,
        "checkpoint_revision": member.sidecar["checkpoint_revision"],
        "generation": contract.get("generation"),
        "pooling": contract.get("pooling"),
        "precision": member.sidecar["precision"],
        "batch_size": member.sidecar["batch_size"],
        "device": member.sidecar["environment"]["device"],
        "exposed": member.exposed(score.view.benchmark.tileset),
        "matrix_sha256": member.sidecar["matrix_sha256"],
    }
