"""Our figures against the published ones: a verdict for every cell, and for every pair that the published figures
tell apart.

A difference is exact (decimal, of the figures as written), so that a band's edge is where it is said to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations
from typing import Any

from croma_bundle.metrics.ranking import resolvable
from croma_bundle.verification.panel import Cohort, Generation, Panel
from croma_bundle.verification.scored import Scored

MATCH, WITHIN, DRIFT, NOT_COMPARED = "MATCH", "WITHIN", "DRIFT", "NOT COMPARED"
VERDICTS = (MATCH, WITHIN, DRIFT, NOT_COMPARED)
SAME, CLOSE, REVERSED = "SAME", "CLOSE", "REVERSED"

_FINE, _SHARE = Decimal("0.0005"), Decimal("0.002")
MATCHES: Mapping[str, Decimal] = {
    "croma_median": _FINE,
    "croma_ltm10": _FINE,
    "croma_f0": _SHARE,
    "ri": _SHARE,
    "mari": _SHARE,
    "support": _SHARE,
    "bio_bacc": _SHARE,
    "conf_bacc": _SHARE,
}
"""The metrics that are compared, and the largest difference that is a MATCH."""
TOLERATED = Decimal("0.005")
"""The largest difference that is WITHIN: the tolerance of the published tools."""
WITHOUT_K = ("croma_median", "croma_ltm10", "croma_f0")
ORDERED = ("croma_median", "croma_ltm10", "croma_f0", "ri", "mari")
"""Metrics whose pairs are compared."""


@dataclass(frozen=True)
class Cell:
    """One figure of one encoder: ours as written, the published one, and what that comes to.

    `generation` is the published one compared with; `reason` says why a cell is NOT COMPARED.
    """

    encoder: str
    generation: str
    metric: str
    ours: str
    published: Decimal | None
    verdict: str
    reason: str = ""

    @property
    def difference(self) -> Decimal | None:
        """Ours less the published; None where there is no such pair of numbers."""
        return None if not self.ours or self.published is None else Decimal(self.ours) - self.published


@dataclass(frozen=True)
class Ordering:
    """A pair that the published figures tell apart; `higher` has the higher published figure.

    SAME: so it is here. CLOSE: here it is not, but the two are too close to be told apart. REVERSED: here the other
    is higher by more than the metric resolves (which takes a DRIFT of one of the two).
    """

    generation: str
    metric: str
    higher: str
    lower: str
    published_gap: Decimal
    gap: Decimal
    verdict: str


def verdict_of(metric: str, difference: Decimal) -> str:
    """The band of |difference|."""
    size = abs(difference)
    return MATCH if size <= MATCHES[metric] else WITHIN if size <= TOLERATED else DRIFT


def judge(scored: Scored, panel: Panel, cohort: str, generation: str | None = None) -> list[Cell]:
    """A verdict for every metric of every scored encoder, encoders as in `metrics.csv`.

    Args:
        cohort: the published cohort that the benchmark reproduces.
        generation: compare with this one; None: with the generation that each encoder states.
    """
    cells = []
    for row in scored.rows:
        against = generation or (row["generation"] if row["generation"] in panel.generations else panel.target)
        name = published_name(row["encoder"], panel)
        figures = panel.cohort(against, cohort).get(name, {})
        for metric in MATCHES:
            figure, ours = figures.get(metric), row.get(metric, "")
            reason = _not_compared(scored.run, row, metric, name, figure, panel, panel.generations[against], cohort)
            verdict = NOT_COMPARED
            if not reason and figure is not None:
                verdict = verdict_of(metric, Decimal(ours) - figure)
            cells.append(Cell(row["encoder"], against, metric, ours, figure, verdict, reason))
    return cells


def published_name(encoder: str, panel: Panel) -> str:
    """The name an encoder has in the panel: a recipe `X@croma-0.3.0` is that generation's X, any other its own."""
    name, _, recipe = encoder.partition("@")
    return name if recipe in panel.generations else encoder


