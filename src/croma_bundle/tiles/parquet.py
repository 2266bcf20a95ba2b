"""Images inside parquet files: `x.parquet#<row>` is one of them, read by row group; nothing is unpacked.

A row of an image column is the encoded image, or a struct {bytes, path} that holds it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from croma_bundle.errors import EnvironmentFault, PixelError, TileManifestError, did_you_mean

REFERENCE = re.compile(r"(.+\.parquet)#([0-9]+)", re.DOTALL)
IMAGE_COLUMNS = ("image", "tile", "patch", "img")
"""Where the image may stand, the first that is there."""
FILES = 4
"""Files that one process keeps open."""
NO_IMAGE = "there is no image in this row"
AT_ONCE = 16
"""Images in memory beside the row group that they come from."""


def parquet_reference(path: Path) -> tuple[Path, int] | None:
    """File and row of `x.parquet#<row>`; None for any other path."""
    found = REFERENCE.fullmatch(str(path))
    return (Path(found[1]), int(found[2])) if found else None


def file_of(path: Path) -> Path:
    """The file that holds a tile."""
    reference = parquet_reference(path)
    return reference[0] if reference else path


def image_bytes(file: Path, row: int) -> bytes:
    """The encoded image of one row, for which its row group is read.

    Raises:
        PixelError: there is no such file or row, it is not parquet, or the row holds no image.
    """
    images = images_of(file)
    (image,) = images.of_group(images.group_of(row), [row])
    if not image:
        raise PixelError(f"{file}#{row}", NO_IMAGE)
    return image


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


class Images:
    """The image column of one file, read by row group; nothing is kept.

    Raises:
        PixelError: there is no such file, it is not parquet, or its column of images holds none.
        TileManifestError: it has no column of images.
    """

    def __init__(self, file: Path) -> None:
        import pyarrow.types as kinds

        self._file, self._parquet, column = file, _open(file, memory_map=False), image_column(file)
        kind = self._parquet.schema_arrow.field(column).type
        self._nested = kinds.is_struct(kind)
        self._column = f"{column}.bytes" if self._nested else column
        if self._nested and kind.get_field_index("bytes") < 0:
            raise PixelError(str(file), f"its column {column!r} holds no bytes", found=str(kind))
        metadata = self._parquet.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self._starts = [0, *accumulate(sizes)]

    def group_of(self, row: int) -> int:
        """The row group that holds a row; raises `PixelError` where there is no such row."""
        if row >= self._starts[-1]:
            raise PixelError(f"{self._file}#{row}", "there is no such row", found=f"{self._starts[-1]:,} rows")
        return bisect_right(self._starts, row) - 1

    def mean_size(self, group: int) -> float:
        """The mean bytes of a row of a group, without reading it."""
        facts = self._parquet.metadata.row_group(group)
        return float(facts.total_byte_size / facts.num_rows)

    def of_group(self, group: int, rows: Sequence[int]) -> Iterator[bytes]:
        """The encoded images of rows of one group, in ascending order; empty where a row holds none.

        Raises:
            PixelError: the group is damaged.
        """
        import pyarrow as pa

        waiting, end = deque(rows), self._starts[group]
        how = {"row_groups": [group], "columns": [self._column], "use_threads": False}
        try:
            for batch in self._parquet.iter_batches(AT_ONCE, **how):
                images = batch.column(0).field("bytes") if self._nested else batch.column(0)
                first, end = end, end + len(images)
                while waiting and waiting[0] < end:
                    image = images[waiting.popleft() - first].as_py()
                    yield image if isinstance(image, bytes) else b""
                if not waiting:
                    return
        except (pa.ArrowException, OSError) as error:
            damaged = f"{self._file}, row group {group}"
            raise PixelError(damaged, "it cannot be read", found=str(error).splitlines()[0]) from None


@lru_cache(maxsize=FILES)
def images_of(file: Path) -> Images:
    """The images of a file, which stays open."""
    return Images(file)


def _open(file: Path, *, memory_map: bool = True) -> Any:
    """The file as pyarrow sees it. Memory-mapped, what was read of it counts as this process's memory."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise EnvironmentFault(
            str(file), "pyarrow is not installed here", wanted="an image of this bundle, or its venv"
        ) from None
    try:
        return pq.ParquetFile(file, memory_map=memory_map)
    except FileNotFoundError:
        raise PixelError(str(file), "there is no such file") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise PixelError(str(file), "this is not a parquet file", found=str(error).splitlines()[0]) from None
