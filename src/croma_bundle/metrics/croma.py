"""CRoMa, the cross-confounder robustness margin, under total support.

Source: Grisi et al. 2026 (arXiv:2607.25497), eq. 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import DegenerateEmbedding, some
from croma_bundle.metrics.selection import GRID

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Margin:
    """CRoMa of the units of one scope at one m, and what keeps it from being complete.

    ``values`` is (n,) float64 in [−1, 1], nan where undefined; the counts are of units that lack m SO neighbours,
    lack m OS neighbours (a unit may lack both), or have both kinds at distance 0.
    """

    values: Floats
    lacking_so: int
    lacking_os: int
    zero: int

    @property
    def complete(self) -> bool:
        return not (self.lacking_so or self.lacking_os or self.zero)


def unit_margins(so: Floats, os: Floats, m: int) -> Margin:
    """``(d_OS − d_SO) / (d_OS + d_SO)`` of each unit, d = mean distance to its m nearest of the type.

    Means that differ by no more than two steps of the grid of distances are equal, and the margin is exactly 0, which
    F(0) counts.

    Args:
        so, os: (n, M) float64 ascending distances, +inf where a unit has no more, as in ``Neighbours``.
        m: 1 to M.
    """
    no_so, no_os = np.isinf(so[:, m - 1]), np.isinf(os[:, m - 1])
    d_so, d_os = (np.add.reduce(np.ascontiguousarray(d[:, :m]), axis=-1) / m for d in (so, os))
    zero = d_so + d_os == 0
    defined = ~(no_so | no_os | zero)
    values = np.full(len(so), np.nan)
    difference = d_os[defined] - d_so[defined]
    difference[np.abs(difference) <= 2.0 / GRID] = 0.0
    values[defined] = difference / (d_os[defined] + d_so[defined])
    return Margin(values, *(int(np.count_nonzero(fault)) for fault in (no_so, no_os, zero)))


def explain(margin: Margin, scope: str, m: int, unit: str) -> str:
    """Which units of the scope have no CRoMa and why: "scope all: 24 of 24 samples have zero margin"."""
    n = len(margin.values)
    units = unit if n == 1 else f"{unit}s"
    neighbours = "neighbour" if m == 1 else "neighbours"
    causes = [
        f"{count} of {n} {units} {'lacks' if count == 1 else 'lack'} {m} {kind} {neighbours}"
        for kind, count in (("SO", margin.lacking_so), ("OS", margin.lacking_os))
        if count
    ]
    if margin.zero:
        verb = "has" if margin.zero == 1 else "have"
        causes.append(f"{margin.zero} of {n} {units} {verb} zero margin, d_OS + d_SO = 0")
    return f"scope {scope}: {', '.join(causes)}"


def require_total_support(margins: Sequence[tuple[str, Margin]], subject: str, m: int, unit: str) -> None:
    """Refuse CRoMa at m unless every unit of every scope has it.

    Args:
        margins: (scope name, its margin) of every scope.
        subject: whose CRoMa it is, "camelyon · Virchow2".

    Raises:
        DegenerateEmbedding: names subject, m, the scopes, how many of how many units, and why.
    """
    faults = [explain(margin, scope, m, unit) for scope, margin in margins if not margin.complete]
    if faults:
        raise DegenerateEmbedding(
            subject,
            f"no CRoMa at m = {m}",
            wanted=f"every {unit} with {m} SO and {m} OS neighbours, not all at distance 0",
            found=some(faults),
            detail="Collapsed or duplicated embeddings have zero margin; small or one-sided cells lack neighbours.",
        )
