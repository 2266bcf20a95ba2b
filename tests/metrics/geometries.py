"""Named synthetic cohorts, so that tests read as claims. No numbers are taken from the code under test."""

from __future__ import annotations

import math

import numpy as np

from croma_bundle.metrics.cohort import Cohort

QUADRANT_ANGLES = {"ax": 0, "ay": 60, "bx": 90, "by": 150}
"""One row per cell (label a or b, confounder x or y), on the unit circle, in degrees.

Cosine distance of two rows is 1 − cos of the angle between them: 30° 0.134, 60° 0.5, 90° 1, 150° 1.866. So:

    row   nearest first
    ax    ay SO 0.5    bx OS 1     by OO 1.866
    ay    bx OO 0.134  ax SO 0.5   by OS 1
    bx    ay OO 0.134  by SO 0.5   ax OS 1
    by    bx SO 0.5    ay OS 1     ax OO 1.866

Every row has its nearest SO at 0.5 and its nearest OS at 1: CRoMa at m = 1 is (1 − 0.5) / (1 + 0.5) = 1/3.
"""


def on_circle(degrees):
    radians = np.deg2rad(np.asarray(degrees, dtype=np.float64))
    return np.column_stack([np.cos(radians), np.sin(radians)])


def quadrant():
    """The four rows above, each its own group."""
    x = on_circle(list(QUADRANT_ANGLES.values()))
    return x, Cohort.from_columns(list("aabb"), list("xyxy"), list("1234"), name="quadrant")


def two_subsets():
    """Subset A is the quadrant. Subset S is the quadrant with label and confounder exchanged (SO and OS change places),
    every row twice, the twins in one group (so never each other's candidates)."""
    angles = list(QUADRANT_ANGLES.values())
    x = on_circle(angles + [angle for angle in angles for _ in range(2)])
    cohort = Cohort.from_columns(
        labels=[*"aabb", *"xxyyxxyy"],
        confounders=[*"xyxy", *"aaaabbbb"],
        groups=[*"1234", *"55667788"],
        subsets=["A"] * 4 + ["S"] * 8,
        design="paired_2x2",
        name="two subsets",
    )
    return x, cohort


def _cells(biology, confounder, rows_per_cell, rows_per_group, jitter, width, seed):
    """Label a or b moves a row along one axis, confounder x or y along another; jitter in all ``width`` axes."""
    rng = np.random.default_rng(seed)
    labels, confounders, groups, rows = [], [], [], []
    for label, along in (("a", -1), ("b", 1)):
        for value, across in (("x", -1), ("y", 1)):
            for i in range(rows_per_cell):
                row = jitter * rng.standard_normal(width)
                row[:3] += [2.0, biology * along, confounder * across]
                rows.append(row)
                labels.append(label)
                confounders.append(value)
                groups.append(f"{label}{value}{i // rows_per_group}")
    return np.array(rows), Cohort.from_columns(labels, confounders, groups)


def biology_dominant(rows_per_cell=6, rows_per_group=2, jitter=0.05, width=8, seed=1):
    """Rows of one label are near each other whatever the confounder: every margin is positive."""
    return _cells(2.0, 0.4, rows_per_cell, rows_per_group, jitter, width, seed)


def contested(rows_per_cell=6, rows_per_group=2, jitter=0.4, width=8, seed=2):
    """Label and confounder pull equally."""
    return _cells(1.0, 1.0, rows_per_cell, rows_per_group, jitter, width, seed)


def confounder_dominant(rows_per_cell=6, rows_per_group=2, jitter=0.05, width=8, seed=3):
    """Rows of one confounder value are near each other whatever the label: every margin is negative."""
    return _cells(0.4, 2.0, rows_per_cell, rows_per_group, jitter, width, seed)


def scrambled(n=90, n_labels=3, n_confounders=3, n_groups=30, width=16, seed=4):
    """No structure at all, groups that span labels and confounders: for brute force."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, width))
    columns = [[str(code) for code in rng.integers(0, size, n)] for size in (n_labels, n_confounders, n_groups)]
    return x, Cohort.from_columns(*columns)


def permuted(x, cohort, order):
    """The same manifest with its rows in another order."""
    columns = [
        [names[code] for code in codes[order]]
        for names, codes in (
            (cohort.label_names, cohort.labels),
            (cohort.confounder_names, cohort.confounders),
            (cohort.group_names, cohort.groups),
        )
    ]
    subsets = None
    if cohort.design == "paired_2x2":
        of_row = {int(row): scope.name for scope in cohort.scopes for row in scope.rows}
        subsets = [of_row[int(row)] for row in order]
    return x[order], Cohort.from_columns(*columns, subsets=subsets, design=cohort.design, name=cohort.name)


def cosine_distance(a, b):
    """By the textbook, in exactly rounded sums: 1 − a·b / (‖a‖‖b‖)."""
    dot = math.fsum(p * q for p, q in zip(a, b, strict=True))
    lengths = math.sqrt(math.fsum(p * p for p in a)) * math.sqrt(math.fsum(q * q for q in b))
    return 1.0 - dot / lengths
