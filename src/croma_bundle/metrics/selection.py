"""From collected pairs to neighbours: certify the guess, measure in float64 what decides or is reported, order it.

With β the error bound of a row, minus-distances g sorted descending, and c a cut that counts: a pair is surely among
the c nearest if g > g[c] + 2β, surely not if g < g[c − 1] − 2β. Only the pairs between are measured to decide a cut.
What was not collected has g below the guess t, so a cut is certified where g[c − 1] − 2β ≥ t.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from croma_bundle.metrics.arrangement import Arrangement, Block, Floats, Ints, Singles
from croma_bundle.metrics.candidates import NO_LIMIT, OS, SO, Collected, Guess, kinds_of

Bools = npt.NDArray[np.bool_]
ZERO = 1e-12
"""A distance below this is exactly 0."""
GRID = 2.0**49
"""Distances are whole multiples of 1 / GRID (1.8e-15), which is above their rounding error and below what matters:
those that are equal but for rounding tie, and the sum of 20 of them is exact."""
_SLICE_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Selected:
    """The neighbours of one block's rows, and which of the rows are not certified (their values mean nothing)."""

    index: npt.NDArray[np.int32]
    distance: Floats
    kinds: npt.NDArray[np.int8]
    so: Floats
    os: Floats
    uncertified: Bools


@dataclass(frozen=True, eq=False)
class _Pairs:
    """A block's pairs, sorted by row, then nearest first. `row` within the block, `partner` arranged."""

    row: Ints
    partner: Ints
    closeness: Floats
    kind: npt.NDArray[np.int8]


