"""The order of every cell's pseudo-slides in every replicate, from seeds alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

from croma_bundle.errors import CohortError
from croma_bundle.probe.cells import Cells
from croma_bundle.probe.schedules import Schedule

SEEDS = 10_000
"""Replicates draw their seeds below this, each once."""
CASES_DRAWN = 5
"""The most cases that a centre tests on."""
CASES_PER_LABEL = 2
Order = list[list[int]]
"""Of every cell, its pseudo-slides in order."""


def replicate_seeds(seed: int, iterations: int) -> list[int]:
    return random.Random(seed).sample(range(SEEDS), iterations)  # noqa: S311


def arrangements(schedule: Schedule, cells: Cells, seeds: Sequence[int], subject: str) -> list[Order]:
    """The order in each replicate; cells stay as arranged from one replicate to the next.

    Raises:
        CohortError: `by_case`, and no set of a centre's cases holds every label twice.
    """
    order = [list(range(len(slides))) for slides in cells.slides]
    feasible = _feasible(schedule, cells, subject) if schedule.by_case else []
    found = []
    for seed in seeds:
        generator = random.Random(seed)  # noqa: S311
        drawn = [sets[generator.randint(0, len(sets) - 1)] for sets in feasible]
        for number, (i, _) in enumerate(schedule.cells):
            generator.shuffle(order[number])
            if drawn:
                _to_the_end(order[number], cells.cases[number], drawn[i])
        found.append([list(slides) for slides in order])
    return found


def _to_the_end(order: list[int], cases: Sequence[str], drawn: Sequence[str]) -> None:
    """Move the first pseudo-slide of each drawn case to the end, in sorted order."""
    for case in sorted(set(drawn) & set(cases)):
        first = next(slide for slide in order if cases[slide] == case)
        order.remove(first)
        order.append(first)


def _feasible(schedule: Schedule, cells: Cells, subject: str) -> list[list[tuple[str, ...]]]:
    """Per confounder, every set of up to five of its cases in which each label occurs in exactly two."""
    found = []
    width = len(schedule.labels)
    for i, name in enumerate(schedule.confounders):
        labels = [set(cases) for cases in cells.cases[i * width : (i + 1) * width]]
        cases = sorted(set().union(*labels))
        sets = [
            chosen
            for size in range(1, CASES_DRAWN + 1)
            for chosen in combinations(cases, size)
            if all(len(of.intersection(chosen)) == CASES_PER_LABEL for of in labels)
        ]
        if not sets:
            raise CohortError(subject, f"no 1 to 5 cases of {name} hold every label in exactly two of them")
        found.append(sets)
    return found
