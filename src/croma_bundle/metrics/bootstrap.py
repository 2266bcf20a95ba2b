"""Cluster bootstrap of CRoMa: how far its median, LTM10 and F(0) move when the groups are drawn again.

Tiles of one group (slide, case, patient) are no independent witnesses, so whole groups are drawn, with replacement, and
the margins of their units pooled. A margin is a given number here: no neighbour is searched again. All encoders of a
cohort get the same draws, so that encoders can be compared replicate by replicate.

Units are never repeated in memory: they are sorted once, a replicate gives each the weight of its group, and ranks are
looked up in the running count. Counts are whole numbers and sums exact, so the result is that of repeating the units,
to the last bit, in whatever order they come.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from croma_bundle.metrics.arrangement import steps
from croma_bundle.metrics.tail import ALPHA

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
"""How often a unit is repeated."""

REPLICATES = 2_000
SEED = 0
BOUNDS = (2.5, 97.5)
"""Percentiles of a 95 % interval."""
CELLS = 1 << 20
"""Replicates × units that a thread holds at a time."""
BLOCKS = 8
"""Times so many replicates that are drawn at a time."""
CHUNK = 128
"""Units that are counted together when a rank is looked up."""
DIGIT = 26
"""Bits of a digit of an exact sum: 2^27 units of it stay below 2^53, where float64 counts without rounding."""


@dataclass(frozen=True, eq=False)
class Replicates:
    """The statistics of one encoder in every replicate: (REPLICATES,) float64 each, replicates in the order drawn."""

    median: Floats
    ltm10: Floats
    f0: Floats


@dataclass(frozen=True)
class Interval:
    """From the 2.5th to the 97.5th percentile over the replicates, both linearly interpolated."""

    lo: float
    hi: float


def bootstrap(
    units: Mapping[str, Floats],
    groups: npt.NDArray[np.generic],
    scopes: npt.NDArray[np.generic],
    *,
    seed: int = SEED,
    threads: int | None = None,
) -> dict[str, Replicates]:
    """Resample the groups of one cohort and recompute CRoMa's statistics for every encoder, all on the same draws.

    ``default_rng(seed)`` draws ``integers(0, G, G)`` for each replicate, places of the G groups in sorted order. The
    median is over the scopes' medians; a scope of which a replicate drew no unit is left out of that replicate.

    Args:
        units: encoder → (U,) float64, the finite margins of its units in [−1, 1]; the same units for all.
        groups, scopes: (U,) code or text of each unit's group and scope; sorted order is that of the values.
        seed: 0 or more.
        threads: of this computation; None: one per core. They never change the result.

    Source: definitions of the statistics, Grisi et al. 2026 (arXiv:2607.25497).
    """
    names, group = np.unique(groups, return_inverse=True)
    scope = np.unique(scopes, return_inverse=True)[1]
    sorted_units = {encoder: _Sorted(values, group, scope) for encoder, values in units.items()}
    found = {encoder: Replicates(*np.empty((3, REPLICATES))) for encoder in units}
    rng, n_groups = np.random.default_rng(seed), len(names)

    def draw(block: slice) -> Counts:
        """How often each of these replicates draws each group, and a last one that none draws."""
        draws = (rng.integers(0, n_groups, n_groups) for _ in range(block.start, block.stop))
        return np.stack([np.bincount(places, minlength=n_groups + 1) for places in draws]).astype(np.int32)

    def fill(encoder: str, block: slice, times: Counts) -> None:
        statistics = found[encoder]
        statistics.median[block], statistics.ltm10[block], statistics.f0[block] = sorted_units[encoder].of(times)

    blocks = steps(0, REPLICATES, max(1, CELLS // len(group)))
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        while ahead := list(itertools.islice(blocks, BLOCKS)):
            tasks = [(encoder, block, times) for block in ahead for times in [draw(block)] for encoder in units]
            list(pool.map(fill, *zip(*tasks, strict=True)))
    return found


def interval(statistic: Floats) -> Interval:
    """The 95 % interval of a statistic over the replicates."""
    return Interval(*np.percentile(statistic, BOUNDS, method="linear").tolist())


def win_rate(a: Floats, b: Floats) -> float:
    """Share of the replicates in which a is strictly greater than b."""
    return int(np.count_nonzero(a > b)) / len(a)


def rank_intervals(cohorts: Sequence[Mapping[str, Replicates]]) -> dict[str, Interval]:
    """The interval of each encoder's mean rank, each replicate ranked as ``ranking.standings`` ranks.

    Args:
        cohorts: one or more, encoder → its replicates; the same encoders in each.
    """
    encoders = list(cohorts[0])
    by_median = np.stack([_ranks([cohort[e].median for e in encoders]) for cohort in cohorts]).sum(axis=0)
    by_ltm10 = np.stack([_ranks([cohort[e].ltm10 for e in encoders]) for cohort in cohorts]).sum(axis=0)
    mean_ranks = (by_median / len(cohorts) + by_ltm10 / len(cohorts)) / 2
    return {encoder: interval(ranks) for encoder, ranks in zip(encoders, mean_ranks, strict=True)}


class _Repeated:
    """Rows of units (b, n) repeated by their weights, n whole chunks: where a rank lies, without repeating them.

    The chunk is looked up first, then the place in it: a running count of all units would take most of the time.
    """

    def __init__(self, weights: Counts) -> None:
        self.weights = weights
        self.chunks = weights.reshape(len(weights), -1, CHUNK)
        self.until = np.cumsum(self.chunks.sum(axis=2, dtype=np.int32), axis=1, dtype=np.int64)

    def at_rank(self, ranks: Ints) -> Ints:
        """(b, r): the place in its row of each rank, from 0; a rank beyond the last gives n."""
        chunk = np.count_nonzero(self.until[:, None, :] <= ranks[:, :, None], axis=2)
        chunk = np.minimum(chunk, self.chunks.shape[1] - 1)
        row = np.arange(len(ranks))[:, None]
        inside = np.cumsum(self.chunks[row, chunk], axis=2, dtype=np.int64)
        within = ranks - self.until[row, chunk] + inside[:, :, -1]
        places: Ints = chunk * CHUNK + np.count_nonzero(inside <= within[:, :, None], axis=2)
        return places


class _Sorted:
    """The units of one encoder in the two orders in which a replicate is read: by value, and by value in each scope.

    Both are filled up to whole chunks with units of a group that no replicate draws.
    """

    def __init__(self, values: Floats, group: Ints, scope: Ints) -> None:
        in_scope = np.lexsort((values, scope))
        order = np.argsort(values) if scope.any() else in_scope
        filling = np.full(-len(values) % CHUNK, group.max() + 1)
        self.values, self.group = values[order], np.append(group[order], filling)
        self.values_in_scope, self.group_in_scope = values[in_scope], np.append(group[in_scope], filling)
        self.sizes = np.zeros((group.max() + 2, scope.max() + 1), dtype=np.int64)
        np.add.at(self.sizes, (group, scope), 1)
        self.not_positive = int(np.searchsorted(self.values, 0, side="right"))
        self.digits = _digits(self.values)

    def of(self, times: Counts) -> tuple[Floats, Floats, Floats]:
        """Median, LTM10 and F(0) of b replicates; times is (b, G + 1), how often each drew each group."""
        pooled = _Repeated(times[:, self.group])
        in_scope = _Repeated(times[:, self.group_in_scope]) if self.sizes.shape[1] > 1 else pooled
        not_positive = pooled.weights[:, : self.not_positive].sum(axis=1, dtype=np.int32)
        return (
            self._median(in_scope, times.astype(np.int64) @ self.sizes),
            self._ltm10(pooled),
            not_positive / pooled.until[:, -1],
        )

    def _median(self, repeated: _Repeated, sizes: Ints) -> Floats:
        """The median over the scopes that have units, (b, S) sizes, of the medians of their units."""
        since = np.cumsum(sizes, axis=1) - sizes
        places = repeated.at_rank(np.hstack([since + np.maximum(sizes - 1, 0) // 2, since + sizes // 2]))
        places = np.minimum(places, len(self.values) - 1)  # an empty scope may look behind the last, and is dropped
        low, high = np.hsplit(self.values_in_scope[places], 2)
        medians = np.where(sizes > 0, (low + high) / 2, np.inf)
        medians.sort(axis=1)
        present, row = np.count_nonzero(sizes, axis=1), np.arange(len(sizes))
        middle: Floats = (medians[row, (present - 1) // 2] + medians[row, present // 2]) / 2
        return middle

    def _ltm10(self, repeated: _Repeated) -> Floats:
        """The mean of the units at or below the 10th percentile, which is interpolated as numpy does."""
        last = repeated.until[:, -1] - 1
        place = last * ALPHA
        rank = np.floor(place).astype(np.int64)
        below, above = self.values[repeated.at_rank(np.column_stack([rank, np.minimum(rank + 1, last)]))].T
        part, gap = place - rank, above - below
        q10 = np.where(part < 0.5, below + gap * part, above - gap * (1 - part))
        ends = np.searchsorted(self.values, q10, side="right")
        longest = int(ends.max())
        tail = np.where(np.arange(longest) < ends[:, None], repeated.weights[:, :longest], 0)
        sums, n = _exact_sums(tail, self.digits[:longest]), tail.sum(axis=1).tolist()
        return np.array([total / count for total, count in zip(sums, n, strict=True)])


def _digits(values: Floats) -> Floats:
    """(n, j) whole numbers below 2^DIGIT (or ±1 in front): a value is exactly Σ digit_j · 2^(−DIGIT·(j+1))."""
    digits, rest = list[Floats](), values
    while rest.any() or not digits:
        rest = rest * 2.0**DIGIT
        digits.append(np.trunc(rest))
        rest = rest - digits[-1]
    return np.column_stack(digits)


def _exact_sums(weights: Counts, digits: Floats) -> list[float]:
    """Σ weight · value of each row of weights (b, n), rounded once, as ``math.fsum`` over repeated values would."""
    columns = weights.astype(np.float64) @ digits  # whole numbers below 2^53: exact in any order of adding
    sums = []
    for row in columns.tolist():
        total = 0
        for digit in row:
            total = (total << DIGIT) + int(digit)
        sums.append(total / (1 << DIGIT * len(row)))
    return sums


def _ranks(values: Sequence[Floats]) -> Ints:
    """(E, R): the rank of each encoder in each replicate, 1 = highest; equal values share the better rank."""
    everyone = np.stack(values)
    return np.stack([1 + np.count_nonzero(everyone > own, axis=0) for own in values])
