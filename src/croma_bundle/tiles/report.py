"""What a cohort holds, to look at before it is trusted: a table of findings, and a montage of label × confounder."""

from __future__ import annotations

import io
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from croma_bundle.errors import some
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tiles.pixels import decode
from croma_bundle.tiles.spool import spooled
from croma_bundle.tiles.tileset import HashedTile

SIDE, SHOWN, MARGIN, LINE = 96, 3, 6, 14
"""Pixels of a picture, pictures of a cell, and the spaces between them."""
LARGEST = 12
"""Labels and confounder values that a montage shows; how many it leaves out stands at its foot."""
LONGEST = 22
"""Letters of a name in a montage."""


def findings(manifest: TileManifest, confounder: str, tiles: Sequence[HashedTile]) -> list[str]:
    """Sizes, modes, slides per cell, duplicates by pixels, and tiles that are nearly empty; a line each."""
    samples = manifest.column("sample_id")
    sizes, modes = Counter(t.size for t in tiles), Counter(f"{t.format} {t.mode}" for t in tiles)
    empty = [sample for sample, tile in zip(samples, tiles, strict=True) if tile.empty]
    lines = [f"sizes: {_counted(sizes)}", f"stored as: {_counted(modes)}", _groups(manifest, confounder)]
    lines += _duplicates(manifest, confounder, tiles)
    lines.append(f"nearly empty: {len(empty):,}" + (f" ({some(empty, 5)})" if empty else ""))
    return lines


def montage(manifest: TileManifest, confounder: str, paths: Sequence[Path], scratch: Path) -> bytes:
    """A PNG: a row per label, a column per confounder value, the first tiles of different groups in each cell.

    Rows of parquet files are read by way of the folder `scratch`.
    """
    labels, values = manifest.column("label"), manifest.column(confounder)
    cells: dict[tuple[str, str], dict[str, Path]] = defaultdict(dict)
    for label, value, group, path in zip(labels, values, manifest.column("group_id"), paths, strict=True):
        cells[label, value].setdefault(group, path)
    rows, columns = sorted(set(labels)), sorted(set(values))
    sheet = _sheet(rows, columns)
    shown = [
        (_corner(i, j), path, place)
        for j, label in enumerate(rows[:LARGEST])
        for i, value in enumerate(columns[:LARGEST])
        for place, path in enumerate(list(cells[label, value].values())[:SHOWN])
    ]
    with spooled([path for _, path, _ in shown], scratch) as tiles:
        for ((x, y), _, place), tile in zip(shown, tiles, strict=True):
            picture = Image.fromarray(decode(tile).rgb)
            picture.thumbnail((SIDE, SIDE))
            sheet.paste(picture, (x + place * (SIDE + 2), y + LINE))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()


def _sheet(rows: Sequence[str], columns: Sequence[str]) -> Image.Image:
    """The empty sheet with the names of its cells, and at its foot how many are left out."""
    sheet = Image.new("RGB", _corner(min(len(columns), LARGEST), min(len(rows), LARGEST), LINE), "white")
    draw = ImageDraw.Draw(sheet)
    for j, label in enumerate(rows[:LARGEST]):
        for i, value in enumerate(columns[:LARGEST]):
            draw.text(_corner(i, j), f"{_drawable(label)} | {_drawable(value)}", fill="black")
    more = [f"{len(n) - LARGEST} more {what}" for what, n in (("rows", rows), ("columns", columns)) if len(n) > LARGEST]
    draw.text((MARGIN, sheet.height - LINE), f"Not shown: {', '.join(more)}" if more else "", fill="black")
    return sheet


def _corner(column: int, row: int, foot: int = 0) -> tuple[int, int]:
    return MARGIN + column * (SHOWN * (SIDE + 2) + MARGIN), MARGIN + row * (SIDE + LINE + MARGIN) + foot


def _groups(manifest: TileManifest, confounder: str) -> str:
    columns = (manifest.column(name) for name in ("label", confounder, "group_id"))
    per_cell: dict[tuple[str, str], set[str]] = defaultdict(set)
    cells_of: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for label, value, group in zip(*columns, strict=True):
        per_cell[label, value].add(group)
        cells_of[group].add((label, value))
    counts = sorted(len(groups) for groups in per_cell.values())
    each = f"{counts[0]:,}" if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,}"
    several = sum(len(cells) > 1 for cells in cells_of.values())
    return f"groups: {len(cells_of):,}, {each} in each of {len(per_cell):,} cells; {several:,} of them in several cells"


def _duplicates(manifest: TileManifest, confounder: str, tiles: Sequence[HashedTile]) -> list[str]:
    """Tiles with the same pixels; in different cells or groups they are neighbours that say nothing."""
    alike: dict[bytes, list[int]] = defaultdict(list)
    for row, tile in enumerate(tiles):
        alike[tile.digest].append(row)
    sets = [rows for rows in alike.values() if len(rows) > 1]
    columns = [manifest.column(name) for name in ("label", confounder, "group_id")]
    apart = [rows for rows in sets if len({tuple(column[row] for column in columns) for row in rows}) > 1]
    line = f"same pixels: {sum(map(len, sets)):,} tiles in {len(sets):,} sets"
    if apart:
        first = some([manifest.column("sample_id")[row] for row in apart[0]], 3)
        line += f", {len(apart):,} of them across labels, {confounder} or groups ({first})"
    return [line]


def _counted(counts: Counter[str]) -> str:
    return some([f"{name} × {count:,}" for name, count in counts.most_common()], 6)


def _drawable(name: str) -> str:
    """What the built-in font can draw of a name, cut to its share of a cell."""
    plain = unicodedata.normalize("NFKD", name)
    seen = (
        "".join(letter for letter in plain if not unicodedata.combining(letter))
        .encode("ascii", "backslashreplace")
        .decode()
    )
    return seen if len(seen) <= LONGEST else f"{seen[: LONGEST - 2]}.."
