"""The cluster bootstrap against the public croma 1.0.1 on shared seeds, wherever both define the same.

It resamples the pooled median: ours is the same under the design `all`, where all units are one scope. For `paired_2x2`
its paired difference takes the median of the subsets' medians; against an encoder of zeros that is ours. Its ranks give
tied encoders different places, so ties are kept out where ranks are compared.
"""

import numpy as np
import pytest

from croma_bundle.metrics.bootstrap import bootstrap, win_rate

croma = pytest.importorskip("croma", reason="the oracle, croma==1.0.1, is a test-time extra")
if croma.__version__ != "1.0.1":
    pytest.skip(f"the oracle is croma 1.0.1, here is {croma.__version__}", allow_module_level=True)

from croma.metrics.bootstrap import (  # noqa: E402
    bootstrap_pooled_median,
    paired_cluster_bootstrap_delta,
    paired_rank_stability,
)

BOUNDS = (1 - 0.95) / 2 * 100, 100 - (1 - 0.95) / 2 * 100
"""Its percentiles as it computes them: 2.5 and 97.5 but for their last bits."""


def ends(statistic):
    return tuple(np.percentile(statistic, BOUNDS).tolist())


def cohort(seed, n, n_groups, n_subsets=1):
    rng = np.random.default_rng(seed)
    effect = rng.standard_normal(n_groups) / 2
    groups = rng.integers(0, n_groups, n)
    units = {f"E{i}": np.tanh(rng.standard_normal(n) + effect[groups] + i / 20) for i in range(4)}
    subsets = rng.integers(0, n_subsets, n)
    return units, np.array([f"slide-{i}" for i in groups]), np.array([f"subset{i}" for i in subsets])


@pytest.mark.parametrize(("seed", "n", "n_groups"), [(0, 40, 6), (1, 501, 30), (2, 2000, 68), (7, 300, 300)])
def test_the_interval_of_the_median_is_the_oracles_to_the_last_bit(seed, n, n_groups):
    units, groups, scopes = cohort(seed, n, n_groups)
    ours = bootstrap(units, groups, scopes, seed=seed)
    for name, values in units.items():
        theirs = bootstrap_pooled_median(values, groups, seed=seed)
        assert ends(ours[name].median) == (theirs.lo, theirs.hi)


@pytest.mark.parametrize(("seed", "n", "n_groups", "n_subsets"), [(0, 200, 12, 3), (3, 900, 40, 6), (5, 60, 20, 9)])
def test_the_median_over_subsets_is_the_oracles_also_where_resampling_empties_some(seed, n, n_groups, n_subsets):
    units, groups, scopes = cohort(seed, n, n_groups, n_subsets)
    ours = bootstrap(units, groups, scopes, seed=seed)
    for name, values in units.items():
        theirs = paired_cluster_bootstrap_delta(np.zeros(n), values, groups, subset_ids=scopes, seed=seed)
        assert ends(ours[name].median) == (theirs.lo, theirs.hi)


def test_win_rates_are_the_oracles():
    units, groups, scopes = cohort(4, 800, 25)
    ours, theirs = bootstrap(units, groups, scopes), paired_rank_stability(units, groups)
    shares = {(a, b): win_rate(ours[a].median, ours[b].median) for a in units for b in units if a != b}
    assert shares == theirs.pairwise_win
    assert 0 < min(shares.values()) < max(shares.values()) < 1


def test_differences_within_a_replicate_are_the_oracles():
    units, groups, scopes = cohort(6, 400, 20, 4)
    ours = bootstrap(units, groups, scopes)
    theirs = paired_cluster_bootstrap_delta(units["E0"], units["E3"], groups, subset_ids=scopes)
    assert ends(ours["E3"].median - ours["E0"].median) == (theirs.lo, theirs.hi)
