import math

import brute_force
import numpy as np
import pytest
from geometries import (
    biology_dominant,
    confounder_dominant,
    contested,
    on_circle,
    quadrant,
    scrambled,
    two_subsets,
)

from croma_bundle.errors import CohortError, DegenerateEmbedding
from croma_bundle.metrics.cohort import Cohort
from croma_bundle.metrics.survey import margins, operate, survey, sweep_k, sweep_m


def close(value):
    return pytest.approx(value, rel=0, abs=1e-14)


# --- the quadrant, by hand (see geometries.QUADRANT_ANGLES) ---


def test_quadrant_accuracies_and_k_star():
    # label: k=1 elects a, b, a, b (rows ax, by right); k=2 ties everywhere, a appears first (ax, ay right);
    # k=3 elects b, b, a, a (none right). confounder: k=1 y, x, y, x (none); k=2 ties for ax (x), then x, y, x...
    found = survey(*quadrant(), grid=(1, 2, 3, 4))
    assert found.usable_k == (1, 2, 3)  # k = 4 is not below the 4 rows
    assert found.bio == {1: 0.5, 2: 0.5, 3: 0.0}
    # k=2, by row: {y, x} tie → x right; {x, x} → x wrong; {y, y} → y wrong; {x, y} tie → x wrong
    assert found.conf == {1: 0.0, 2: 0.25, 3: 0.0}
    assert found.k_star == 1
    assert found.capped_rows == 0
    assert found.candidates.tolist() == [3, 3, 3, 3]


def test_quadrant_at_k_1():
    point = operate(survey(*quadrant(), grid=(1, 2)), 1)
    assert (point.ri, point.mari, point.support) == (1.0, 1.0, 0.5)  # ax and by see an SO, ay and bx an OO
    assert (point.ss_undefined, point.oo_undefined, point.mixed_undefined) == (0.0, 0.5, 0.0)
    assert point.undefined.tolist() == ["", "oo", "oo", ""]
    np.testing.assert_array_equal(point.unit_ri, [1, np.nan, np.nan, 1])
    assert point.tau == close(0.5)
    assert point.tau_note is None


def test_quadrant_at_k_2():
    point = operate(survey(*quadrant(), grid=(1, 2)), 2)
    # SO four times at 0.5, OS twice (ax, by) at 1: the median of these is 0.5
    assert point.ri == 4 / 6
    assert point.tau == close(0.5)
    assert point.mari == close(4 * math.exp(-1) / (4 * math.exp(-1) + 2 * math.exp(-2)))
    assert (point.support, point.n_units, point.bio_bacc, point.conf_bacc) == (1.0, 4, 0.5, 0.25)
    np.testing.assert_array_equal(point.unit_ri, [0.5, 1, 1, 0.5])
    own = 1 / (1 + math.exp(-1))
    np.testing.assert_allclose(point.unit_mari, [own, 1, 1, own], rtol=0, atol=1e-14)


def test_quadrant_margins():
    at_1 = margins(survey(*quadrant(), grid=(1,)), "quadrant", 1)
    np.testing.assert_allclose(at_1.units, [1 / 3] * 4, rtol=0, atol=1e-15)
    assert (at_1.median, at_1.q10, at_1.ltm10, at_1.f0) == (close(1 / 3), close(1 / 3), close(1 / 3), 0.0)
    assert (at_1.m, at_1.alpha) == (1, 0.10)


def test_a_pinned_tau_changes_mari_alone_and_is_said_to_be_off_scale():
    found = survey(*quadrant(), grid=(1, 2))
    by_itself, pinned = operate(found, 2), operate(found, 2, tau=3.0)
    assert pinned.tau == 3.0
    assert pinned.tau_note is not None
    assert "off-scale" in pinned.tau_note
    assert pinned.mari == close(4 * math.exp(-1 / 6) / (4 * math.exp(-1 / 6) + 2 * math.exp(-1 / 3)))
    assert (pinned.ri, pinned.support, pinned.bio_bacc) == (by_itself.ri, by_itself.support, by_itself.bio_bacc)
    with pytest.raises(CohortError, match="wanted a number above 0"):
        operate(found, 2, tau=0.0)
    with pytest.raises(CohortError, match="wanted a number above 0"):
        sweep_k(found, 2, -1.0)


# --- two subsets of unequal size, by hand ---


def test_paired_units_are_the_subsets_rows_in_scope_order():
    found = survey(*two_subsets(), grid=(1, 2, 4))
    assert found.n_units == 12
    assert found.unit_rows.tolist() == list(range(12))
    assert found.scope_slices == (slice(0, 4), slice(4, 12))
    # 4 is the largest usable k (S has 8 rows): each row of A has 3 candidates, each of S has 6
    assert found.capped_rows == 4


