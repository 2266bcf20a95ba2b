"""Nearest neighbours outside the query's own group, in all and of each type, exactly.

The half product in float32 finds every pair that can matter (``candidates``); what decides or is reported is measured
again in float64, in a fixed order of summation (``selection``); rows for which that cannot be certified are searched
one against all (``exhaustive``). So neither block size, nor threads, nor the order of the rows changes a bit of what is
reported.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import CohortError
from croma_bundle.metrics import candidates, exhaustive
from croma_bundle.metrics.arrangement import BLOCK, Floats, Ints, arrange
from croma_bundle.metrics.candidates import OO, OS, SO, SS
from croma_bundle.metrics.kernel import chosen
from croma_bundle.metrics.selection import ZERO, Selected, select, without_order

__all__ = ["NO_NEIGHBOUR", "OO", "OS", "SO", "SS", "ZERO", "Neighbours", "typed_neighbours"]

Progress = Callable[[int, int], None]
NO_NEIGHBOUR = -1


@dataclass(frozen=True, eq=False)
class Neighbours:
    """What :func:`typed_neighbours` found; every row's neighbours ascend in distance, ties by row index.

    Attributes:
        index: (N, k) int32, row of each neighbour, -1 where fewer candidates exist.
        distance: (N, k) float64 cosine distance in [0, 2], +inf where fewer exist, NaN where it was not asked for.
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


def typed_neighbours(
    x: npt.NDArray[np.floating],
    labels: Ints,
    confounders: Ints,
    groups: Ints,
    *,
    k: int,
    m: int,
    cuts: Sequence[int] | None = None,
    rows: Ints | None = None,
    block: int = BLOCK,
    hold: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Neighbours:
    """The k nearest candidates of every row, and its m nearest of each type, exactly.

    Args:
        x: (N, D) floating, finite; rows of any length. It may be mapped from a file.
        labels, confounders: (N,) int, class and confounder code of each row.
        groups: (N,) int, independence group; rows of one group are never each other's candidates.
        k, m: how many neighbours to keep in all, and of each type (SO, OS).
        cuts: the k at which the set of neighbours is used: it is exact there, typed neighbours have their distance, and
            order means nothing between two cuts. None: everything is exact, order and all distances.
        rows: (N,) rows of a larger x; None: all of x.
        block: rows per block; never changes the result.
        hold: keep a second, float32 copy of the rows (faster), or make it block by block; never changes the result.
        threads: of this search; None: one per core. Give BLAS one thread then.
        progress: called with (rows done, rows in all).

    Raises:
        CohortError: x, labels, confounders and groups differ in length or are empty, or k, m or block is below 1.
        DegenerateEmbedding: a row holds NaN or infinity, or its length is beyond float64 (over 1e154, under 1e-150).

    Source: neighbour types, Kömen et al. 2025 (arXiv:2507.17845); typed distances, Grisi et al. 2026
    (arXiv:2607.25497), eq. 10.
    """
    rows = np.arange(len(x), dtype=np.int64) if rows is None else rows
    _require(x, rows, labels, confounders, groups, k, m, block)
    found = _nothing_found(groups, k, m)
    exact = range(1, k + 1) if cuts is None else sorted({c for c in cuts if c < k} | {k})
    left: list[Ints] = []
    done = 0
    storing = threading.Lock()
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        block = min(block, candidates.MOST_ROWS)
        a = arrange(np.asarray(x), rows, labels, confounders, groups, pool, block=block, hold=hold, kernel=chosen())
        band = a.band()

        def complete(number: int, pairs: candidates.Collected, limit: candidates.Guess) -> None:
            nonlocal done
            own = a.blocks[number]
            mine = np.arange(own.start, own.stop)
            if pairs.overflow:
                open_ = mine
            else:
                selected = select(a, own, pairs, limit, band, k, m, exact, everything=cuts is None)
                _store(found, a.given[mine], selected)
                open_ = mine[selected.uncertified]
            with storing:
                left.append(open_)
                done += len(mine) - len(open_)
                if progress is not None:
                    progress(done, len(rows))

        candidates.collect(a, k, m, pool, complete)
        for mine, selected in exhaustive.search(a, np.sort(np.concatenate(left)), k, m, block, pool):
            if cuts is not None:
                selected = without_order(selected, exact)
            _store(found, a.given[mine], selected)
            done += len(mine)
            if progress is not None:
                progress(done, len(rows))
    return found


def _store(found: Neighbours, given: Ints, selected: Selected) -> None:
    for name in ("index", "distance", "kinds", "so", "os"):
        getattr(found, name)[given] = getattr(selected, name)


def _require(
    x: npt.NDArray[np.floating],
    rows: Ints,
    labels: Ints,
    confounders: Ints,
    groups: Ints,
    k: int,
    m: int,
    block: int,
) -> None:
    faults = []
    if x.ndim != 2 or not len(rows) == len(labels) == len(confounders) == len(groups):
        found = f"matrix {x.shape}, rows {len(rows)}, labels {len(labels)}, "
        found += f"confounders {len(confounders)}, groups {len(groups)}"
        faults.append(f"rows do not correspond ({found})")
    elif not (len(rows) and x.shape[1]):
        faults.append(f"there is nothing to compare (matrix {x.shape}, rows {len(rows)})")
    at_least_1 = (("k", k), ("m", m), ("block", block))
    faults += [f"{name} = {value}, wanted 1 or more" for name, value in at_least_1 if value < 1]
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
