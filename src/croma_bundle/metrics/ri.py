"""RI, the Robustness Index, and the support that it shares with MaRI.

Source: RI, Kömen et al. 2025 (arXiv:2507.17845); support and its causes, Grisi et al. 2026 (arXiv:2607.25497).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from croma_bundle.metrics.neighbours import OO, OS, SO, SS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Kinds = npt.NDArray[np.int8]

NEUTRAL = 0.5
"""RI and MaRI where no unit has a typed neighbour."""


@dataclass(frozen=True, eq=False)
class TypeCounts:
    """How many of each unit's k nearest candidates are of each type; (n,) int64 each."""

    so: Ints
    os: Ints
    ss: Ints
    oo: Ints


@dataclass(frozen=True)
class Support:
    """Shares of all units, in [0, 1]; the four add up to 1.

    ``support`` has a typed neighbour within k; the undefined rest has more SS than OO among the k (``ss``), more OO
    than SS (``oo``), or equally many of both, none included (``mixed``).
    """

    support: float
    ss_undefined: float
    oo_undefined: float
    mixed_undefined: float


def type_counts(kinds: Kinds, k: int) -> TypeCounts:
    """Count the types among the first k columns of ``kinds``, (n, K) int8 as in ``Neighbours``."""
    within = kinds[:, :k]
    so, os, ss, oo = (np.count_nonzero(within == kind, axis=1).astype(np.int64) for kind in (SO, OS, SS, OO))
    return TypeCounts(so, os, ss, oo)


def robustness_index(counts: TypeCounts) -> float:
    """RI = Σ n_SO / Σ (n_SO + n_OS) over all units, in [0, 1]; 0.5 where there is no typed neighbour at all."""
    return _index(int(counts.so.sum()), int(counts.os.sum()))


def index_and_support(kinds: Kinds) -> tuple[float, float]:
    """RI, and the share of units that have a typed neighbour, as above, without the counts of each unit.

    Args:
        kinds: (n, k) int8 as in ``Neighbours``, n at least 1.
    """
    so, os = kinds == SO, kinds == OS
    n_so, n_os, supported = (int(np.count_nonzero(flags)) for flags in (so, os, (so | os).any(axis=1)))
    return _index(n_so, n_os), supported / len(kinds)


def _index(so: int, os: int) -> float:
    return so / (so + os) if so + os else NEUTRAL


def unit_ri(counts: TypeCounts) -> Floats:
    """(n,) float64: n_SO / (n_SO + n_OS) of each unit, nan where it has no typed neighbour."""
    typed = counts.so + counts.os
    share = np.full(len(typed), np.nan)
    np.divide(counts.so, typed, out=share, where=typed > 0)
    return share


def undefined_causes(counts: TypeCounts) -> npt.NDArray[np.str_]:
    """(n,) text: "" where a unit has a typed neighbour, else "ss", "oo" or "mixed" (see :class:`Support`)."""
    cause = np.where(counts.ss > counts.oo, "ss", np.where(counts.oo > counts.ss, "oo", "mixed"))
    return np.where(counts.so + counts.os > 0, "", cause)


def support(causes: npt.NDArray[np.str_]) -> Support:
    """The shares of the causes that :func:`undefined_causes` gave; needs one unit at least."""
    shares = [int(np.count_nonzero(causes == cause)) / len(causes) for cause in ("", "ss", "oo", "mixed")]
    return Support(*shares)
