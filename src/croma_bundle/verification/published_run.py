"""`verify published`: the written tables of scored benchmarks against the published figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from croma_bundle.artifacts.pair import embedded
from croma_bundle.durable import json_bytes, sha256_file, write_bytes
from croma_bundle.errors import BundleError, InputError, VerdictFailed, raise_all
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Benchmark
from croma_bundle.progress import Reporter
from croma_bundle.scoring.cross import is_scored
from croma_bundle.tilemanifest.table import csv_text
from croma_bundle.verification.panel import Panel, figures_path, load_panel
from croma_bundle.verification.published import (
    MATCHES,
    NOT_COMPARED,
    TOLERATED,
    VERDICTS,
    Cell,
    Ordering,
    judge,
    orderings,
)
from croma_bundle.verification.published_text import drift_lines, verdict_text
from croma_bundle.verification.scored import read_scored

SCHEMA = 1
COLUMNS = (
    *("benchmark", "cohort", "encoder", "generation", "metric"),
    *("ours", "published", "difference", "verdict", "reason"),
)
SHOWN = 10


@dataclass(frozen=True)
class Question:
    """What to verify; None means every benchmark that reproduces a published cohort, the protocol that each declares,
    and the generation that each encoder states. `if_scored`: nothing to verify is said, and no error."""

    benchmarks: Sequence[str] | None = None
    protocol: str | None = None
    generation: str | None = None
    if_scored: bool = False


def verify_published(volume: Volume, catalogue: Catalogue, question: Question, reporter: Reporter) -> None:
    """Judge every asked benchmark, write its verdicts and show them.

    Raises:
        VerdictFailed: something drifts. InputError, ArtifactError: a benchmark cannot be judged.
    """
    panel = load_panel()
    if question.generation is not None:
        panel.require_generation(question.generation)
    benchmarks = _asked(volume, catalogue, question, reporter)
    if benchmarks:
        volume.require_writable()
    faults: list[BundleError] = []
    for benchmark in benchmarks:
        try:
            _verify_one(volume, benchmark, panel, question, reporter)
        except BundleError as fault:
            faults.append(fault)
    raise_all(faults)


def _asked(volume: Volume, catalogue: Catalogue, question: Question, reporter: Reporter) -> list[Benchmark]:
    if question.benchmarks is not None:
        return [catalogue.benchmark(name) for name in question.benchmarks]
    declared = [b for b in catalogue.benchmarks.values() if b.published]
    found = [b for b in declared if is_scored(volume, question.protocol or b.protocol, b.name)]
    if found:
        return found
    names = ", ".join(b.name for b in declared) or "none is declared"
    nothing = "no benchmark that reproduces a published cohort is scored, so there is nothing to compare"
    if question.if_scored:
        reporter.say(f"published figures: {nothing} ({names})")
        return []
    ready = next((b for b in declared if embedded(volume, b.tileset)), None)
    then = f"croma-bundle score --benchmark {ready.name}" if ready else "make embed FAMILY=… TILESET=camelyon"
    raise InputError(f"volume {volume.root}", nothing, wanted=names, then=then)


def _verify_one(volume: Volume, benchmark: Benchmark, panel: Panel, question: Question, reporter: Reporter) -> None:
    cohort, protocol = benchmark.published, question.protocol or benchmark.protocol
    if cohort is None:
        raise InputError(
            f"benchmark {benchmark.name}",
            "it reproduces no published cohort, so there is nothing to compare it with",
            declared="its entry has no key `published`",
        )
    panel.require_cohort(cohort, benchmark.name)
    folder = volume.metrics(protocol, benchmark.name)
    score = f"croma-bundle score --protocol {protocol} --benchmark {benchmark.name}"
    if not is_scored(volume, protocol, benchmark.name):
        raise InputError(f"benchmark {benchmark.name}", f"it is not scored under {protocol}", then=score)
    scored = read_scored(folder, volume.relative(folder), score)
    cells = judge(scored, panel, cohort, question.generation)
    pairs = orderings(scored, cells, panel)
    target = volume.published_verdicts(protocol, benchmark.name)
    content = {
        "schema": SCHEMA,
        "benchmark": benchmark.name,
        "cohort": cohort,
        "protocol": protocol,
        "run_sha256": sha256_file(folder / "run.json"),
        "figures_sha256": sha256_file(figures_path()),
        "bands": {"match": {metric: float(band) for metric, band in MATCHES.items()}, "within": float(TOLERATED)},
        "counts": {verdict: Counter(c.verdict for c in cells)[verdict] for verdict in VERDICTS},
        "cells": [dict(zip(COLUMNS, row, strict=True)) for row in _rows(benchmark.name, cohort, cells)],
        "orderings": [_plain(pair) for pair in pairs],
    }
    write_bytes(target / "verdicts.csv", csv_text(COLUMNS, _rows(benchmark.name, cohort, cells)).encode())
    write_bytes(target / "verdicts.json", json_bytes(content))
    where = volume.relative(target)
    text = f"{verdict_text(scored, cells, pairs, panel, cohort)}\n  written to {where}\n"
    reporter.result(text, "verdicts", folder=where, **{k: v for k, v in content.items() if k != "schema"})
    _require_no_drift(benchmark.name, cohort, cells)


def _rows(benchmark: str, cohort: str, cells: Sequence[Cell]) -> list[list[str | None]]:
    """The cells as written; the difference with its sign, to every digit."""
    rows = []
    for c in cells:
        difference = None if c.verdict == NOT_COMPARED or c.difference is None else format(c.difference, "f")
        published = None if c.published is None else format(c.published, "f")
        key: list[str | None] = [benchmark, cohort, c.encoder, c.generation, c.metric]
        rows.append([*key, c.ours or None, published, difference, c.verdict, c.reason or None])
    return rows


def _plain(pair: Ordering) -> dict[str, Any]:
    facts = {"generation": pair.generation, "metric": pair.metric, "higher": pair.higher, "lower": pair.lower}
    gaps = {"published_gap": format(pair.published_gap, "f"), "gap": format(pair.gap, "f")}
    return {**facts, **gaps, "verdict": pair.verdict}


def _require_no_drift(benchmark: str, cohort: str, cells: Sequence[Cell]) -> None:
    lines = drift_lines(cells)
    if not lines:
        return
    compared = sum(c.verdict != NOT_COMPARED for c in cells)
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    scale = (
        "For scale: another software stack with the right recipe moved a median by at most 0.00012, a wrong recipe "
        "by 0.024."
    )
    raise VerdictFailed(
        f"{benchmark} against the published {cohort}",
        f"{len(lines)} of {compared} compared figures drift",
        wanted=f"a difference of at most {TOLERATED}",
        found="\n           ".join([*lines[:SHOWN], *more]),
        detail=scale,
        then="croma-bundle verify artifacts   # are the matrices what their sidecars say?",
    )
