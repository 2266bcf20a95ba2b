"""From collected pairs to neighbours: certify the guess, measure in float64 what decides or is reported, order it.

With β the error bound of a row, minus-distances g sorted descending, and c a cut that counts: a pair is surely among
the c nearest if g > g[c] + 2β, surely not if g < g[c − 1] − 2β. Only the pairs between are measured to decide a cut.
What was not collected has g below the guess t, so a cut is certified where g[c − 1] − 2β ≥ t.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from croma_bundle.metrics.arrangement import Arrangement, Block, Floats, Ints, Singles, steps
from croma_bundle.metrics.candidates import NO_LIMIT, OS, SO, Collected, Guess, kinds_of

Bools = npt.NDArray[np.bool_]
_Scalar = TypeVar("_Scalar", bound=np.generic)
ZERO = 1e-12
"""A distance below this is exactly 0."""
GRID = 2.0**49
"""Distances are whole multiples of 1 / GRID (1.8e-15), which is above their rounding error and below what matters:
those that are equal but for rounding tie, and the sum of 20 of them is exact."""
WIDE = 2
"""Times the expected pairs of a row beyond which it has too many that tie, and is searched exhaustively."""
_SLICE_BYTES = 1 << 18


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
    """A block's pairs, sorted by row, then nearest first. `row` within the block, `partner` arranged.

    `partner` and `kind` have one entry more, -1: what a place without a pair refers to.
    """

    row: Ints
    partner: Ints
    closeness: Floats
    kind: npt.NDArray[np.int8]


class Scale:
    """Measures exact distances; one per thread, because it reuses its buffers."""

    def __init__(self, a: Arrangement) -> None:
        self.a = a
        self.kernel = a.kernel if a.kernel and a.kernel.takes(a.x) else None
        self.lines = max(1, _SLICE_BYTES // (8 * max(1, a.x.shape[1])))
        self.given = np.empty((self.lines, a.x.shape[1]), dtype=a.x.dtype)
        self.wide = np.empty((self.lines, a.x.shape[1]))

    def measure(self, rows: Ints, partners: Ints) -> Floats:
        """Cosine distances of arranged rows, ascending, to their partners, in [0, 2], below ZERO 0."""
        scale = self.a.scale[partners] * self.a.scale[rows]
        return on_grid(1.0 - self.dots(self.a.source[rows], self.a.source[partners]) * scale)

    def dots(self, rows: Ints, partners: Ints) -> Floats:
        """Dot products of rows of x: each is one sum over the width in a fixed order, so its bits depend on the two
        rows alone. Fast where equal rows follow each other."""
        if self.kernel is not None:
            return self.kernel.dots(self.a.x, rows, partners)
        dot = np.empty(len(rows))
        edges = [*np.flatnonzero(np.diff(rows, prepend=-1)).tolist(), len(rows)]
        for start, end in itertools.pairwise(edges):
            mine = self.a.x[rows[start]].astype(np.float64)
            for part in steps(start, end, self.lines):
                self._products(mine, partners[part], out=dot[part])
        return dot

    def _products(self, mine: Floats, partners: Ints, out: Floats) -> None:
        given, wide = self.given[: len(partners)], self.wide[: len(partners)]
        self.a.x.take(partners, axis=0, out=given, mode="clip")
        np.copyto(wide, given)
        wide *= mine
        np.add.reduce(wide, axis=-1, out=out)


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
    pairs, beta = _sorted_pairs(a, block, collected), band[block.rows]
    most = WIDE * limit.expected
    near = _Table(pairs, None, limit.near[block.rows], k, beta, most)
    typed = [
        _Table(pairs, pairs.kind[:-1] == kind, guess[block.rows], m, beta, most)
        for kind, guess in ((SO, limit.so), (OS, limit.os))
    ]
    bad = ~near.certified | ~typed[0].certified | ~typed[1].certified
    needed = np.zeros(len(pairs.row), dtype=np.bool_)
    for cut in cuts:
        for undecided in near.undecided(cut):
            needed[undecided] = True
    needed[near.at if everything else near.at[pairs.kind[near.at] <= OS]] = True
    for few in typed:
        needed[few.at] = True
    needed &= ~bad[pairs.row]
    distance = _measured(block, pairs, needed, Scale(a))
    index, kept, kinds = near.nearest(a, pairs, distance, k)
    so, os = (few.distances(distance, m) for few in typed)
    found = Selected(index, kept, kinds, so, os, bad)
    return found if everything else without_order(found, cuts)


def without_order(found: Selected, cuts: Sequence[int]) -> Selected:
    """The same sets at every cut, in an order that no rounding decides: by type, distance and row between two cuts.

    Untyped neighbours lose the distances that some of them have. `found` is in order of distance and row.
    """
    untyped = (found.kinds != SO) & (found.kinds != OS) & (found.kinds >= 0)
    place = np.arange(found.index.shape[1])
    stretch = np.searchsorted(np.asarray(cuts), place, side="right")
    # One integer: 32 bits for place or row, three for the type (-1 is first), the rest for the stretch.
    key = np.where(untyped, found.index, place).astype(np.int64)
    key |= (found.kinds + np.int64(1)) << np.int64(32)
    key |= stretch << 35
    order = np.argsort(key, axis=-1)
    return replace(
        found,
        index=np.take_along_axis(found.index, order, axis=1),
        distance=np.take_along_axis(np.where(untyped, np.nan, found.distance), order, axis=1),
        kinds=np.take_along_axis(found.kinds, order, axis=1),
    )


class _Table:
    """Pairs that may be among the `cut` nearest of those of their row: one line per row, nearest first.

    Attributes:
        at: which pairs they are.
        certified: rows of which no uncollected pair can be among the `cut` nearest, and no more than `most` others.
        closeness: minus-distances, padded with minus infinity.
        source: which pair is where; -1 in the padding.
    """

    def __init__(self, pairs: _Pairs, subset: Bools | None, guess: Singles, cut: int, beta: Floats, most: int) -> None:
        within = pairs.closeness >= guess[pairs.row]
        if subset is not None:
            within &= subset
        at, count = np.flatnonzero(within), len(guess)
        row, closeness = pairs.row[at], pairs.closeness[at]
        size = np.bincount(row, minlength=count)
        last = np.cumsum(size) - size + (cut - 1)
        low = np.full(count, -np.inf)
        enough = size >= cut
        low[enough] = closeness[last[enough]] - 2.0 * beta[enough]
        self.beta = beta
        self.certified = (guess <= NO_LIMIT) | (low >= guess)
        may = closeness >= low[row]
        size = np.bincount(row[may], minlength=count)
        tied = size > most  # such a row would make the table as wide for all
        if tied.any():
            self.certified &= ~tied
            may &= ~tied[row]
            size[tied] = 0
        self.at, row = at[may], row[may]
        self.width = int(size.max(initial=0)) + 1
        place = np.arange(len(row)) + (np.arange(count) * self.width - (np.cumsum(size) - size))[row]
        self.closeness = np.full((count, self.width), -np.inf)
        self.closeness.ravel()[place] = closeness[may]
        self.source = np.full((count, self.width), -1, dtype=np.int64)
        self.source.ravel()[place] = self.at

    def undecided(self, cut: int) -> Iterator[Ints]:
        """Pairs that the product alone leaves undecided at a cut; some repeatedly."""
        if cut >= self.width:
            return
        inside, outside = self.closeness[:, cut - 1], self.closeness[:, cut]
        with np.errstate(invalid="ignore"):  # inf − inf is nan: nothing to decide
            rows = np.flatnonzero(inside - outside <= 2.0 * self.beta)
        low, high = inside - 2.0 * self.beta, outside + 2.0 * self.beta
        reach = 4
        while rows.size:  # look farther from the cut where all seen on one side is undecided
            left, right = max(0, cut - reach), min(self.width, cut + reach)
            closeness = self.closeness[rows, left:right]
            between = (closeness >= low[rows, np.newaxis]) & (closeness <= high[rows, np.newaxis])
            yield self.source[rows, left:right][between]
            rows = rows[(between[:, 0] & (left > 0)) | (between[:, -1] & (right < self.width))]
            reach *= 4

    def nearest(
        self, a: Arrangement, pairs: _Pairs, distance: Floats, count: int
    ) -> tuple[npt.NDArray[np.int32], Floats, npt.NDArray[np.int8]]:
        """(n, count) given row, measured distance and type of the nearest; -1, inf, -1 where there are fewer.

        Ordered by distance, measured where it was, and by given row where distances are equal.
        """
        source, key = self.source, distance[self.source]
        np.copyto(key, -self.closeness, where=np.isnan(key))
        mixed = ((key[:, 1:] <= key[:, :-1]) & (key[:, 1:] < np.inf)).any(axis=1)  # the others are in order already
        if mixed.any():
            source = source.copy()
            given = np.where(source[mixed] >= 0, a.given[pairs.partner[source[mixed]]], np.iinfo(np.int64).max)
            source[mixed] = np.take_along_axis(source[mixed], np.lexsort((given, key[mixed]), axis=-1), axis=1)
        source = source[:, :count]
        there = source >= 0
        index = np.where(there, a.given[pairs.partner[source]], -1).astype(np.int32)
        kept = np.where(there, distance[source], np.inf)
        return _filled(index, count, -1), _filled(kept, count, np.inf), _filled(pairs.kind[source], count, -1)

    def distances(self, distance: Floats, count: int) -> Floats:
        """(n, count) measured distances of the nearest, ascending; inf where there are fewer."""
        kept = np.where(self.source >= 0, distance[self.source], np.inf)
        kept.sort(axis=1)
        return _filled(kept[:, :count], count, np.inf)


def _filled(table: npt.NDArray[_Scalar], width: int, value: float) -> npt.NDArray[_Scalar]:
    """The table with columns of `value` added up to a width."""
    more = np.full((len(table), width - table.shape[1]), value, dtype=table.dtype)
    return np.hstack((table, more))


def _sorted_pairs(a: Arrangement, block: Block, collected: Collected) -> _Pairs:
    row, partner = np.concatenate(collected.rows), np.concatenate(collected.partners)
    closeness = np.concatenate(collected.closeness)
    order = (a.kernel.order if a.kernel else _order)(row, closeness, block.stop - block.start)
    return _paired(a, block, row[order].astype(np.int64), partner[order].astype(np.int64), closeness[order])


def _paired(a: Arrangement, block: Block, row: Ints, partner: Ints, closeness: Singles) -> _Pairs:
    partner = np.append(partner, -1)
    if block.label >= 0:
        kind = kinds_of(a.labels == block.label, a.confounders == block.confounder)[partner]
    else:
        own = np.append(block.start + row, -1)
        kind = kinds_of(a.labels[own] == a.labels[partner], a.confounders[own] == a.confounders[partner])
    kind[-1] = -1
    return _Pairs(row, partner, np.minimum(closeness.astype(np.float64), 0.0), kind)


def _order(row: npt.NDArray[np.int16], closeness: Singles, rows: int) -> Ints:
    """What sorts pairs by row, then nearest first, stably. Rounding below 0 is within β, and counts as 0."""
    # Row and distance in one integer: non-negative float32 sort like their 31 bits.
    key = np.maximum(-closeness, np.float32(0)).view(np.uint32).astype(np.uint64)
    key |= row.astype(np.uint64) << np.uint64(31)
    room = len(key).bit_length()
    if 31 + rows.bit_length() + room > 64:
        return np.argsort(key, kind="stable")
    # With its place behind each, which is faster.
    packed = key << np.uint64(room) | np.arange(len(key), dtype=np.uint64)
    packed.sort()
    return (packed & np.uint64((1 << room) - 1)).astype(np.int64)


def _measured(block: Block, pairs: _Pairs, needed: Bools, scale: Scale) -> Floats:
    """Distances of the needed pairs, NaN for the others."""
    at = np.flatnonzero(needed)
    distance = np.full(len(pairs.row) + 1, np.nan)  # one more, for the padding
    distance[at] = scale.measure(block.start + pairs.row[at], pairs.partner[at])
    return distance
