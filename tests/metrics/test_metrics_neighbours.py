import brute_force
import numpy as np
import pytest
from geometries import contested, on_circle, quadrant, scrambled

from croma_bundle.errors import CohortError, DegenerateEmbedding
from croma_bundle.metrics.neighbours import OO, OS, SO, SS, typed_neighbours

HALF_STEP = 2.0**-50 + 4e-16
"""Distances are whole multiples of 2⁻⁴⁹, so off by half of that at most, and by their rounding."""


def find(x, cohort, **options):
    return typed_neighbours(x, cohort.labels, cohort.confounders, cohort.groups, **options)


def codes(*texts):
    return [np.array([ord(letter) for letter in text], dtype=np.int64) for text in texts]


def test_the_quadrant_as_worked_out_by_hand():
    found = find(*quadrant(), k=3, m=2)
    near, far = 1 - np.sqrt(3) / 2, 1 + np.sqrt(3) / 2
    assert found.index.tolist() == [[1, 2, 3], [2, 0, 3], [1, 3, 0], [2, 1, 0]]
    assert found.kinds.tolist() == [[SO, OS, OO], [OO, SO, OS], [OO, SO, OS], [SO, OS, OO]]
    expected = [[0.5, 1, far], [near, 0.5, 1], [near, 0.5, 1], [0.5, 1, far]]
    np.testing.assert_allclose(found.distance, expected, rtol=0, atol=HALF_STEP)
    np.testing.assert_allclose(found.so, [[0.5, np.inf]] * 4, rtol=0, atol=HALF_STEP)
    np.testing.assert_allclose(found.os, [[1.0, np.inf]] * 4, rtol=0, atol=HALF_STEP)
    assert found.candidates.tolist() == [3, 3, 3, 3]
    assert (found.index.dtype, found.kinds.dtype, found.distance.dtype) == (np.int32, np.int8, np.float64)


@pytest.mark.parametrize("seed", range(5))
def test_everything_equals_a_brute_force_over_all_pairs(seed):
    x, cohort = scrambled(seed=seed)
    k, m = 12, 4
    found = find(x, cohort, k=k, m=m)
    wanted = brute_force.neighbours(x, cohort.labels.tolist(), cohort.confounders.tolist(), cohort.groups.tolist())
    names = {SO: "SO", OS: "OS", SS: "SS", OO: "OO"}
    for i, near in enumerate(wanted):
        assert found.index[i].tolist() == [j for _, j, _ in near[:k]]
        assert [names[kind] for kind in found.kinds[i].tolist()] == [kind for _, _, kind in near[:k]]
        np.testing.assert_allclose(found.distance[i], [d for d, _, _ in near[:k]], rtol=0, atol=1e-13)
        for kind, kept in (("SO", found.so), ("OS", found.os)):
            typed = [d for d, _, its in near if its == kind][:m]
            np.testing.assert_allclose(kept[i], typed + [np.inf] * (m - len(typed)), rtol=0, atol=1e-13)
        assert found.candidates[i] == len(near)


def test_rows_of_the_same_group_never_count_however_near_they_are():
    labels, confounders, groups = codes("aab", "xyx", "ggh")
    found = typed_neighbours(on_circle([0, 1, 90]), labels, confounders, groups, k=2, m=1)
    assert found.index.tolist() == [[2, -1], [2, -1], [1, 0]]
    assert np.isinf(found.so).all()  # rows 0 and 1 would be SO to each other
    assert found.candidates.tolist() == [1, 1, 2]


def test_a_group_is_left_out_before_the_k_nearest_are_taken():
    labels, confounders, groups = codes("aaaab", "xxxxy", "gggih")
    found = typed_neighbours(on_circle([0, 1, 2, 30, 90]), labels, confounders, groups, k=2, m=1)
    assert found.index[0].tolist() == [3, 4]


def test_equal_distances_are_ordered_by_row():
    labels, confounders, groups = codes("aaaaa", "xyyyy", "12345")
    x = on_circle([0, 40, -40, 40, 20])
    found = typed_neighbours(x, labels, confounders, groups, k=3, m=2)
    assert found.index[0].tolist() == [4, 1, 2]  # 20°, then the three at 40° in their order; the last is cut
    assert found.distance[0, 1] == found.distance[0, 2]


