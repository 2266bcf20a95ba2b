import numpy as np
import pytest

from croma_bundle.errors import CohortError
from croma_bundle.metrics.cohort import Cohort


def paired(rows):
    """A paired cohort of (subset, label, confounder) rows, each its own group."""
    subsets, labels, confounders = zip(*rows, strict=True)
    groups = [f"g{i}" for i in range(len(rows))]
    return Cohort.from_columns(labels, confounders, groups, subsets=subsets, design="paired_2x2")


def complete(subset, labels="ab", confounders="xy"):
    return [(subset, label, value) for label in labels for value in confounders]


def test_codes_follow_the_sorted_text_and_never_merge_look_alikes():
    cohort = Cohort.from_columns(["7", "007", "07", "NA"], ["b", "a", "b", "a"], ["g", "f", "g", "e"])
    assert cohort.label_names == ("007", "07", "7", "NA")
    assert cohort.labels.tolist() == [2, 0, 1, 3]
    assert cohort.confounders.tolist() == [1, 0, 1, 0]
    assert cohort.group_names == ("e", "f", "g")


def test_all_rows_are_one_scope_of_samples():
    cohort = Cohort.from_columns("abab", "xxyy", "1234")
    assert [(scope.name, scope.rows.tolist()) for scope in cohort.scopes] == [("all", [0, 1, 2, 3])]
    assert (cohort.unit, cohort.n_units, cohort.n_rows, cohort.incomplete) == ("sample", 4, 4, ())
    assert cohort.scopes[0].rows.dtype == np.int64


def test_each_complete_subset_is_a_scope_in_sorted_order_with_its_own_rows():
    cohort = paired([*complete("s2"), *complete("s1", "cd", "pq")])
    assert [(scope.name, scope.rows.tolist()) for scope in cohort.scopes] == [
        ("s1", [4, 5, 6, 7]),
        ("s2", [0, 1, 2, 3]),
    ]
    assert (cohort.unit, cohort.n_units) == ("occurrence", 8)


def test_incomplete_subsets_are_reported_by_name_and_reason_and_are_no_units():
    rows = [
        *complete("good"),
        *complete("one label", "a"),
        *complete("three centres", "ab", "xyz"),
        *complete("empty cell")[:3],
    ]
    cohort = paired(rows)
    assert cohort.incomplete == (
        ("empty cell", "no row of b × y"),
        ("one label", "1 label (a), not 2"),
        ("three centres", "3 confounder values (x, y, z), not 2"),
    )
    assert (cohort.n_units, cohort.n_rows) == (4, 15)


def test_no_complete_subset_is_an_error_that_gives_each_reason():
    with pytest.raises(CohortError, match=r"no subset is a complete 2×2.*s1 has no row of b × y.*s2 has 1 label \(a\)"):
        paired([*complete("s1")[:3], *complete("s2", "a")])


def test_one_label_one_confounder_value_and_one_group_are_told_together():
    with pytest.raises(CohortError) as caught:
        Cohort.from_columns("aa", "xx", "gg", name="mine")
    text = str(caught.value)
    assert text.startswith("mine: all 2 rows have one label, 'a'")
    assert "one confounder value, 'x'" in text
    assert "one group, 'g'" in text
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("labels", "confounders", "groups", "fault"),
    [
        ("aaaa", "xyxy", "1234", "one label, 'a'"),
        ("abab", "xxxx", "1234", "one confounder value, 'x'"),
        ("abab", "xxyy", "1111", "one group, '1'"),
    ],
)
def test_a_cohort_without_contrast_names_only_what_it_lacks(labels, confounders, groups, fault):
    with pytest.raises(CohortError, match=fault) as caught:
        Cohort.from_columns(labels, confounders, groups)
    assert str(caught.value).count(" rows have one ") == 1


def test_the_contrast_of_a_paired_cohort_is_judged_on_the_rows_that_are_used():
    subsets = ["s"] * 4 + ["other"]
    with pytest.raises(CohortError, match="all 4 rows have one group, 'g'"):
        Cohort.from_columns("aabba", "xyxyx", "ggggh", subsets=subsets, design="paired_2x2")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"design": "pairs"}, "'pairs' is no evaluation design"),
        ({"design": "paired_2x2"}, "needs a subset column"),
        ({"labels": "aba"}, r"differ in length \(label 3, confounder 4, group_id 4\)"),
        ({"subsets": "s"}, "subset 1"),
        ({"labels": "", "confounders": "", "groups": ""}, "there is no row"),
    ],
)
def test_columns_that_cannot_be_read_are_refused(change, fault):
    given = {"labels": "abab", "confounders": "xxyy", "groups": "1234"} | change
    with pytest.raises(CohortError, match=fault):
        Cohort.from_columns(**given)
