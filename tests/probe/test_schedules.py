"""The published schedules against their formulas, totals and V; what makes a table no schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from croma_bundle.probe.schedules import CAMELYON, PCABIOP, SCHEDULES, TCGA_4X4, TOLKACH_ESCA
from probe.probe_cohorts import SMALL


def test_camelyon_and_pcabiop_move_by_one_step_along_the_diagonal() -> None:
    for schedule, load, step in ((CAMELYON, 7, 1), (PCABIOP, 100, 10)):
        for s, table in enumerate(schedule.steps):
            few, many = load - step * s, load + step * s
            assert table == ((few, many), (many, few))


def test_tcga_by_the_words_of_its_definition() -> None:
    for s, table in enumerate(TCGA_4X4.steps):
        for i in range(4):
            for j in range(4):
                if i == j:
                    wanted = s + 2
                elif i + j == 3:
                    wanted = 1 if s % 2 else 2 if s < 3 else 0
                else:
                    wanted = 2 if s < 2 else 1 if s < 5 else 0
                assert table[i][j] == wanted, (s, i, j)


def test_tolkach_by_the_words_of_its_definition() -> None:
    for s, table in enumerate(TOLKACH_ESCA.steps):
        less, more = (3 - s,) * 3, (3 + s,) * 3
        assert table == (less + more, more + less)


@pytest.mark.parametrize(
    ("name", "splits", "total", "test_slides"),
    [
        ("camelyon", 8, 28, 17 - 15),
        ("tcga-4x4", 7, 32, 12 - 9),
        ("tolkach-esca", 4, 36, 9 - 7),
        ("pcabiop", 11, 400, 29),
    ],
)
def test_training_totals_never_move(name: str, splits: int, total: int, test_slides: int) -> None:
    schedule = SCHEDULES[name]
    assert [sum(map(sum, table)) for table in schedule.steps] == [total] * splits
    assert max(max(map(max, table)) for table in schedule.steps) == schedule.max_slides
    per_cell = {"camelyon": 17, "tcga-4x4": 12, "tolkach-esca": 9, "pcabiop": 250}[name]
    assert per_cell - schedule.reserved == test_slides
    assert schedule.faults() == []


def test_v_of_the_published_schedules() -> None:
    assert CAMELYON.v() == pytest.approx([s / 7 for s in range(8)])
    assert TCGA_4X4.v() == pytest.approx([0, 0.204124, 0.353553, 0.5, 0.677003, 0.841625, 1], abs=1e-6)
    assert TOLKACH_ESCA.v() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert PCABIOP.v() == pytest.approx([s / 10 for s in range(11)])


def test_validation_rows() -> None:
    """Camelyon: a fourteenth of 7 · 300 = 2,100 is 150. PCaBiop: a tenth of 90 is 9."""
    assert CAMELYON.validation_rows(0, (0, 0)) == 150
    assert CAMELYON.validation_rows(7, (0, 0)) == 0
    assert PCABIOP.validation_rows(1, (0, 0)) == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": SMALL.steps[:1]}, "it needs the balanced split and one more, found 1"),
        ({"steps": (((2, 2), (2,)), SMALL.steps[2])}, "split 0: wanted 2 rows (confounders) of 2 (labels)"),
        ({"max_slides": 3}, "split 2, west · tumour: 4 pseudo-slides, wanted 0 to max_slides (3)"),
        ({"steps": (SMALL.steps[0], ((0, 4), (0, 4)))}, "split 1: no training rows of normal"),
        ({"steps": SMALL.steps[::-1]}, "Cramér's V must rise strictly from 0 to 1, found 1.0000, 0.5000, 0.0000"),
        ({"steps": SMALL.steps[:2]}, "Cramér's V must rise strictly from 0 to 1, found 0.0000, 0.5000"),
        ({"rows_per_slide": 1}, "split 0: no validation rows; a validation_fraction makes some"),
        ({"labels": ("normal", "normal")}, "it needs two or more confounders and two or more labels, each named once"),
    ],
)
def test_what_is_no_schedule(change: dict, message: str) -> None:
    assert message in replace(SMALL, **change).faults()
