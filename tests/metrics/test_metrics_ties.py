"""Distances that are equal tie, although no two ways of rounding them agree: checked in integer arithmetic."""

from fractions import Fraction

import numpy as np
import pytest

from croma_bundle.metrics.cohort import Cohort
from croma_bundle.metrics.neighbours import typed_neighbours
from croma_bundle.metrics.survey import margins, operate, survey


def signs(n=160, width=48, seed=0):
    """±1 rows with a weak class and centre effect, as binarised embeddings are: every dot product is an integer."""
    rng = np.random.default_rng(seed)
    labels, centres, groups = rng.integers(0, 2, n), rng.integers(0, 2, n), rng.integers(0, 40, n)
    means = rng.normal(size=(2, width))[labels] + rng.normal(size=(2, width))[centres]
    x = np.where(rng.normal(size=(n, width)) + means > 0, 1.0, -1.0).astype(np.float32)
    return x, labels, centres, groups


def exact_margins(x, labels, centres, groups, m):
    """CRoMa of every row as a fraction: all rows have one length, so distances are 1 − dot / width."""
    dot = (x.astype(int) @ x.astype(int).T).tolist()
    width, out = x.shape[1], []
    for i in range(len(x)):
        so, os = [], []
        for j in range(len(x)):
            if groups[i] != groups[j] and (labels[i] == labels[j]) != (centres[i] == centres[j]):
                (so if labels[i] == labels[j] else os).append(width - dot[i][j])
        d_so, d_os = (sum(sorted(found)[:m]) for found in (so, os))
        out.append(Fraction(d_os - d_so, d_os + d_so))
    return out


@pytest.mark.parametrize("m", [1, 2, 5, 10])
@pytest.mark.parametrize("change", ["as it is", "columns permuted", "padded with zeros"])
def test_f0_counts_exact_zeros_whatever_the_order_of_the_columns(m, change):
    x, *codes = signs()
    wanted = exact_margins(x, *codes, m)
    assert any(value == 0 for value in wanted), "the case must have exact zeros"
    if change == "columns permuted":
        x = x[:, np.random.default_rng(1).permutation(x.shape[1])]
    elif change == "padded with zeros":
        x = np.pad(x, ((0, 0), (3, 14)))
    cohort = Cohort.from_columns(*([str(v) for v in code] for code in codes))
    found = margins(survey(x, cohort, grid=(1, 3)), "x", m)
    assert found.f0 == sum(value <= 0 for value in wanted) / len(wanted)
    np.testing.assert_allclose(found.units, [float(value) for value in wanted], rtol=0, atol=1e-12)


def test_equal_distances_of_rows_of_other_lengths_tie_too():
    """The cosines of (1, 0) with (1, 1)·c are one number, whatever c is."""
    x = np.array([[1.0, 0.0], *([c, c] for c in (0.1, 3.0, 7.0, 1e-3, 123.456))])
    rows = np.arange(6)
    found = typed_neighbours(x, rows % 2, rows // 2 % 2, rows, k=5, m=1)
    assert found.index[0].tolist() == [1, 2, 3, 4, 5]
    assert len(set(found.distance[0].tolist())) == 1


def test_k_star_and_ri_do_not_move_with_the_order_of_the_columns():
    x, *codes = signs(seed=3)
    cohort = Cohort.from_columns(*([str(v) for v in code] for code in codes))
    seen = set()
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(x.shape[1])
        found = survey(x[:, order], cohort, grid=(1, 3, 5, 7, 9, 11, 21))
        point = operate(found, found.k_star)
        seen.add((point.k, point.ri, point.mari, point.support, point.bio_bacc))
    assert len(seen) == 1
