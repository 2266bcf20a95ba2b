"""`verify tables`: are two folders of tables the same, numbers within a tolerance and everything else exactly?"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from croma_bundle.errors import InputError, VerdictFailed, some
from croma_bundle.progress import Reporter

MEASURED = re.compile(
    r"tau|bio_bacc|conf_bacc|ri|mari|delta|support|(ss|oo|mixed)_undefined|croma_.+|mean_rank|ltm10_rank|rank_(lo|hi)"
    r"|.+_croma_(median|ltm10)|win_rate_(median|ltm10)"
)
"""Columns of measured numbers, which may differ by the tolerance. All others are names, counts and choices."""
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

    A table that only `ours` has is a difference, unless the reference's `run.json` states it: a small reference may
    leave tables out.

    Raises:
        InputError: a folder is not there, the reference has no tables, or a table cannot be read.
        VerdictFailed: something differs; says what.
    """
    for folder in (ours, reference):
        if not folder.is_dir():
            raise InputError(str(folder), "there is no such folder of tables")
    names = sorted(_tables(reference))
    if not names:
        raise InputError(str(reference), "there is no table to compare with", wanted="*.csv or *.csv.gz")
    more = sorted(_tables(ours) - {*names, *_stated(reference)})
    cells, largest, differing = 0, 0.0, [f"{name}: only in {ours}" for name in more]
    for name in names:
        if not (ours / name).exists():
            differing.append(f"{name}: missing in {ours}")
            continue
        verdict = compare_tables(_read(ours / name), _read(reference / name), name, tolerance)
        cells, largest = cells + verdict.cells, max(largest, verdict.largest)
        differing += verdict.differing
    if differing:
        rest = [f"and {len(differing) - SHOWN} more"] if len(differing) > SHOWN else []
        count = "one difference" if len(differing) == 1 else f"{len(differing)} differences"
        raise VerdictFailed(
            f"{ours} against {reference}",
            f"{count} (numbers may differ by {tolerance:g})",
            detail="\n  ".join([*differing[:SHOWN], *rest]),
        )
    count = "one table" if len(names) == 1 else f"{len(names)} tables"
    text = f"equal: {count}, {cells:,} cells, numbers within {tolerance:g} (largest difference {largest:.2g})"
    reporter.result(text, "verdict", equal=True, tables=len(names), cells=cells, largest=largest)
    return Verdict(cells, largest, differing)


def _tables(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*.csv*") if p.name.endswith((".csv", ".csv.gz"))}


def _stated(folder: Path) -> set[str]:
    """The table files that the folder's `run.json` states; none where it has no such thing."""
    try:
        outputs = json.loads((folder / "run.json").read_bytes())["outputs"]
        return {name for output in outputs for name in (output, f"{output}.gz")}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return set()


def compare_tables(ours: list[list[str]], reference: list[list[str]], name: str, tolerance: float) -> Verdict:
    """Compare two tables of text, header first, every row as long as the header."""
    if shape := _other_shape(ours, reference, name):
        return Verdict(0, 0.0, shape)
    cells, largest, differing = 0, 0.0, list[str]()
    for number, (a, b) in enumerate(zip(ours[1:], reference[1:], strict=True), 1):
        for column, x, y in zip(reference[0], a, b, strict=True):
            if column in NOT_COMPARED:
                continue
            cells += 1
            gap = 0.0 if x == y else _gap(x, y) if MEASURED.fullmatch(column) else math.inf
            if gap <= tolerance:
                largest = max(largest, gap)
            else:
                differing.append(f"{name} row {number} ({_key(b)}), {column}: {x or 'empty'}, wanted {y or 'empty'}")
    return Verdict(cells, largest, differing)


def _other_shape(ours: list[list[str]], reference: list[list[str]], name: str) -> list[str]:
    """Why the two tables have no common cells to compare; empty where they have."""
    a, b = ours[0], reference[0]
    if a != b:
        reasons = [f"lacks {some([c for c in b if c not in a])}"] if set(b) - set(a) else []
        reasons += [f"has {some([c for c in a if c not in b])} too many"] if set(a) - set(b) else []
        return [f"{name}: other columns, {' and '.join(reasons) or 'in another order'}"]
    if len(ours) != len(reference):
        return [f"{name}: {len(ours) - 1:,} rows, wanted {len(reference) - 1:,}"]
    return []


def _gap(x: str, y: str) -> float:
    try:
        return abs(float(x) - float(y))
    except ValueError:
        return math.inf


def _key(row: Sequence[str]) -> str:
    return ", ".join(row[:2])


def _read(path: Path) -> list[list[str]]:
    """The rows of a table file, header first; raises `InputError` where it is damaged."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(str(path), "this table cannot be read", found=str(error)) from None
    return read_text(content, str(path))


def read_text(content: bytes, name: str) -> list[list[str]]:
    """The rows of a table, header first; raises `InputError` where it is damaged."""
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8"), newline=""), strict=True))
    except (ValueError, csv.Error) as error:
        raise InputError(name, "this table cannot be read", found=str(error)) from None
    if not rows:
        raise InputError(name, "this table is empty", wanted="a header")
    if ragged := [number for number, row in enumerate(rows) if len(row) != len(rows[0])]:
        raise InputError(name, f"row {some(ragged)} has not the {len(rows[0])} values of its header")
    return rows
