"""Cutting a cohort to pseudo-slides, and every way in which it does not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from croma_bundle.errors import CohortError
from croma_bundle.probe.arrange import arrangements, replicate_seeds
from croma_bundle.probe.schedules import SCHEDULES
from probe.probe_cohorts import SMALL, Columns, columns_of, metadata_columns

ROWS = SMALL.rows_per_slide


def refused(columns: Columns, schedule=SMALL) -> str:
    with pytest.raises(CohortError) as caught:
        columns.cut(schedule, "probe own")
    return str(caught.value)


def test_rows_go_to_their_cells_in_order() -> None:
    columns = columns_of(SMALL, slides=6, ood=3)
    cells = columns.cut(SMALL)
    for (i, j), slides in zip(SMALL.cells, cells.slides, strict=True):
        of_cell = [
            row
            for row in columns.of("ID")
            if (columns.confounders[row], columns.labels[row]) == (SMALL.confounders[i], SMALL.labels[j])
        ]
        assert slides.reshape(-1).tolist() == of_cell
        assert slides.shape == (6, ROWS)
    assert cells.ood_rows.tolist() == columns.of("OOD")
    assert [SMALL.labels[code] for code in cells.ood_labels] == [columns.labels[row] for row in cells.ood_rows]


def test_a_ragged_cell() -> None:
    columns = columns_of(SMALL, slides=6)
    columns.split[0] = "neither"
    cell = f"{columns.confounders[0]} · {columns.labels[0]}"
    assert f"{cell}: {6 * ROWS - 1} rows are no whole number of pseudo-slides of {ROWS}" in refused(columns)


def test_too_few_pseudo_slides() -> None:
    message = refused(columns_of(SMALL, slides=5))
    for cell in ("west · normal", "west · tumour", "east · normal", "east · tumour"):
        assert f"{cell}: 5 pseudo-slides of {ROWS} rows, wanted at least 6" in message


def test_groups_mixed_in_a_pseudo_slide() -> None:
    columns = columns_of(SMALL, slides=6)
    columns.groups[0] = "another"
    cell = f"{columns.confounders[0]} · {columns.labels[0]}"
    assert f"{cell}: pseudo-slide 0 holds 2 groups" in refused(columns)


def test_unknown_names_are_told_together() -> None:
    columns = columns_of(SMALL, slides=6, ood=2)
    columns.labels[0], columns.labels[-1], columns.confounders[1] = "necrosis", "fat", "north"
    message = refused(columns)
    assert "confounder 'north' of 1 rows is not in the schedule (west, east)" in message
    assert "label 'fat' of 1 rows is not in the schedule" in message
    assert "label 'necrosis' of 1 rows" in message


def test_a_cohort_under_no_schedule_says_what_is_wrong_with_the_schedule() -> None:
    assert "Cramér's V" in refused(columns_of(SMALL, slides=6), replace(SMALL, steps=SMALL.steps[::-1]))


def test_no_feasible_cases() -> None:
    columns = columns_of(SMALL, slides=6)
    schedule = replace(SMALL, by_case=True)
    columns.groups[:] = [f"{centre}-only" for centre in columns.confounders]
    with pytest.raises(CohortError, match="no 1 to 5 cases of west hold every label in exactly two"):
        arrangements(schedule, columns.cut(schedule), [1], "probe own")


def test_arrangements_are_permutations_and_more_replicates_change_no_earlier_one() -> None:
    cells = columns_of(SMALL, slides=6).cut(SMALL)
    few = arrangements(SMALL, cells, replicate_seeds(1000, 3), "x")
    many = arrangements(SMALL, cells, replicate_seeds(1000, 20), "x")
    assert many[:3] == few
    assert all(sorted(slides) == list(range(6)) for order in many for slides in order)


@pytest.mark.parametrize(
    ("name", "file", "slides", "ood"),
    [
        ("camelyon", "camelyon.csv", 17, 2002),
        ("tcga-4x4", "tcga_4x4.csv", 12, 2400),
        ("tolkach-esca", "tolkach_esca.csv", 9, 5500),
    ],
)
def test_the_real_cohorts_fit_their_schedules(name: str, file: str, slides: int, ood: int, shared) -> None:
    path = shared / "data/pathorob" / file
    if not path.exists():
        pytest.skip(f"{path} does not exist")
    cells = metadata_columns(path).cut(SCHEDULES[name])
    assert {len(of) for of in cells.slides} == {slides}
    assert len(cells.ood_rows) == ood
    used = np.concatenate([of.reshape(-1) for of in cells.slides] + [cells.ood_rows])
    assert len(set(used.tolist())) == len(used)
