"""The search without a guess, for rows whose guess did not hold: one row against all, in float64.

A BLAS product only preselects; every pair within its error band of a cut is measured.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from croma_bundle.metrics.arrangement import Arrangement, Floats, Ints, steps
from croma_bundle.metrics.candidates import OS, SO, kinds_of
from croma_bundle.metrics.selection import GRID, ZERO, Scale, Selected

Bools = npt.NDArray[np.bool_]
EPSILON = float(np.finfo(np.float64).eps)
BLOCK_BYTES = 64 << 20
_COLUMNS = 256
_LINES = 16
_BYTES_PER_PAIR = 40  # the product, one masked and one partitioned copy, and the masks


def search(a: Arrangement, rows: Ints, k: int, m: int, block: int, pool: Executor) -> Iterator[tuple[Ints, Selected]]:
    """Yield arranged rows and their k nearest and m nearest of each type, all distances measured, block by block."""
    step = max(1, min(block, BLOCK_BYTES // (_BYTES_PER_PAIR * len(a.given))))
    twins = _Twins(a)
    for part in steps(0, len(rows), step):
        mine = rows[part]
        yield mine, _search(a, mine, k, m, twins, pool)


class _Twins:
    """Rows of equal bytes, which have equal distances: of ties by the thousand, one is measured."""

    def __init__(self, a: Arrangement) -> None:
        self.a, self.finding = a, threading.Lock()
        self.first: Ints | None = None

    def of(self, partners: Ints) -> Ints:
        """Of each arranged row the first that equals it; found when it is first asked for."""
        with self.finding:
            if self.first is None:
                seen: dict[bytes, int] = {}
                rows = enumerate(self.a.source.tolist())
                self.first = np.array([seen.setdefault(_digest(self.a.x[row]), i) for i, row in rows])
        return self.first[partners]


def _digest(row: npt.NDArray[np.floating]) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _search(a: Arrangement, rows: Ints, k: int, m: int, twins: _Twins, pool: Executor) -> Selected:
    product = _product(a, rows, pool)
    band = 1.01 * (a.width + 16) * EPSILON + 1.0 / GRID
    out = _nothing(len(rows), k, m)

    def settle(lines: slice) -> None:
        mine, far, scale = rows[lines], product[lines], Scale(a)
        candidate = a.groups[mine, np.newaxis] != a.groups
        kinds = kinds_of(a.labels[mine, np.newaxis] == a.labels, a.confounders[mine, np.newaxis] == a.confounders)
        keep = _near(far, candidate, k, band)
        for kind in (SO, OS):
            keep |= _near(far, candidate & (kinds == kind), m, band)
        for i, row in enumerate(mine.tolist()):
            partners = np.flatnonzero(keep[i])
            distance = np.zeros(len(partners))
            open_ = np.flatnonzero(far[i, partners] + band >= ZERO)  # the others are surely 0
            distance[open_] = _measured(scale, twins, row, partners[open_], 2 * (k + 2 * m))
            _write(out, lines.start + i, a.given[partners], distance, kinds[i, partners])

    list(pool.map(settle, steps(0, len(rows), _LINES)))
    return out


def _measured(scale: Scale, twins: _Twins, row: int, partners: Ints, few: int) -> Floats:
    """Distances of a row to its partners; more than a few are mostly ties, and of equal rows one is measured."""
    if len(partners) <= few:
        return scale.measure(np.full(len(partners), row), partners)
    first, which = np.unique(twins.of(partners), return_inverse=True)
    return scale.measure(np.full(len(first), row), first)[which]


def _product(a: Arrangement, rows: Ints, pool: Executor) -> Floats:
    """(rows, N) float64 cosine distances, to the rounding of the product."""
    mine = _unit(a, rows)
    product = np.empty((len(rows), len(a.given)))

    def fill(part: slice) -> None:
        product[:, part] = 1.0 - mine @ _unit(a, part).T

    list(pool.map(fill, steps(0, len(a.given), _COLUMNS)))
    return product


def _unit(a: Arrangement, rows: Ints | slice) -> Floats:
    unit = a.x[a.source[rows]].astype(np.float64)
    unit *= a.scale[rows][:, np.newaxis]
    return unit


def _near(product: Floats, allowed: Bools, count: int, band: float) -> Bools:
    """The allowed pairs that may be among the ``count`` nearest of their row.

    If T is the row's count-th smallest product, its count-th smallest distance is at most T + band, and a pair at
    or below that has a product of at most T + 2·band. All distances below ZERO are equal, so T is at least ZERO.
    """
    masked = np.where(allowed, product, np.inf)
    last = min(count, masked.shape[1]) - 1
    cut = np.partition(masked, last, axis=1)[:, last]
    near: Bools = masked <= (np.maximum(cut, ZERO) + 2 * band)[:, np.newaxis]
    return near & allowed


def _nothing(n: int, k: int, m: int) -> Selected:
    return Selected(
        index=np.full((n, k), -1, dtype=np.int32),
        distance=np.full((n, k), np.inf),
        kinds=np.full((n, k), -1, dtype=np.int8),
        so=np.full((n, m), np.inf),
        os=np.full((n, m), np.inf),
        uncertified=np.zeros(n, dtype=np.bool_),
    )


def _write(out: Selected, line: int, given: Ints, distance: Floats, kinds: npt.NDArray[np.int8]) -> None:
    order = np.lexsort((given, distance))
    given, distance, kinds = given[order], distance[order], kinds[order]
    n = min(out.index.shape[1], len(given))
    out.index[line, :n], out.distance[line, :n], out.kinds[line, :n] = given[:n], distance[:n], kinds[:n]
    for kind, kept in ((SO, out.so), (OS, out.os)):
        typed = distance[kinds == kind][: kept.shape[1]]
        kept[line, : len(typed)] = typed
