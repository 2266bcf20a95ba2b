"""APD and nIPD by hand."""

from __future__ import annotations

import numpy as np
import pytest

from croma_bundle.errors import CohortError
from croma_bundle.probe.reduce import apd, cramers_v, degradation, nipd


def test_apd_takes_the_ratio_in_each_replicate_first() -> None:
    """0.8 → 0.6, 0.4: (0.75 + 0.5) / 2 − 1 = −0.375. 0.5 → 0.5, 0.75: (1 + 1.5) / 2 − 1 = 0.25. Mean −0.0625."""
    matrix = np.array([[0.8, 0.5], [0.6, 0.5], [0.4, 0.75]])
    assert apd(matrix, "x") == pytest.approx(-0.0625, abs=1e-15)
    pooled = (matrix[1:].mean() / matrix[0].mean()) - 1
    assert abs(pooled - -0.0625) > 0.01, "the ratio of means would be another number"


def test_nipd_of_a_straight_fall_to_chance_is_minus_a_half() -> None:
    g = degradation(np.array([[0.9], [0.8], [0.5]]), 0.5, "x")
    assert g == pytest.approx([0, -0.25, -1])
    assert nipd(g, np.array([0, 0.25, 1])) == pytest.approx(-0.5)


def test_nipd_weighs_each_split_by_its_v() -> None:
    """g = 0, −0.4, −0.8 at V = 0, 0.2, 1: 0.2 · 0.2 + 0.8 · 0.6 = 0.52."""
    g = degradation(np.array([[1.0], [0.8], [0.6]]), 0.5, "x")
    assert nipd(g, np.array([0, 0.2, 1])) == pytest.approx(-0.52)


def test_nipd_averages_replicates_before_it_divides() -> None:
    """Mean 0.7 → 0.6 over chance 0.5: −0.5 at V = 1, area −0.25; per replicate it would be −0.25 of (0, −1)."""
    g = degradation(np.array([[0.9, 0.5], [0.9, 0.3]]), 0.5, "x")
    assert g[-1] == pytest.approx(-0.5)


def test_a_v_shaped_curve_has_no_area() -> None:
    g = degradation(np.array([[0.75], [0.65], [0.75], [0.85], [0.75]]), 0.5, "x")
    assert nipd(g, np.linspace(0, 1, 5)) == pytest.approx(0, abs=1e-15)


def test_baseline_at_chance_is_refused() -> None:
    with pytest.raises(CohortError, match=r"x: nIPD is undefined(.|\n)*above 0\.5000(.|\n)*0\.5000"):
        degradation(np.array([[0.6, 0.4], [0.5, 0.5]]), 0.5, "x")


def test_a_replicate_at_zero_has_no_ratio() -> None:
    with pytest.raises(CohortError, match="x: APD is undefined"):
        apd(np.array([[0.6, 0.0], [0.5, 0.5]]), "x")


@pytest.mark.parametrize(
    ("table", "v"),
    [
        ([[7, 7], [7, 7]], 0),
        ([[0, 14], [14, 0]], 1),
        ([[6, 8], [8, 6]], 1 / 7),  # a 2 × 2 table with equal margins: |ad − bc| / margin² = 28 / 196
        ([[10, 0, 0], [0, 5, 5]], 1),
    ],
)
def test_cramers_v(table: list[list[int]], v: float) -> None:
    assert cramers_v(np.array(table)) == pytest.approx(v, abs=1e-12)
