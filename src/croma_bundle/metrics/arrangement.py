"""Rows in the order in which neighbours are sought: sorted to cells of label and confounder, and centred.

In that order the candidates of one type are contiguous blocks, and the rows of one group are ranges. Centring leaves
distances as they are, ``1 − u·v = |u − c|²/2 + |v − c|²/2 − (u − c)·(v − c)`` for unit rows, but shrinks the terms, and
with them the rounding error of a float32 product, to the spread of the embedding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import DegenerateEmbedding, some
from croma_bundle.metrics.kernel import Kernel

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

BLOCK = 1024
"""Rows of a block at most."""
SMALL = 128
"""A cell below this many rows shares its block with the cells after it."""
SAMPLE = 1024
"""Rows of the sample that stands for all, spread over the cells, at least; a twentieth of the rows at least, and an
eighth up to four times so many."""
SAMPLED = 256
"""Rows of a block of the sample at most."""
_STEP_BYTES = 1 << 19
CHUNK = 512
"""Columns multiplied at a time: the error of a float32 sum grows with its length, so the parts are added up."""
UNIT = 2.0**-24
"""Unit roundoff of float32."""
LONGEST = 1e150
"""1 / length at most: the squares of shorter rows underflow."""


@dataclass(frozen=True)
class Block:
    """Rows [start, stop) of the arrangement; label and confounder code, or -1 where it spans several cells."""

    start: int
    stop: int
    label: int
    confounder: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True, eq=False)
class Arrangement:
    """N rows arranged; D columns.

    Attributes:
        x: the rows as given, floating, perhaps among others.
        given: (N,) int64, the number of each arranged row among the N.
        source: (N,) int64, the row of x of each arranged row.
        scale: (N,) float64, 1 / length of each arranged row (0 for a row of zeros).
        labels, confounders, groups: (N,) int64 codes, arranged.
        cell_end: (N,) int64, of each row the first row after it that is of another cell.
        centre: (D,) float64, about the mean of the unit rows.
        h: (N,) float64, half the squared length of each centred unit row; 1/2 more for a row of zeros, which puts it at
            distance 1 of all others.
        held: (N, D) float32, what ``factor`` gives for all rows, or None where it is made when needed.
        sampled: how many rows, the first, are a sample of all; they are sorted to cells, and so are the others.
        block: rows of a block at most.
        blocks: consecutive and complete; none has sampled rows and others.
        kernel: the compiled inner loops; None: numpy's.
    """

    x: npt.NDArray[np.floating]
    given: Ints
    source: Ints
    scale: Floats
    labels: Ints
    confounders: Ints
    groups: Ints
    cell_end: Ints
    centre: Floats
    h: Floats
    held: Singles | None
    sampled: int
    block: int
    blocks: tuple[Block, ...]
    kernel: Kernel | None

    @property
    def width(self) -> int:
        return int(self.x.shape[1])

    def factor(self, rows: slice) -> Singles:
        """(n, D) float32, the centred unit rows."""
        if self.held is not None:
            return self.held[rows]
        out = np.empty((rows.stop - rows.start, self.width), dtype=np.float32)
        for part in steps(rows.start, rows.stop, _step(self.width)):
            out[part.start - rows.start : part.stop - rows.start] = self._centred(part)
        return out

    def product(self, rows: slice, mine: Singles, others: slice, theirs: Singles) -> Singles:
        """(n, p) float32: minus the distance of each row to each other, to within ``band``; from their factors."""
        first, *rest = _chunks(mine.shape[1])
        out = mine[:, first] @ theirs[:, first].T
        part = np.empty_like(out) if rest else out
        for columns in rest:
            out += np.matmul(mine[:, columns], theirs[:, columns].T, out=part)
        out -= self.h[rows, np.newaxis].astype(np.float32)
        out -= self.h[others].astype(np.float32)
        return out

    def band(self) -> Floats:
        """(N,) how far the product may be from minus the distance, for a row and any partner.

        Higham (Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1): a dot product of n terms summed
        in any order is off by at most ``n·u/(1 − n·u)`` times the sum of the terms' magnitudes, here at most
        ``|y_i||y_j| + h_i + h_j``; adding up the chunks and −h_i and −h_j adds one u each, rounding y and h to float32
        four more. 1e-12 is what counts as zero distance.
        """
        far = float(self.h.max(initial=0.0))
        magnitude = 2.0 * np.sqrt(self.h * far) + self.h + far
        chunks = len(_chunks(self.width))
        terms = -(-self.width // chunks)
        return 1.01 * (terms + chunks + 10) * UNIT * magnitude + 1e-12

    def _centred(self, rows: slice) -> Floats:
        unit = self.x[self.source[rows]].astype(np.float64)
        unit *= self.scale[rows, np.newaxis]
        unit -= self.centre
        return unit


def arrange(
    x: npt.NDArray[np.floating],
    rows: Ints,
    labels: Ints,
    confounders: Ints,
    groups: Ints,
    pool: Executor,
    *,
    block: int = BLOCK,
    hold: bool = True,
    kernel: Kernel | None = None,
) -> Arrangement:
    """Sort the rows ``x[rows]`` to (label, confounder, group), a sample of them first, and centre them.

    `hold` keeps the float32 factor, 4·N·D bytes; without it a block is made each time it is needed, of the very same
    bits.

    Raises:
        DegenerateEmbedding: a row holds NaN or infinity, or its length is beyond float64 (over 1e154, under 1e-150).
    """
    n, width = len(rows), x.shape[1]
    given = np.lexsort((groups, confounders, labels)).astype(np.int64)
    sample = np.arange(sample_size(n)) * n // sample_size(n)
    given = np.concatenate((given[sample], np.delete(given, sample)))
    labels, confounders, groups = labels[given], confounders[given], groups[given]
    cell_end, cells = _cell_ends(labels, confounders, len(sample))
    scale, h = np.empty(n), np.empty(n)
    held = np.empty((n, width), dtype=np.float32) if hold else None
    blocks = tuple(_blocks(labels, confounders, cells, len(sample), block))
    centre = np.zeros(width)
    a = Arrangement(
        x,
        given,
        rows[given],
        scale,
        labels,
        confounders,
        groups,
        cell_end,
        centre,
        h,
        held,
        len(sample),
        block,
        blocks,
        kernel,
    )
    parts = list(steps(0, n, _step(width)))
    sums = pool.map(lambda part: _sum_of_units(a, part), steps(0, len(sample), _step(width)))
    centre += sum(sums, np.zeros(width)) / len(sample)
    bad = [row for rows in pool.map(lambda part: _fill(a, part), parts) for row in rows]
    if bad:
        raise DegenerateEmbedding("embedding matrix", f"not finite in row {some(sorted(bad))}")
    return a


def sample_size(n: int) -> int:
    """Rows of the sample of n rows."""
    return min(n, max(SAMPLE, min(n // 8, 4 * SAMPLE), n // 20))


def _sum_of_units(a: Arrangement, rows: slice) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):  # rows that are not finite are refused later
        part = a.x[a.source[rows]].astype(np.float64)
        part *= _inverse_lengths(part)[:, np.newaxis]
        total: Floats = np.add.reduce(part, axis=0)
    return total


def _fill(a: Arrangement, rows: slice) -> list[int]:
    """Scale, centre and halve the squares of some rows; the numbers of those that are not finite."""
    held = None if a.held is None else a.held[rows]
    if a.kernel and a.kernel.takes(a.x):
        a.kernel.centre(a.x, a.source[rows], a.centre, a.scale[rows], held, a.h[rows])
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            part = a.x[a.source[rows]].astype(np.float64)
            a.scale[rows] = _inverse_lengths(part)
            part *= a.scale[rows, np.newaxis]
            part -= a.centre
            if held is not None:
                held[:] = part
            part *= part
            a.h[rows] = np.add.reduce(part, axis=-1) / 2.0
            a.h[rows] += np.where(a.scale[rows] == 0, 0.5, 0.0)
    # A row of zeros; or one whose length float64 does not hold, which only float64 rows reach.
    shapeless = a.source[rows][(a.scale[rows] == 0) | (a.scale[rows] > LONGEST)]
    return [int(row) for row in shapeless if a.x[row].any()]


def _inverse_lengths(rows: Floats) -> Floats:
    """1 / length of each row, 0 for a row of zeros; each summed alone in a fixed order."""
    length = np.sqrt(np.add.reduce(rows * rows, axis=-1))
    return np.divide(1.0, length, out=np.zeros(len(rows)), where=length > 0)


def _step(width: int) -> int:
    """Rows of which a float64 copy stays in a core's cache."""
    return max(1, _STEP_BYTES // (8 * max(1, width)))


def steps(start: int, stop: int, step: int) -> Iterator[slice]:
    for at in range(start, stop, step):
        yield slice(at, min(stop, at + step))


def _chunks(width: int) -> list[slice]:
    """Even chunks of at most CHUNK columns."""
    count = -(-width // CHUNK)
    size = -(-width // count)
    return [slice(start, min(width, start + size)) for start in range(0, width, size)]


def _cell_ends(labels: Ints, confounders: Ints, sampled: int) -> tuple[Ints, list[int]]:
    """Of each row where its cell's run ends; and where the runs end, ascending. The sample's runs end with it."""
    changes = (labels[1:] != labels[:-1]) | (confounders[1:] != confounders[:-1])
    changes[sampled - 1 : sampled] = True
    ends = np.append(np.flatnonzero(changes) + 1, len(labels))
    return np.repeat(ends, np.diff(ends, prepend=0)), ends.tolist()


def _blocks(labels: Ints, confounders: Ints, ends: list[int], sampled: int, block: int) -> Iterator[Block]:
    """The sample, cut; then cells cut to even blocks, and runs of small cells put together."""
    yield from _cut(0, sampled, min(block, SAMPLED))
    open_from = sampled
    for start, stop in itertools.pairwise([sampled, *(end for end in ends if end > sampled)]):
        if stop - start >= min(SMALL, block):
            yield from _cut(open_from, start, block)
            pieces = -(-(stop - start) // block)
            edges = np.linspace(start, stop, pieces + 1).astype(int).tolist()
            for a, b in itertools.pairwise(edges):
                yield Block(a, b, int(labels[start]), int(confounders[start]))
            open_from = stop
        elif stop - open_from >= block:
            yield from _cut(open_from, stop, block)
            open_from = stop
    yield from _cut(open_from, len(labels), block)


def _cut(start: int, stop: int, block: int) -> Iterator[Block]:
    for a in range(start, stop, block):
        yield Block(a, min(a + block, stop), -1, -1)
