"""Images inside parquet files: `x.parquet#<row>` is one of them, read by row group; nothing is unpacked.

A row of an image column is the encoded image, or a struct {bytes, path} that holds it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from croma_bundle.errors import EnvironmentFault, PixelError, TileManifestError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

REFERENCE = re.compile(r"(.+\.parquet)#([0-9]+)", re.DOTALL)
IMAGE_COLUMNS = ("image", "tile", "patch", "img")
"""Where the image may stand, the first that is there."""
HELD = 64 << 20
"""Bytes of row groups that one process keeps of one file."""
FILES = 4
"""Files that one process keeps open."""


def parquet_reference(path: Path) -> tuple[Path, int] | None:
    """File and row of `x.parquet#<row>`; None for any other path."""
    found = REFERENCE.fullmatch(str(path))
    return (Path(found[1]), int(found[2])) if found else None


def file_of(path: Path) -> Path:
    """The file that holds a tile."""
    reference = parquet_reference(path)
    return reference[0] if reference else path


def image_bytes(file: Path, row: int) -> bytes:
    """The encoded image of one row.

    Raises:
        PixelError: there is no such file or row, it is not parquet, or the row holds no image.
    """
    return _images(file).row(row)


def text_columns(file: Path, names: Sequence[str]) -> list[list[str]]:
    """Columns as stripped text, null as empty.

    Raises:
        TileManifestError: a column is missing. PixelError: the file is missing or not parquet.
    """
    return [["" if value is None else str(value).strip() for value in column] for column in read_table(file, names)]


def read_table(file: Path, names: Sequence[str]) -> list[list[Any]]:
    """Columns as Python values; raises as `text_columns`."""
    parquet = _open(file)
    known = parquet.schema_arrow.names
    if absent := [f"{name!r}{did_you_mean(name, known)}" for name in names if name not in known]:
        raise TileManifestError(str(file), f"there is no column {', '.join(absent)}", found=", ".join(known))
    table = parquet.read(columns=list(names))
    return [table.column(name).to_pylist() for name in names]


def column_names(file: Path) -> list[str]:
    return list(_open(file).schema_arrow.names)


def image_column(file: Path) -> str:
    """The name of the column that holds the images; raises `TileManifestError` where there is none."""
    names = _open(file).schema_arrow.names
    found = next((name for name in IMAGE_COLUMNS if name in names), None)
    if found is None:
        wanted = f"one of {', '.join(IMAGE_COLUMNS)}"
        raise TileManifestError(str(file), "there is no column of images", wanted=wanted, found=", ".join(names))
    return found


class _Images:
    """The image column of one file; the row groups last read are kept, up to `HELD` bytes."""

    def __init__(self, file: Path) -> None:
        import pyarrow.types as kinds

        self._file, self._parquet, column = file, _open(file), image_column(file)
        kind = self._parquet.schema_arrow.field(column).type
        self._nested = kinds.is_struct(kind)
        self._column = f"{column}.bytes" if self._nested else column
        if self._nested and kind.get_field_index("bytes") < 0:
            raise PixelError(str(file), f"its column {column!r} holds no bytes", found=str(kind))
        metadata = self._parquet.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self._starts = [0, *accumulate(sizes)]
        self._groups: OrderedDict[int, pa.Array[Any]] = OrderedDict()

    def row(self, row: int) -> bytes:
        if row >= self._starts[-1]:
            raise PixelError(f"{self._file}#{row}", "there is no such row", found=f"{self._starts[-1]:,} rows")
        group = bisect_right(self._starts, row) - 1
        value = self._group(group)[row - self._starts[group]].as_py()
        if not isinstance(value, bytes) or not value:
            raise PixelError(f"{self._file}#{row}", "there is no image in this row")
        return value

    def _group(self, group: int) -> pa.Array[Any]:
        if group in self._groups:
            self._groups.move_to_end(group)
            return self._groups[group]
        column = self._parquet.read_row_group(group, columns=[self._column], use_threads=False).column(0)
        images = column.combine_chunks()
        if self._nested:
            images = images.field("bytes")
        while self._groups and images.nbytes + sum(held.nbytes for held in self._groups.values()) > HELD:
            self._groups.popitem(last=False)
        self._groups[group] = images
        return images


@lru_cache(maxsize=FILES)
def _images(file: Path) -> _Images:
    return _Images(file)


def _open(file: Path) -> Any:
    """The file as pyarrow sees it, memory-mapped."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise EnvironmentFault(
            str(file), "pyarrow is not installed here", wanted="an image of this bundle, or its venv"
        ) from None
    try:
        return pq.ParquetFile(file, memory_map=True)
    except FileNotFoundError:
        raise PixelError(str(file), "there is no such file") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise PixelError(str(file), "this is not a parquet file", found=str(error).splitlines()[0]) from None
