"""`tiles export-view`: a benchmark's rows as the evaluation CSV that the public croma pipeline reads."""

from __future__ import annotations

import re
from pathlib import Path

from croma_bundle.durable import write_bytes
from croma_bundle.errors import UsageError
from croma_bundle.layout import Volume
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.table import csv_text

NUMBER_LIKE = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.IGNORECASE | re.ASCII)
TRUTH_LIKE = {"true", "false"}
MISSING_LIKE = {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"}
MISSING_LIKE |= {"N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}


def export_view(
    volume: Volume,
    header: list[str],
    rows: list[tuple[str, ...]],
    image_paths: list[str],
    output: Path,
    reporter: Reporter,
) -> None:
    """Write `sample_id,image_path,label,<confounder>,group_id[,subset]`.

    That pipeline infers column types: a column of texts like numbers or truth values, or any text that pandas takes for
    missing, does not come out as it went in, which is warned about by column.
    """
    inside = output.resolve()
    if any(inside.is_relative_to((volume.root / name).resolve()) for name in ("tilesets", "embeddings", "metrics")):
        raise UsageError(f"--output {output}", "it lies among the volume's own files", wanted="a file elsewhere")
    columns = [header[0], "image_path", *header[1:]]
    body = [(row[0], path, *row[1:]) for row, path in zip(rows, image_paths, strict=True)]
    for i, name in enumerate(columns):
        values = {row[i] for row in body}
        present = values - MISSING_LIKE
        if present and all(NUMBER_LIKE.fullmatch(value) for value in present):
            reporter.warn(f"{name}: all values look like numbers, and the public pipeline reads them as such")
        if present and {value.lower() for value in present} <= TRUTH_LIKE:
            reporter.warn(f"{name}: all values look like truth values, and the public pipeline reads them as such")
        if absent := sorted(values & MISSING_LIKE):
            reporter.warn(f"{name}: the public pipeline takes {', '.join(map(repr, absent))} for missing")
    write_bytes(output, csv_text(columns, body).encode())
