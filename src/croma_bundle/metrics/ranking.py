"""Encoders against each other: ranks within and over cohorts, what is resolvable, the Pareto frontier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Standing:
    """An encoder's place over several cohorts; ranks are means over the cohorts, 1 = best."""

    encoder: str
    croma_rank: float
    ltm10_rank: float
    mean_rank: float
    on_frontier: bool


@dataclass(frozen=True)
class Scores:
    """What an encoder is ranked by in one cohort; higher is better."""

    croma_median: float
    croma_ltm10: float


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """Rank by value, highest first, 1 = best; equal (unrounded) values share the better rank: 1, 2, 2, 4."""
    return {name: 1 + sum(other > value for other in values.values()) for name, value in values.items()}


def resolvable(a: float, b: float) -> bool:
    """Whether two encoders differ by more than the metric resolves: ``|a − b| > max(0.005, 0.02·max(|a|, |b|))``."""
    return abs(a - b) > max(0.005, 0.02 * max(abs(a), abs(b)))


def pareto_frontier(points: Mapping[str, tuple[float, float]]) -> set[str]:
    """The names that nobody dominates; lower is better.

    Dominated: some other is no worse on both and better on one. Equal points do not dominate each other.
    """

    def dominates(a: tuple[float, float], b: tuple[float, float]) -> bool:
        return a[0] <= b[0] and a[1] <= b[1] and a != b

    return {name for name, point in points.items() if not any(dominates(other, point) for other in points.values())}


def standings(cohorts: Mapping[str, Mapping[str, Scores]]) -> tuple[list[Standing], list[str]]:
    """Place the ranked encoders over cohorts.

    Args:
        cohorts: cohort → encoder → its scores; controls must not be among them.

    Returns:
        The standings, best mean rank first (equal ones by name), of the encoders that every cohort has, ranked among
        themselves; and the names of the others, sorted.
    """
    rosters = [set(scores) for scores in cohorts.values()]
    common = sorted(set.intersection(*rosters)) if rosters else []
    left_out = sorted(set().union(*rosters) - set(common))
    by_median = [ranks({name: scores[name].croma_median for name in common}) for scores in cohorts.values()]
    by_ltm10 = [ranks({name: scores[name].croma_ltm10 for name in common}) for scores in cohorts.values()]
    points = {name: (_mean_rank(by_median, name), _mean_rank(by_ltm10, name)) for name in common}
    frontier = pareto_frontier(points)
    placed = [
        Standing(name, croma_rank, ltm10_rank, (croma_rank + ltm10_rank) / 2, name in frontier)
        for name, (croma_rank, ltm10_rank) in points.items()
    ]
    return sorted(placed, key=lambda s: (s.mean_rank, s.encoder)), left_out


def _mean_rank(by_cohort: Sequence[Mapping[str, int]], name: str) -> float:
    return sum(ranked[name] for ranked in by_cohort) / len(by_cohort)
