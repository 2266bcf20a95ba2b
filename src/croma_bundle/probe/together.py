"""Fits at several C's on the same rows, side by side: each takes the steps that it takes alone, bit for bit.

A step of a fit reads the whole matrix twice, so one fit waits for memory more than it computes. Side by side, a block
of the matrix is multiplied with the vector of every fit while it lies in the cache. What a block and a vector give is
their part of the product of the whole, to the last bit, where the BLAS sums both in one order (`Blocks.are_exact`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Judged = tuple[Any, float]
"""A fitted probe, and its accuracy on the validation rows."""
ROWS, COLUMNS = 32, 24
"""Of a block of either kind: a part of a core's own cache, at the widths of encoders."""


class _NotNeeded(Exception):
    """Ends a fit that cannot count any more."""


class Blocks:
    """A matrix (rows, width) in blocks of rows, and its transpose in blocks of columns, which are copies."""

    def __init__(self, x: Floats) -> None:
        self.shape = x.shape
        self.rows = [x[i : i + ROWS] for i in range(0, len(x), ROWS)]
        self.columns = [np.ascontiguousarray(x[:, i : i + COLUMNS]).T for i in range(0, x.shape[1], COLUMNS)]

    def times(self, vectors: Sequence[Floats], *, transposed: bool) -> list[Floats]:
        """The matrix or its transpose times each vector."""
        given = [np.empty(self.shape[transposed]) for _ in vectors]
        start = 0
        for block in self.columns if transposed else self.rows:
            for vector, product in zip(vectors, given, strict=True):
                np.matmul(block, vector, out=product[start : start + len(block)])
            start += len(block)
        return given

    def are_exact(self, x: Floats) -> bool:
        """Whether the BLAS here gives products by blocks the bits of those with the whole matrix, which is `x`."""
        row, column = x[-1].copy(), x[:, -1].copy()
        by_rows, by_columns = self.times([row], transposed=False)[0], self.times([column], transposed=True)[0]
        return np.array_equal(by_rows, x @ row) and np.array_equal(by_columns, x.T @ column)


class _Products:
    """What fits ask for, side by side: products are made once all have asked, which they do for one kind in turn."""

    def __init__(self, blocks: Blocks, fits: int) -> None:
        self.blocks, self._running = blocks, set(range(fits))
        self._asked: dict[int, Floats] = {}
        self._given: dict[int, Floats] = {}
        self._transposed = False
        self._changed = threading.Condition()

    def times(self, fit: int, vector: Floats, *, transposed: bool) -> Floats:
        """The matrix or its transpose times the vector."""
        with self._changed:
            if fit in self._running:
                self._asked[fit], self._transposed = vector, transposed
                self._multiply()
            self._changed.wait_for(lambda: fit in self._given or fit not in self._running)
            if fit not in self._running:
                raise _NotNeeded
            return self._given.pop(fit)

    def end(self, fits: Iterable[int]) -> None:
        """These ask for nothing more; those that wait are told so."""
        with self._changed:
            self._running -= set(fits)
            self._asked = {fit: vector for fit, vector in self._asked.items() if fit in self._running}
            self._multiply()
            self._changed.notify_all()

    def _multiply(self) -> None:
        """Make the products once every running fit waits for its own."""
        if not self._asked or len(self._asked) < len(self._running):
            return
        asked, self._asked = self._asked, {}
        given = self.blocks.times(list(asked.values()), transposed=self._transposed)
        self._given = dict(zip(asked, given, strict=True))
        self._changed.notify_all()


class _Matrix:
    """The matrix of a fit: what scikit-learn reads of one to take its steps."""

    __array_ufunc__ = None
    dtype = np.dtype(np.float64)

    def __init__(self, products: _Products, fit: int, *, transposed: bool = False) -> None:
        self.shape = products.blocks.shape
        self._products, self._fit, self._transposed = products, fit, transposed

    @property
    def T(self) -> _Matrix:  # noqa: N802 - numpy's name
        return _Matrix(self._products, self._fit, transposed=True)

    def __matmul__(self, vector: Floats) -> Floats:
        return self._products.times(self._fit, vector, transposed=self._transposed)


def fit_together(blocks: Blocks, labels: Ints, grid: Sequence[float], judge: Callable[[Any], float]) -> list[Judged]:
    """The probe of two labels fitted and judged at each C; the first that is right on all rows is the last."""
    products = _Products(blocks, len(grid))

    def run(fit: int) -> Judged | None:
        ended = len(grid)
        try:
            model = _fitted(_Matrix(products, fit), labels, grid[fit])
            accuracy = judge(model)
            ended = ended if accuracy == 1.0 else fit + 1
        except _NotNeeded:
            return None
        finally:
            products.end(range(fit, ended))
        return model, accuracy

    with ThreadPoolExecutor(len(grid)) as pool:
        try:
            found = list(pool.map(run, range(len(grid))))
        finally:
            products.end(range(len(grid)))
    judged = [of for of in found if of is not None]
    perfect = [number for number, (_, accuracy) in enumerate(judged) if accuracy == 1.0]
    return judged[: perfect[0] + 1] if perfect else judged


def _fitted(x: _Matrix, labels: Ints, c: float) -> Any:
    """What `LogisticRegression.fit` leaves in a model of two labels, by the function that it calls."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.linear_model._logistic import _logistic_regression_path

    model = LogisticRegression(C=c, random_state=0)
    model.classes_, model.n_features_in_ = np.unique(labels), x.shape[1]
    given = {"fit_intercept": True, "max_iter": model.max_iter, "tol": model.tol, "solver": "lbfgs", "random_state": 0}
    fitted, _, model.n_iter_ = _logistic_regression_path(
        x, labels, classes=model.classes_, Cs=[c], check_input=False, **given
    )
    model.coef_, model.intercept_ = fitted[0][:-1][None, :], fitted[0][-1:]
    return model
