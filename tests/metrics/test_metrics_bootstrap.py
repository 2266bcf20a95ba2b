"""The cluster bootstrap against literal repetition of the units, to the last bit, and what must not move it."""

import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from croma_bundle.metrics import bootstrap as module
from croma_bundle.metrics.bootstrap import REPLICATES, Replicates, bootstrap, interval, rank_intervals, win_rate
from croma_bundle.metrics.ranking import Scores, standings

reproducible = settings(deadline=None, derandomize=True, max_examples=40, database=None)
STATISTICS = ("median", "ltm10", "f0")


def draws(n_groups, seed=0):
    """As the definition words it, one replicate after the other."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, n_groups, n_groups) for _ in range(REPLICATES)]


def by_repetition(values, groups, scopes, drawn):
    """Median of the scopes' medians, LTM10 and F0 of each draw, its units repeated in memory."""
    names = sorted(set(groups))
    found = []
    for draw in drawn:
        times = [int(np.count_nonzero(draw == names.index(group))) for group in groups]
        pool, scope = np.repeat(values, times), np.repeat(scopes, times)
        low = pool[pool <= np.percentile(pool, 10, method="linear")]
        median = np.median([np.median(pool[scope == s]) for s in sorted(set(scope))])
        found.append((median, math.fsum(low) / len(low), np.count_nonzero(pool <= 0) / len(pool)))
    return np.array(found).T


def one(values, groups, scopes=None, **options):
    scopes = np.zeros(len(values)) if scopes is None else scopes
    units = {"E": np.asarray(values, dtype=np.float64)}
    return bootstrap(units, np.asarray(groups), np.asarray(scopes), **options)["E"]


def assert_same_bits(found, wanted):
    for name, values in zip(STATISTICS, wanted, strict=True):
        assert np.array_equal(getattr(found, name), values), name


# --- by hand ---

# Groups a: -0.2, 0.4; b: 0.0; c: 0.6, 0.8, 1.0. All 27 draws of three groups, by the times (a, b, c) are drawn:
#
#     times   units in order                  median  q10 (place 0.1(n-1))     LTM10  F0
#     3 0 0   -.2 -.2 -.2  .4  .4  .4           .1    -.2                      -.2    3/6
#     2 1 0   -.2 -.2  0   .4  .4               0     -.2                      -.2    3/5
#     1 2 0   -.2  0   0   .4                   0     .3 into (-.2, 0)         -.2    3/4
#     0 3 0    0   0   0                        0      0                        0     1
#     1 1 1   -.2  0   .4  .6  .8  1            .5    .5 into (-.2, 0)         -.2    2/6
#     0 0 3    .6 .6 .6 .8 .8 .8 1 1 1          .8     .6                       .6    0
VALUES, GROUPS = [-0.2, 0.4, 0.0, 0.6, 0.8, 1.0], list("aabccc")
BY_HAND = {
    (3, 0, 0): (0.1, -0.2, 3 / 6),
    (2, 1, 0): (0.0, -0.2, 3 / 5),
    (1, 2, 0): (0.0, -0.2, 3 / 4),
    (0, 3, 0): (0.0, 0.0, 1.0),
    (1, 1, 1): (0.5, -0.2, 2 / 6),
    (0, 0, 3): (0.8, 0.6, 0.0),
}


def test_a_replicate_is_as_worked_by_hand_by_how_often_it_drew_each_group():
    found = one(VALUES, GROUPS)
    met = set()
    for i, draw in enumerate(draws(3)):
        times = tuple(np.bincount(draw, minlength=3).tolist())
        if times in BY_HAND:
            met.add(times)
            statistics = tuple(getattr(found, name)[i] for name in STATISTICS)
            assert statistics == pytest.approx(BY_HAND[times], abs=1e-15), times
    assert met == set(BY_HAND)


def test_every_one_of_the_27_draws_is_met_and_equals_literal_repetition():
    drawn = draws(3)
    assert {tuple(draw) for draw in drawn} == set(itertools.product(range(3), repeat=3))
    assert_same_bits(one(VALUES, GROUPS), by_repetition(VALUES, GROUPS, [0] * 6, drawn))


def test_a_scope_that_a_replicate_left_empty_has_no_median_in_it():
    # scope x is group a alone, scope y group b alone: drawn twice, a group leaves the other's scope empty
    found = one([0.2, 0.4, 0.8], ["a", "a", "b"], ["x", "x", "y"])
    wanted = {0: 0.3, 1: (0.3 + 0.8) / 2, 2: 0.8}  # by how often b is drawn
    for i, draw in enumerate(draws(2)):
        assert found.median[i] == pytest.approx(wanted[draw.sum()], abs=1e-15)


def test_a_single_group_gives_the_point_values_without_any_width():
    found = one([0.1, 0.3, 0.7], ["a"] * 3)
    assert set(found.median) == {0.3}
    assert set(found.ltm10) == {0.1}
    assert set(found.f0) == {0.0}


# --- against literal repetition ---


@reproducible
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 300),
    st.integers(1, 30),
    st.integers(1, 5),
    st.sampled_from([1, 2, 16]),
)
def test_random_cohorts_equal_literal_repetition_to_the_last_bit(seed, n, n_groups, n_scopes, decimals):
    rng = np.random.default_rng(seed)
    values = np.round(np.tanh(rng.standard_normal(n)), decimals)  # few decimals: many ties
    groups, scopes = rng.integers(0, n_groups, n), rng.integers(0, n_scopes, n)
    few = slice(0, 200)
    found = one(values, groups, scopes, seed=seed)
    wanted = by_repetition(values, groups.tolist(), scopes, draws(len(set(groups.tolist())), seed)[few])
    assert_same_bits(Replicates(*(getattr(found, name)[few] for name in STATISTICS)), wanted)


