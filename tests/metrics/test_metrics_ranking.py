import pytest

from croma_bundle.metrics.ranking import Scores, Standing, pareto_frontier, ranks, resolvable, standings


def test_equal_values_share_the_better_rank():
    assert ranks({"a": 0.3, "b": 0.5, "c": 0.3, "d": 0.1}) == {"b": 1, "a": 2, "c": 2, "d": 4}


def test_ranks_are_taken_on_unrounded_values():
    assert ranks({"a": 0.3, "b": 0.3 + 1e-15}) == {"b": 1, "a": 2}


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (0.1, 0.1049, False),
        (0.1, 0.1051, True),
        (0.0, 0.005, False),  # strict
        (0.5, 0.509, False),  # 2 % of 0.509 is 0.01018
        (0.5, 0.511, True),
        (-0.5, -0.511, True),
        (-0.004, 0.004, True),
    ],
)
def test_two_values_are_resolvable_beyond_the_larger_of_two_tolerances(a, b, wanted):
    assert resolvable(a, b) is wanted
    assert resolvable(b, a) is wanted


def test_the_frontier_keeps_who_is_best_somewhere_and_equals():
    points = {"a": (1.0, 3.0), "b": (2.0, 2.0), "twin": (2.0, 2.0), "c": (2.0, 3.0), "d": (3.0, 1.0)}
    assert pareto_frontier(points) == {"a", "b", "twin", "d"}  # c is no better than b anywhere and worse on one


def test_standings_rank_the_common_encoders_among_themselves_and_name_the_rest():
    cohorts = {
        "one": {"a": Scores(0.3, -0.1), "b": Scores(0.2, 0.0), "only here": Scores(0.9, 0.9)},
        "two": {"a": Scores(0.3, 0.1), "b": Scores(0.3, 0.2)},
    }
    placed, left_out = standings(cohorts)
    assert left_out == ["only here"]
    # a: median ranks 1, 1; LTM10 ranks 2, 2. b: median ranks 2, 1 (tie); LTM10 ranks 1, 1
    assert placed == [
        Standing("b", croma_rank=1.5, ltm10_rank=1.0, mean_rank=1.25, on_frontier=True),
        Standing("a", croma_rank=1.0, ltm10_rank=2.0, mean_rank=1.5, on_frontier=True),
    ]


def test_no_cohort_has_no_standings():
    assert standings({}) == ([], [])
