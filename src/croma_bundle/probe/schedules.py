"""Schedules: how a probe's training rows walk from balanced to fully confounded.

The published ones (PathoROB, arXiv:2507.17845; PCaBiop: croma 1.0.1) are literal tables, under the name of the tileset
they are for. The order of confounders and labels is fixed, not sorted: cells are visited in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from croma_bundle.probe.reduce import cramers_v

Steps = tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True)
class Schedule:
    """Training pseudo-slides of every cell at every split.

    Attributes:
        confounders, labels: the names of the cells' rows and columns.
        steps: [split][confounder][label] pseudo-slides; split 0 is balanced.
        max_slides: the most that a cell gives at any split; test rows begin behind it, at the same row at every split.
        rows_per_slide: consecutive rows of a cell that make one pseudo-slide.
        validation_fraction: validation rows per training row of a cell; None: 1 / max_slides, rounded down.
        by_case: a group holds several labels, so each replicate draws the groups it tests on.
    """

    confounders: tuple[str, ...]
    labels: tuple[str, ...]
    steps: Steps
    max_slides: int
    rows_per_slide: int
    validation_fraction: float | None = None
    by_case: bool = False

    @property
    def cells(self) -> list[tuple[int, int]]:
        """(confounder, label) of every cell, confounder-major."""
        return [(i, j) for i in range(len(self.confounders)) for j in range(len(self.labels))]

    @property
    def chance(self) -> float:
        return 1 / len(self.labels)

    @property
    def reserved(self) -> int:
        """Pseudo-slides of a cell in front of its test rows."""
        held = round(self.validation_fraction * self.max_slides) if self.validation_fraction is not None else 0
        return self.max_slides + held + 1

    def train_rows(self, split: int, cell: tuple[int, int]) -> int:
        return self.steps[split][cell[0]][cell[1]] * self.rows_per_slide

    def validation_rows(self, split: int, cell: tuple[int, int]) -> int:
        rows = self.train_rows(split, cell)
        if self.validation_fraction is None:
            return int(rows / self.max_slides)
        return round(self.validation_fraction * rows)

    def v(self) -> list[float]:
        """Cramér's V of the training rows at every split."""
        return [cramers_v(np.array(step)) for step in self.steps]

    def faults(self) -> list[str]:
        """What makes this no schedule, whatever the cohort."""
        shape = (len(self.confounders), len(self.labels))
        if min(shape) < 2 or len(set(self.confounders)) < shape[0] or len(set(self.labels)) < shape[1]:
            return ["it needs two or more confounders and two or more labels, each named once"]
        if len(self.steps) < 2:
            return [f"it needs the balanced split and one more, found {len(self.steps)}"]
        tables = [f"split {s}: wanted {shape[0]} rows (confounders) of {shape[1]} (labels)" for s in self._misshapen()]
        return tables or [*self._cell_faults(), *self._split_faults()]

    def _misshapen(self) -> list[int]:
        width = len(self.labels)
        return [
            s for s, t in enumerate(self.steps) if len(t) != len(self.confounders) or {len(r) for r in t} != {width}
        ]

    def _cell_faults(self) -> list[str]:
        return [
            f"split {s}, {self.name(cell)}: {count} pseudo-slides, wanted 0 to max_slides ({self.max_slides})"
            for s, step in enumerate(self.steps)
            for cell in self.cells
            if not 0 <= (count := step[cell[0]][cell[1]]) <= self.max_slides
        ]

    def _split_faults(self) -> list[str]:
        faults = []
        for split, step in enumerate(self.steps):
            table = np.array(step)
            for names, axis in ((self.confounders, 1), (self.labels, 0)):
                none = [name for name, total in zip(names, table.sum(axis=axis), strict=True) if total <= 0]
                faults += [f"split {split}: no training rows of {name}" for name in none]
            if not sum(self.validation_rows(split, cell) for cell in self.cells):
                faults.append(f"split {split}: no validation rows; a validation_fraction makes some")
        return faults or self._v_faults()

    def _v_faults(self) -> list[str]:
        v = self.v()
        if np.isclose(v[0], 0) and np.isclose(v[-1], 1) and bool((np.diff(v) > 0).all()):
            return []
        return [f"Cramér's V must rise strictly from 0 to 1, found {', '.join(f'{x:.4f}' for x in v)}"]

    def name(self, cell: tuple[int, int]) -> str:
        """The cell as the user knows it."""
        return f"{self.confounders[cell[0]]} · {self.labels[cell[1]]}"


