"""MaRI, the margin-aware RI: every typed neighbour weighted ``exp(−d/τ)``, and the τ that it takes.

The weights are taken relative to the nearest typed neighbour, ``exp(−(d − d_min)/τ)``, which leaves every ratio as it
is and cannot underflow as a whole: a unit has MaRI exactly when it has RI.

Source: Grisi et al. 2026 (arXiv:2607.25497).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import CohortError
from croma_bundle.metrics.neighbours import OS, SO
from croma_bundle.metrics.ri import NEUTRAL

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Kinds = npt.NDArray[np.int8]

TAU_FALLBACK = 0.2
OFF_SCALE = 4.0
"""A pinned τ is off the scale of an encoder outside [median / 4, 4 · median] of its typed distances."""


@dataclass(frozen=True)
class Tau:
    """The temperature in use; ``note`` says why it is not the median, or that it is off-scale, or is None."""

    value: float
    note: str | None


def typed_distances(kinds: Kinds, distance: Floats, k: int) -> Floats:
    """The distances of all SO and OS neighbours within k, one-dimensional.

    Args:
        kinds, distance: (n, K) as in ``Neighbours``.
    """
    within = kinds[:, :k]
    typed: Floats = distance[:, :k][(within == SO) | (within == OS)]
    return typed


def require_tau(tau: float) -> float:
    """The pinned τ as it is.

    Raises:
        CohortError: it is not above 0, or not finite.
    """
    if not (tau > 0 and math.isfinite(tau)):
        raise CohortError("τ", f"{tau!r}, wanted a number above 0")
    return float(tau)


def choose_tau(typed: Floats, pinned: float | None = None) -> Tau:
    """τ: the pinned one, else the median of the typed distances, else 0.2 with the reason.

    Raises:
        CohortError: the pinned τ is not above 0, or not finite.
    """
    median = float(np.median(typed)) if typed.size else math.nan
    if pinned is not None:
        pinned = require_tau(pinned)
        off_scale = typed.size > 0 and not median / OFF_SCALE <= pinned <= median * OFF_SCALE
        note = f"τ = {pinned!r} is off-scale: the median typed distance is {median!r}" if off_scale else None
        return Tau(pinned, note)
    if not typed.size:
        return Tau(TAU_FALLBACK, f"τ = {TAU_FALLBACK} by default: no unit has a typed neighbour, so it cannot matter")
    if median == 0:
        return Tau(TAU_FALLBACK, f"τ = {TAU_FALLBACK} by default: the median typed distance is 0")
    return Tau(median, None)


def margin_aware_index(kinds: Kinds, distance: Floats, k: int, tau: float) -> float:
    """MaRI over all units, in [0, 1]; 0.5 where there is no typed neighbour at all.

    Args:
        kinds, distance: (n, K) as in ``Neighbours``.
        tau: above 0.
    """
    kinds, distance = kinds[:, :k], distance[:, :k]
    so, os = distance[kinds == SO], distance[kinds == OS]
    if not so.size + os.size:
        return NEUTRAL
    nearest = min(float(np.min(part)) for part in (so, os) if part.size)
    so_weight, os_weight = (math.fsum(_weights(part, nearest, tau).tolist()) for part in (so, os))
    return so_weight / (so_weight + os_weight)


def unit_mari(kinds: Kinds, distance: Floats, k: int, tau: float) -> Floats:
    """(n,) float64: MaRI of each unit alone, nan where it has no typed neighbour; arguments as above."""
    kinds, distance = kinds[:, :k], distance[:, :k]
    is_so, is_os = kinds == SO, kinds == OS
    typed = np.where(is_so | is_os, distance, np.inf)
    nearest = np.min(typed, axis=1)
    defined = np.isfinite(nearest)
    weight = _weights(typed[defined], nearest[defined, np.newaxis], tau)
    so = np.add.reduce(np.where(is_so[defined], weight, 0.0), axis=-1)
    os = np.add.reduce(np.where(is_os[defined], weight, 0.0), axis=-1)
    out = np.full(len(kinds), np.nan)
    out[defined] = so / (so + os)
    return out


def _weights(distance: Floats, nearest: Floats | float, tau: float) -> Floats:
    with np.errstate(over="ignore", under="ignore"):
        weights: Floats = np.exp(-(distance - nearest) / tau)
    return weights
