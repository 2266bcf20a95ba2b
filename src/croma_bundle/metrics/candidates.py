"""Guess how near a row's neighbours are, then collect every pair that is nearer, in one pass over the half product.

The guess is taken from a sample of the columns and needs no proof: whether it was good is certified afterwards, row by
row (``selection``), and a row for which it was not is searched exhaustively.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from croma_bundle.metrics.arrangement import Arrangement, Block, Ints, Singles

SO, OS, SS, OO = 0, 1, 2, 3
SAMPLE = 1024
"""Columns of the sample, spread over the cells; at least a twentieth of the rows."""
NO_LIMIT = np.float32(-4)
"""A limit that every candidate passes (no distance is above 2) and no excluded pair does (minus infinity)."""
MOST_ROWS = 32767
"""Rows of a block at most: they are numbered in 16 bits."""
TOO_MANY = 4
"""Times the expected pairs of a block beyond which its guess was bad (duplicates, mostly): it is then searched
exhaustively."""
_SEED = 0
_RECTANGLES = 64


@dataclass(frozen=True, eq=False)
class Guess:
    """Per arranged row, float32: a pair nearer than this (larger minus-distance) may count: among all, SO, OS."""

    near: Singles
    so: Singles
    os: Singles
    expected: int
    """Pairs per row that such a guess lets through on average."""

    def limits(self, rows: slice) -> npt.NDArray[np.float32]:
        """(4, n) float32: the loosest limit that applies to a pair of each type."""
        near = self.near[rows]
        return np.stack([np.minimum(near, self.so[rows]), np.minimum(near, self.os[rows]), near, near])


@dataclass(eq=False)
class Collected:
    """The pairs of one block's rows: row within the block, partner in the arrangement, minus-distance."""

    rows: list[npt.NDArray[np.int16]] = field(default_factory=list)
    partners: list[npt.NDArray[np.int32]] = field(default_factory=list)
    closeness: list[Singles] = field(default_factory=list)
    count: int = 0
    overflow: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rows: Ints, partners: Ints, closeness: Singles, capacity: int) -> None:
        with self.lock:
            self.count += len(rows)
            self.overflow |= self.count > capacity
            if self.overflow:
                self.rows, self.partners, self.closeness = [], [], []
                return
            self.rows.append(rows.astype(np.int16))
            self.partners.append(partners.astype(np.int32))
            self.closeness.append(closeness)


def guess(a: Arrangement, k: int, m: int, pool: Executor) -> Guess:
    """Estimate each row's k-th nearest candidate and its m-th nearest of each type from a sample of the columns."""
    columns = _sample(a)
    share = len(columns) / len(a.given)
    partner = a.partner(columns)
    label, confounder, group = a.labels[columns], a.confounders[columns], a.groups[columns]
    near, so, os = (np.empty(len(a.given), dtype=np.float32) for _ in range(3))

    def one(block: Block) -> None:
        rows = block.rows
        product = a.product(rows, partner)
        product[a.groups[rows, np.newaxis] == group] = -np.inf
        near[rows] = _nth(product, _rank(k, share))
        if block.label >= 0:
            same_label, same_confounder = label == block.label, confounder == block.confounder
            so[rows] = _nth(product[:, same_label & ~same_confounder], _rank(m, share))
            os[rows] = _nth(product[:, ~same_label & same_confounder], _rank(m, share))
            return
        same_label = a.labels[rows, np.newaxis] == label
        same_confounder = a.confounders[rows, np.newaxis] == confounder
        so[rows] = _nth(np.where(same_label & ~same_confounder, product, -np.inf), _rank(m, share))
        os[rows] = _nth(np.where(~same_label & same_confounder, product, -np.inf), _rank(m, share))

    list(pool.map(one, a.blocks))
    near, so, os = (np.clip(limit, NO_LIMIT, np.float32(0)) for limit in (near, so, os))
    return Guess(near, so, os, expected_pairs(len(a.given), k, m))


def expected_pairs(n: int, k: int, m: int) -> int:
    """Pairs per row that a guess from the sample of n rows lets through, about."""
    share = _share(n)
    return min(n, round((_rank(k, share) + 2 * _rank(m, share)) / share))


