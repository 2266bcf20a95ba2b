"""Guess how near a row's neighbours are, then collect every pair that is nearer, in one pass over the half product.

The guess is taken from a sample of the rows, whose products are needed anyway and come first. It needs no proof:
whether it was good is certified afterwards, row by row (``selection``), and a row for which it was not is searched
exhaustively.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from croma_bundle.metrics import leading
from croma_bundle.metrics.arrangement import Arrangement, Block, Ints, Singles, sample_size
from croma_bundle.metrics.kernel import Gathering, Pairs

Kinds = npt.NDArray[np.int8]

SO, OS, SS, OO = 0, 1, 2, 3
NO_LIMIT = np.float32(-4)
"""A limit that every candidate passes (no distance is above 2) and no excluded pair does (minus infinity)."""
MOST_ROWS = 32767
"""Rows of a block at most: they are numbered in 16 bits."""
TOO_MANY = 4
"""Times the expected pairs of a block beyond which its guess was bad (duplicates, mostly): it is then searched
exhaustively."""
SPARE = 1024
"""Pairs per row that are never too many."""
UNHELD_BLOCKS = 4
"""Blocks whose rows are multiplied at a time where the factor is not held."""
PAIR_COST = 6
"""How much longer it takes to multiply two rows by themselves than within blocks; some pass for only one of them."""
WORTH = 0.7
"""Leading components must spare this share of the product's time, for what else they cost."""
_RECTANGLES = 64


@dataclass(frozen=True, eq=False)
class Guess:
    """Per arranged row, float32: a pair nearer than this (larger minus-distance) may count.

    Attributes:
        near, so, os: (N,) among all, SO, OS.
        limits: (4, N) the loosest limit that applies to a pair of each type.
        expected: pairs per row that such a guess lets through on average.
    """

    near: Singles
    so: Singles
    os: Singles
    limits: Singles
    expected: int

    @classmethod
    def of(cls, n: int, k: int, m: int) -> Guess:
        """To be made: nothing is guessed of any row yet."""
        near, so, os = np.full((3, n), NO_LIMIT)
        return cls(near, so, os, np.full((4, n), NO_LIMIT), expected_pairs(n, k, m))

    def put(self, rows: slice, near: Singles, so: Singles, os: Singles) -> None:
        """The guess of some rows."""
        near, so, os = (np.clip(limit, NO_LIMIT, np.float32(0)) for limit in (near, so, os))
        self.near[rows], self.so[rows], self.os[rows] = near, so, os
        self.limits[:, rows] = np.minimum(near, so), np.minimum(near, os), near, near


@dataclass(eq=False)
class Collected:
    """The pairs of one block's rows: row within the block, partner in the arrangement, minus-distance."""

    rows: list[npt.NDArray[np.int16]] = field(default_factory=list)
    partners: list[npt.NDArray[np.int32]] = field(default_factory=list)
    closeness: list[Singles] = field(default_factory=list)
    count: int = 0
    overflow: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, pairs: Pairs, capacity: int) -> None:
        with self.lock:
            self.count += len(pairs.row)
            self.overflow |= self.count > capacity
            if self.overflow:
                self.rows, self.partners, self.closeness = [], [], []
                return
            self.rows.append(pairs.row)
            self.partners.append(pairs.partner)
            self.closeness.append(pairs.closeness)


def expected_pairs(n: int, k: int, m: int) -> int:
    """Pairs per row that a guess from the sample of n rows lets through, about."""
    share = sample_size(n) / n
    return min(n, round((_rank(k, share) + 2 * _rank(m, share)) / share))


def collect(
    a: Arrangement,
    k: int,
    m: int,
    pool: Executor,
    complete: Callable[[int, Collected, Guess], None],
) -> None:
    """Every pair of candidates within the guess of its k nearest and its m nearest of each type, for both of its rows.

    Where leading components rule out nearly all pairs, they give the guess, then what block pairs i ≤ j need. Else the
    sample's rows among themselves, then all others with them, which gives the guess; then block pairs i ≤ j of the
    others. `complete` is called with each block's number and its pairs as soon as there can be no more of them, from
    the thread that added the last one; the pairs are forgotten afterwards.
    """
    walk = _Walk(a, k, m, complete)
    if walk.sifts(pool):
        list(pool.map(lambda task: walk.among_others(*task), _tasks(a, walk.others)))
        return
    list(pool.map(walk.among_sample, walk.sampled))
    list(pool.map(walk.with_sample, walk.others))
    last = [partial(walk.settle, i) for i in walk.sampled]
    last += [partial(walk.among_others, *task) for task in _tasks(a, walk.others)]
    list(pool.map(lambda task: task(), last))


