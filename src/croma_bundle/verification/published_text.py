"""The verdicts against the published figures, as a person reads them in a terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import click

from croma_bundle.errors import some
from croma_bundle.scoring.terminal import MISSING, aligned
from croma_bundle.verification.panel import Panel
from croma_bundle.verification.published import (
    DRIFT,
    MATCH,
    MATCHES,
    NOT_COMPARED,
    ORDERED,
    REVERSED,
    SAME,
    VERDICTS,
    WITHIN,
    Cell,
    Ordering,
    published_name,
)
from croma_bundle.verification.scored import Scored

TITLES = {
    "croma_median": "CRoMa median",
    "croma_ltm10": "LTM10",
    "croma_f0": "F(0)",
    "ri": "RI",
    "mari": "MaRI",
    "support": "support",
    "bio_bacc": "bio",
    "conf_bacc": "confounder",
}
MARKS = {MATCH: " ", WITHIN: "~", DRIFT: "!"}
LEGEND = (
    "  ours − published · unmarked MATCH: CRoMa median and LTM10 ≤ 0.0005, the others ≤ 0.002 · ~ WITHIN: ≤ 0.005 · "
    f"! DRIFT · {MISSING} NOT COMPARED"
)


def verdict_text(scored: Scored, cells: Sequence[Cell], pairs: Sequence[Ordering], panel: Panel, cohort: str) -> str:
    """The differences as a table, then what drifts, what could not be compared and why, and the pairs."""
    lines = [_headline(scored, cells, panel, cohort), *_table(scored, cells), LEGEND, f"  {counts_text(cells)}"]
    lines += [click.style(f"  DRIFT  {line}", fg="red") for line in drift_lines(cells)]
    lines += [f"  not compared: {line}" for line in _reasons(cells)]
    lines += [*_pair_lines(pairs), *_absent(scored, cells, panel, cohort), *_pinning(scored, cells, panel, cohort)]
    return "\n".join(lines)


def counts_text(cells: Sequence[Cell]) -> str:
    found = Counter(cell.verdict for cell in cells)
    return " · ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS)


def drift_lines(cells: Sequence[Cell]) -> list[str]:
    return [
        f"{c.encoder} {c.metric}: {float(c.ours):.6g}, published {c.published} in {c.generation} ({c.difference:+.4f})"
        for c in cells
        if c.verdict == DRIFT
    ]


def _headline(scored: Scored, cells: Sequence[Cell], panel: Panel, cohort: str) -> str:
    replay, resolved = scored.run["replay"], scored.run["resolved"]
    k = resolved["k_rule"] if resolved["k"] is None else f"k = {resolved['k']} ({resolved['k_rule']})"
    published = []
    for name in sorted({c.generation for c in cells}):
        facts = panel.generations[name].cohorts.get(cohort)
        if facts is not None:
            at = f"k = {facts.k}" if isinstance(facts.k, int) else "each at its own k"
            published.append(f"{name} ({facts.encoders} encoders, {at})")
    ours = f"{replay['benchmark']} · {replay['protocol']}, {k}, m = {replay['m']}"
    return f"{ours} · against {cohort} of {', '.join(published) or 'no published generation'}"


def _table(scored: Scored, cells: Sequence[Cell]) -> list[str]:
    """A line per encoder, ranked ones by our CRoMa, then the controls."""

    def order(row: dict[str, str]) -> tuple[bool, float, str]:
        margin = row.get("croma_median")
        return row["is_control"] == "true", -float(margin) if margin else 2.0, row["encoder"]

    of = {(c.encoder, c.metric): c for c in cells}
    rows = sorted(scored.rows, key=order)
    body = []
    for row in rows:
        name = row["encoder"] + (" (external)" if row["external"] == "true" else "")
        body.append([name, row["generation"] or "–", *(_cell(of[row["encoder"], metric]) for metric in MATCHES)])
    head = ["encoder", "generation", *(f"{TITLES[metric]}  " for metric in MATCHES)]
    lines = [_red(line).rstrip() for line in aligned([head, *body])]
    ranked = sum(row["is_control"] != "true" for row in rows)
    return [*lines[: 1 + ranked], *(["controls, not ranked"] if ranked < len(rows) else []), *lines[1 + ranked :]]


def _cell(cell: Cell) -> str:
    if cell.verdict == NOT_COMPARED or cell.difference is None:
        return f"{MISSING}  "
    rounded = f"{float(cell.difference):+.5f}"
    return f"{rounded if float(rounded) else rounded[1:]} {MARKS[cell.verdict]}"


def _red(line: str) -> str:
    return re.sub(r"[+-]\d+\.\d+ !", lambda found: click.style(found[0], fg="red"), line)


def _reasons(cells: Sequence[Cell]) -> list[str]:
    """Each reason once, with the metrics and encoders it holds for."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        if cell.verdict == NOT_COMPARED:
            by_reason.setdefault(cell.reason, {}).setdefault(cell.encoder, []).append(cell.metric)
    lines = []
    for reason, metrics_of in by_reason.items():
        by_metrics: dict[tuple[str, ...], list[str]] = {}
        for encoder, metrics in metrics_of.items():
            by_metrics.setdefault(tuple(metrics), []).append(encoder)
        for named, encoders in by_metrics.items():
            what = "" if len(named) == len(MATCHES) else f"{', '.join(TITLES[m] for m in named)} of "
            lines.append(f"{what}{some(encoders, 6)}: {reason}")
    return lines


def _pair_lines(pairs: Sequence[Ordering]) -> list[str]:
    """How many of the pairs that the published figures tell apart stand in their order here, and which do not."""
    if not pairs:
        return []
    counts = []
    for metric in ORDERED:
        verdicts = [p.verdict for p in pairs if p.metric == metric]
        if verdicts:
            counts.append(f"{TITLES[metric]} {verdicts.count(SAME)} of {len(verdicts)}")
    lines = [f"  resolvable pairs in the published order: {' · '.join(counts)}"]
    for p in pairs:
        if p.verdict != SAME:
            why = (
                "the other way round here" if p.verdict == REVERSED else "not in this order here, but too close to say"
            )
            line = (
                f"  {p.verdict}  {TITLES[p.metric]}: {p.higher} above {p.lower} in {p.generation}, {why} ({p.gap:+.4f})"
            )
            lines.append(click.style(line, fg="red") if p.verdict == REVERSED else line)
    return lines


def _absent(scored: Scored, cells: Sequence[Cell], panel: Panel, cohort: str) -> list[str]:
    """Published encoders that are not scored here."""
    here = {published_name(row["encoder"], panel) for row in scored.rows}
    lines = []
    for generation in sorted({c.generation for c in cells}):
        members = panel.cohort(generation, cohort)
        if absent := sorted(set(members) - here):
            lines.append(f"  not scored here: {len(absent)} of the {len(members)} of {generation}: {some(absent, 6)}")
    return lines


def _pinning(scored: Scored, cells: Sequence[Cell], panel: Panel, cohort: str) -> list[str]:
    """The command that scores at the published k, where another one kept cells from being compared."""
    wanted = set()
    for cell in cells:
        if cell.reason.startswith(("other k", "incomplete panel")):
            wanted.add(panel.generations[cell.generation].cohorts[cohort].k)
    return [
        f"  RI, MaRI, support and accuracies are compared at the published k only; this pins it: "
        f"croma-bundle score --benchmark {scored.run['replay']['benchmark']} --k {k}"
        for k in sorted(k for k in wanted if isinstance(k, int))
    ]
