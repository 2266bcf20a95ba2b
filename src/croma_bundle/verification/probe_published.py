"""`verify published`, the downstream part: nIPD and baselines of written sweeps against the published cells."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from croma_bundle.artifacts.sidecar import is_external
from croma_bundle.durable import json_bytes, write_bytes
from croma_bundle.errors import BundleError, VerdictFailed, raise_all
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Benchmark
from croma_bundle.probe.schedules import SCHEDULES
from croma_bundle.progress import Reporter
from croma_bundle.scoring.probe_cohort import schedule_of
from croma_bundle.scoring.probe_tables import PROBE
from croma_bundle.tilemanifest.table import csv_text, read_table
from croma_bundle.verification.panel import Panel, load_panel
from croma_bundle.verification.published import (
    DRIFT,
    MATCH,
    NOT_COMPARED,
    TOLERATED,
    WITHIN,
    Cell,
    other_arithmetic,
    published_name,
)
from croma_bundle.verification.published_run import Question, verify_published

MATCHES = Decimal("0.002")
FIGURES = {
    ("id", "nipd"): "nipd_id",
    ("ood", "nipd"): "nipd_ood",
    ("id", "baseline"): "probe_baseline_id",
    ("ood", "baseline"): "probe_baseline_ood",
}
"""Regime and column of `probe.csv`, and the published metric."""
ITERATIONS, SEED = 20, 1000
"""Of the published sweeps."""
NOTE = (
    "Tolkach-ESCA: released sweeps once took each replicate's cases in the order of a Python set, which differs from "
    "run to run; a DRIFT there may be theirs."
)
COLUMNS = ("benchmark", "cohort", "encoder", "generation", "metric", "ours", "published", "verdict", "reason")


def verify_all_published(volume: Volume, catalogue: Catalogue, question: Question, reporter: Reporter) -> None:
    """Judge what is scored, then every sweep that reproduces a published cohort; either may be missing.

    Raises:
        VerdictFailed: a figure drifts. InputError, ArtifactError: a benchmark cannot be judged.
    """
    panel = load_panel()
    swept = [
        (benchmark, benchmark.published)
        for benchmark in catalogue.benchmarks.values()
        if benchmark.published and (question.benchmarks is None or benchmark.name in question.benchmarks)
        if (volume.probe(benchmark.name) / "probe.csv").exists()
    ]
    faults: list[BundleError] = []
    try:
        scored = replace(question, if_scored=question.if_scored or bool(swept))
        verify_published(volume, catalogue, scored, reporter)
    except BundleError as fault:
        faults.append(fault)
    for benchmark, cohort in swept:
        try:
            _verify_one(volume, catalogue, benchmark, cohort, panel, question.generation, reporter)
        except BundleError as fault:
            faults.append(fault)
    raise_all(faults)


def _verify_one(
    volume: Volume,
    catalogue: Catalogue,
    benchmark: Benchmark,
    cohort: str,
    panel: Panel,
    generation: str | None,
    reporter: Reporter,
) -> None:
    published_schedule = schedule_of(catalogue.tileset(benchmark.tileset)) == SCHEDULES.get(cohort)
    cells: list[Cell] = []
    table = read_table(volume.probe(benchmark.name) / "probe.csv", PROBE)
    for values in table.rows:
        row = dict(zip(table.header, values, strict=True))
        reason = "" if published_schedule else "other schedule than the published one"
        reason = reason or _other_replicates(volume, benchmark.name, row)
        cells += _judged(volume, benchmark.tileset, row, cohort, panel, generation, reason)
    rows = [[benchmark.name, cohort, *_plain(cell)] for cell in cells]
    folder = volume.probe_verdicts(benchmark.name)
    write_bytes(folder / "verdicts.csv", csv_text(COLUMNS, rows).encode())
    write_bytes(folder / "verdicts.json", json_bytes({"columns": list(COLUMNS), "rows": rows}))
    counts = Counter(cell.verdict for cell in cells)
    lines = [f"{benchmark.name}: probe against the published {cohort}", *_lines(cells)]
    lines += [f"  note: {NOTE}"] if cohort == "tolkach-esca" else []
    where = volume.shown(folder)
    reporter.result("\n".join([*lines, f"  written to {where}\n"]), "probe_verdicts", folder=where, counts=dict(counts))
    if drifting := [line for line in _lines(cells) if DRIFT in line]:
        raise VerdictFailed(
            f"{benchmark.name}: probe against the published {cohort}",
            f"{len(drifting)} figures drift",
            wanted=f"a difference of at most {TOLERATED}",
            found="\n           ".join(line.strip() for line in drifting[:10]),
            detail=NOTE if cohort == "tolkach-esca" else None,
        )


def _judged(
    volume: Volume, tileset: str, row: dict[str, str], cohort: str, panel: Panel, asked: str | None, reason: str
) -> list[Cell]:
    sidecar = _sidecar(volume, tileset, row["encoder"])
    recipe = str(sidecar.get("extraction_contract", {}).get("generation"))
    against = asked or (recipe if recipe in panel.generations else panel.target)
    name = published_name(row["encoder"], panel)
    figures = panel.cohort(against, cohort).get(name, {})
    reason = reason or _other_matrix(sidecar, row, name, recipe, against, panel)
    cells = []
    for (regime, column), metric in FIGURES.items():
        if regime != row["regime"]:
            continue
        ours, figure = row[column], figures.get(metric)
        why = reason or ("no value here" if not ours else "" if figure is not None else f"no figure in {against}")
        verdict = NOT_COMPARED
        if not why and figure is not None:
            size = abs(Decimal(ours) - figure)
            verdict = MATCH if size <= MATCHES else WITHIN if size <= TOLERATED else DRIFT
        cells.append(Cell(row["encoder"], against, metric, ours, figure, verdict, why))
    return cells


def _sidecar(volume: Volume, tileset: str, encoder: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(volume.sidecar(tileset, encoder).read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def _other_matrix(
    sidecar: dict[str, Any], row: dict[str, str], name: str, recipe: str, against: str, panel: Panel
) -> str:
    """Why a sweep of this matrix cannot be compared, or an empty string."""
    if sidecar.get("matrix_sha256") != row["matrix_sha256"]:
        return "its matrix is not here any more"
    if is_external(sidecar):
        return "external: imported, so nothing here proves how it was extracted"
    if not panel.same_recipe(name, recipe, against):
        return f"other generation: it was embedded as {recipe}, published as {against}"
    mixed = name in panel.generations[against].mixed_float16
    return other_arithmetic(sidecar["precision"], sidecar["environment"]["device"], mixed)


def _other_replicates(volume: Volume, benchmark: str, row: dict[str, str]) -> str:
    try:
        seed = json.loads(volume.probe_accuracies(benchmark, row["encoder"]).read_bytes())["seed"]
    except (OSError, ValueError, KeyError):
        return "accuracies/ does not say with which seed it was swept"
    if (int(row["iterations"]), seed) != (ITERATIONS, SEED):
        return f"{row['iterations']} replicates of seed {seed}, published {ITERATIONS} of seed {SEED}"
    return ""


def _plain(cell: Cell) -> list[str | None]:
    published = None if cell.published is None else format(cell.published, "f")
    return [cell.encoder, cell.generation, cell.metric, cell.ours or None, published, cell.verdict, cell.reason or None]


def _lines(cells: Sequence[Cell]) -> list[str]:
    return [
        f"  {c.encoder:<20} {c.metric:<18} {c.verdict:<12} "
        + (c.reason or f"{float(c.ours):.6f}, published {c.published}")
        for c in cells
    ]