@pytest.mark.parametrize("seed", range(4))
def test_on_a_lattice_of_ties_the_nearest_few_are_the_head_of_all(seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-1, 2, size=(120, 3)) + np.array([0.0, 0.0, 3.0])  # 27 points at most
    labels, confounders, groups = (rng.integers(0, size, 120) for size in (2, 2, 40))
    everything = typed_neighbours(x, labels, confounders, groups, k=119, m=119)
    for i in range(120):
        there = everything.candidates[i]
        pairs = list(zip(everything.distance[i, :there], everything.index[i, :there], strict=True))
        assert pairs == sorted(pairs)
        assert sorted(everything.index[i, :there]) == np.flatnonzero(groups != groups[i]).tolist()
    few = typed_neighbours(x, labels, confounders, groups, k=7, m=3)
    np.testing.assert_array_equal(few.index, everything.index[:, :7])
    np.testing.assert_array_equal(few.distance, everything.distance[:, :7])
    np.testing.assert_array_equal(few.so, everything.so[:, :3])
    np.testing.assert_array_equal(few.os, everything.os[:, :3])


def test_long_runs_of_equal_distances_stay_in_row_order():
    rows = np.arange(300, dtype=np.int64)
    x = on_circle([0, 40, 80])[rows % 3]
    found = typed_neighbours(x, rows % 2, rows // 2 % 2, rows, k=250, m=1)
    assert found.index[0].tolist() == [*range(3, 300, 3), *range(1, 300, 3), *range(2, 300, 3)][:250]


def test_a_duplicate_is_found_at_distance_zero_and_a_row_is_not_its_own_neighbour():
    x = np.repeat(np.random.default_rng(0).standard_normal((3, 50)), 2, axis=0)
    labels, confounders, groups = codes("ababab", "xxyyxx", "123456")
    found = typed_neighbours(x, labels, confounders, groups, k=2, m=1)
    assert found.index[:, 0].tolist() == [1, 0, 3, 2, 5, 4]
    assert found.distance[:, 0].tolist() == [0.0] * 6
    assert (found.distance[:, 1] > 0).all()


@pytest.mark.parametrize("width", [7, 700, 10_000])
def test_rows_that_differ_only_in_length_collapse_to_zero_distance(width):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(width) * rng.uniform(0.01, 100, size=(80, 1))
    rows = np.arange(80, dtype=np.int64)
    found = typed_neighbours(x, rows % 2, rows // 2 % 2, rows, k=50, m=2)
    assert not found.distance.any()
    assert not found.so.any()
    assert found.index[0].tolist() == list(range(1, 51))  # all tie: row order
    assert found.index[70].tolist() == list(range(50))


def test_distances_that_are_zero_only_by_definition_tie_as_well():
    x = np.array([[1.0, 0.0], [np.cos(1e-6), np.sin(1e-6)], [1.0, 0.0], [0.0, 1.0]])
    found = typed_neighbours(x, *codes("aaab", "xxyy", "1234"), k=1, m=1)
    assert found.index[0].tolist() == [1]  # 5e-13 is 0, like the true duplicate in the row after it
    assert found.distance[0].tolist() == [0.0]


@pytest.mark.parametrize("length", [1e-9, 1e-3, 1.0, 1e3])
def test_duplicates_are_recognised_whatever_their_length(length):
    x = length * on_circle([10, 10, 50, 50])  # 1 − (1 / (1 + 1e-12))² alone would be 2e-12 at length 1
    found = typed_neighbours(x, *codes("abab", "xxyy", "1234"), k=1, m=1)
    assert found.distance[:, 0].tolist() == [0.0] * 4
    assert found.os[:, 0].tolist() == [0.0] * 4


@pytest.mark.parametrize("width", [2, 10_000])  # at 10,000 the product is too vague to settle what is zero
@pytest.mark.parametrize(("gap", "wanted"), [(1e-7, 0.0), (1e-6, 0.0), (1e-5, 5e-11)])
def test_a_distance_below_1e12_is_zero_and_one_above_is_not(gap, wanted, width):
    x = np.zeros((2, width))
    x[:, :2] = [[1.0, 0.0], [np.cos(gap), np.sin(gap)]]  # 1 − cos(gap) = gap²/2: 5e-15, 5e-13, 5e-11
    found = typed_neighbours(x, *codes("ab", "xx", "12"), k=1, m=1)
    assert found.distance[0, 0] == pytest.approx(wanted, abs=HALF_STEP)


def test_opposite_rows_are_at_distance_two_and_no_more():
    x = np.random.default_rng(2).standard_normal((20, 333))
    x = np.concatenate([x, -x])
    rows = np.arange(40, dtype=np.int64)
    found = typed_neighbours(x, rows % 2, rows % 2, rows, k=39, m=1)
    assert found.distance.max() == 2.0
    assert found.index[:, -1].tolist() == [*range(20, 40), *range(20)]


def test_more_neighbours_than_there_are_leave_the_rest_empty():
    found = find(*quadrant(), k=6, m=3)
    assert (found.index[:, 3:] == -1).all()
    assert (found.kinds[:, 3:] == -1).all()
    assert np.isinf(found.distance[:, 3:]).all()
    assert np.isfinite(found.distance[:, :3]).all()


def test_a_large_half_precision_row_is_upcast_before_its_length_is_taken():
    x = np.array([[60000, 60000], [60000, 0]], np.float16)  # the squares are far above float16's 65504
    found = typed_neighbours(x, *codes("ab", "xx", "12"), k=1, m=1)
    assert found.distance[:, 0] == pytest.approx([1 - np.sqrt(0.5)] * 2, abs=HALF_STEP)


def test_a_row_of_zeros_is_at_distance_one_from_everything_and_the_input_is_left_alone():
    x = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 1e-12], [0.6, 0.8]])
    before = x.copy()
    found = typed_neighbours(x, *codes("abab", "xyxy", "1234"), k=3, m=1)
    assert found.distance[1].tolist() == [1.0, 1.0, 1.0]
    assert found.distance[0].tolist() == pytest.approx([0.0, 0.2, 1.0], abs=HALF_STEP)
    assert x.tolist() == before.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_named(bad):
    x = np.ones((5, 3), np.float32)
    x[[1, 4], 2] = bad
    with pytest.raises(DegenerateEmbedding, match="not finite in row 1, 4"):
        typed_neighbours(x, *codes("abaab", "xxyyx", "12345"), k=1, m=1)


