"""What must not change a result, or only in its last digits."""

import numpy as np
import pytest
from every_bit import results
from geometries import contested, scrambled


def assert_close(there, back):
    for name, value in there.items():
        other = back[name]
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            np.testing.assert_allclose(other, value, rtol=0, atol=1e-9, err_msg=name)
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(other, value, err_msg=name)
        elif isinstance(value, float):
            assert other == pytest.approx(value, abs=1e-9), name
        elif isinstance(value, (int, str)) and not name.endswith("tau_note"):  # which spells a median out
            assert other == value, name


@pytest.mark.parametrize("geometry", [contested, scrambled])
def test_a_rotation_of_the_embedding_changes_nothing(geometry):
    x, cohort = geometry()
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((x.shape[1], x.shape[1])))
    assert_close(results(x, cohort, m=2), results(x @ turn, cohort, m=2))


@pytest.mark.parametrize("scale", [1e-4, 3.0, 1e6])
def test_the_scale_of_the_embedding_changes_nothing(scale):
    x, cohort = contested()
    assert_close(results(x, cohort), results(scale * x, cohort))


def test_the_length_of_each_row_changes_nothing():
    x, cohort = contested()
    lengths = np.random.default_rng(1).uniform(0.1, 10, size=(len(x), 1))
    assert_close(results(x, cohort), results(lengths * x, cohort))


def test_renaming_groups_changes_nothing():
    from croma_bundle.metrics.cohort import Cohort

    x, cohort = scrambled()
    columns = [[names[c] for c in codes] for names, codes in (
        (cohort.label_names, cohort.labels),
        (cohort.confounder_names, cohort.confounders),
    )]  # fmt: skip
    groups = [f"{97 - code % 13} {code}" for code in cohort.groups]
    there, back = results(x, cohort, m=2), results(x, Cohort.from_columns(*columns, groups), m=2)
    for name, value in there.items():
        if isinstance(value, np.ndarray):
            assert back[name].tobytes() == value.tobytes(), name
        else:
            assert back[name] == value, name


def test_independent_columns_of_zeros_change_nothing():
    x, cohort = contested()
    assert_close(results(x, cohort), results(np.hstack([x, np.zeros((len(x), 5))]), cohort))
