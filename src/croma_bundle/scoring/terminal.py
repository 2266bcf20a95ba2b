"""The tables as a person reads them in a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import combinations

from croma_bundle.errors import some
from croma_bundle.metrics.bootstrap import interval
from croma_bundle.metrics.ranking import resolvable
from croma_bundle.scoring.cross import Cross
from croma_bundle.scoring.score import BenchmarkScore, EncoderScore

MISSING = "–"
NOBODY = "  (no encoder to rank)"
INTERVAL = "95 % interval"
"""The column of the median's, left out on a terminal that is too narrow for it."""
ANY_WIDTH = 1_000
Cell = Callable[[EncoderScore], str]


def benchmark_text(score: BenchmarkScore) -> str:
    """A scored benchmark: what decided k, the ranked encoders by CRoMa, and the controls set apart."""
    ranked = [e for e in score.encoders if not e.member.is_control]
    controls = [e for e in score.encoders if e.member.is_control]
    columns = _columns(score)
    lines = aligned([list(columns), *_cells(ranked, columns), *_cells(controls, columns)])
    if len(lines[0]) > _width():
        del columns[INTERVAL]
        lines = aligned([list(columns), *_cells(ranked, columns), *_cells(controls, columns)])
    body = [lines[0], *lines[1 : 1 + len(ranked)]]
    if not ranked:
        body.append(NOBODY)
    if controls:
        body += ["controls, not ranked", *lines[1 + len(ranked) :]]
    return "\n".join([_headline(score), *body, *_footnotes(score)])


def cross_text(cross: Cross, protocol: str, benchmarks: Sequence[str]) -> str:
    """The cross-benchmark table, best mean rank first; frontier members carry a star, ties an equals sign."""
    ranks = [s.mean_rank for s in cross.standings]
    rows = [["", "encoder", "mean rank", INTERVAL, "CRoMa rank", "LTM10 rank"]]
    for s in cross.standings:
        within = cross.rank_intervals[s.encoder]
        star, tie = "*" if s.on_frontier else "", "=" if ranks.count(s.mean_rank) > 1 else ""
        means = [f"{tie}{s.mean_rank:.2f}", f"[{within.lo:.2f}, {within.hi:.2f}]"]
        rows.append([star, s.encoder, *means, f"{s.croma_rank:.2f}", f"{s.ltm10_rank:.2f}"])
    controls = [str(row[0]) for row in cross.rows if row[1]]
    nobody = [] if cross.standings else [NOBODY]
    lines = [f"over {', '.join(benchmarks)} · {protocol} · * Pareto frontier", *aligned(rows), *nobody]
    lines += [f"controls, not ranked: {', '.join(controls)}"] if controls else []
    return "\n".join([*lines, *(f"left out: {name} ({why})" for name, why in sorted(cross.left_out.items()))])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, indented by two, the leading text column left-aligned, the rest right-aligned."""
    text = 2 if rows and rows[0] and rows[0][0] == "" else 1
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(c.ljust(w) if i < text else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]


def _columns(score: BenchmarkScore) -> dict[str, Cell]:
    own_k: dict[str, Cell] = {"k": lambda e: str(e.point.k)} if score.k is None else {}
    return {
        "encoder": lambda e: e.member.name + (" (external)" if e.member.external else ""),
        **own_k,
        "CRoMa median": lambda e: f"{e.margin.median:+.3f}" if e.margin else MISSING,
        INTERVAL: lambda e: _of_median(score, e),
        "LTM10": lambda e: f"{e.margin.ltm10:+.3f}" if e.margin else MISSING,
        "F(0)": lambda e: f"{e.margin.f0:.3f}" if e.margin else MISSING,
        "RI": lambda e: f"{e.point.ri:.3f}",
        "MaRI": lambda e: f"{e.point.mari:.3f}",
        "tau": lambda e: f"{e.point.tau:#.3g}",
        "support": lambda e: f"{100 * e.point.support:.1f} %",
        "bio": lambda e: f"{e.point.bio_bacc:.3f}",
        "confounder": lambda e: f"{e.point.conf_bacc:.3f}",
    }


def _width() -> int:
    """Columns of the terminal; without one, nothing is too wide. COLUMNS of a parent's terminal does not count."""
    try:
        return os.get_terminal_size().columns or ANY_WIDTH
    except OSError:
        return ANY_WIDTH


def _of_median(score: BenchmarkScore, encoder: EncoderScore) -> str:
    if encoder.member.name not in score.replicates:
        return MISSING
    found = interval(score.replicates[encoder.member.name].median)
    return f"[{found.lo:+.3f}, {found.hi:+.3f}]"


def _cells(encoders: Sequence[EncoderScore], columns: dict[str, Cell]) -> list[list[str]]:
    ordered = sorted(encoders, key=lambda e: (e.margin is None, -(e.margin.median if e.margin else 0), e.member.name))
    return [[cell(encoder) for cell in columns.values()] for encoder in ordered]


def _headline(score: BenchmarkScore) -> str:
    view, cohort = score.view, score.cohort
    k = score.panel_rule if score.k is None else f"k = {score.k} ({score.panel_rule})"
    units = f"{cohort.n_units:,} {cohort.unit}s of {len(cohort.group_names):,} groups"
    m = f"m = {score.knobs.m}"
    return f"{view.benchmark.name} · {score.protocol}, {k}, {m} · confounder {view.confounder} · {units}"


def _footnotes(score: BenchmarkScore) -> list[str]:
    notes = _pairs(score)
    notes += [f"{e.member.name}: {e.point.tau_note}" for e in score.encoders if e.point.tau_note]
    if undefined := [e.member.name for e in score.encoders if e.margin is None]:
        notes.append(f"no CRoMa at m = {score.knobs.m}: {', '.join(undefined)}; the errors say why")
    notes += [f"subset {name} is not scored: {reason}" for name, reason in score.cohort.incomplete]
    capped = {e.point.capped_rows for e in score.encoders} - {0}
    if capped:
        notes.append(f"up to {max(capped):,} rows have fewer than k candidates; fewer neighbours are used for them")
    return [f"  note: {note}" for note in notes]


def _pairs(score: BenchmarkScore) -> list[str]:
    """How many ranked pairs the median cannot tell apart, and which, the best first; nothing where there is no pair."""
    medians = {e.member.name: e.margin.median for e in score.encoders if e.margin and not e.member.is_control}
    pairs = list(combinations(sorted(medians, key=lambda name: (-medians[name], name)), 2))
    close = [f"{a} ~ {b}" for a, b in pairs if not resolvable(medians[a], medians[b])]
    if not pairs:
        return []
    which = f": {some(close, 3)}" if close else ""
    total = "1 ranked pair" if len(pairs) == 1 else f"{len(pairs):,} ranked pairs"
    return [f"{len(close):,} of {total} not resolvable on the CRoMa median{which}"]
