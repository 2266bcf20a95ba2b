"""A tileset's rows from a metadata table, joined with where each tile lies, on (slide_id, patch_id) as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from croma_bundle.tilemanifest.manifest import TileManifest, once_each
from croma_bundle.tilemanifest.table import Table, raise_faults, read_table

METADATA = ("subset", "slide_id", "patch_id", "biological_class", "medical_center")
COLUMNS = ("sample_id", "image_path", "label", "medical_center", "group_id", "subset")
Key = tuple[str, str]
"""Slide and patch; a patch id alone is not unique."""


def read_metadata(path: Path) -> Table:
    """A metadata table of PathoROB; raises `TileManifestError` with every fault."""
    table = read_table(path, METADATA)
    faults = []
    for name in METADATA:
        blank = [line for value, line in zip(table.column(name), table.lines, strict=True) if not value]
        faults += [f"line {line}: {name} is blank" for line in blank]
    raise_faults(path, faults)
    return table


def keys_of(table: Table) -> list[Key]:
    return list(zip(table.column("slide_id"), table.column("patch_id"), strict=True))


def part_suffixes(files: Sequence[str]) -> dict[str, str]:
    """What the sample ids of each parquet file end in: nothing where there is one file, else the file's path.

    As the public pipeline has it, so that results can be compared row by row: `data/train-00000-of-00003.parquet` gives
    `__data_train-00000-of-00003`.
    """
    if len(files) == 1:
        return {files[0]: ""}
    bare = {file: file.removesuffix(".parquet") for file in files}
    return {file: "__" + re.sub(r"[^A-Za-z0-9_.-]+", "_", path).strip("_") for file, path in bare.items()}


def joined(
    table: Table,
    where: Mapping[Key, tuple[str, int]],
    suffixes: Mapping[str, str],
    samples: Mapping[str, Table],
    *,
    paired: bool,
) -> tuple[TileManifest, list[tuple[str, str]]]:
    """The manifest in the order of `table`, and the occurrences (sample_id, subset) of a paired one.

    Args:
        where: parquet file and row of every tile there is.
        suffixes: what the sample ids of each parquet file end in.
        samples: tables that hold some of the rows, by the column that says so ("yes" or "no").

        paired: a row stands once in each of its subsets: it is one tile with several occurrences, and `subset` is no
            column then. Else it may stand once only.

    Raises:
        TileManifestError: rows without a tile, that stand twice or contradict each other, or a sample's that the table
            has not.
    """
    keys = keys_of(table)
    if not paired:
        raise_faults(table.path, _twice(keys, table.lines))
    raise_faults(
        table.path, [f"line {line}: {_name(key)} is in no parquet file" for key, line in _absent(table, where)]
    )
    inside = {column: _members(sample, set(keys)) for column, sample in samples.items()}
    rows = [
        _row(key, *where[key], suffixes, facts) + tuple("yes" if key in inside[c] else "no" for c in inside)
        for key, facts in zip(keys, _facts(table), strict=True)
    ]
    header = (*COLUMNS, *inside)
    if not paired:
        return TileManifest(header, tuple(rows)), []
    tiles, occurrences, faults = once_each(Table(table.path, header, tuple(rows), table.lines))
    raise_faults(table.path, faults)
    subset = header.index("subset")
    cut = tuple(row[:subset] + row[subset + 1 :] for row in tiles)
    return TileManifest(header[:subset] + header[subset + 1 :], cut), occurrences


def _twice(keys: Sequence[Key], lines: Sequence[int]) -> list[str]:
    first: dict[Key, int] = {}
    pairs = zip(keys, lines, strict=True)
    return [
        f"line {line}: {_name(key)} stands there a second time"
        for key, line in pairs
        if first.setdefault(key, line) != line
    ]


def _facts(table: Table) -> list[tuple[str, str, str]]:
    return list(zip(*(table.column(n) for n in ("biological_class", "medical_center", "subset")), strict=True))


def _row(key: Key, file: str, row: int, suffixes: Mapping[str, str], facts: tuple[str, str, str]) -> tuple[str, ...]:
    label, center, subset = facts
    return (f"{key[0]}__{key[1]}{suffixes[file]}", f"source/{file}#{row}", label, center, key[0], subset)


def _absent(table: Table, where: Mapping[Key, tuple[str, int]]) -> list[tuple[Key, int]]:
    return [(key, line) for key, line in zip(keys_of(table), table.lines, strict=True) if key not in where]


def _members(sample: Table, known: set[Key]) -> set[Key]:
    lines = list(zip(keys_of(sample), sample.lines, strict=True))
    raise_faults(
        sample.path, [f"line {n}: {_name(key)} is no row of the tileset" for key, n in lines if key not in known]
    )
    return {key for key, _ in lines}


def _name(key: Key) -> str:
    return f"slide {key[0]!r}, patch {key[1]!r}"