def test_paired_accuracy_is_the_mean_over_subsets_that_have_more_than_k_rows():
    found = survey(*two_subsets(), grid=(1, 2, 4, 8))
    # A alone: label .5 .5, confounder 0 .25 at k = 1, 2. In S label and confounder change places and twins vote
    # together, so k = 1 and 2 are A's k = 1, and k = 4 is A's k = 2; at k = 4 only S has more than 4 rows.
    assert found.usable_k == (1, 2, 4)
    assert found.bio == {1: (0.5 + 0) / 2, 2: (0.5 + 0) / 2, 4: 0.25}
    assert found.conf == {1: (0 + 0.5) / 2, 2: (0.25 + 0.5) / 2, 4: 0.5}
    assert found.k_star == 1


def test_paired_ri_and_support_pool_units_instead_of_averaging_subsets():
    point = operate(survey(*two_subsets(), grid=(1, 2, 4)), 2)
    # A: 4 SO at .5 and 2 OS at 1. S: of 8 rows 4 see their two OS at .5, and 4 see two OO.
    assert point.ri == 4 / 14
    assert point.tau == close(0.5)
    assert point.mari == close(4 / (4 + 2 * math.exp(-1) + 8))
    assert (point.support, point.oo_undefined) == (8 / 12, 4 / 12)
    assert point.undefined.tolist() == [""] * 4 + ["", "", "oo", "oo", "oo", "oo", "", ""]


def test_at_the_operating_k_every_subset_counts_with_the_neighbours_it_has():
    found = survey(*two_subsets(), grid=(1, 2, 4))
    point = operate(found, 4)
    # A has 3 candidates a row: 4 SO and 4 OS in all. S sees its 16 OS at .5 and 8 SO at 1.
    assert point.ri == (4 + 8) / (4 + 4 + 16 + 8)
    assert (point.support, point.capped_rows, point.bio_bacc) == (1.0, 4, 0.25)


def test_in_the_k_sweep_a_grid_k_counts_only_subsets_with_more_rows():
    found = survey(*two_subsets(), grid=(1, 2, 4))
    rows = {row.k: row for row in sweep_k(found, 2, 0.5)}
    assert list(rows) == [1, 2, 4]
    assert [row.selected for row in rows.values()] == [False, True, False]
    assert rows[4].ri == 8 / 24  # S alone
    assert rows[4].mari == close(8 * math.exp(-2) / (8 * math.exp(-2) + 16 * math.exp(-1)))
    assert {row.k: row.ri for row in sweep_k(found, 4, 0.5)}[4] == 12 / 32  # selected: both
    assert rows[2].ri == operate(found, 2).ri
    assert (rows[1].bio_bacc, rows[1].conf_bacc, rows[1].support) == (0.25, 0.25, 6 / 12)


def test_paired_median_is_of_the_subsets_medians_and_the_tail_is_of_pooled_units():
    at_1 = margins(survey(*two_subsets(), grid=(1,)), "x", 1)
    np.testing.assert_allclose(at_1.units, [1 / 3] * 4 + [-1 / 3] * 8, rtol=0, atol=1e-15)
    assert at_1.median == close(0.0)  # of 1/3 and −1/3; the pooled median would be −1/3
    assert (at_1.q10, at_1.ltm10, at_1.f0) == (close(-1 / 3), close(-1 / 3), 8 / 12)


def test_rows_of_incomplete_subsets_are_no_units():
    x, whole = two_subsets()
    columns = [
        [names[code] for code in codes] + [extra]
        for names, codes, extra in (
            (whole.label_names, whole.labels, "a"),
            (whole.confounder_names, whole.confounders, "x"),
            (whole.group_names, whole.groups, "9"),
        )
    ]
    subsets = ["A"] * 4 + ["S"] * 8 + ["broken"]
    cohort = Cohort.from_columns(*columns, subsets=subsets, design="paired_2x2")
    found = survey(np.vstack([x, [[1.0, 0.0]]]), cohort, grid=(1, 2))
    assert [name for name, _ in cohort.incomplete] == ["broken"]
    assert found.n_units == 12
    assert operate(found, 2).ri == 4 / 14


# --- named geometries ---


def test_biology_dominant_margins_are_all_positive():
    found = survey(*biology_dominant(), grid=(1, 3, 5))
    at_5 = margins(found, "x", 5)
    assert at_5.units.min() > 0
    assert at_5.f0 == 0.0
    assert operate(found, 5).ri > 0.5


def test_confounder_dominant_margins_are_all_negative():
    found = survey(*confounder_dominant(), grid=(1, 3, 5))
    at_5 = margins(found, "x", 5)
    assert at_5.units.max() < 0
    assert at_5.f0 == 1.0
    assert operate(found, 5).ri < 0.5
    assert found.conf[5] == 1.0


