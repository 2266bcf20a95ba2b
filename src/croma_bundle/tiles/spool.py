"""Encoded images of parquet rows, written one after another to a scratch file before they are asked for in any order.

A row group is read whole or not at all. In the order of a manifest, and by every worker, it would be read over and
over. So the parent reads each once, and workers read the bytes of one image.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from croma_bundle.errors import BundleError
from croma_bundle.tiles.parquet import images_of, parquet_reference

WINDOW = 4 << 30
"""Bytes of images in one scratch file; there are two at most."""


@dataclass(frozen=True)
class Slice:
    """The encoded image of the tile `path`: bytes of a scratch file."""

    path: Path
    file: Path
    start: int
    length: int

    def __str__(self) -> str:
        return str(self.path)

    def content(self) -> bytes:
        with self.file.open("rb") as handle:
            handle.seek(self.start)
            return handle.read(self.length)


@contextlib.contextmanager
def spooled(paths: Sequence[Path], folder: Path, window: int = WINDOW) -> Iterator[Iterator[Path | Slice]]:
    """In the order of `paths`: a file as it is, a row of a parquet file as a slice of a scratch file in `folder`.

    The scratch files are removed at the end, and by `sweep_temporaries` where a run was killed. A slice lasts until the
    slices of the next window but one are asked for. A row that cannot be read stays the path it is: decoding tells why.
    """
    files = [folder / f".images-{number}.tmp" for number in (0, 1)]
    try:
        yield _slices(paths, files, window)
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _slices(paths: Sequence[Path], files: Sequence[Path], window: int) -> Iterator[Path | Slice]:
    for number, part in enumerate(_windows(paths, window)):
        yield from _written(part, files[number % 2])


def _windows(paths: Sequence[Path], window: int) -> Iterator[Sequence[Path]]:
    """The paths in parts of about `window` bytes of images, by the mean size of an image of their row groups."""
    first, size = 0, 0.0
    for i, path in enumerate(paths):
        place = _place(path)
        more = images_of(place[0]).mean_size(place[1]) if place else 0.0
        if i > first and size + more > window:
            yield paths[first:i]
            first, size = i, 0.0
        size += more
    yield paths[first:]


def _written(paths: Sequence[Path], file: Path) -> list[Path | Slice]:
    """The paths, rows of parquet files replaced by slices of `file`."""
    found: list[Path | Slice] = list(paths)
    places = sorted((*place, i) for i, path in enumerate(paths) if (place := _place(path)))
    if not places:
        return found
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as handle:
        for (parquet, group), members in itertools.groupby(places, key=lambda place: place[:2]):
            rows = [(row, i) for _, _, row, i in members]
            with contextlib.suppress(BundleError):
                images = images_of(parquet).of_group(group, [row for row, _ in rows])
                for (_, i), image in zip(rows, images, strict=True):
                    found[i] = Slice(paths[i], file, handle.tell(), len(image))
                    handle.write(image)
    return found


def _place(path: Path) -> tuple[Path, int, int] | None:
    """File, row group and row of an image of a parquet file; None for any other, and where there is no such."""
    reference = parquet_reference(path)
    if reference is None:
        return None
    try:
        return reference[0], images_of(reference[0]).group_of(reference[1]), reference[1]
    except BundleError:
        return None
