"""Cohorts for the probe: generated rows of any schedule, and PathoROB's real labels, centres and slides."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from croma_bundle.probe.cells import Cells, cut
from croma_bundle.probe.schedules import Schedule


@dataclass(frozen=True)
class Columns:
    """ID and OOD rows in manifest order; `split` says which a row is."""

    split: list[str]
    confounders: list[str]
    labels: list[str]
    groups: list[str]

    def of(self, split: str) -> list[int]:
        return [i for i, value in enumerate(self.split) if value == split]

    def cut(self, schedule: Schedule, subject: str = "test") -> Cells:
        rows = self.of("ID")
        columns = ([column[i] for i in rows] for column in (self.confounders, self.labels, self.groups))
        return cut(schedule, rows, *columns, [(i, self.labels[i]) for i in self.of("OOD")], subject)


SMALL = Schedule(
    confounders=("west", "east"),
    labels=("normal", "tumour"),
    steps=(((2, 2), (2, 2)), ((1, 3), (3, 1)), ((0, 4), (4, 0))),
    max_slides=4,
    rows_per_slide=8,
)
"""Two splits from balanced to confounded, in an order that is not the sorted one."""


def columns_of(schedule: Schedule, slides: int, ood: int = 0, seed: int = 0) -> Columns:
    """`slides` pseudo-slides of every cell, whole slides in random order, then `ood` rows of each label elsewhere."""
    pieces = [(cell, s) for cell in schedule.cells for s in range(slides)]
    np.random.default_rng(seed).shuffle(pieces)
    rows = [
        ("ID", schedule.confounders[i], schedule.labels[j], f"{i}-{j}-{s}")
        for (i, j), s in pieces
        for _ in range(schedule.rows_per_slide)
    ]
    rows += [("OOD", "far", label, f"far-{label}") for label in schedule.labels for _ in range(ood)]
    return Columns(*(list(column) for column in zip(*rows, strict=True)))


def embedding(columns: Columns, width: int, *, label: float, confounder: float, seed: int = 0) -> np.ndarray:
    """float32 rows that a label and a confounder move by so much, amid unit noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(columns.labels), width))
    for names, size in ((columns.labels, label), (columns.confounders, confounder)):
        directions = {name: rng.normal(size=width) for name in sorted(set(names))}
        x += size * np.stack([directions[name] for name in names])
    return x.astype(np.float32)


def metadata_columns(path: Path) -> Columns:
    with path.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    names = ("subset", "medical_center", "biological_class", "slide_id")
    return Columns(*([row[name] for row in rows] for name in names))