def test_exchanging_label_and_confounder_mirrors_everything():
    x, cohort = contested()
    there = survey(x, cohort, grid=(3, 7))
    columns = [[names[c] for c in codes] for names, codes in (
        (cohort.confounder_names, cohort.confounders),
        (cohort.label_names, cohort.labels),
        (cohort.group_names, cohort.groups),
    )]  # fmt: skip
    back = survey(x, Cohort.from_columns(*columns), grid=(3, 7))
    assert (back.bio, back.conf) == (there.conf, there.bio)
    assert operate(back, 7).ri == close(1 - operate(there, 7).ri)
    np.testing.assert_array_equal(margins(back, "x", 3).units, -margins(there, "x", 3).units)


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_every_number_equals_the_brute_force_also_beyond_the_candidates(seed):
    x, cohort = scrambled(n=40, n_labels=2, n_confounders=2, n_groups=6, seed=seed)
    labels, confounders, groups = (
        [names[c] for c in codes]
        for names, codes in (
            (cohort.label_names, cohort.labels),
            (cohort.confounder_names, cohort.confounders),
            (cohort.group_names, cohort.groups),
        )
    )
    near = brute_force.neighbours(x, labels, confounders, groups)
    fewest = min(len(found) for found in near)
    assert fewest < 37  # k = 37 and 39 exceed what some rows have: they use fewer
    grid = (1, 2, 5, 10, 37, 39, 40)
    found = survey(x, cohort, grid=grid, m_max=3)
    assert found.usable_k == grid[:-1]
    assert found.capped_rows == sum(len(row) < 39 for row in near)
    for k in found.usable_k:
        point = operate(found, k)
        assert found.bio[k] == close(brute_force.balanced_accuracy(near, labels, k))
        assert found.conf[k] == close(brute_force.balanced_accuracy(near, confounders, k))
        assert point.ri == close(brute_force.ri(near, k))
        tau = brute_force.tau(near, k)
        assert point.tau == pytest.approx(tau, abs=1e-12)
        assert point.mari == pytest.approx(brute_force.mari(near, k, tau), abs=1e-11)
        causes = brute_force.causes(near, k)
        assert point.undefined.tolist() == causes
        assert point.support == close(causes.count("") / 40)
    for m in (1, 2, 3):
        wanted = [brute_force.margin(row, m) for row in near]
        np.testing.assert_allclose(margins(found, "x", m).units, wanted, rtol=0, atol=1e-11)


# --- pinned k ---


def test_a_pinned_k_off_the_grid_is_scored_but_does_not_vote():
    x, cohort = quadrant()
    found = survey(x, cohort, grid=(3,), extra_k=(1, 2))
    assert found.usable_k == (3,)
    assert found.k_star == 3  # although k = 1 is more accurate
    assert operate(found, 2).ri == 4 / 6
    assert operate(found, 1).bio_bacc == 0.5
    rows = sweep_k(found, 2, 0.5)
    assert [(row.k, row.selected) for row in rows] == [(2, True), (3, False)]


def test_a_pinned_k_beyond_every_row_uses_the_neighbours_there_are():
    found = survey(*quadrant(), grid=(1,), extra_k=(1000,))
    point = operate(found, 1000)
    assert found.kinds.shape == (4, 3)
    assert point.ri == 0.5  # all three candidates of each row: one SO, one OS
    assert (point.capped_rows, point.bio_bacc) == (4, 0.0)
    assert found.capped_rows == 0  # of the usable k


def test_a_k_that_was_not_surveyed_is_refused():
    found = survey(*quadrant(), grid=(1, 2))
    with pytest.raises(CohortError, match="quadrant: k = 3 was not surveyed"):
        operate(found, 3)
    with pytest.raises(CohortError, match="k = 3 was not surveyed"):
        sweep_k(found, 3, 0.5)


# --- what cannot be scored ---


def test_no_grid_k_below_the_rows_is_an_error():
    with pytest.raises(CohortError, match=r"quadrant: no usable k") as caught:
        survey(*quadrant(), grid=(4, 5))
    assert "4 rows at most" in str(caught.value)


def test_scopes_that_are_one_group_each_have_no_candidate():
    x, _ = two_subsets()
    cohort = Cohort.from_columns(
        "aabbaabb", "xyxyxyxy", "11112222", subsets="AAAABBBB", design="paired_2x2", name="lonely"
    )
    with pytest.raises(CohortError, match="lonely: no row has a candidate neighbour"):
        survey(x[:8], cohort, grid=(1,))


