import numpy as np
import pytest

from croma_bundle.errors import DegenerateEmbedding
from croma_bundle.metrics import croma
from croma_bundle.metrics.tail import tail

INF = np.inf


def test_the_margin_compares_mean_distances_to_the_m_nearest():
    so = np.array([[0.1, 0.3, 0.8], [0.5, 0.5, 0.5], [0.0, 0.0, 0.0]])
    os = np.array([[0.3, 0.5, 0.8], [0.1, 0.3, 0.5], [0.2, 0.2, 0.2]])
    at_1, at_2 = croma.unit_margins(so, os, 1), croma.unit_margins(so, os, 2)
    np.testing.assert_allclose(at_1.values, [0.2 / 0.4, -0.4 / 0.6, 1], rtol=0, atol=1e-15)
    np.testing.assert_allclose(at_2.values, [(0.4 - 0.2) / 0.6, (0.2 - 0.5) / 0.7, 1], rtol=0, atol=1e-15)
    assert at_2.complete


def test_what_a_unit_lacks_is_counted_by_kind():
    so = np.array([[0.1, 0.2], [0.1, INF], [0.1, INF], [0.0, 0.0]])
    os = np.array([[0.1, INF], [0.1, 0.2], [0.1, INF], [0.0, 0.0]])
    margin = croma.unit_margins(so, os, 2)
    assert (margin.lacking_so, margin.lacking_os, margin.zero) == (2, 2, 1)
    assert np.isnan(margin.values).all()
    assert not margin.complete
    with pytest.raises(DegenerateEmbedding) as caught:
        croma.require_total_support([("s1", margin)], "camelyon · X", 2, "occurrence")
    text = str(caught.value)
    assert text.startswith("camelyon · X: no CRoMa at m = 2")
    assert (
        "scope s1: 2 of 4 occurrences lack 2 SO neighbours, 2 of 4 occurrences lack 2 OS neighbours, "
        "1 of 4 occurrences has zero margin" in text
    )


def test_only_the_scopes_at_fault_are_named():
    good = croma.unit_margins(np.array([[0.1]]), np.array([[0.2]]), 1)
    bad = croma.unit_margins(np.array([[0.1]]), np.array([[INF]]), 1)
    croma.require_total_support([("good", good)], "x", 1, "sample")
    with pytest.raises(DegenerateEmbedding, match="scope bad: 1 of 1 sample lacks 1 OS neighbour") as caught:
        croma.require_total_support([("good", good), ("bad", bad)], "x", 1, "sample")
    assert "good" not in str(caught.value)


def test_an_exactly_contested_unit_is_exactly_zero():
    same = np.array([[0.1, 0.3, 0.7]])
    assert croma.unit_margins(same, same.copy(), 3).values.tolist() == [0.0]


def test_the_tail_of_eleven_even_steps():
    values = np.array([-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5]) / 10
    low = tail(values)  # the 10th percentile of 11 values is the second
    assert low.q10 == -0.4
    assert low.ltm10 == pytest.approx(-0.45, abs=1e-15)
    assert low.f0 == 6 / 11  # the 0 counts


def test_the_percentile_is_interpolated_linearly():
    low = tail(np.array([0.0, 1.0, 2.0, 3.0]))  # rank 0.3 between 0 and 1
    assert low.q10 == pytest.approx(0.3, abs=1e-15)
    assert (low.ltm10, low.f0) == (0.0, 0.25)


def test_units_equal_to_the_percentile_belong_to_the_tail():
    low = tail(np.array([-0.2] * 5 + [0.4] * 5))
    assert (low.q10, low.ltm10, low.f0) == (-0.2, pytest.approx(-0.2, abs=1e-16), 0.5)


def test_one_unit_is_its_own_tail():
    low = tail(np.array([0.7]))
    assert (low.q10, low.ltm10, low.f0) == (0.7, 0.7, 0.0)
