"""Fits side by side: the models that scikit-learn fits alone, to the last bit, and never more of them than count."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from croma_bundle.probe import sweep
from croma_bundle.probe.arrange import arrangements
from croma_bundle.probe.schedules import Schedule
from croma_bundle.probe.together import COLUMNS, ROWS, Blocks, fit_together
from probe.probe_cohorts import SMALL, columns_of, embedding

GRID = (1e-8, 1e-4, 1e-2, 1.0, 1e2, 1e4)
THREE = Schedule(
    ("west", "east", "north"),
    ("a", "b", "c"),
    (((2, 2, 2), (2, 2, 2), (2, 2, 2)), ((6, 0, 0), (0, 6, 0), (0, 0, 6))),
    6,
    8,
)


@pytest.fixture(autouse=True)
def _as_the_command_computes():
    """One BLAS thread, and fits that have not converged count as they are."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def rows(count: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two labels that overlap, columns of very different sizes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    x = rng.normal(size=(count, width)) / np.arange(1, width + 1)
    return x + 0.2 * labels[:, None], labels


def never(model: LogisticRegression) -> float:
    return 0.5


@pytest.mark.parametrize("count", [ROWS, 3 * ROWS + 5])
@pytest.mark.parametrize("width", [COLUMNS, 4 * COLUMNS + 8])
def test_models_are_those_fitted_alone(count: int, width: int) -> None:
    x, labels = rows(count, width)
    blocks = Blocks(x)
    assert blocks.are_exact(x)
    together = [model for model, _ in fit_together(blocks, labels, GRID, never)]
    alone = [LogisticRegression(C=c, random_state=0).fit(x, labels) for c in GRID]
    fresh = rows(200, width, seed=1)[0]
    assert len(together) == len(GRID)
    for ours, wanted in zip(together, alone, strict=True):
        np.testing.assert_array_equal(ours.coef_, wanted.coef_)
        np.testing.assert_array_equal(ours.intercept_, wanted.intercept_)
        np.testing.assert_array_equal(ours.n_iter_, wanted.n_iter_)
        np.testing.assert_array_equal(ours.decision_function(fresh), wanted.decision_function(fresh))
    assert len({model.coef_.tobytes() for model in together}) == len(GRID)


def test_the_first_that_is_right_on_all_rows_is_the_last() -> None:
    x, labels = rows(100, 40)
    right = {GRID[2], GRID[4]}
    found = fit_together(Blocks(x), labels, GRID, lambda model: 1.0 if model.C in right else model.C / 1e9)
    assert [model.C for model, _ in found] == list(GRID[:3])
    assert [accuracy for _, accuracy in found] == [GRID[0] / 1e9, GRID[1] / 1e9, 1.0]


def test_a_fault_of_one_fit_ends_all_and_is_raised() -> None:
    x, labels = rows(100, 40)

    def judge(model: LogisticRegression) -> float:
        if GRID[1] == model.C:
            raise MemoryError("of the second")
        return 0.5

    with pytest.raises(MemoryError, match="of the second"):
        fit_together(Blocks(x), labels, GRID, judge)


def test_a_blas_that_sums_blocks_in_another_order_is_noticed() -> None:
    """Its products differ in their last digits; here because one number of the matrix does."""
    x, _ = rows(100, 40)
    for row, column in ((0, 39), (99, 0)):
        other = x.copy()
        other[row, column] += 1e-13
        assert not Blocks(other).are_exact(x)


def accuracies(schedule: Schedule, label: float, confounder: float) -> dict[str, list[float]]:
    columns = columns_of(schedule, slides=schedule.max_slides + 3, ood=20)
    cells = columns.cut(schedule)
    order = arrangements(schedule, cells, [7], "test")[0]
    return sweep.replicate(embedding(columns, 30, label=label, confounder=confounder), schedule, cells, order)


@pytest.mark.parametrize("schedule", [SMALL, THREE], ids=["two labels", "three labels"])
@pytest.mark.parametrize(("label", "confounder"), [(0.1, 0.4), (1.5, 0.0)], ids=["hard", "right at once"])
def test_a_sweep_is_the_same_both_ways(monkeypatch, schedule: Schedule, label: float, confounder: float) -> None:
    alone = accuracies(schedule, label, confounder)
    monkeypatch.setattr(sweep, "MANY", 0)
    assert accuracies(schedule, label, confounder) == alone


def test_fits_side_by_side_are_made_only_for_two_labels_where_blocks_are_exact(monkeypatch) -> None:
    groups: list[int] = []

    def counted(blocks, labels, grid, judge):
        groups.append(len(grid))
        return fit_together(blocks, labels, grid, judge)

    monkeypatch.setattr(sweep, "fit_together", counted)
    accuracies(SMALL, 0.1, 0.4)
    assert groups == [], "few rows gain nothing"
    monkeypatch.setattr(sweep, "MANY", 0)
    accuracies(THREE, 0.1, 0.4)
    assert groups == []
    accuracies(SMALL, 0.1, 0.4)
    assert groups, "and of the same rows they are"
    groups.clear()
    monkeypatch.setattr(Blocks, "are_exact", lambda self, x: False)
    accuracies(SMALL, 0.1, 0.4)
    assert groups == []
