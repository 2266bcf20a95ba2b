"""The lower tail of a distribution of margins: q10, LTM10 and F(0)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ALPHA = 0.10


@dataclass(frozen=True)
class Tail:
    """``q10``: the 10th percentile, linearly interpolated. ``ltm10``: the mean of the units at or below it.
    ``f0``: the share of units at or below 0, an exact 0 included."""

    q10: float
    ltm10: float
    f0: float


def tail(values: npt.NDArray[np.float64]) -> Tail:
    """The tail of (n,) finite values, n at least 1; the same bits in whatever order they come."""
    q10 = float(np.percentile(values, 100 * ALPHA, method="linear"))
    low = values[values <= q10].tolist()
    return Tail(q10=q10, ltm10=math.fsum(low) / len(low), f0=int(np.count_nonzero(values <= 0)) / len(values))
