"""The tables as a person reads them in a terminal, from what is written: `run.json` and the rows of `metrics.json`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from croma_bundle.errors import some
from croma_bundle.metrics.ranking import resolvable
from croma_bundle.scoring.cross import Cross

MISSING = "–"
NOBODY = "  (no encoder to rank)"
INTERVAL = "95 % interval"
"""The column of the median's, left out on a terminal that is too narrow for it."""
ANY_WIDTH = 1_000
Row = Mapping[str, Any]
Cell = Callable[[Row], str]


def benchmark_text(run: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """A scored benchmark: what decided k, the ranked encoders by CRoMa, and the controls set apart."""
    ranked = [row for row in rows if not row["is_control"]]
    controls = [row for row in rows if row["is_control"]]
    columns = _columns(run)
    lines = aligned([list(columns), *_cells(ranked, columns), *_cells(controls, columns)])
    if len(lines[0]) > _width():
        del columns[INTERVAL]
        lines = aligned([list(columns), *_cells(ranked, columns), *_cells(controls, columns)])
    body = [lines[0], *lines[1 : 1 + len(ranked)]]
    if not ranked:
        body.append(NOBODY)
    if controls:
        body += ["controls, not ranked", *lines[1 + len(ranked) :]]
    return "\n".join([_headline(run), *body, *_footnotes(run, rows)])


def cross_text(cross: Cross, protocol: str, benchmarks: Sequence[str]) -> str:
    """The cross-benchmark table, best mean rank first; frontier members carry a star, ties an equals sign."""
    rows = [dict(zip(cross.header, row, strict=True)) for row in cross.rows]
    placed = [row for row in rows if not row["is_control"]]
    means = [row["mean_rank"] for row in placed]
    table = [["", "encoder", "mean rank", INTERVAL, "CRoMa rank", "LTM10 rank"]]
    for row in placed:
        star, tie = "*" if row["on_frontier"] else "", "=" if means.count(row["mean_rank"]) > 1 else ""
        mean = [f"{tie}{row['mean_rank']:.2f}", f"[{row['rank_lo']:.2f}, {row['rank_hi']:.2f}]"]
        table.append([star, row["encoder"], *mean, f"{row['croma_rank']:.2f}", f"{row['ltm10_rank']:.2f}"])
    controls = [row["encoder"] for row in rows if row["is_control"]]
    nobody = [] if placed else [NOBODY]
    lines = [f"over {', '.join(benchmarks)} · {protocol} · * Pareto frontier", *aligned(table), *nobody]
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


def _columns(run: Mapping[str, Any]) -> dict[str, Cell]:
    own_k: dict[str, Cell] = {"k": lambda row: str(row["k"])} if run["resolved"]["k"] is None else {}
    return {
        "encoder": lambda row: row["encoder"] + (" (external)" if row["external"] else ""),
        **own_k,
        "CRoMa median": _figure("croma_median", "+.3f"),
        INTERVAL: _of_median,
        "LTM10": _figure("croma_ltm10", "+.3f"),
        "F(0)": _figure("croma_f0", ".3f"),
        "RI": _figure("ri", ".3f"),
        "MaRI": _figure("mari", ".3f"),
        "tau": _figure("tau", "#.3g"),
        "support": lambda row: f"{100 * row['support']:.1f} %",
        "bio": _figure("bio_bacc", ".3f"),
        "confounder": _figure("conf_bacc", ".3f"),
    }


def _figure(column: str, spec: str) -> Cell:
    return lambda row: MISSING if row[column] is None else format(row[column], spec)


def _width() -> int:
    """Columns of the terminal; without one, nothing is too wide. COLUMNS of a parent's terminal does not count."""
    try:
        return os.get_terminal_size().columns or ANY_WIDTH
    except OSError:
        return ANY_WIDTH


def _of_median(row: Row) -> str:
    if row["croma_median_lo"] is None:
        return MISSING
    return f"[{row['croma_median_lo']:+.3f}, {row['croma_median_hi']:+.3f}]"


def _cells(rows: Sequence[Row], columns: dict[str, Cell]) -> list[list[str]]:
    ordered = sorted(rows, key=lambda row: (*_by_margin(row), row["encoder"]))
    return [[cell(row) for cell in columns.values()] for row in ordered]


def _by_margin(row: Row) -> tuple[bool, float]:
    """Sorts by CRoMa, the best first and those without it last."""
    margin = row["croma_median"]
    return margin is None, 0 if margin is None else -margin


def _headline(run: Mapping[str, Any]) -> str:
    replay, resolved = run["replay"], run["resolved"]
    k = resolved["k_rule"] if resolved["k"] is None else f"k = {resolved['k']} ({resolved['k_rule']})"
    units = f"{resolved['n_units']:,} {resolved['unit']}s of {resolved['n_groups']:,} groups"
    how = f"{replay['protocol']}, {k}, m = {replay['m']}"
    return f"{replay['benchmark']} · {how} · confounder {replay['confounder']} · {units}"


def _footnotes(run: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    resolved = run["resolved"]
    notes = _pairs(rows)
    notes += [f"{name}: {note}" for name, note in resolved["tau_notes"].items()]
    if undefined := [row["encoder"] for row in rows if row["croma_median"] is None]:
        notes.append(f"no CRoMa at m = {run['replay']['m']}: {', '.join(undefined)}; the errors say why")
    notes += [f"subset {name} is not scored: {reason}" for name, reason in resolved["incomplete_subsets"].items()]
    capped = max(resolved["rows_with_fewer_than_k_candidates"].values())
    if capped:
        notes.append(f"up to {capped:,} rows have fewer than k candidates; fewer neighbours are used for them")
    return [f"  note: {note}" for note in notes]


def _pairs(rows: Sequence[Row]) -> list[str]:
    """How many ranked pairs the median cannot tell apart, and which, the best first; nothing where there is no pair."""
    medians = {r["encoder"]: r["croma_median"] for r in rows if not r["is_control"] and r["croma_median"] is not None}
    pairs = list(combinations(sorted(medians, key=lambda name: (-medians[name], name)), 2))
    close = [f"{a} ~ {b}" for a, b in pairs if not resolvable(medians[a], medians[b])]
    if not pairs:
        return []
    which = f": {some(close, 3)}" if close else ""
    total = "1 ranked pair" if len(pairs) == 1 else f"{len(pairs):,} ranked pairs"
    return [f"{len(close):,} of {total} not resolvable on the CRoMa median{which}"]
