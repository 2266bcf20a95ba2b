import math

import numpy as np
import pytest

from croma_bundle.errors import CohortError
from croma_bundle.metrics import mari, ri
from croma_bundle.metrics.neighbours import OO, OS, SO, SS

KINDS = np.array(
    [
        [SO, OS, SS, SO],
        [SS, SS, OO, OS],
        [OO, OO, SS, SO],
        [SS, OO, SO, SO],
        [-1, -1, -1, -1],
    ],
    dtype=np.int8,
)
DISTANCE = np.where(KINDS >= 0, np.arange(1, 5) / 10, np.inf)


def test_ri_counts_over_all_units_and_not_over_their_ratios():
    counts = ri.type_counts(KINDS, 4)
    assert counts.so.tolist() == [2, 0, 1, 2, 0]
    assert counts.os.tolist() == [1, 1, 0, 0, 0]
    assert ri.robustness_index(counts) == 5 / 7
    np.testing.assert_array_equal(ri.unit_ri(counts), [2 / 3, 0, 1, 1, np.nan])


def test_support_and_its_causes_at_k_3():
    causes = ri.undefined_causes(ri.type_counts(KINDS, 3))
    assert causes.tolist() == ["", "ss", "oo", "", "mixed"]
    assert ri.support(causes) == ri.Support(support=0.4, ss_undefined=0.2, oo_undefined=0.2, mixed_undefined=0.2)


def test_equally_many_ss_and_oo_is_mixed():
    assert ri.undefined_causes(ri.type_counts(KINDS, 2)).tolist() == ["", "ss", "oo", "mixed", "mixed"]


def test_without_a_typed_neighbour_both_indices_are_neutral():
    kinds = np.array([[SS, OO], [OO, SS]], dtype=np.int8)
    distance = np.full((2, 2), 0.3)
    assert ri.robustness_index(ri.type_counts(kinds, 2)) == 0.5
    assert mari.margin_aware_index(kinds, distance, 2, 0.2) == 0.5
    assert np.isnan(mari.unit_mari(kinds, distance, 2, 0.2)).all()


def test_mari_weighs_each_typed_neighbour_by_its_distance():
    # k = 2: unit 0 has SO at 0.1 and OS at 0.2, no other unit has any
    assert mari.margin_aware_index(KINDS, DISTANCE, 2, 0.1) == pytest.approx(1 / (1 + math.exp(-1)), abs=1e-15)
    # k = 4: SO at .1 .4 | .4 | .3 .4 and OS at .2 | .4
    so = math.exp(-1) + 3 * math.exp(-4) + math.exp(-3)
    os = math.exp(-2) + math.exp(-4)
    assert mari.margin_aware_index(KINDS, DISTANCE, 4, 0.1) == pytest.approx(so / (so + os), abs=1e-15)
    own = (math.exp(-1) + math.exp(-4)) / (math.exp(-1) + math.exp(-4) + math.exp(-2))
    np.testing.assert_allclose(mari.unit_mari(KINDS, DISTANCE, 4, 0.1), [own, 0, 1, 1, np.nan], rtol=0, atol=1e-15)


def test_a_tiny_tau_loses_no_unit_and_no_ratio():
    # SO at 1.5 and OS at 1.5 + 1e-6 with τ = 1e-6: both weights underflow, their ratio is e
    kinds = np.array([[SO, OS], [OS, SO]], dtype=np.int8)
    distance = np.array([[1.5, 1.5 + 1e-6], [0.7, 1.9]])
    assert np.exp(-1.5 / 1e-6) == 0.0
    units = mari.unit_mari(kinds, distance, 2, 1e-6)
    assert units[0] == pytest.approx(math.e / (1 + math.e), rel=1e-8)
    assert units[1] == 0.0
    assert mari.margin_aware_index(kinds[:1], distance[:1], 2, 1e-6) == pytest.approx(math.e / (1 + math.e), rel=1e-8)
    assert mari.margin_aware_index(kinds, distance, 2, 5e-324) == 0.0  # the nearest, an OS, takes all


def test_tau_is_the_median_typed_distance_within_k():
    assert mari.typed_distances(KINDS, DISTANCE, 4).tolist() == [0.1, 0.2, 0.4, 0.4, 0.4, 0.3, 0.4]
    assert mari.choose_tau(mari.typed_distances(KINDS, DISTANCE, 4)) == mari.Tau(0.4, None)
    assert mari.choose_tau(mari.typed_distances(KINDS, DISTANCE, 2)).value == pytest.approx(0.15, abs=1e-16)


def test_tau_falls_back_with_the_reason():
    none = mari.choose_tau(np.empty(0))
    zero = mari.choose_tau(np.array([0.0, 0.0, 0.3]))
    assert none.value == zero.value == 0.2
    assert none.note is not None
    assert "no unit has a typed neighbour" in none.note
    assert zero.note is not None
    assert "median typed distance is 0" in zero.note


@pytest.mark.parametrize(
    ("pinned", "off_scale"), [(0.25, False), (4.0, False), (1.0, False), (0.2499, True), (4.001, True)]
)
def test_a_pinned_tau_is_off_scale_outside_a_quarter_to_four_medians(pinned, off_scale):
    tau = mari.choose_tau(np.array([0.5, 1.0, 1.5]), pinned)
    assert tau.value == pinned
    assert (tau.note is not None and "off-scale" in tau.note) == off_scale


def test_a_pinned_tau_has_no_scale_to_be_off_where_nothing_is_typed():
    assert mari.choose_tau(np.empty(0), 7.0) == mari.Tau(7.0, None)


@pytest.mark.parametrize("pinned", [0.0, -0.1, math.nan, math.inf])
def test_a_pinned_tau_that_is_no_temperature_is_refused(pinned):
    with pytest.raises(CohortError, match="wanted a number above 0"):
        mari.choose_tau(np.array([0.5]), pinned)