CAMELYON = Schedule(
    confounders=("RUMC", "UMCU"),
    labels=("normal", "tumor"),
    steps=(
        ((7, 7), (7, 7)),
        ((6, 8), (8, 6)),
        ((5, 9), (9, 5)),
        ((4, 10), (10, 4)),
        ((3, 11), (11, 3)),
        ((2, 12), (12, 2)),
        ((1, 13), (13, 1)),
        ((0, 14), (14, 0)),
    ),
    max_slides=14,
    rows_per_slide=300,
)
TCGA_4X4 = Schedule(
    confounders=("Asterand", "Christiana Healthcare", "Roswell Park", "University of Pittsburgh"),
    labels=(
        "Breast_invasive_carcinoma",
        "Colon_adenocarcinoma",
        "Lung_adenocarcinoma",
        "Lung_squamous_cell_carcinoma",
    ),
    steps=(
        ((2, 2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 2)),
        ((3, 2, 2, 1), (2, 3, 1, 2), (2, 1, 3, 2), (1, 2, 2, 3)),
        ((4, 1, 1, 2), (1, 4, 2, 1), (1, 2, 4, 1), (2, 1, 1, 4)),
        ((5, 1, 1, 1), (1, 5, 1, 1), (1, 1, 5, 1), (1, 1, 1, 5)),
        ((6, 1, 1, 0), (1, 6, 0, 1), (1, 0, 6, 1), (0, 1, 1, 6)),
        ((7, 0, 0, 1), (0, 7, 1, 0), (0, 1, 7, 0), (1, 0, 0, 7)),
        ((8, 0, 0, 0), (0, 8, 0, 0), (0, 0, 8, 0), (0, 0, 0, 8)),
    ),
    max_slides=8,
    rows_per_slide=30,
)
TOLKACH_ESCA = Schedule(
    confounders=("VALSET2_WNS", "VALSET4_CHA_FULL"),
    labels=("TUMOR", "MUSC_PROP", "SH_OES", "SH_MAG", "REGR_TU", "ADVENT"),
    steps=(
        ((3, 3, 3, 3, 3, 3), (3, 3, 3, 3, 3, 3)),
        ((2, 2, 2, 4, 4, 4), (4, 4, 4, 2, 2, 2)),
        ((1, 1, 1, 5, 5, 5), (5, 5, 5, 1, 1, 1)),
        ((0, 0, 0, 6, 6, 6), (6, 6, 6, 0, 0, 0)),
    ),
    max_slides=6,
    rows_per_slide=100,
    by_case=True,
)
PCABIOP = Schedule(
    confounders=("radboud", "karolinska"),
    labels=("benign", "cancer"),
    steps=(
        ((100, 100), (100, 100)),
        ((90, 110), (110, 90)),
        ((80, 120), (120, 80)),
        ((70, 130), (130, 70)),
        ((60, 140), (140, 60)),
        ((50, 150), (150, 50)),
        ((40, 160), (160, 40)),
        ((30, 170), (170, 30)),
        ((20, 180), (180, 20)),
        ((10, 190), (190, 10)),
        ((0, 200), (200, 0)),
    ),
    max_slides=200,
    rows_per_slide=1,
    validation_fraction=0.1,
)
SCHEDULES: Mapping[str, Schedule] = {
    "camelyon": CAMELYON,
    "tcga-4x4": TCGA_4X4,
    "tolkach-esca": TOLKACH_ESCA,
    "pcabiop": PCABIOP,
}
