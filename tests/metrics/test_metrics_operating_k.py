import numpy as np
import pytest

from croma_bundle.errors import CohortError
from croma_bundle.metrics.operating_k import balanced_accuracy, k_grid, k_star, shared_k


@pytest.mark.parametrize(
    ("k_max", "wanted"),
    [
        (100, (1, 3, 5, 7, 9, 11, 21, 31, 41, 51, 61, 71, 81, 91)),
        (101, (1, 3, 5, 7, 9, 11, 21, 31, 41, 51, 61, 71, 81, 91)),
        (102, (1, 3, 5, 7, 9, 11, 21, 31, 41, 51, 61, 71, 81, 91, 101)),
        (11, (1, 3, 5, 7, 9)),
        (9, (1, 3, 5, 7, 9)),
        (8, (1, 3, 5, 7)),
        (1, (1,)),
    ],
)
def test_the_sparse_grid_excludes_k_max_from_its_tail_but_not_from_its_head(k_max, wanted):
    assert k_grid("sparse", k_max) == wanted


def test_the_dense_grid_is_every_k():
    assert k_grid("dense", 4) == (1, 2, 3, 4)


@pytest.mark.parametrize(("kind", "k_max", "fault"), [("sprase", 9, "'sprase'"), ("dense", 0, "k_max = 0")])
def test_a_grid_that_does_not_exist_is_refused(kind, k_max, fault):
    with pytest.raises(CohortError, match=fault):
        k_grid(kind, k_max)


def test_accuracy_is_the_mean_recall_over_classes_not_over_rows():
    codes = np.array([0, 0, 0, 1])
    index = np.array([[1], [2], [0], [0]])  # all three of class 0 right, the one of class 1 wrong
    assert balanced_accuracy(codes, index, [1]) == {1: 0.5}


def test_a_tied_vote_goes_to_the_value_that_appears_first_among_the_rows():
    codes = np.array([1, 0, 1, 0])  # 1 appears first although 0 sorts first
    index = np.array([[1, 2], [2, 3], [3, 0], [0, 1]])  # each row sees one of either
    assert balanced_accuracy(codes, index, [2]) == {2: 0.5}  # all elected 1: recall of 1 is 1, of 0 is 0
    votes_of_three = np.array([[1, 3, 2], [2, 3, 0], [1, 0, 3], [0, 2, 1]])
    assert balanced_accuracy(codes, votes_of_three, [3]) == {3: 0.0}  # majorities 0, 1, 0, 1 are all wrong


def test_a_tie_among_three_classes_is_not_won_by_the_smallest_code():
    codes = np.array([2, 1, 0])
    index = np.array([[1, 2], [2, 0], [1, 0]])  # ties 1-0, 0-2, 1-2: first to appear are 1, 2, 2
    assert balanced_accuracy(codes, index, [2]) == {2: 0.0}
    assert balanced_accuracy(codes, np.array([[1, 2], [1, 0], [0, 2]]), [2])[2] == pytest.approx(0.0)
    assert balanced_accuracy(codes, np.array([[2, 0], [1, 2], [0, 1]]), [2])[2] == pytest.approx(2 / 3)


def test_rows_without_a_candidate_are_left_out_and_so_is_a_class_of_only_such_rows():
    codes = np.array([0, 0, 1])
    index = np.array([[1], [-1], [-1]])
    assert balanced_accuracy(codes, index, [1]) == {1: 1.0}
    assert balanced_accuracy(codes, np.full((3, 1), -1), [1]) == {}


def test_fewer_candidates_than_k_vote_alone():
    codes = np.array([0, 0, 1, 1])
    index = np.array([[1, -1, -1], [0, 2, 3], [3, -1, -1], [2, 0, 1]])
    # k = 3: rows 0 and 2 keep their one right voter; row 1 sees 0, 1, 1 and row 3 sees 1, 0, 0: both wrong
    assert balanced_accuracy(codes, index, [1, 3, 50]) == {1: 1.0, 3: 0.5, 50: 0.5}


def test_the_order_of_the_ks_does_not_matter():
    codes = np.array([0, 0, 1, 1])
    index = np.array([[1, 2, 3], [0, 2, 3], [3, 1, 0], [2, 0, 1]])
    assert balanced_accuracy(codes, index, [3, 1]) == balanced_accuracy(codes, index, [1, 3]) == {1: 1.0, 3: 0.0}


def test_k_star_is_the_smallest_of_the_best():
    assert k_star({1: 0.7, 3: 0.9, 5: 0.9, 7: 0.8}) == 3


def test_accuracies_that_differ_in_rounding_only_are_equal():
    assert k_star({1: 0.9, 3: 0.9 + 1e-13}) == 1
    assert k_star({1: 0.9, 3: 0.9 + 1e-11}) == 3


def test_the_shared_k_is_the_lower_median_so_always_a_vote():
    assert shared_k([5, 7, 5, 7]) == 5
    assert shared_k([91, 1, 11]) == 11
    assert shared_k([3, 1, 9, 11]) == 3
    assert shared_k([21]) == 21


def test_no_voter_and_no_k_are_errors():
    with pytest.raises(CohortError, match="no encoder votes"):
        shared_k([])
    with pytest.raises(CohortError, match="no k"):
        k_star({})