@pytest.mark.parametrize("n", [127, 128, 129, 256, 257])
def test_whole_chunks_and_their_neighbours_are_alike(n):
    rng = np.random.default_rng(n)
    values, groups = rng.uniform(-1, 1, n), rng.integers(0, 9, n)
    assert_same_bits(one(values, groups), by_repetition(values, groups.tolist(), np.zeros(n), draws(9)))


def test_tails_of_tiny_and_cancelling_margins_are_summed_exactly():
    values = np.array([-1.0, -1.0, -1e-300, -5e-324, 0.0, 2.0**-60, 1 / 3, 1.0, 1.0 - 2**-53, -1 + 2**-53])
    groups = np.arange(10) % 4
    assert_same_bits(one(values, groups), by_repetition(values, groups.tolist(), np.zeros(10), draws(4)))


# --- what must not move it ---


@pytest.fixture
def cohort():
    rng = np.random.default_rng(11)
    units = {name: np.round(np.tanh(rng.standard_normal(900) + lead), 3) for name, lead in (("A", 0.1), ("B", 0.0))}
    return units, np.array([f"slide{i}" for i in rng.integers(0, 40, 900)]), rng.integers(0, 4, 900)


def test_the_order_of_the_units_changes_no_bit(cohort):
    units, groups, scopes = cohort
    order = np.random.default_rng(1).permutation(len(groups))
    before = bootstrap(units, groups, scopes)
    after = bootstrap({name: values[order] for name, values in units.items()}, groups[order], scopes[order])
    for name in units:
        assert_same_bits(after[name], [getattr(before[name], s) for s in STATISTICS])


def test_text_and_codes_of_the_same_order_draw_the_same_groups(cohort):
    units, groups, scopes = cohort
    codes = np.array([sorted(set(groups)).index(group) for group in groups])
    assert_same_bits(one(units["A"], codes, scopes), [getattr(one(units["A"], groups, scopes), s) for s in STATISTICS])


def test_an_encoder_has_the_same_draws_alone_and_among_others(cohort):
    units, groups, scopes = cohort
    together = bootstrap(units, groups, scopes)
    for name, values in units.items():
        assert_same_bits(one(values, groups, scopes), [getattr(together[name], s) for s in STATISTICS])


@pytest.mark.parametrize("cells", [1, 900 * 7, 1 << 40])
def test_how_many_replicates_are_held_at_a_time_changes_no_bit(cohort, monkeypatch, cells):
    units, groups, scopes = cohort
    before = one(units["A"], groups, scopes)
    monkeypatch.setattr(module, "CELLS", cells)
    assert_same_bits(one(units["A"], groups, scopes), [getattr(before, s) for s in STATISTICS])


def test_another_seed_draws_other_groups(cohort):
    units, groups, scopes = cohort
    zero, same, other = (one(units["A"], groups, scopes, **seed) for seed in ({}, {"seed": 0}, {"seed": 1}))
    assert np.array_equal(zero.median, same.median)
    assert not np.array_equal(zero.median, other.median)


def test_threads_and_hash_seed_change_no_bit():
    program = (
        "import numpy as np, hashlib; from croma_bundle.metrics.bootstrap import bootstrap\n"
        "rng = np.random.default_rng(5); v = np.tanh(rng.standard_normal(5000)); g = rng.integers(0, 50, 5000)\n"
        "r = bootstrap({'E': v}, np.array([f's{i}' for i in g]), g % 3)['E']\n"
        "print(hashlib.sha256(r.median.tobytes() + r.ltm10.tobytes() + r.f0.tobytes()).hexdigest())"
    )
    said = set()
    for threads, seed in (("1", "0"), ("2", "1"), ("2", "random")):
        env = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
        said.add(done.stdout)
    assert len(said) == 1


# --- intervals, wins and ranks ---


def test_an_interval_is_between_linearly_interpolated_percentiles():
    found = interval(np.arange(2000) / 1999)  # place 0.025 × 1999 of 0 … 1
    assert (found.lo, found.hi) == pytest.approx((0.025, 0.975), abs=1e-15)


def test_a_win_is_strictly_greater():
    a, b = np.array([1.0, 2.0, 3.0, 3.0]), np.array([1.0, 1.0, 4.0, 2.0])
    assert (win_rate(a, b), win_rate(b, a)) == (0.5, 0.25)


def test_a_shift_of_every_unit_wins_in_every_replicate_however_wide_the_intervals(cohort):
    units, groups, scopes = cohort
    a = units["A"] / 2
    found = bootstrap({"A": a, "Above": a + 1e-6}, groups, scopes)
    assert win_rate(found["Above"].median, found["A"].median) == 1
    assert win_rate(found["Above"].ltm10, found["A"].ltm10) == 1
    assert interval(found["A"].median).hi > interval(found["Above"].median).lo


def test_rank_intervals_are_of_each_replicates_own_standings():
    rng = np.random.default_rng(3)
    tied = [np.round(rng.uniform(-1, 1, (4, 3, REPLICATES)), 1) for _ in range(3)]
    cohorts = [{e: Replicates(*values) for e, values in zip("PQRS", of_cohort, strict=True)} for of_cohort in tied]
    ranks = {e: [] for e in "PQRS"}
    for i in range(REPLICATES):
        at_i = [{e: Scores(r.median[i], r.ltm10[i]) for e, r in cohort.items()} for cohort in cohorts]
        placed, _ = standings({str(c): scores for c, scores in enumerate(at_i)})
        for place in placed:
            ranks[place.encoder].append(place.mean_rank)
    for encoder, found in rank_intervals(cohorts).items():
        assert [found.lo, found.hi] == np.percentile(ranks[encoder], [2.5, 97.5]).tolist()