class Scale:
    """Measures exact distances; one per thread, because it reuses its buffers."""

    def __init__(self, a: Arrangement) -> None:
        self.a = a
        self.lines = max(1, _SLICE_BYTES // (8 * max(1, a.x.shape[1])))
        self.given = np.empty((self.lines, a.x.shape[1]), dtype=a.x.dtype)
        self.wide = np.empty((self.lines, a.x.shape[1]))

    def measure(self, i: int, partners: Ints) -> Floats:
        """Cosine distances of arranged row i to arranged partners, in [0, 2], below ZERO 0."""
        return on_grid(1.0 - self.dots(i, partners) * (self.a.scale[partners] * self.a.scale[i]))

    def dots(self, i: int, partners: Ints) -> Floats:
        """Dot products of the rows as given: each is one sum over the width in a fixed order, so its bits depend on the
        two rows alone."""
        a = self.a
        source, mine = a.source[partners], a.x[a.source[i]].astype(np.float64)
        dot = np.empty(len(partners))
        for start in range(0, len(partners), self.lines):
            part = source[start : start + self.lines]
            rows, wide = self.given[: len(part)], self.wide[: len(part)]
            a.x.take(part, axis=0, out=rows, mode="clip")
            np.copyto(wide, rows)
            wide *= mine
            np.add.reduce(wide, axis=-1, out=dot[start : start + len(part)])
        return dot


def on_grid(distance: Floats) -> Floats:
    """Distances clipped to [0, 2] and rounded to the grid, below ZERO 0."""
    rounded: Floats = np.rint(np.clip(distance, 0.0, 2.0) * GRID) / GRID
    rounded[rounded < ZERO] = 0.0
    return rounded


def select(
    a: Arrangement,
    block: Block,
    collected: Collected,
    limit: Guess,
    band: Floats,
    k: int,
    m: int,
    cuts: Sequence[int],
    *,
    everything: bool,
) -> Selected:
    """The k nearest of each row of a block, right as sets at every cut, and its m nearest SO and OS.

    Distances are measured for typed neighbours and where they decide a cut (`everything`: all of them), else NaN.
    """
    count = block.stop - block.start
    pairs = _sorted_pairs(a, block, collected)
    beta, rows = band[block.rows], np.arange(count)
    near = _Padded(pairs, pairs.closeness >= limit.near[block.rows][pairs.row], count)
    typed = [
        _Padded(pairs, (pairs.kind == kind) & (pairs.closeness >= guess[block.rows][pairs.row]), count)
        for kind, guess in ((SO, limit.so), (OS, limit.os))
    ]
    needed = np.zeros(len(pairs.row), dtype=np.bool_)
    bad = ~near.certified(k, beta, limit.near[block.rows])
    for cut in cuts:
        needed[near.undecided(cut, beta)] = True
    within = near.reaching(k, beta)
    needed[within if everything else within[pairs.kind[within] <= OS]] = True
    for few, guess in zip(typed, (limit.so, limit.os), strict=True):
        bad |= ~few.certified(m, beta, guess[block.rows])
        needed[few.reaching(m, beta)] = True
    needed &= ~bad[pairs.row]
    distance = _measured(a, block, pairs, needed, rows)
    index, kept, kinds = near.nearest(a, pairs, distance, k, np.where(bad, np.inf, near.reach(k, beta)))
    so, os = (few.nearest(a, pairs, distance, m, np.where(bad, np.inf, few.reach(m, beta)))[1] for few in typed)
    found = Selected(index, kept, kinds, so, os, bad)
    return found if everything else without_order(found, cuts)


def without_order(found: Selected, cuts: Sequence[int]) -> Selected:
    """The same sets at every cut, in an order that no rounding decides: by type, distance and row between two cuts.

    Untyped neighbours lose the distances that some of them have.
    """
    untyped = (found.kinds != SO) & (found.kinds != OS) & (found.kinds >= 0)
    stretch = np.searchsorted(np.asarray(cuts), np.arange(found.index.shape[1]), side="right")
    ties = np.where(untyped, 0.0, found.distance)
    keys = (found.index, ties, found.kinds, np.broadcast_to(stretch, found.index.shape))
    order = np.lexsort(keys, axis=-1)
    return replace(
        found,
        index=np.take_along_axis(found.index, order, axis=1),
        distance=np.take_along_axis(np.where(untyped, np.nan, found.distance), order, axis=1),
        kinds=np.take_along_axis(found.kinds, order, axis=1),
    )


class _Padded:
    """A subset of the pairs as a table: one line per row, nearest first, padded with minus infinity."""

    def __init__(self, pairs: _Pairs, subset: Bools, count: int) -> None:
        self.at = np.flatnonzero(subset)
        row = pairs.row[self.at]
        self.size = np.bincount(row, minlength=count)
        first = np.concatenate(([0], np.cumsum(self.size)[:-1]))
        self.width = int(self.size.max(initial=0)) + 1
        self.place = row * self.width + (np.arange(len(row)) - first[row])
        flat = np.full(count * self.width, -np.inf)
        flat[self.place] = pairs.closeness[self.at]
        self.table = flat.reshape(count, self.width)
        source = np.full(count * self.width, -1, dtype=np.int64)
        source[self.place] = self.at
        self.source = source.reshape(count, self.width)

    def _column(self, position: int) -> Floats:
        return self.table[:, position] if position < self.width else np.full(len(self.table), -np.inf)

    def certified(self, cut: int, beta: Floats, guess: Singles) -> Bools:
        """Rows of which no uncollected pair can be among the `cut` nearest."""
        everything = guess <= NO_LIMIT
        return everything | (self._column(cut - 1) - 2.0 * beta >= guess)

    def undecided(self, cut: int, beta: Floats) -> Ints:
        """Pairs that the product alone leaves undecided at a cut."""
        inside, outside = self._column(cut - 1), self._column(cut)
        with np.errstate(invalid="ignore"):  # inf − inf is nan: nothing to decide
            rows = np.flatnonzero(inside - outside <= 2.0 * beta)
        table = self.table[rows]
        low, high = (inside - 2.0 * beta)[rows], (outside + 2.0 * beta)[rows]
        between = (table >= low[:, np.newaxis]) & (table <= high[:, np.newaxis])
        return self.source[rows][between & (self.source[rows] >= 0)]

    def reaching(self, cut: int, beta: Floats) -> Ints:
        """Pairs that may be among the `cut` nearest."""
        return self.source[(self.table >= self.reach(cut, beta)[:, np.newaxis]) & (self.source >= 0)]

    def reach(self, cut: int, beta: Floats) -> Floats:
        """What a pair must reach to be perhaps among the `cut` nearest of its row."""
        return self._column(cut - 1) - 2.0 * beta

    def nearest(
        self, a: Arrangement, pairs: _Pairs, distance: Floats, count: int, low: Floats
    ) -> tuple[npt.NDArray[np.int32], Floats, npt.NDArray[np.int8]]:
        """(n, count) given row, measured distance and type of the nearest; -1, inf, -1 where there are fewer.

        `low`: (n,) what a pair must reach to be looked at.

        Ordered by distance, measured where it was, and by given row where distances are equal.
        """
        depth = max(1, int((self.table >= low[:, np.newaxis]).sum(axis=1).max(initial=0)))
        source, table = self.source[:, :depth], self.table[:, :depth]
        there = source >= 0
        measured = np.where(there, distance[source], np.inf)
        key = np.where(np.isnan(measured), -table, measured)
        given = np.where(there, a.given[np.append(pairs.partner, 0)[source]], np.iinfo(np.int64).max)
        order = np.lexsort((given, key), axis=-1)[:, :count]
        index = np.full((len(source), count), -1, dtype=np.int32)
        kept = np.full((len(source), count), np.inf)
        kinds = np.full((len(source), count), -1, dtype=np.int8)
        take = order.shape[1]
        chosen = np.take_along_axis(there, order, axis=1)
        index[:, :take] = np.where(chosen, np.take_along_axis(given, order, axis=1), -1)
        kept[:, :take] = np.take_along_axis(measured, order, axis=1)
        kinds[:, :take] = np.append(pairs.kind, np.int8(-1))[np.take_along_axis(source, order, axis=1)]
        return index, kept, kinds


def _sorted_pairs(a: Arrangement, block: Block, collected: Collected) -> _Pairs:
    row = np.concatenate(collected.rows).astype(np.int64)
    partner = np.concatenate(collected.partners).astype(np.int64)
    closeness = np.concatenate(collected.closeness)
    # Row and distance in one integer: non-negative float32 sort like their bits. Rounding below 0 is within β.
    bits = np.maximum(-closeness, np.float32(0)).view(np.uint32).astype(np.uint64)
    order = np.argsort(row.astype(np.uint64) << np.uint64(32) | bits)
    row, partner = row[order], partner[order]
    kind = kinds_of(
        a.labels[block.start + row] == a.labels[partner], a.confounders[block.start + row] == a.confounders[partner]
    )
    return _Pairs(row, partner, np.minimum(closeness[order].astype(np.float64), 0.0), kind)


def _measured(a: Arrangement, block: Block, pairs: _Pairs, needed: Bools, rows: Ints) -> Floats:
    """Distances of the needed pairs, NaN for the others."""
    scale = Scale(a)
    at = np.flatnonzero(needed)
    partner = pairs.partner[at]
    dot = np.empty(len(at))
    edges = np.searchsorted(pairs.row[at], np.append(rows, len(rows)))
    for row, (first, end) in enumerate(itertools.pairwise(edges.tolist())):
        if end > first:
            dot[first:end] = scale.dots(block.start + row, partner[first:end])
    distance = np.full(len(pairs.row) + 1, np.nan)  # one more: the padding's source is -1
    distance[at] = on_grid(1.0 - dot * (a.scale[partner] * a.scale[block.start + pairs.row[at]]))
    return distance