class _Walk:
    """The pairs that are collected so far, by block, and how often a block has still to meet another."""

    def __init__(self, a: Arrangement, k: int, m: int, complete: Callable[[int, Collected, Guess], None]) -> None:
        share = a.sampled / len(a.given)
        self.a, self.complete = a, complete
        self.ranks = _rank(k, share), _rank(m, share)
        self.guess = Guess.of(len(a.given), k, m)
        self.gather: Gathering = (a.kernel.gathering if a.kernel else _Gathering)(a, self.guess.limits)
        self.capacity = TOO_MANY * self.guess.expected + SPARE
        self.found: list[Collected | None] = [Collected() for _ in a.blocks]
        first = sum(block.start < a.sampled for block in a.blocks)
        self.sampled, self.others = range(first), range(first, len(a.blocks))
        self.missing = [1] * len(self.sampled) + [len(self.others)] * len(self.others)
        self.counting = threading.Lock()
        self.sample = a.factor(slice(0, a.sampled))
        self.lines: Singles | None = None

    def sifts(self, pool: Executor) -> bool:
        """Whether leading components spare more than they cost; then all blocks are walked by them."""
        a = self.a
        if a.kernel is None or not leading.may_pay(len(a.given), a.width):
            return False
        along = leading.directions(self.sample)
        of_sample = leading.components(a, slice(0, a.sampled), along, pool)
        passing = sum(pool.map(partial(self._passing, of_sample), self.sampled))
        if of_sample.shape[1] / a.width + PAIR_COST * passing / a.sampled**2 > WORTH:
            return False
        of_others = leading.components(a, slice(a.sampled, len(a.given)), along, pool)
        self.lines = np.concatenate([of_sample, of_others])
        list(pool.map(partial(self._guess_by, self.lines), self.others))
        self.gather = a.kernel.sifting(a, self.guess.limits)
        self.others, self.missing = range(len(a.blocks)), [len(a.blocks)] * len(a.blocks)
        return True

    def _guess_by(self, lines: Singles, i: int) -> None:
        """The guess of a block, as if its rows had no more components than these."""
        block, sample, inside = self.a.blocks[i], slice(0, self.a.sampled), lines[:, :-1]
        self._guess(block, self.a.product(block.rows, inside[block.rows], sample, inside[sample]))

    def _passing(self, lines: Singles, i: int) -> int:
        """Pairs of a block of the sample with the sample that its components do not rule out."""
        self._guess_by(lines, i)
        a, block, sample = self.a, self.a.blocks[i], slice(0, self.a.sampled)
        bound = a.product(block.rows, lines[block.rows], sample, lines[sample])
        parts = (self.gather(bound[:, a.blocks[j].rows], block, a.blocks[j], both=False) for j in self.sampled)
        return sum(len(mine.row) for mine, _ in parts)

    def among_sample(self, i: int) -> None:
        """The guess of a block of the sample, and its rows' pairs in the sample."""
        a, block, sampled = self.a, self.a.blocks[i], slice(0, self.a.sampled)
        product = a.product(block.rows, self.sample[block.rows], sampled, self.sample)
        self._guess(block, product)
        for j in self.sampled:
            self._add(i, j, product[:, a.blocks[j].rows], both=False)

    def with_sample(self, i: int) -> None:
        """The guess of another block, and the pairs of its rows and the sample's."""
        a, block, sampled = self.a, self.a.blocks[i], slice(0, self.a.sampled)
        product = a.product(sampled, self.sample, block.rows, a.factor(block.rows))  # a tall product is faster
        self._guess(block, np.ascontiguousarray(product.T))
        for j in self.sampled:
            self._add(j, i, product[a.blocks[j].rows], both=True)

    def among_others(self, rows: range, columns: range) -> None:
        """The pairs i ≤ j of a run of blocks i with a run of blocks j."""
        a, blocks = self.a, self.a.blocks
        factor = a.factor(slice(blocks[rows[0]].start, blocks[rows[-1]].stop))
        for j in columns:
            run = range(rows.start, min(rows.stop, j + 1))
            mine, other = slice(blocks[run[0]].start, blocks[run[-1]].stop), blocks[j].rows
            theirs = a.factor(other)
            whole = factor[: mine.stop - mine.start], theirs
            narrow = whole if self.lines is None else (self.lines[mine], self.lines[other])
            product = a.product(mine, narrow[0], other, narrow[1])
            for i in run:
                at = slice(blocks[i].start - mine.start, blocks[i].stop - mine.start)
                self._add(i, j, product[at], (factor[at], theirs), both=i != j)
                for number in {i, j}:
                    self.settle(number)

    def settle(self, number: int) -> None:
        """A block has met another, or the sample all others; after the last it is complete."""
        with self.counting:
            self.missing[number] -= 1
            if self.missing[number]:
                return
            pairs, self.found[number] = self.found[number], None
        if pairs is not None:
            self.complete(number, pairs, self.guess)

    def _guess(self, block: Block, product: Singles) -> None:
        self.guess.put(block.rows, *guess(self.a, block, product, *self.ranks))

    def _add(self, i: int, j: int, product: Singles, factors: tuple[Singles, ...] = (), *, both: bool) -> None:
        """The pairs of rows of block i with block j; `both`: for the rows of j, too."""
        one, other = self.a.blocks[i], self.a.blocks[j]
        mine, theirs = self.gather(product, one, other, both=both, factors=factors)
        for number, block, pairs in ((i, one, mine), (j, other, theirs)):
            into = self.found[number]
            if pairs is not None and into is not None:
                into.add(pairs, self.capacity * (block.stop - block.start))


