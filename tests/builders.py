"""Small cohorts for tests: image folders with their CSV, and embeddings of known geometry."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

COLUMNS = ("sample_id", "image_path", "label", "medical_center", "group_id")


@dataclass(frozen=True)
class FolderCohort:
    """A CSV with its image folder; `rows` are the CSV's rows in order."""

    csv: Path
    root: Path
    rows: list[dict[str, str]]


def cohort_rows(
    labels: Sequence[str] = ("normal", "tumour"),
    centres: Sequence[str] = ("east", "west"),
    slides: int = 2,
    tiles: int = 3,
) -> list[dict[str, str]]:
    """Rows of a balanced cohort: every slide lies in one cell of label and centre."""
    rows = []
    for label in labels:
        for centre in centres:
            for slide in range(slides):
                for tile in range(tiles):
                    group = f"{label}-{centre}-{slide}"
                    sample = f"{group}-{tile}"
                    rows.append(dict(zip(COLUMNS, (sample, f"{sample}.png", label, centre, group), strict=True)))
    return rows


def write_csv(path: Path, rows: Sequence[dict[str, str]], columns: Sequence[str] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, columns or list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def folder_cohort(folder: Path, *, size: int = 48, seed: int = 0, **shape: int) -> FolderCohort:
    """Write a cohort of random RGB tiles as PNG files and its CSV `cohort.csv` into `folder`."""
    rows = cohort_rows(**shape)  # type: ignore[arg-type]
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        rgb = generator.integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(rgb).save(folder / row["image_path"])
    return FolderCohort(write_csv(folder / "cohort.csv", rows), folder, rows)