def collect(a: Arrangement, limit: Guess, pool: Executor, complete: Callable[[int, Collected], None]) -> None:
    """Every pair of candidates within the guess, for both of its rows; one walk over block pairs i ≤ j.

    `complete` is called with each block's number and its pairs as soon as there can be no more of them, from the thread
    that added the last one; the pairs are forgotten afterwards.
    """
    found: list[Collected | None] = [Collected() for _ in a.blocks]
    missing = list(range(1, len(a.blocks) + 1))  # rows of blocks that have still to be walked, own one included
    counting = threading.Lock()

    def settle(number: int) -> None:
        with counting:
            missing[number] -= 1
            if missing[number]:
                return
            pairs, found[number] = found[number], None
        if pairs is not None:
            complete(number, pairs)

    def walk(i: int) -> None:
        mine = a.blocks[i]
        for j in range(i, len(a.blocks)):
            other = a.blocks[j]
            product = a.product(mine.rows, a.partner(other.rows))
            _exclude_groups(product, a.groups[mine.rows], a.groups[other.rows])
            kinds = _kinds(a, mine, other)
            if i != j and (theirs := found[j]) is not None:
                _gather(product, limit, kinds, other, mine, theirs, transposed=True)
                settle(j)
            if (own := found[i]) is not None:
                _gather(product, limit, kinds, mine, other, own, transposed=False)
        settle(i)

    list(pool.map(walk, range(len(a.blocks))))


def _gather(
    product: Singles,
    limit: Guess,
    kinds: int | npt.NDArray[np.int8],
    mine: Block,
    other: Block,
    into: Collected,
    *,
    transposed: bool,
) -> None:
    """Add the pairs of `mine`'s rows that are within their limit; `transposed`: its rows are the product's columns."""
    limits = limit.limits(mine.rows)
    axis = (np.newaxis, slice(None)) if transposed else (slice(None), np.newaxis)
    if isinstance(kinds, int):
        within = product >= limits[kinds][axis]
    else:
        own = np.arange(limits.shape[1])[axis]
        within = product >= limits[kinds, own]
    flat = np.flatnonzero(within)
    first, second = np.divmod(flat, product.shape[1])
    rows, partners = (second, first) if transposed else (first, second)
    capacity = (TOO_MANY * limit.expected + SAMPLE) * (mine.stop - mine.start)
    into.add(rows, partners + other.start, product.ravel()[flat], capacity)


def _kinds(a: Arrangement, mine: Block, other: Block) -> int | npt.NDArray[np.int8]:
    """The type of all pairs of two blocks; an array of types where a block spans several cells."""
    if mine.label >= 0 and other.label >= 0:
        same_label, same_confounder = mine.label == other.label, mine.confounder == other.confounder
        return (SS if same_confounder else SO) if same_label else (OS if same_confounder else OO)
    return kinds_of(
        a.labels[mine.rows, np.newaxis] == a.labels[other.rows],
        a.confounders[mine.rows, np.newaxis] == a.confounders[other.rows],
    )


def kinds_of(same_label: npt.NDArray[np.bool_], same_confounder: npt.NDArray[np.bool_]) -> npt.NDArray[np.int8]:
    """SO, OS, SS or OO, elementwise."""
    table = np.array([[OO, OS], [SO, SS]], dtype=np.int8)
    return table[same_label.view(np.int8), same_confounder.view(np.int8)]


def _exclude_groups(product: Singles, mine: Ints, other: Ints) -> None:
    """Set the pairs of one group, self included, to minus infinity."""
    common = np.intersect1d(mine, other)
    if len(common) > _RECTANGLES:
        product[mine[:, np.newaxis] == other] = -np.inf
        return
    for group in common:
        for a, b in _runs(mine == group):
            for c, d in _runs(other == group):
                product[a:b, c:d] = -np.inf


def _runs(flags: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.view(np.int8), [0]))))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _sample(a: Arrangement) -> Ints:
    """Arranged rows, the same share of every block, at least one."""
    rng = np.random.default_rng(_SEED)
    share = _share(len(a.given))
    picks = [
        rng.choice(block.stop - block.start, max(1, round(share * (block.stop - block.start))), replace=False)
        + block.start
        for block in a.blocks
    ]
    return np.sort(np.concatenate(picks)).astype(np.int64)


def _share(n: int) -> float:
    return min(1.0, max(SAMPLE / n, 0.05))


def _rank(wanted: int, share: float) -> int:
    """Which of the sample's nearest stands for the `wanted`-th of all: the mean, plus 2.2 deviations, plus 2."""
    expected = wanted * share
    return int(np.ceil(expected + 2.2 * np.sqrt(expected) + 2))


def _nth(product: Singles, rank: int) -> Singles:
    """Per row, the rank-th largest; minus infinity where there are not so many."""
    if product.shape[1] < rank:
        return np.full(len(product), -np.inf, dtype=np.float32)
    at = product.shape[1] - rank
    return np.partition(product, at, axis=1)[:, at]