def test_lengths_and_counts_that_cannot_be_are_refused_together():
    x, cohort = contested()
    with pytest.raises(CohortError, match=r"do not correspond.*labels 24.*k = 0, wanted 1 or more; m = -1"):
        typed_neighbours(x[:5], cohort.labels, cohort.confounders, cohort.groups, k=0, m=-1)


def test_progress_counts_rows_up_to_all_of_them():
    x, cohort = contested()
    seen = []
    find(x, cohort, k=1, m=1, block=7, threads=1, progress=lambda done, total: seen.append((done, total)))
    assert [total for _, total in seen] == [24] * len(seen)
    done = [count for count, _ in seen]
    assert done == sorted(done)
    assert done[-1] == 24
    assert len(seen) >= 4  # at most seven rows at a time


def test_a_collapsed_matrix_keeps_to_the_block_size():
    import tracemalloc

    n, width = 1500, 64  # all pairs at once would be 1500² × 64 × 8 B = 1.15 GB
    rows = np.arange(n, dtype=np.int64)
    x = np.ones((n, width))
    tracemalloc.start()
    try:
        found = typed_neighbours(x, rows % 2, rows // 2 % 2, rows, k=3, m=2, block=16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not found.so.any()
    assert peak < n * n * 10 + 8 * 2**20  # at most every pair once, as 2 + 4 + 4 bytes, and the blocks at work


@pytest.mark.parametrize("factor", [1e155, 1e300, 1e-155, 1e-200])
def test_rows_whose_length_float64_does_not_hold_are_refused(factor):
    x, cohort = scrambled()
    x[[3, 8]] *= factor
    with pytest.raises(DegenerateEmbedding, match="not finite in row 3, 8"):
        find(x, cohort, k=3, m=1)


@pytest.mark.parametrize("factor", [1e140, 1e-140])
def test_other_lengths_count_for_nothing(factor):
    x, cohort = scrambled()
    np.testing.assert_allclose(
        find(x * factor, cohort, k=9, m=3).distance, find(x, cohort, k=9, m=3).distance, rtol=0, atol=1e-14
    )


@pytest.mark.parametrize(("shape", "block"), [((0, 5), 9), ((4, 0), 9), ((4, 5), 0)])
def test_nothing_to_compare_is_refused(shape, block):
    codes = [np.arange(shape[0], dtype=np.int64)] * 3
    with pytest.raises(CohortError, match=r"nothing to compare|block = 0, wanted 1 or more"):
        typed_neighbours(np.ones(shape, dtype=np.float32), *codes, k=1, m=1, block=block)
