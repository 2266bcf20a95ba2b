"""One replicate of the sweep: a logistic probe per split, tested on rows that are the same at every split.

The probe is scikit-learn's, with its defaults; only C is searched. Two short cuts leave every model as it is: the fit
at the chosen C is the one of the search (lbfgs draws nothing, so a refit on the same rows is the same), and the search
ends at the first C that is right on all validation rows (of equals the smallest C counts, and none can be better).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.probe.arrange import Order
from croma_bundle.probe.cells import Cells
from croma_bundle.probe.schedules import Schedule

PROBE_VERSION = 1
"""Raised where a change moves an accuracy, so that kept replicates are run again."""
C_GRID = 10 ** np.linspace(-8, 4, 15)
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
        for split in range(len(schedule.steps)):
            train, validation = _slices(schedule, split)
            model = _best(_taken(x, ordered, schedule, train), _taken(x, ordered, schedule, validation))
            for name, test in tests.items():
                found[name].append(_accuracy(model, *test))
    return found


def _slices(schedule: Schedule, split: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """From where to where each cell's rows train, and validate."""
    train = [(0, schedule.train_rows(split, cell)) for cell in schedule.cells]
    held = [schedule.validation_rows(split, cell) for cell in schedule.cells]
    return train, [(end, end + rows) for (_, end), rows in zip(train, held, strict=True)]


def _taken(
    x: npt.NDArray[np.floating[Any]], ordered: list[Ints], schedule: Schedule, slices: Any
) -> tuple[Floats, Ints]:
    """Rows and label codes of a slice of every cell, confounder-major."""
    parts = [rows[start:end] for rows, (start, end) in zip(ordered, slices, strict=True)]
    labels = np.repeat([j for _, j in schedule.cells], [len(part) for part in parts])
    return _float64(x, np.concatenate(parts)), labels


def _float64(x: npt.NDArray[np.floating[Any]], rows: Ints) -> Floats:
    return np.asarray(x[rows], dtype=np.float64)


def _best(train: tuple[Floats, Ints], validation: tuple[Floats, Ints]) -> Any:
    """The fitted probe that is best on the validation rows; of equals the one with the smallest C."""
    from sklearn.linear_model import LogisticRegression

    best, best_accuracy = None, -1.0
    for c in C_GRID:
        model = LogisticRegression(C=c, random_state=0).fit(*train)
        accuracy = _accuracy(model, *validation)
        if accuracy > best_accuracy:
            best, best_accuracy = model, accuracy
        if best_accuracy == 1.0:
            break
    return best


def _accuracy(model: Any, x: Floats, labels: Ints) -> float:
    from sklearn.metrics import balanced_accuracy_score

    return float(balanced_accuracy_score(labels, model.predict(x)))
