"""Reading CSV tables as text, strictly: `007` is not `7`, `NA` is a name, and every fault is told with its line.

Only the standard library, so that any step can read a manifest in milliseconds.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from croma_bundle.errors import TileManifestError, did_you_mean

SHOWN = 8
"""Faults listed of a table before the rest is only counted."""


@dataclass(frozen=True)
class Table:
    """A CSV file as text: `header`, `rows` (stripped), and the file line on which each row ends."""

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def column(self, name: str) -> list[str]:
        index = self.header.index(name)
        return [row[index] for row in self.rows]


def read_table(path: Path, required: Sequence[str]) -> Table:
    """Read a comma-separated UTF-8 file with a header (BOM and CRLF are fine).

    Raises:
        TileManifestError: not UTF-8, another delimiter, missing or duplicate header names, ragged rows, NUL or newline
            in a value, no rows; each with the line, several together.
    """
    text = _text(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = tuple(name.strip() for name in next(reader, []))
        _check_header(path, header, required, text)
        rows, lines, faults = [], [], []
        quoted = '"' in text  # only what is quoted can hold a newline
        for raw in reader:
            if not raw:
                continue
            line = reader.line_num
            if len(raw) != len(header):
                faults.append(f"line {line}: {len(raw)} values under {len(header)} column names")
            elif quoted and (bad := [c for c, v in zip(header, raw, strict=True) if "\n" in v or "\r" in v]):
                faults.append(f"line {line}: a newline inside {bad[0]}")
            else:
                rows.append(tuple(map(str.strip, raw)))
                lines.append(line)
    except csv.Error as error:
        raise TileManifestError(str(path), f"line {reader.line_num}: this is not CSV ({error})") from None
    raise_faults(path, faults)
    if not rows:
        raise TileManifestError(str(path), "it has a header and no rows")
    return Table(path, header, tuple(rows), tuple(lines))


def raise_faults(path: Path, faults: Sequence[str]) -> None:
    """Raise one `TileManifestError` that lists the first faults and counts the rest; none, and it returns."""
    if faults:
        more = [f"and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
        count = "one fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise TileManifestError(str(path), count, detail="\n  ".join([*faults[:SHOWN], *more]))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The table as UTF-8 CSV text with ``\\n`` line ends; floats by repr, None and NaN as empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([value if type(value) is str else _cell(value) for value in row] for row in rows)
    return buffer.getvalue()


def _cell(value: object) -> object:
    if type(value) is float:
        return value if value == value else ""  # the writer writes a float by repr
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(float(value)) if isinstance(value, float) else value


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TileManifestError(str(path), f"it cannot be read ({error.strerror})") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        wanted = "UTF-8 text"
        raise TileManifestError(str(path), f"line {line}: this is not UTF-8", wanted=wanted) from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise TileManifestError(str(path), f"line {line}: a NUL character")
    return text


def _check_header(path: Path, header: tuple[str, ...], required: Sequence[str], text: str) -> None:
    found = ",".join(header) or "an empty file"
    missing = [name for name in required if name not in header]
    if missing and len(header) == 1:
        others = {";": "semicolon", "\t": "tab", "|": "bar"}
        for mark, word in others.items():
            if mark in header[0]:
                raise TileManifestError(
                    str(path), f"delimiter? It looks {word}-separated", wanted="commas", found=found
                )
    faults = [f"column {name!r} is missing{did_you_mean(name, header)}" for name in missing]
    faults += [f"column {name!r} stands twice in the header" for name in sorted(set(header)) if header.count(name) > 1]
    faults += [f"a newline inside the column name {name!r}" for name in header if "\n" in name or "\r" in name]
    faults += [f"column {i} has no name" for i, name in enumerate(header, 1) if not name] if header else []
    if faults:
        raise TileManifestError(str(path), "; ".join(faults), wanted=",".join(required), found=found)
