"""The same bits whatever the block size, thread count, hash seed or, where nothing ties, the order of the rows."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from every_bit import digest, results
from geometries import contested, permuted, two_subsets

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"


def large():
    """Enough rows and width for BLAS to use several threads and several kernels."""
    return contested(rows_per_cell=60, rows_per_group=4, jitter=1.0, width=300, seed=5)


@pytest.mark.parametrize("block", [1, 7, 239, 2**40])
@pytest.mark.parametrize("hold", [True, False])
def test_the_block_size_and_what_is_held_change_no_bit(block, hold):
    x, cohort = large()
    assert digest(results(x, cohort, block=block, hold=hold)) == digest(results(x, cohort))


@pytest.mark.parametrize("block", [1, 2**40])
def test_the_block_size_changes_no_bit_where_everything_ties(block):
    x, cohort = contested(rows_per_cell=12)
    x = np.round(x)  # a lattice: many equal rows and equal distances
    x[:, 0] = 3
    assert len(np.unique(x, axis=0)) < len(x)
    assert digest(results(x, cohort, m=12, block=block)) == digest(results(x, cohort, m=12))


def test_thread_count_and_hash_seed_change_no_bit():
    program = "from every_bit import digest, results; from test_metrics_determinism import large; "
    program += "print(digest(results(*large())))"
    seen = set()
    for threads, hash_seed in (("1", "0"), ("2", "1"), ("5", "2")):
        environment = os.environ | {
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join([str(SRC), str(HERE)]),
        }
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        seen.add(done.stdout)
    assert seen == {digest(results(*large())) + "\n"}


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_rows_changes_no_bit_where_nothing_ties(seed):
    x, cohort = large()
    assert_same_but_for_order(x, cohort, np.random.default_rng(seed).permutation(len(x)))


def test_the_order_of_the_rows_changes_no_bit_of_a_paired_cohort_either():
    rng = np.random.default_rng(8)
    _, cohort = two_subsets()
    order = rng.permutation(12)
    x = rng.standard_normal((12, 40))
    assert_same_but_for_order(x, cohort, order, grid=(1,), m=1)


def assert_same_but_for_order(x, cohort, order, **options):
    """Scalars equal; arrays over units equal once put back into the first order."""
    there = results(x, cohort, **options)
    back = results(*permuted(x, cohort, order), **options)
    place = {int(row): i for i, row in enumerate(there["survey.unit_rows"])}
    to = np.array([place[int(order[row])] for row in back["survey.unit_rows"]])
    compared = 0
    for name, value in there.items():
        if isinstance(value, np.ndarray) and name != "survey.unit_rows":
            assert back[name].tobytes() == value[to].tobytes(), name
            compared += 1
        elif name not in ("survey.unit_rows", "survey.scope_slices"):
            assert back[name] == value, name
    assert compared > 10
