"""The search behind the neighbours: whatever is guessed, held or cut into blocks, the same exact answer."""

import numpy as np
import pytest

from croma_bundle.metrics import arrangement, candidates, selection
from croma_bundle.metrics.croma import unit_margins
from croma_bundle.metrics.neighbours import OS, SO, typed_neighbours
from croma_bundle.metrics.operating_k import k_grid

FIELDS = ("index", "distance", "kinds", "so", "os", "candidates")


def cohort(n=1500, width=24, labels=3, centres=3, groups=60, seed=0):
    """Rows around a mean of their label and one of their centre, in random order: (x, labels, confounders, groups)."""
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, size, n) for size in (labels, centres, groups)]
    x = rng.normal(size=(n, width)) + 2 * rng.normal(size=(labels, width))[codes[0]]
    x += 1.5 * rng.normal(size=(centres, width))[codes[1]] + 4
    return x.astype(np.float32), *codes


def same(a, b, fields=FIELDS):
    return all(getattr(a, name).tobytes() == getattr(b, name).tobytes() for name in fields)


def brute_force(x, labels, confounders, groups):
    """(distance, order): all cosine distances in float64 and each row's candidates, nearest first, ties by row."""
    unit = x.astype(np.float64)
    length = np.linalg.norm(unit, axis=1, keepdims=True)
    unit /= np.where(length > 0, length, 1)
    distance = 1 - np.einsum("id,jd->ij", unit, unit)
    distance[groups[:, None] == groups] = np.inf
    return distance, np.argsort(distance, axis=1, kind="stable")


@pytest.mark.parametrize("labels", [2, 25])  # 25 × 25 cells are too small for blocks of their own
def test_neighbours_and_typed_distances_are_those_of_a_float64_brute_force(labels):
    x, *codes = cohort(labels=labels, centres=labels)
    found = typed_neighbours(x, *codes, k=91, m=20)
    distance, order = brute_force(x, *codes)
    assert found.index.tolist() == order[:, :91].tolist()
    np.testing.assert_allclose(found.distance, np.take_along_axis(distance, order, 1)[:, :91], rtol=0, atol=1e-13)
    same_label, same_confounder = (code[:, None] == code for code in codes[:2])
    for kept, mask in ((found.so, same_label & ~same_confounder), (found.os, ~same_label & same_confounder)):
        typed = np.sort(np.where(mask, distance, np.inf), axis=1)[:, :20]
        np.testing.assert_allclose(kept, typed, rtol=0, atol=1e-13)


@pytest.mark.parametrize("n", [300, 2500])  # compiled, from leading components too
def test_rows_of_zeros_are_at_distance_1_of_all_and_displace_nobody(monkeypatch, n):
    x, *codes = cohort(n=n, width=300)
    x -= 3
    x[::9] = 0  # the others are farther from each other than 1/2, and nearer than 1
    distance, order = brute_force(x, *codes)
    assert 0.5 < np.median(distance[1:9, 10:18]) < 0.9
    for kernel in ("", "numpy"):
        monkeypatch.setenv("CROMA_KERNEL", kernel)
        found = typed_neighbours(x, *codes, k=31, m=9)
        few = np.flatnonzero(np.arange(n) % 9)
        assert found.index[few].tolist() == order[few, :31].tolist()
        assert (found.distance[::9] == 1).all()
        assert found.index[::9].tolist() == order[::9, :31].tolist()


@pytest.mark.parametrize(("spread", "margin_error"), [(2e-3, 1e-9), (1e-4, 1e-6)])
def test_an_embedding_in_a_cone_of_cosine_above_0_9999_is_as_exact_as_float64_allows(spread, margin_error):
    x, *codes = cohort()
    x = (1 + spread * (x - x.mean(axis=0))).astype(np.float32)
    distance, order = brute_force(x, *codes)
    assert distance[np.isfinite(distance)].max() < 1e-4
    found = typed_neighbours(x, *codes, k=91, m=20)
    near = np.take_along_axis(distance, found.index.astype(np.int64), 1)
    np.testing.assert_allclose(near, np.take_along_axis(distance, order, 1)[:, :91], rtol=0, atol=4e-15)
    same_label, same_confounder = (code[:, None] == code for code in codes[:2])
    so, os = (
        np.sort(np.where(mask, distance, np.inf), axis=1)[:, :5].mean(axis=1)
        for mask in (same_label & ~same_confounder, ~same_label & same_confounder)
    )
    margins = unit_margins(found.so, found.os, 5).values
    np.testing.assert_allclose(margins, (os - so) / (os + so), rtol=0, atol=margin_error)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_with_cuts_the_sets_are_exact_at_every_cut_and_typed_neighbours_keep_their_distance(kind):
    x, *codes = cohort(seed=1)
    cuts = k_grid(kind, 60)
    full, cut = typed_neighbours(x, *codes, k=60, m=20), typed_neighbours(x, *codes, k=60, m=20, cuts=cuts)
    for k in (*cuts, 60):
        assert np.sort(cut.index[:, :k]).tolist() == np.sort(full.index[:, :k]).tolist()
    typed = (cut.kinds == SO) | (cut.kinds == OS)
    assert np.isnan(cut.distance[~typed]).all()
    for i in range(len(x)):
        known = dict(zip(full.index[i].tolist(), full.distance[i].tolist(), strict=True))
        assert [known[j] for j in cut.index[i][typed[i]].tolist()] == cut.distance[i][typed[i]].tolist()
    assert same(full, cut, ("so", "os", "candidates"))


