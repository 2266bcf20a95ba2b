"""Nearest neighbours outside the query's own group, in all and of each type, exactly.

A BLAS product of a block of rows with all rows only *preselects*: every pair that it puts within its error band of
a cut is measured again with one fixed order of summation, and only those distances are compared and returned. So
neither block size, nor thread count, nor the order of the rows changes a bit of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import CohortError, DegenerateEmbedding, some

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]

SO, OS, SS, OO, NO_NEIGHBOUR = 0, 1, 2, 3, -1
"""Type codes: same or other label, then same or other confounder, against the query."""

ZERO = 1e-12
"""A distance below this is exactly 0."""

EPSILON = float(np.finfo(np.float64).eps)

BLOCK_BYTES = 128 * 2**20
_BYTES_PER_PAIR = 40  # the product, one masked copy, one partitioned copy, and the masks
_SLICE_BYTES = 4 * 2**20


@dataclass(frozen=True, eq=False)
class Neighbours:
    """What :func:`typed_neighbours` found; every row's neighbours ascend in distance, ties by row index.

    Attributes:
        index: (N, k) int32, row of each neighbour, -1 where fewer candidates exist.
        distance: (N, k) float64 cosine distance in [0, 2], +inf where fewer exist.
        kinds: (N, k) int8, SO, OS, SS or OO; -1 where fewer exist.
        so, os: (N, m) float64 distance to the nearest of that type at whatever depth, +inf where fewer exist.
        candidates: (N,) int64, how many candidates each row has.
    """

    index: npt.NDArray[np.int32]
    distance: Floats
    kinds: npt.NDArray[np.int8]
    so: Floats
    os: Floats
    candidates: Ints


def unit_rows(x: npt.NDArray[np.floating]) -> Floats:
    """The rows in float64 and of length 1: ``x / (‖x‖ + 1e-12)``, and that divided by its own length again.

    The first division alone leaves a row of length 1 short by 1e-12, and two equal ones at a distance of 2e-12, above
    what counts as zero; the second makes ``1 − x·y`` the cosine distance to the last bits whatever the length was.

    Args:
        x: (N, D) floating; float16 is upcast before it is squared. A row of zeros stays one.

    Raises:
        CohortError: x has not two dimensions.
        DegenerateEmbedding: a row holds NaN or infinity.
    """
    if x.ndim != 2:
        raise CohortError("embedding matrix", f"has shape {x.shape}, not (rows, width)")
    out = np.array(x, dtype=np.float64, order="C")
    step = max(1, _SLICE_BYTES // (8 * max(1, out.shape[1])))
    for start in range(0, len(out), step):
        rows = out[start : start + step]
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if bad.size:
            raise DegenerateEmbedding("embedding matrix", f"not finite in row {some((bad + start).tolist())}")
        rows /= (_lengths(rows) + 1e-12)[:, np.newaxis]
        length = _lengths(rows)
        rows /= np.where(length > 0, length, 1.0)[:, np.newaxis]
    return out


def _lengths(rows: Floats) -> Floats:
    """Of each row, summed alone and in a fixed order."""
    lengths: Floats = np.sqrt(np.add.reduce(rows * rows, axis=-1))
    return lengths


def typed_neighbours(
    x: Floats,
    labels: Ints,
    confounders: Ints,
    groups: Ints,
    *,
    k: int,
    m: int,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
) -> Neighbours:
    """The k nearest candidates of every row, and its m nearest of each type, exactly.

    Args:
        x: (N, D) float64, unit rows (see :func:`unit_rows`).
        labels, confounders: (N,) int, class and confounder code of each row.
        groups: (N,) int, independence group; rows of one group are never each other's candidates.
        k, m: how many neighbours to keep in all, and of each type (SO, OS).
        block_bytes: bounds the working memory beside x and the result; never changes the result.
        progress: called with (rows done, rows in all) after each block.

    Raises:
        CohortError: x, labels, confounders and groups differ in length, or k or m is below 1.

    Source: neighbour types, Kömen et al. 2025 (arXiv:2507.17845); typed distances, Grisi et al. 2026
    (arXiv:2607.25497), eq. 10.
    """
    _require(x, labels, confounders, groups, k, m)
    n = len(x)
    x = np.ascontiguousarray(x, dtype=np.float64)
    found = _nothing_found(groups, k, m)
    band = _error_band(x)
    for start, stop in _blocks(n, block_bytes):
        rows = slice(start, stop)
        product = 1.0 - x[rows] @ x.T
        keep = _preselect(product, labels, confounders, groups, rows, k, m, band)
        for i in range(start, stop):
            columns = np.flatnonzero(keep[i - start])
            surely_zero = product[i - start, columns] + band < ZERO
            distance = _distances(x, i, columns, surely_zero)
            kinds = _kinds(labels[i], confounders[i], labels[columns], confounders[columns])
            _write(found, i, columns, distance, kinds)
        if progress is not None:
            progress(stop, n)
    return found


def _require(x: Floats, labels: Ints, confounders: Ints, groups: Ints, k: int, m: int) -> None:
    faults = []
    if x.ndim != 2 or not len(x) == len(labels) == len(confounders) == len(groups):
        found = f"matrix {x.shape}, labels {len(labels)}, confounders {len(confounders)}, groups {len(groups)}"
        faults.append(f"rows do not correspond ({found})")
    faults += [f"{name} = {value}, wanted 1 or more" for name, value in (("k", k), ("m", m)) if value < 1]
    if faults:
        raise CohortError("neighbours", "; ".join(faults))


def _nothing_found(groups: Ints, k: int, m: int) -> Neighbours:
    n = len(groups)
    _, code, size = np.unique(groups, return_inverse=True, return_counts=True)
    return Neighbours(
        index=np.full((n, k), -1, dtype=np.int32),
        distance=np.full((n, k), np.inf),
        kinds=np.full((n, k), NO_NEIGHBOUR, dtype=np.int8),
        so=np.full((n, m), np.inf),
        os=np.full((n, m), np.inf),
        candidates=(n - size[code]).astype(np.int64),
    )


def _blocks(n: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    step = max(1, block_bytes // (_BYTES_PER_PAIR * max(1, n)))
    for start in range(0, n, step):
        yield start, min(n, start + step)


def _error_band(x: Floats) -> float:
    """How far two float64 evaluations of one distance, summed in any order, may lie apart.

    A dot product of D terms summed in any order is off by at most ``D·u / (1 − D·u) · |x|·|y|``, u = 2⁻⁵³ (Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1); two of them, and the subtractions from 1,
    by less than ``(D + 16)·2u`` times the largest squared length.
    """
    width: int = x.shape[1]
    step = max(1, _SLICE_BYTES // (8 * max(1, width)))
    longest = 1.0
    for start in range(0, len(x), step):
        longest = max(longest, float(np.max(np.add.reduce(x[start : start + step] ** 2, axis=-1))))
    return 1.01 * longest * (width + 16) * EPSILON


def _preselect(
    product: Floats, labels: Ints, confounders: Ints, groups: Ints, rows: slice, k: int, m: int, band: float
) -> Bools:
    """(rows, N) bool: all pairs that may be among the k nearest, or the m nearest SO or OS."""
    candidate = groups[rows, np.newaxis] != groups
    same_label = labels[rows, np.newaxis] == labels
    same_confounder = confounders[rows, np.newaxis] == confounders
    keep = _near(product, candidate, k, band)
    keep |= _near(product, candidate & same_label & ~same_confounder, m, band)
    keep |= _near(product, candidate & ~same_label & same_confounder, m, band)
    return keep


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


def _distances(x: Floats, i: int, columns: Ints, surely_zero: Bools) -> Floats:
    """Distance of row i to each of the columns, each summed alone and in the same order."""
    out = np.zeros(len(columns))
    measured = np.flatnonzero(~surely_zero)
    step = max(1, _SLICE_BYTES // (8 * max(1, x.shape[1])))
    for start in range(0, len(measured), step):
        part = measured[start : start + step]
        rows = x[columns[part]]
        rows *= x[i]
        out[part] = np.clip(1.0 - np.add.reduce(rows, axis=-1), 0.0, 2.0)
    out[out < ZERO] = 0.0
    return out


def _kinds(label: np.int64, confounder: np.int64, labels: Ints, confounders: Ints) -> npt.NDArray[np.int8]:
    same_label, same_confounder = labels == label, confounders == confounder
    kinds = np.where(same_label, np.where(same_confounder, SS, SO), np.where(same_confounder, OS, OO))
    return kinds.astype(np.int8)


def _write(found: Neighbours, i: int, columns: Ints, distance: Floats, kinds: npt.NDArray[np.int8]) -> None:
    order = np.argsort(distance, kind="stable")  # columns ascend, so that ties stay in row order
    columns, distance, kinds = columns[order], distance[order], kinds[order]
    n = min(found.index.shape[1], len(columns))
    found.index[i, :n], found.distance[i, :n], found.kinds[i, :n] = columns[:n], distance[:n], kinds[:n]
    for kind, kept in ((SO, found.so), (OS, found.os)):
        typed = distance[kinds == kind][: kept.shape[1]]
        kept[i, : len(typed)] = typed
