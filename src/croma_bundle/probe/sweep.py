"""One replicate of the sweep: a logistic probe per split, tested on rows that are the same at every split.

The probe is scikit-learn's, with its defaults; only C is searched. Three short cuts leave every model as it is: the fit
at the chosen C is the one of the search (lbfgs draws nothing, so a refit on the same rows is the same), the search ends
at the first C that is right on all validation rows (of equals the smallest C counts, and none can be better), and fits
on many rows are made side by side (`together`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.probe.arrange import Order
from croma_bundle.probe.cells import Cells
from croma_bundle.probe.schedules import Schedule
from croma_bundle.probe.together import Blocks, Judged, fit_together

PROBE_VERSION = 1
"""Raised where a change moves an accuracy, so that kept replicates are run again."""
C_GRID = 10 ** np.linspace(-8, 4, 15)
MANY = 8 << 20
"""Bytes of training rows from which on fits gain by being made side by side."""
AT_ONCE = 5
"""How many such fits, where nothing says how far a search will go: those behind its end are made in vain."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Labelled = tuple[Floats, Ints]
"""Rows, and the label code of each."""


def replicate(
    x: npt.NDArray[np.floating[Any]], schedule: Schedule, cells: Cells, order: Order
) -> dict[str, list[float]]:
    """Balanced accuracy at every split, in-domain (`id`) and, where the cohort has such rows, `ood`."""
    from sklearn import config_context

    ordered = [slides[turn].reshape(-1) for slides, turn in zip(cells.slides, order, strict=True)]
    first = schedule.reserved * schedule.rows_per_slide
    tests = {"id": _taken(x, ordered, schedule, [(first, None)] * len(ordered))}
    if len(cells.ood_rows):
        tests["ood"] = (_float64(x, cells.ood_rows), cells.ood_labels)
    found: dict[str, list[float]] = {name: [] for name in tests}
    with config_context(assume_finite=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that has not converged counts as it is
        tried = 0
        for split in range(len(schedule.steps)):
            train, validation = (_taken(x, ordered, schedule, part) for part in _slices(schedule, split))
            judged = _search(train, validation, tried)
            tried = len(judged)
            model = max(judged, key=lambda of: of[1])[0]  # of equals the first, which has the smallest C
            for name, test in tests.items():
                found[name].append(_accuracy(model, *test))
    return found


def _slices(schedule: Schedule, split: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """From where to where each cell's rows train, and validate."""
    train = [(0, schedule.train_rows(split, cell)) for cell in schedule.cells]
    held = [schedule.validation_rows(split, cell) for cell in schedule.cells]
    return train, [(end, end + rows) for (_, end), rows in zip(train, held, strict=True)]


def _taken(x: npt.NDArray[np.floating[Any]], ordered: list[Ints], schedule: Schedule, slices: Any) -> Labelled:
    """Rows and label codes of a slice of every cell, confounder-major."""
    parts = [rows[start:end] for rows, (start, end) in zip(ordered, slices, strict=True)]
    labels = np.repeat([j for _, j in schedule.cells], [len(part) for part in parts])
    return _float64(x, np.concatenate(parts)), labels


def _float64(x: npt.NDArray[np.floating[Any]], rows: Ints) -> Floats:
    return np.asarray(x[rows], dtype=np.float64)


def _search(train: Labelled, validation: Labelled, expected: int) -> list[Judged]:
    """The probe fitted and judged at growing C, up to the first that is right on all validation rows.

    Args:
        expected: how many the split before took.
    """
    fit, at_once = _fitting(train, lambda model: _accuracy(model, *validation))
    found: list[Judged] = []
    size = max(expected, at_once)
    while len(found) < len(C_GRID) and not (found and found[-1][1] == 1):
        found += fit(C_GRID[len(found) : len(found) + size])
        size = at_once
    return found


def _fitting(train: Labelled, judge: Callable[[Any], float]) -> tuple[Callable[[Floats], list[Judged]], int]:
    """How fits on these rows are made, and how many at once; both ways give the same models."""
    rows, labels = train
    if rows.nbytes >= MANY and len(np.unique(labels)) == 2:
        blocks = Blocks(rows)
        if blocks.are_exact(rows):
            return lambda grid: fit_together(blocks, labels, grid, judge), AT_ONCE
    return lambda grid: _one_by_one(train, grid, judge), 1


def _one_by_one(train: Labelled, grid: Floats, judge: Callable[[Any], float]) -> list[Judged]:
    from sklearn.linear_model import LogisticRegression

    found: list[Judged] = []
    for c in grid:
        model = LogisticRegression(C=c, random_state=0).fit(*train)
        found.append((model, judge(model)))
        if found[-1][1] == 1:
            break
    return found


def _accuracy(model: Any, x: Floats, labels: Ints) -> float:
    from sklearn.metrics import balanced_accuracy_score

    return float(balanced_accuracy_score(labels, model.predict(x)))
