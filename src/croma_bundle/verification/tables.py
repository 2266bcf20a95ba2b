"""`verify tables`: are two folders of tables the same, numbers within a tolerance and everything else exactly?"""

from __future__ import annotations

import csv
import gzip
import io
import math
from dataclasses import dataclass
from pathlib import Path

from croma_bundle.errors import InputError, VerdictFailed
from croma_bundle.progress import Reporter

EXACT = {"k", "m", "k_panel", "n_units", "batch_size", "row"}
"""Numeric columns that must be equal: they are counts and choices."""
NOT_COMPARED = {"matrix_sha256"}
"""Another CPU gives other last bits, and so another hash."""
SHOWN = 10


@dataclass(frozen=True)
class Verdict:
    """Cells compared, the largest difference of a number, and what is not the same (file, row, column, both values)."""

    cells: int
    largest: float
    differing: list[str]


def compare_folders(ours: Path, reference: Path, tolerance: float, reporter: Reporter) -> Verdict:
    """Compare every `.csv` and `.csv.gz` of `reference` with its namesake in `ours`.

    Raises:
        InputError: the reference has no tables. VerdictFailed: something differs; says what.
    """
    names = sorted(
        str(p.relative_to(reference)) for p in reference.rglob("*.csv*") if p.name.endswith((".csv", ".csv.gz"))
    )
    if not names:
        raise InputError(str(reference), "there is no table to compare with", wanted="*.csv or *.csv.gz")
    cells, largest, differing = 0, 0.0, list[str]()
    for name in names:
        if not (ours / name).exists():
            differing.append(f"{name}: missing in {ours}")
            continue
        verdict = compare_tables(_read(ours / name), _read(reference / name), name, tolerance)
        cells, largest = cells + verdict.cells, max(largest, verdict.largest)
        differing += verdict.differing
    if differing:
        more = [f"and {len(differing) - SHOWN} more"] if len(differing) > SHOWN else []
        raise VerdictFailed(
            f"{ours} against {reference}",
            f"{len(differing)} differences beyond {tolerance:g}",
            detail="\n  ".join([*differing[:SHOWN], *more]),
        )
    text = (
        f"equal: {len(names)} tables, {cells:,} cells, numbers within {tolerance:g} (largest difference {largest:.2g})"
    )
    reporter.result(text, "verdict", equal=True, tables=len(names), cells=cells, largest=largest)
    return Verdict(cells, largest, differing)


def compare_tables(ours: list[list[str]], reference: list[list[str]], name: str, tolerance: float) -> Verdict:
    """Compare two tables of text, header first."""
    if ours[:1] != reference[:1] or len(ours) != len(reference):
        what = f"{name}: {len(ours) - 1} rows of {ours[:1]}, wanted {len(reference) - 1} of {reference[:1]}"
        return Verdict(0, 0.0, [what])
    cells, largest, differing = 0, 0.0, list[str]()
    header = reference[0]
    for number, (a, b) in enumerate(zip(ours[1:], reference[1:], strict=True), 1):
        for column, x, y in zip(header, a, b, strict=True):
            if column in NOT_COMPARED:
                continue
            cells += 1
            gap = 0.0 if x == y else math.inf if column in EXACT else _gap(x, y)
            largest = max(largest, gap if gap <= tolerance else 0.0)
            if not gap <= tolerance:
                differing.append(f"{name} row {number} ({_key(b)}), {column}: {x or 'empty'}, wanted {y or 'empty'}")
    return Verdict(cells, largest, differing)


def _gap(x: str, y: str) -> float:
    try:
        return abs(float(x) - float(y))
    except ValueError:
        return math.inf


def _key(row: list[str]) -> str:
    return ", ".join(row[:2])


def _read(path: Path) -> list[list[str]]:
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    return list(csv.reader(io.StringIO(content.decode("utf-8"), newline="")))
