"""A cohort's CSV from what is there: a folder tree whose paths say everything, or parquet files."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from croma_bundle.durable import write_bytes
from croma_bundle.errors import InputError, TileManifestError, UsageError, some
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.table import csv_text
from croma_bundle.tiles.parquet import column_names, image_column, text_columns

WORDS = {
    "class": "label",
    "centre": "medical_center",
    "center": "medical_center",
    "slide": "group_id",
    "case": "group_id",
    "patient": "group_id",
}
"""What the words of a pattern are called in a manifest; any other word is a column of its own name."""
KNOWN_AS = {"label": ("label", "biological_class"), "group_id": ("group_id", "slide_id")}
"""Where a manifest's columns may stand in a parquet file, the first that is there."""
IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")


@contextlib.contextmanager
def as_csv(
    csv: Path | None,
    folder: Path | None,
    pattern: str,
    parquet: Sequence[Path],
    columns: Sequence[str],
    reporter: Reporter,
) -> Iterator[tuple[Path, Path | None]]:
    """The cohort's CSV and the folder that its paths start from (None: the CSV's own), whichever way it was given.

    Raises:
        UsageError: it was given in no way, or in several. InputError, TileManifestError: nothing usable is there.
    """
    if sum((csv is not None, folder is not None, bool(parquet))) != 1:
        wanted = "one of --manifest CSV, --folder DIR, --parquet FILE"
        raise UsageError("tiles add", "where are the tiles?", wanted=wanted, then="croma-bundle tiles add --help")
    if csv is not None:
        yield csv, None
        return
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "found.csv"
        if folder is None:
            yield output, write_parquet_csv(parquet, _named(columns), output)
            return
        if not folder.is_dir():
            raise InputError(f"--folder {folder}", "there is no such folder")
        write_tree_csv(folder, pattern, output, reporter)
        yield output, folder


def _named(columns: Sequence[str]) -> dict[str, str]:
    pairs = [column.partition("=") for column in columns]
    for name, _, value in pairs:
        if name not in ("label", "group_id", "sample_id") or not value:
            raise UsageError(f"--column {name}", "it is not understood", wanted="label=, group_id= or sample_id=NAME")
    return {name: value for name, _, value in pairs}


def write_tree_csv(folder: Path, pattern: str, output: Path, reporter: Reporter) -> None:
    """Write the manifest of the files below `folder` that match, e.g. `<class>/<centre>/<slide>/*.png`.

    A word in angle brackets is one part of a path, `*` any text of one part. The sample id is the path without its
    extension; rows are in the order of the paths.

    Raises:
        UsageError: the pattern names no class or no slide, or a column twice. InputError: no file matches.
    """
    expression, columns = _compiled(pattern)
    files, linked = _files_below(folder)
    matches = [(file, found) for file in files if (found := expression.fullmatch(file))]
    if linked:
        reporter.warn(f"{len(linked):,} folders are links, which are not followed: {some(linked, 3)}")
    if not matches:
        seen = some(files, 3) or "no file"
        raise InputError(f"--folder {folder}", "no file below it matches", wanted=pattern, found=seen)
    inside = {file for file, _ in matches}
    if others := [file for file in files if file not in inside and file.lower().endswith(IMAGES)]:
        reporter.warn(f"{len(others):,} images do not match the pattern and are left out: {some(others, 3)}")
    rows = [(file.rpartition(".")[0] or file, file, *found.groups()) for file, found in matches]
    write_bytes(output, csv_text(("sample_id", "image_path", *columns), rows).encode())


def _files_below(folder: Path) -> tuple[list[str], list[str]]:
    """The files below a folder, links that lead nowhere among them, and the folders that are links; sorted.

    A link may lead out of the folder, which is all that a container sees.

    Raises:
        InputError: a folder below it cannot be read: its tiles would be missing without a word.
    """
    files, linked = [], []
    for base, folders, names in os.walk(folder, onerror=_unreadable):
        below = Path(base).relative_to(folder)
        linked += [(below / name).as_posix() for name in folders if (folder / below / name).is_symlink()]
        files += [(below / name).as_posix() for name in names]
    return sorted(files), sorted(linked)


def _unreadable(error: OSError) -> None:
    raise InputError(f"--folder {error.filename}", f"it cannot be read ({error.strerror})")


def _compiled(pattern: str) -> tuple[re.Pattern[str], list[str]]:
    parts = re.split(r"(<[^<>/]+>|\*)", pattern.strip("/"))
    words = [part[1:-1] for part in parts if part.startswith("<")]
    columns = [WORDS.get(word, word) for word in words]
    twice = sorted({column for column in columns if columns.count(column) > 1})
    missing = [name for name in ("label", "group_id") if name not in columns]
    if twice or missing:
        problem = f"it names {', '.join(twice)} twice" if twice else f"it says of no part that it is the {missing[0]}"
        raise UsageError(f"--pattern {pattern}", problem, wanted="for instance <class>/<centre>/<slide>/*.png")
    text = "".join("([^/]+)" if p.startswith("<") else "[^/]*" if p == "*" else re.escape(p) for p in parts)
    return re.compile(text), columns


def write_parquet_csv(files: Sequence[Path], named: Mapping[str, str], output: Path) -> Path:
    """Write the manifest of all rows of parquet files that lie in one folder, which is returned.

    Every column but the images' is one of the manifest; `named` says where label, group_id or sample_id stand. Without
    a sample_id it is `<slide_id>__<patch_id>`, or file and row.

    Raises:
        UsageError: the files lie in several folders. TileManifestError: a column is missing.
    """
    root = files[0].resolve().parent
    if any(file.resolve().parent != root for file in files):
        raise UsageError("--parquet", "the files lie in several folders", wanted="files of one folder")
    header: list[str] = []
    rows: list[tuple[str, ...]] = []
    for file in files:
        columns = _columns(file, named)
        header = header or list(columns)
        if list(columns) != header:
            raise TileManifestError(str(file), "its columns are not those of the first file", wanted=", ".join(header))
        rows += zip(*columns.values(), strict=True)
    write_bytes(output, csv_text(header, rows).encode())
    return root


def _columns(file: Path, named: Mapping[str, str]) -> dict[str, list[str]]:
    image, names = image_column(file), column_names(file)
    source = {name: named.get(name) or _known(name, names) for name in ("label", "group_id")}
    if missing := [name for name, column in source.items() if column not in names]:
        wanted = ", ".join(f"--column {name}=…" for name in missing)
        raise TileManifestError(str(file), f"which column is the {missing[0]}?", wanted=wanted, found=", ".join(names))
    own = named.get("sample_id", "sample_id")
    others = [n for n in names if n not in (image, own, *source.values(), "image_path", "label", "group_id")]
    texts = [name for name in names if name != image]
    text = dict(zip(texts, text_columns(file, texts), strict=True))
    count = len(text[str(source["label"])])
    if own in text:
        samples = text[own]
    elif {"slide_id", "patch_id"} <= text.keys():
        samples = [f"{slide}__{patch}" for slide, patch in zip(text["slide_id"], text["patch_id"], strict=True)]
    else:
        samples = [f"{file.stem}__{row}" for row in range(count)]
    paths = [f"{file.name}#{row}" for row in range(count)]
    columns = {"sample_id": samples, "image_path": paths}
    columns |= {name: text[str(column)] for name, column in source.items()}
    return columns | {name: text[name] for name in others}


def _known(name: str, names: Sequence[str]) -> str | None:
    return next((known for known in KNOWN_AS[name] if known in names), None)
