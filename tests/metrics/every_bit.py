"""Every bit of every result, in one digest: two runs are the same exactly where this is."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from croma_bundle.metrics.survey import margins, operate, survey, sweep_k, sweep_m


def results(x, cohort, grid=(1, 3, 5, 7, 9, 11, 21), m=5, **options):
    """Name → value of everything the front door gives."""
    found = survey(x, cohort, grid=grid, **options)
    point = operate(found, found.k_star)
    rows, matrix, reason = sweep_m(found, "x")
    parts = {
        "survey": found,
        "point": point,
        "deepest": operate(found, found.usable_k[-1]),
        "pinned": operate(found, found.k_star, tau=0.05),
        "k": sweep_k(found, point.k, point.tau),
        "margins": margins(found, "x", m),
        "m": rows,
        "matrix": matrix,
        "reason": reason,
    }
    return {f"{part}.{name}": value for part, whole in parts.items() for name, value in _fields(whole)}


def _fields(whole):
    if dataclasses.is_dataclass(whole):
        return [(f.name, getattr(whole, f.name)) for f in dataclasses.fields(whole) if f.name != "cohort"]
    return [("", whole)]


def digest(values):
    sha = hashlib.sha256()
    for name in sorted(values):
        value = values[name]
        sha.update(name.encode())
        sha.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return sha.hexdigest()
