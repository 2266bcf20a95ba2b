"""What an accuracy matrix comes to: Cramér's V of each split, the degradation curve, nIPD and APD.

A matrix is (splits, replicates) of balanced accuracies; row 0 is the balanced split.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import CohortError

Floats = npt.NDArray[np.float64]


def cramers_v(table: npt.NDArray[np.int64]) -> float:
    """Cramér's V of a contingency table by plain χ², without correction."""
    counts = np.asarray(table, dtype=np.float64)
    total = counts.sum()
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / total
    chi2 = ((counts - expected) ** 2 / expected).sum()
    return float(np.sqrt(chi2 / (total * (min(counts.shape) - 1))))


def apd(accuracies: Floats, subject: str) -> float:
    """PathoROB's average performance drop: each replicate's mean ratio to its own balanced accuracy, less 1.

    Raises:
        CohortError: a replicate's balanced accuracy is 0, so there is no ratio.
    """
    if (accuracies[0] <= 0).any():
        raise CohortError(subject, "APD is undefined: a replicate's balanced accuracy is 0")
    return float(((accuracies[1:] / accuracies[0]).mean(axis=0) - 1).mean())


def degradation(accuracies: Floats, chance: float, subject: str) -> Floats:
    """g at every split: the change of the mean accuracy, as a share of what the balanced split has above chance.

    Raises:
        CohortError: the balanced split is not above chance, so there is nothing to lose.
    """
    mean = accuracies.mean(axis=1)
    if mean[0] <= chance:
        raise CohortError(
            subject,
            "nIPD is undefined: the probe is not above chance where the training rows are balanced",
            wanted=f"a mean balanced accuracy above {chance:.4f}",
            found=f"{mean[0]:.4f}",
        )
    return np.asarray((mean - mean[0]) / (mean[0] - chance))


def nipd(g: Floats, v: Floats) -> float:
    """The signed area under g over V from 0 to 1, by trapezoids."""
    return float(np.sum(np.diff(v) * (g[:-1] + g[1:]) / 2))
