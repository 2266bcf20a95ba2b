"""The design check: cells and the largest m, counted against a plain loop over all pairs."""

from __future__ import annotations

import random

import pytest

from croma_bundle.tilemanifest.design import check_design


def pairs(labels, confounders, groups):
    """(fewest SO or OS of any row, rows that lack a type), by looking at every pair."""
    rows = list(zip(labels, confounders, groups, strict=True))
    least = []
    for a, b, g in rows:
        so = sum(x == a and y != b and h != g for x, y, h in rows)
        os = sum(x != a and y == b and h != g for x, y, h in rows)
        least.append(min(so, os))
    return min(least), sum(count == 0 for count in least)


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_m_and_the_rows_that_lack_a_type_are_those_of_a_count_over_all_pairs(seed):
    draw = random.Random(seed)
    columns = [[draw.choice("abc"[:size]) for _ in range(40)] for size in (3, 2)]
    groups = [str(draw.randrange(12)) for _ in range(40)]
    check = check_design(*columns, groups)
    assert (check.largest_m, check.lacking) == pairs(*columns, groups)
    assert check.rows == 40


def test_cells_count_tiles_and_groups_and_an_empty_one_is_a_dash():
    check = check_design(list("aaabb"), list("xxyxx"), list("11234"))
    assert check.cells == {("a", "x"): (2, 1), ("a", "y"): (1, 1), ("b", "x"): (2, 2)}
    assert check.text().splitlines()[:3] == [
        "  tiles / groups      x      y",
        "  a               2 / 1  1 / 1",
        "  b               2 / 2      –",
    ]


def test_the_verdict_says_which_m_can_be_asked_for():
    def verdict(tiles):  # 2 × 2 cells; every tile its own group: `tiles` candidates of either type
        rows = [(label, value) for label in "ab" for value in "xy" for _ in range(tiles)]
        return check_design([r[0] for r in rows], [r[1] for r in rows], [str(i) for i in range(len(rows))]).verdict()

    assert verdict(5) == "Every tile has 5 candidates of either type, in other groups: CRoMa can be computed."
    assert verdict(4).endswith("score with --m 4.")
    one_centre = check_design(list("ab"), list("xx"), list("12"))
    assert one_centre.verdict().startswith("CRoMa cannot be computed: 2 of 2 tiles have no candidate")