def test_a_scope_without_candidates_is_left_out_of_the_accuracy_but_its_units_count_as_mixed():
    x = on_circle([0, 60, 90, 150] * 2)
    cohort = Cohort.from_columns("aabbaabb", "xyxyxyxy", "12345555", subsets="AAAABBBB", design="paired_2x2")
    found = survey(x, cohort, grid=(1,))
    assert found.bio == {1: 0.5}
    point = operate(found, 1)
    assert (point.ri, point.support, point.oo_undefined, point.mixed_undefined) == (1.0, 2 / 8, 2 / 8, 4 / 8)


def test_a_collapsed_embedding_is_refused_with_the_reason():
    _, cohort = contested(rows_per_cell=6)
    found = survey(np.ones((24, 4), np.float32), cohort, grid=(1, 3))
    with pytest.raises(DegenerateEmbedding, match=r"24 of 24 samples .* zero margin") as caught:
        margins(found, "camelyon · Flat", 5)
    assert str(caught.value).startswith("camelyon · Flat: no CRoMa at m = 5")
    assert "scope all" in str(caught.value)
    assert caught.value.exit_code == 3
    point = operate(found, 3)  # RI, MaRI and support are still there
    assert point.tau == 0.2
    assert point.tau_note is not None
    assert "median typed distance is 0" in point.tau_note
    assert point.mari == point.ri
    assert sweep_m(found, "x")[0] == []


def test_a_unit_without_m_neighbours_of_a_type_ends_the_sweep_before_m():
    x, cohort = contested(rows_per_cell=3)
    found = survey(x, cohort, grid=(1,), m_max=6)
    rows, matrix, reason = sweep_m(found, "x")
    assert [row.m for row in rows] == [1, 2, 3]  # three rows in each other cell
    assert matrix.shape == (12, 3)
    assert reason is not None
    assert "no CRoMa at m = 4" in reason
    assert "12 of 12 samples lack 4 SO neighbours, 12 of 12 samples lack 4 OS neighbours" in reason
    for row, column in zip(rows, matrix.T, strict=True):
        at_m = margins(found, "x", row.m)
        np.testing.assert_array_equal(column, at_m.units)
        assert (row.croma_median, row.croma_q10) == (at_m.median, at_m.q10)
        assert (row.croma_ltm10, row.croma_f0) == (at_m.ltm10, at_m.f0)
    with pytest.raises(DegenerateEmbedding, match="12 of 12 samples lack 4 SO neighbours"):
        margins(found, "x", 4)


def test_a_sweep_that_reaches_m_max_has_no_reason_to_end():
    found = survey(*contested(rows_per_cell=6), grid=(1,), m_max=4)
    rows, matrix, reason = sweep_m(found, "x")
    assert ([row.m for row in rows], matrix.shape, reason) == ([1, 2, 3, 4], (24, 4), None)


def test_a_duplicated_row_of_both_types_leaves_m_1_empty_and_the_rest_whole():
    x, cohort = contested(rows_per_cell=6)
    first = {cell: i for i, cell in reversed(list(enumerate(zip(cohort.labels, cohort.confounders, strict=True))))}
    x[first[0, 1]] = x[first[1, 0]] = x[first[0, 0]]  # one row has an SO and an OS twin
    found = survey(x, cohort, grid=(1,), m_max=6)
    rows, matrix, reason = sweep_m(found, "x")
    assert [row.m for row in rows] == [2, 3, 4, 5, 6]
    assert np.isnan(matrix[:, 0]).all()  # no partial number
    assert np.isfinite(matrix[:, 1:]).all()
    assert reason is not None
    assert "no CRoMa at m = 1: scope all: 1 of 24 samples has zero margin" in reason


@pytest.mark.parametrize("m", [0, 21])
def test_an_m_that_was_not_surveyed_is_refused(m):
    found = survey(*contested(), grid=(1,))
    with pytest.raises(CohortError, match=f"m = {m}, wanted 1 to 20"):
        margins(found, "x", m)


def test_a_matrix_of_other_length_and_impossible_k_and_m_are_told_together():
    x, cohort = contested()
    with pytest.raises(CohortError, match=r"shape \(5, 8\), the cohort 24 rows; k = 0.*m_max = 0"):
        survey(x[:5], cohort, grid=(0, 1), m_max=0)
    with pytest.raises(CohortError, match="grid is empty"):
        survey(x, cohort, grid=())


def test_half_precision_rows_of_large_norm_are_scored_as_their_float64():
    x, cohort = biology_dominant()
    half = (x * 20000).astype(np.float16)  # lengths above 40,000: squares overflow float16
    at_5 = margins(survey(half, cohort, grid=(1,)), "x", 5)
    wanted = margins(survey(half.astype(np.float64), cohort, grid=(1,)), "x", 5)
    assert at_5.units.tobytes() == wanted.units.tobytes()
    assert at_5.f0 == 0.0


def test_progress_runs_over_all_scopes_to_the_number_of_units():
    seen = []
    survey(*two_subsets(), grid=(1,), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, 12), (12, 12)]