@pytest.mark.parametrize("limit", [0.0, -1e-3, -4.0])  # nothing, too little, and everything is collected
@pytest.mark.parametrize("cuts", [None, (1, 3, 5, 11, 21)])
def test_a_bad_guess_costs_time_and_changes_no_bit(monkeypatch, limit, cuts):
    x, *codes = cohort(n=500)
    wanted = typed_neighbours(x, *codes, k=21, m=5, cuts=cuts)

    def bad(a, block, product, k_rank, m_rank):
        return (np.full(len(product), limit, dtype=np.float32),) * 3

    monkeypatch.setattr(candidates, "guess", bad)
    monkeypatch.setattr(arrangement, "SAMPLE", 100)
    assert same(typed_neighbours(x, *codes, k=21, m=5, cuts=cuts), wanted)


@pytest.mark.parametrize("labels", [3, 20])
@pytest.mark.parametrize("size", [1, 33, 700, 2000])  # of 1,500 rows: a twentieth at least, and all at most
def test_the_size_of_the_sample_changes_no_bit(monkeypatch, size, labels):
    x, *codes = cohort(labels=labels, centres=labels)
    wanted = typed_neighbours(x, *codes, k=21, m=5)
    monkeypatch.setattr(arrangement, "SAMPLE", size)
    assert same(typed_neighbours(x, *codes, k=21, m=5), wanted)


def test_a_flood_of_duplicates_is_searched_exhaustively_and_ties_stay_in_row_order(monkeypatch):
    monkeypatch.setattr(arrangement, "SAMPLE", 64)
    monkeypatch.setattr(candidates, "TOO_MANY", 1)
    monkeypatch.setattr(candidates, "SPARE", 64)
    x, labels, confounders, _ = cohort(n=1200, groups=1200)
    groups = np.arange(1200)
    x[::2] = x[0]
    found = typed_neighbours(x, labels, confounders, groups, k=10, m=2)
    assert not found.distance[::2].any()
    for i in range(0, 1200, 2):
        assert found.index[i].tolist() == [j for j in range(0, 24, 2) if j != i][:10]


@pytest.mark.parametrize("kernel", ["", "numpy"])
def test_ties_by_the_thousand_do_not_widen_the_tables_of_other_rows(monkeypatch, kernel):
    """One row next to a flood of equal ones would make its block's table as wide as the flood, for every row of it."""
    monkeypatch.setenv("CROMA_KERNEL", kernel)
    monkeypatch.setattr(candidates, "TOO_MANY", 100)
    widths = []

    class Table(selection._Table):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            widths.append(self.width)

    monkeypatch.setattr(selection, "_Table", Table)
    x, labels, centres, _ = cohort(n=2400, groups=2400)
    groups = np.arange(2400)
    labels = np.minimum(labels, 1)
    x[(labels == 0) & (groups % 4 > 0)] = x[0]
    found = typed_neighbours(x, labels, centres, groups, k=21, m=5)
    assert max(widths) <= 2 * candidates.expected_pairs(2400, 21, 5) + 1
    distance, order = brute_force(x, labels, centres, groups)
    wanted = np.take_along_axis(distance, order[:, :21], 1)
    np.testing.assert_allclose(found.distance, np.maximum(wanted, 0), rtol=0, atol=1e-12)


def test_where_whole_cells_are_one_vector_ties_stay_in_row_order_and_one_of_them_is_measured(monkeypatch):
    """Eight vectors at right angles: all that is not at distance 0 is at distance 1."""
    n, measured = 1600, []
    codes = np.random.default_rng(5).integers(0, 2, n), np.random.default_rng(6).integers(0, 4, n), np.arange(n) // 10
    cell = codes[0] * 4 + codes[1]
    measure = selection.Scale.measure
    monkeypatch.setattr(
        selection.Scale,
        "measure",
        lambda self, rows, partners: measured.append(len(rows)) or measure(self, rows, partners),
    )
    found = typed_neighbours(np.eye(8, 300, dtype=np.float32)[cell], *codes, k=260, m=20)
    assert (found.so == 1).all()
    assert (found.os == 1).all()
    for i in range(0, n, 7):
        candidates_ = np.flatnonzero(codes[2] != codes[2][i])
        same_cell = candidates_[cell[candidates_] == cell[i]]
        others = candidates_[cell[candidates_] != cell[i]]
        assert found.index[i].tolist() == [*same_cell, *others][:260]
    assert sum(measured) < 20 * n


def test_rows_of_a_larger_matrix_give_what_those_rows_alone_give():
    x, *codes = cohort(n=700)
    rows = np.random.default_rng(3).permutation(700)[:400]
    part = [code[rows] for code in codes]
    assert same(
        typed_neighbours(x, *part, k=15, m=5, rows=rows.astype(np.int64)), typed_neighbours(x[rows], *part, k=15, m=5)
    )


@pytest.mark.parametrize("options", [{"block": 1}, {"block": 64}, {"hold": False}, {"threads": 1}, {"threads": 7}])
def test_block_size_threads_and_what_is_held_change_no_bit(options):
    x, *codes = cohort(n=300, seed=2)
    wanted = typed_neighbours(x, *codes, k=21, m=5)
    assert same(typed_neighbours(x, *codes, k=21, m=5, **options), wanted)


def test_the_error_band_holds_for_every_pair():
    from concurrent.futures import ThreadPoolExecutor

    x, *codes = cohort(n=400, width=900, seed=4)
    with ThreadPoolExecutor(1) as pool:
        a = arrangement.arrange(x, np.arange(400), *codes, pool)
    everyone = slice(0, 400)
    product = a.product(everyone, a.factor(everyone), everyone, a.factor(everyone)).astype(np.float64)
    unit = x[a.source].astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    error = np.abs(product - (unit @ unit.T - 1))
    assert (error <= a.band()[:, None]).all()
    assert error.max() > 1e-9  # it is a float32 product, and the bound is not tested on nothing