class _Gathering:
    """The pairs of a block of the product that are within their limits: what the kernel's must equal."""

    def __init__(self, a: Arrangement, limits: Singles) -> None:
        self.a, self.limits = a, limits

    def __call__(
        self, product: Singles, one: Block, other: Block, *, both: bool, factors: tuple[Singles, ...] = ()
    ) -> tuple[Pairs, Pairs | None]:
        _exclude_groups(product, self.a.groups[one.rows], self.a.groups[other.rows])
        kinds = _kinds(self.a, one, other)
        mine = self._within(product, kinds, one, other, columns=False)
        return mine, self._within(product, kinds, other, one, columns=True) if both else None

    def _within(self, product: Singles, kinds: int | Kinds, mine: Block, other: Block, *, columns: bool) -> Pairs:
        """The pairs of `mine`'s rows; `columns`: they are the product's columns."""
        limits = self.limits[:, mine.rows]
        axis = (np.newaxis, slice(None)) if columns else (slice(None), np.newaxis)
        limit = limits[kinds][axis] if isinstance(kinds, int) else limits[kinds, np.arange(limits.shape[1])[axis]]
        flat = np.flatnonzero(product >= limit)
        first = flat // product.shape[1]
        second = flat - first * product.shape[1]
        row, partner = (second, first) if columns else (first, second)
        closeness = product[first, second]
        return Pairs(row.astype(np.int16), (partner + other.start).astype(np.int32), closeness)


def _tasks(a: Arrangement, blocks: range) -> Iterator[tuple[range, range]]:
    """Runs of blocks i and of blocks j, for every pair i ≤ j: tall products are faster than flat ones.

    Where the factor is held, a run of i has no more rows than a block may have and one j, so that threads end together.
    Else the runs are longer, because the factor of i is made for each, and that of j for each.
    """
    rows, step = (a.block, 1) if a.held is not None else (UNHELD_BLOCKS * a.block, 4 * UNHELD_BLOCKS)
    starts: list[int] = []
    for i in blocks:
        if not starts or a.blocks[i].stop - a.blocks[starts[-1]].start > rows:
            starts.append(i)
    for start, stop in itertools.pairwise([*starts, blocks.stop]):
        for j in range(start, blocks.stop, step):
            yield range(start, stop), range(j, min(j + step, blocks.stop))


def guess(a: Arrangement, block: Block, product: Singles, k_rank: int, m_rank: int) -> Sequence[Singles]:
    """Each row's distance to its k-th nearest candidate, and its m-th of each type, by its product with the sample.

    Pairs of one group are set to minus infinity, or left as they are."""
    if a.kernel:
        return a.kernel.guess(a, block, product, k_rank, m_rank)
    rows, sample = block.rows, slice(0, a.sampled)
    _exclude_groups(product, a.groups[rows], a.groups[sample])
    near = _nth(product, k_rank)
    if block.label >= 0:
        same_label, same_confounder = a.labels[sample] == block.label, a.confounders[sample] == block.confounder
        so, os = product[:, same_label & ~same_confounder], product[:, ~same_label & same_confounder]
    else:
        same_label = a.labels[rows, np.newaxis] == a.labels[sample]
        same_confounder = a.confounders[rows, np.newaxis] == a.confounders[sample]
        so, os = (
            np.where(typed, product, np.float32(-np.inf))
            for typed in (same_label & ~same_confounder, ~same_label & same_confounder)
        )
    return near, _nth(so, m_rank), _nth(os, m_rank)


def _kinds(a: Arrangement, mine: Block, other: Block) -> int | Kinds:
    """The type of all pairs of two blocks; an array of types where a block spans several cells."""
    if mine.label >= 0 and other.label >= 0:
        same_label, same_confounder = mine.label == other.label, mine.confounder == other.confounder
        return (SS if same_confounder else SO) if same_label else (OS if same_confounder else OO)
    return kinds_of(
        a.labels[mine.rows, np.newaxis] == a.labels[other.rows],
        a.confounders[mine.rows, np.newaxis] == a.confounders[other.rows],
    )


def kinds_of(same_label: npt.NDArray[np.bool_], same_confounder: npt.NDArray[np.bool_]) -> Kinds:
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


def _rank(wanted: int, share: float) -> int:
    """Which of the sample's nearest stands for the `wanted`-th of all: the mean, plus 2.6 deviations, plus 2."""
    expected = wanted * share
    return int(np.ceil(expected + 2.6 * np.sqrt(expected) + 2))


def _nth(product: Singles, rank: int) -> Singles:
    """Per row, the rank-th largest; minus infinity where there are not so many."""
    if product.shape[1] < rank:
        return np.full(len(product), -np.inf, dtype=np.float32)
    at = product.shape[1] - rank
    return np.partition(product, at, axis=1)[:, at]