def orderings(scored: Scored, cells: Sequence[Cell], panel: Panel) -> list[Ordering]:
    """Every pair of compared, ranked encoders whose published figures are resolvable, per generation and metric."""
    controls = {row["encoder"] for row in scored.rows if row["is_control"] == "true"}
    found = []
    for a, b in combinations([c for c in cells if c.verdict != NOT_COMPARED and c.metric in ORDERED], 2):
        names = {published_name(c.encoder, panel) for c in (a, b)}
        if (a.metric, a.generation) != (b.metric, b.generation) or len(names) < 2:
            continue
        if {a.encoder, b.encoder} & controls or names & panel.generations[a.generation].controls:
            continue
        if (pair := _ordering(a, b)) is not None:
            found.append(pair)
    return sorted(found, key=lambda o: (o.generation, ORDERED.index(o.metric), o.higher, o.lower))


def _ordering(a: Cell, b: Cell) -> Ordering | None:
    if a.published is None or b.published is None or not resolvable(float(a.published), float(b.published)):
        return None
    high, low = (a, b) if a.published > b.published else (b, a)
    gap = Decimal(high.ours) - Decimal(low.ours)
    verdict = SAME if gap > 0 else REVERSED if resolvable(float(high.ours), float(low.ours)) else CLOSE
    published_gap = abs(a.published - b.published)
    return Ordering(a.generation, a.metric, high.encoder, low.encoder, published_gap, gap, verdict)


def _not_compared(
    run: Mapping[str, Any],
    row: Mapping[str, str],
    metric: str,
    name: str,
    figure: Decimal | None,
    panel: Panel,
    generation: Generation,
    cohort: str,
) -> str:
    """Why this cell cannot be compared, or an empty string."""
    if row["external"] == "true":
        return "external: imported, so nothing here proves how it was extracted"
    if figure is None:
        return f"no published figure in {generation.name}"
    if not panel.same_recipe(name, row["generation"], generation.name):
        return f"other generation: it was embedded as {row['generation'] or 'none'}, published as {generation.name}"
    if reason := other_arithmetic(row["precision"], row["device"], name in generation.mixed_float16):
        return reason
    facts = generation.cohorts[cohort]
    if row["n_units"] != str(facts.units):
        return f"other rows: {int(row['n_units']):,} units, published {facts.units:,}"
    if metric in WITHOUT_K and row["m"] != str(generation.m):
        return f"other m: {row['m']}, published {generation.m}"
    if metric not in WITHOUT_K and row["k"] != str(facts.k_of(name)):
        return _other_k(run, row, facts, facts.k_of(name), set(panel.cohort(generation.name, cohort)))
    if metric == "mari" and run["replay"]["tau"] is not None:
        return f"other τ: {run['replay']['tau']:g} pinned, published at each encoder's own median distance"
    return "" if row.get(metric) else "no value here: run.json says why"


def other_arithmetic(precision: str, device: str, mixed: bool) -> str:
    """Why a matrix was computed otherwise than the published one (`mixed`: in float16 on CUDA), or an empty string."""
    if mixed and (precision != "mixed-float16" or not device.startswith("cuda")):
        return f"{precision} on {device}, where float16 on CUDA was published"
    return f"{precision}, where float32 was published" if not mixed and precision != "float32" else ""


def _other_k(
    run: Mapping[str, Any], row: Mapping[str, str], facts: Cohort, published: int | None, members: set[str]
) -> str:
    if run["replay"]["k"] is not None:
        return f"other k: {row['k']} pinned, published {published}"
    if row["protocol"] == "k-star" or facts.protocol == "k-star":
        return f"other k: {row['k']} by {row['protocol']}, published {published} by {facts.protocol}"
    deciding = members & set(run["resolved"]["k_panel"])
    if deciding != members:
        count = f"{len(deciding)} of the {len(members)} published encoders"
        return f"incomplete panel: {count} decided k = {row['k']}, published {published}"
    return f"other k: {row['k']}, published {published}"
