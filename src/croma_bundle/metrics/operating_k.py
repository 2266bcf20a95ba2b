"""How many neighbours to look at: the k grid, kNN balanced accuracy on it, and the k that it chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import CohortError

Ints = npt.NDArray[np.int64]

EQUAL = 1e-12
"""Accuracies that differ by no more than this are equal."""


def k_grid(kind: str, k_max: int) -> tuple[int, ...]:
    """The k that are swept, ascending.

    Args:
        kind: "sparse": 1, 3, 5, 7, 9 up to and with k_max, then 11, 21, 31, … below it (PathoROB's); "dense": 1..k_max.
        k_max: 1 or more.

    Raises:
        CohortError: another kind, or k_max below 1.
    """
    if k_max < 1:
        raise CohortError("k grid", f"k_max = {k_max}, wanted 1 or more")
    if kind == "dense":
        return tuple(range(1, k_max + 1))
    if kind == "sparse":
        return (*(k for k in (1, 3, 5, 7, 9) if k <= k_max), *range(11, k_max, 10))
    raise CohortError("k grid", f"'{kind}' is no k grid; there are sparse, dense")


def balanced_accuracy(codes: Ints, index: npt.NDArray[np.int32], ks: Sequence[int]) -> dict[int, float]:
    """kNN balanced accuracy of one scope at every k at once: the mean recall over the classes present.

    Each row's value is voted by its k nearest candidates (all it has, where those are fewer); of tied values the
    one that appears first among the scope's rows wins. Rows without a candidate are left out.

    Args:
        codes: (n,) int, the value of each row, numbered in sorted order of the names.
        index: (n, K) int, neighbours as positions in the scope, -1 where there is none.
        ks: which k to report; a k above K looks at all K.

    Returns:
        Accuracy in [0, 1] by k; empty where no row has a candidate.
    """
    voting = np.flatnonzero(index[:, 0] >= 0)
    if not voting.size:
        return {}
    names, first, own = np.unique(codes, return_index=True, return_inverse=True)
    by_appearance = np.argsort(first)
    column = np.argsort(by_appearance)[own]  # a class's column in the table of votes
    nobody = len(names)  # a column for the votes of neighbours that are not there
    line = np.arange(len(voting))[:, np.newaxis] * (nobody + 1)
    votes = np.zeros(len(voting) * (nobody + 1), dtype=np.int64)
    out: dict[int, float] = {}
    depth = 0
    for k in sorted(set(ks)):
        neighbour = index[voting, depth:k]
        cast = np.where(neighbour >= 0, column[neighbour], nobody)
        votes += np.bincount((line + cast).ravel(), minlength=len(votes))
        depth = k
        elected = by_appearance[
            np.argmax(votes.reshape(-1, nobody + 1)[:, :nobody], axis=1)
        ]  # argmax takes the first of equals
        out[k] = _mean_recall(own[voting], elected, len(names))
    return out


def _mean_recall(truth: Ints, elected: Ints, n_classes: int) -> float:
    there = np.bincount(truth, minlength=n_classes)
    right = np.bincount(truth[truth == elected], minlength=n_classes)
    recalls = [int(hits) / int(rows) for hits, rows in zip(right, there, strict=True) if rows]
    return mean(recalls)


def mean(values: Sequence[float]) -> float:
    """The mean, with an exactly rounded sum: the same bits in whatever order the values come."""
    return math.fsum(values) / len(values)


def k_star(accuracy: Mapping[int, float]) -> int:
    """The smallest k with the highest accuracy; accuracies within 1e-12 of each other are equal.

    Raises:
        CohortError: there is no k.
    """
    if not accuracy:
        raise CohortError("k*", "there is no k to choose from")
    best = max(accuracy.values())
    return min(k for k, value in accuracy.items() if value >= best - EQUAL)


def shared_k(stars: Sequence[int]) -> int:
    """The lower median of the voting encoders' k*: one of them, so always on the grid.

    Raises:
        CohortError: nobody votes.
    """
    if not stars:
        raise CohortError("median-k", "no encoder votes for the shared k")
    return sorted(stars)[(len(stars) - 1) // 2]
