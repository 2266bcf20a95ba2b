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

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

BLOCK = 1024
"""Rows of a block at most."""
SMALL = 128
"""A cell below this many rows shares its block with the cells after it."""
_STEP = 512
CHUNK = 400
"""Columns multiplied at a time: the error of a float32 sum grows with its length, so the parts are added up."""
UNIT = 2.0**-24
"""Unit roundoff of float32."""


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
        centre: (D,) float64, mean of the unit rows.
        h: (N,) float64, half the squared length of each centred unit row.
        held: (N, D + 2) float32, what ``factor`` gives for all rows, or None where it is made when needed.
        blocks: consecutive and complete.
    """

    x: npt.NDArray[np.floating]
    given: Ints
    source: Ints
    scale: Floats
    labels: Ints
    confounders: Ints
    groups: Ints
    centre: Floats
    h: Floats
    held: Singles | None
    blocks: tuple[Block, ...]

    @property
    def width(self) -> int:
        return int(self.x.shape[1])

    def factor(self, rows: slice | Ints) -> Singles:
        """(n, D + 2) float32, the left side of the product: centred unit row, ``−h``, 1."""
        if self.held is not None:
            return self.held[rows]
        return _factor(_centred(self, rows), self.h[rows])

    def partner(self, rows: slice | Ints) -> Singles:
        """(n, D + 2) float32, the right side of the product: centred unit row, 1, ``−h``."""
        swapped = self.factor(rows)
        swapped = swapped.copy() if self.held is not None and isinstance(rows, slice) else swapped
        swapped[:, [self.width, self.width + 1]] = swapped[:, [self.width + 1, self.width]]
        return swapped

    def product(self, rows: slice, partner: Singles) -> Singles:
        """(n, p) float32: minus the distance of each row to each partner, to within ``band``."""
        mine = self.factor(rows)
        first, *others = _chunks(mine.shape[1])
        out = mine[:, first] @ partner[:, first].T
        part = np.empty_like(out)
        for columns in others:
            out += np.matmul(mine[:, columns], partner[:, columns].T, out=part)
        return out

    def band(self) -> Floats:
        """(N,) how far the product may be from minus the distance, for a row and any partner.

        Higham (Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1): a dot product of n terms summed
        in any order is off by at most ``n·u/(1 − n·u)`` times the sum of the terms' magnitudes, here at most
        ``|y_i||y_j| + h_i + h_j``; adding up the chunks adds one u each, rounding y and h to float32 four more. 1e-12
        is what counts as zero distance.
        """
        far = float(self.h.max(initial=0.0))
        magnitude = 2.0 * np.sqrt(self.h * far) + self.h + far
        chunks = len(_chunks(self.width + 2))
        terms = -(-(self.width + 2) // chunks)
        return 1.01 * (terms + chunks + 8) * UNIT * magnitude + 1e-12


def _centred(a: Arrangement, rows: slice | Ints) -> Floats:
    unit = a.x[a.source[rows]].astype(np.float64)
    unit *= a.scale[rows][:, np.newaxis]
    unit -= a.centre
    return unit


def _factor(centred: Floats, h: Floats) -> Singles:
    n, width = centred.shape
    out = np.empty((n, width + 2), dtype=np.float32)
    out[:, :width] = centred
    out[:, width] = -h
    out[:, width + 1] = 1.0
    return out


def inverse_lengths(x: npt.NDArray[np.floating], source: Ints) -> Floats:
    """(N,) float64: 1 / length of the rows ``x[source]``, 0 for a row of zeros; each summed alone in a fixed order.

    Raises:
        DegenerateEmbedding: a row holds NaN or infinity.
    """
    scale = np.zeros(len(source))
    bad: list[int] = []
    for rows in steps(len(source)):
        part = x[source[rows]].astype(np.float64)
        length = np.sqrt(np.add.reduce(part * part, axis=-1))
        bad += source[rows][~np.isfinite(part).all(axis=1)].tolist()
        scale[rows] = np.divide(1.0, length, out=np.zeros(len(part)), where=length > 0)
    if bad:
        raise DegenerateEmbedding("embedding matrix", f"not finite in row {some(sorted(bad))}")
    return scale


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
) -> Arrangement:
    """Sort the rows ``x[rows]`` to (label, confounder, group) and centre them.

    `hold` keeps the float32 factor, 4·N·(D + 2) bytes; without it a block is made each time it is needed, of the very
    same bits.
    """
    n, width = len(rows), x.shape[1]
    given = np.lexsort((groups, confounders, labels)).astype(np.int64)
    source = rows[given]
    scale = inverse_lengths(x, source)
    parts = list(steps(n))

    def total(part: slice) -> Floats:
        summed: Floats = np.add.reduce(x[source[part]] * scale[part, np.newaxis], axis=0)
        return summed

    centre = sum(pool.map(total, parts), np.zeros(width)) / n
    labels, confounders, groups = labels[given], confounders[given], groups[given]
    h = np.empty(n)
    held = np.empty((n, width + 2), dtype=np.float32) if hold else None
    blocks = tuple(_blocks(labels, confounders, block))
    a = Arrangement(x, given, source, scale, labels, confounders, groups, centre, h, held, blocks)

    def fill(part: slice) -> None:
        centred = _centred(a, part)
        h[part] = np.add.reduce(centred * centred, axis=-1) / 2.0
        if held is not None:
            held[part] = _factor(centred, h[part])

    list(pool.map(fill, parts))
    return a


def steps(n: int, step: int = _STEP) -> Iterator[slice]:
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


def _chunks(width: int) -> list[slice]:
    """Even chunks of at most CHUNK columns."""
    count = -(-width // CHUNK)
    size = -(-width // count)
    return [slice(start, min(width, start + size)) for start in range(0, width, size)]


def _blocks(labels: Ints, confounders: Ints, block: int) -> Iterator[Block]:
    """Cells cut to even blocks; runs of small cells put together."""
    n = len(labels)
    starts = np.flatnonzero(np.r_[True, (labels[1:] != labels[:-1]) | (confounders[1:] != confounders[:-1])])
    open_from = 0
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), n], strict=True):
        if stop - start >= min(SMALL, block):
            if start > open_from:
                yield Block(open_from, start, -1, -1)
            pieces = -(-(stop - start) // block)
            edges = np.linspace(start, stop, pieces + 1).astype(int).tolist()
            for a, b in itertools.pairwise(edges):
                yield Block(a, b, int(labels[start]), int(confounders[start]))
            open_from = stop
        elif stop - open_from >= block:
            yield from _cut(open_from, stop, block)
            open_from = stop
    if n > open_from:
        yield from _cut(open_from, n, block)


def _cut(start: int, stop: int, block: int) -> Iterator[Block]:
    for a in range(start, stop, block):
        yield Block(a, min(a + block, stop), -1, -1)
