"""A probe's cohort: pseudo-slides of every cell, and test rows of centres that are never trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import CohortError, some
from croma_bundle.probe.schedules import Schedule

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cells:
    """Which rows of the matrix a sweep uses.

    Attributes:
        slides: of every cell, confounder-major, (pseudo-slides, rows_per_slide) row numbers.
        cases: of every cell, the group of each pseudo-slide.
        ood_rows, ood_labels: row numbers and label codes of the out-of-domain test rows; empty where there are none.
    """

    slides: tuple[Rows, ...]
    cases: tuple[tuple[str, ...], ...]
    ood_rows: Rows
    ood_labels: Rows


def cut(
    schedule: Schedule,
    rows: Sequence[int],
    confounders: Sequence[str],
    labels: Sequence[str],
    groups: Sequence[str],
    ood: Sequence[tuple[int, str]],
    subject: str,
    declared: str | None = None,
) -> Cells:
    """Cut the in-domain rows, in their order, to cells and pseudo-slides.

    Args:
        rows: the row number of each in-domain row; its confounder, label and group follow.
        ood: row number and label of every out-of-domain row.
        declared: where the schedule stands.

    Raises:
        CohortError: everything about the cohort that this schedule cannot use, by cell.
    """
    faults = schedule.faults()
    faults += _unknown("confounder", confounders, schedule.confounders)
    faults += _unknown("label", [*labels, *(label for _, label in ood)], schedule.labels)
    if not faults:
        members: dict[tuple[str, str], list[int]] = {}
        for position, names in enumerate(zip(confounders, labels, strict=True)):
            members.setdefault(names, []).append(position)
        cells = [members.get((schedule.confounders[i], schedule.labels[j]), []) for i, j in schedule.cells]
        for cell, positions in zip(schedule.cells, cells, strict=True):
            faults += [f"{schedule.name(cell)}: {fault}" for fault in _misfits(schedule, positions, groups)]
    if faults:
        raise CohortError(subject, "its probe schedule does not fit", declared=declared, detail="\n  ".join(faults))
    size, number = schedule.rows_per_slide, np.array(rows, dtype=np.int64)
    code = {label: j for j, label in enumerate(schedule.labels)}
    return Cells(
        tuple(number[positions].reshape(-1, size) for positions in cells),
        tuple(tuple(groups[p] for p in positions[::size]) for positions in cells),
        np.array([row for row, _ in ood], dtype=np.int64),
        np.array([code[label] for _, label in ood], dtype=np.int64),
    )


def _unknown(kind: str, values: Sequence[str], known: Sequence[str]) -> list[str]:
    counts = Counter(values)
    return [
        f"{kind} {name!r} of {n:,} rows is not in the schedule ({some(known)})"
        for name, n in sorted(counts.items())
        if name not in known
    ]


def _misfits(schedule: Schedule, positions: Sequence[int], groups: Sequence[str]) -> list[str]:
    size, wanted = schedule.rows_per_slide, schedule.reserved + 1
    if len(positions) % size:
        return [f"{len(positions):,} rows are no whole number of pseudo-slides of {size}"]
    if len(positions) < wanted * size:
        return [f"{len(positions) // size} pseudo-slides of {size} rows, wanted at least {wanted}"]
    faults = []
    for start in range(0, len(positions), size):
        held = sorted({groups[p] for p in positions[start : start + size]})
        if len(held) > 1:
            faults.append(f"pseudo-slide {start // size} holds {len(held)} groups ({some(held, 3)}), wanted one")
    return faults
