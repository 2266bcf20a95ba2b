"""Memory that worker processes write prepared tiles into, batch after batch and round again.

A tile reaches the encoder without being sent or stacked. The memory is a file without a name: nothing is left of it
when the run is killed, and it takes nothing of /dev/shm.
"""

from __future__ import annotations

import functools
import mmap
import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
PAGE = 4096
"""Where a batch may begin: every batch is aligned alike, in every run."""


@dataclass(frozen=True)
class Layout:
    """How tiles lie in the memory: `batches` times `batch` tiles of one shape; tile `number` counts from the start.

    `where` is the memory's path as another process of the same user opens it.
    """

    where: str
    batch: int
    batches: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def tile_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def batch_bytes(self) -> int:
        return -(-self.batch * self.tile_bytes // PAGE) * PAGE

    def fits(self, tile: Array) -> bool:
        return (tile.shape, tile.dtype.str) == (self.shape, self.dtype)

    def view(self, memory: mmap.mmap, number: int, count: int) -> Array:
        """The tiles from `number` on, all of one batch."""
        batch, inside = divmod(number, self.batch)
        offset = batch % self.batches * self.batch_bytes + inside * self.tile_bytes
        return np.ndarray((count, *self.shape), self.dtype, memory, offset)


class Ring:
    """The memory of one run; it is laid out by the first tile that arrives."""

    def __init__(self, batch: int, ahead: int) -> None:
        """`ahead`: how many tiles past the batch that is being gathered may be under way."""
        self.batch, self.batches = batch, 1 + -(-ahead // batch)
        self.layout: Layout | None = None

    def __enter__(self) -> Ring:
        self.descriptor = os.memfd_create("croma-bundle prepared tiles")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.descriptor)

    def put(self, number: int, tile: Array) -> bool:
        """Lay down a tile that came by another way; False where it is of another shape than the first."""
        if self.layout is None:
            where = f"/proc/{os.getpid()}/fd/{self.descriptor}"
            self.layout = Layout(where, self.batch, self.batches, tile.shape, tile.dtype.str)
            size = self.layout.batch_bytes * self.batches
            os.ftruncate(self.descriptor, size)
            self.memory = mmap.mmap(self.descriptor, size)
        if not self.layout.fits(tile):
            return False
        self.layout.view(self.memory, number, 1)[0] = tile
        return True

    def tiles(self, number: int, count: int) -> Array:
        """The tiles of one batch. They are overwritten once later ones are asked for."""
        assert self.layout is not None  # noqa: S101 (every tile of it was laid down)
        return self.layout.view(self.memory, number, count)


def place(layout: Layout | None, number: int, tile: Array) -> bool:
    """In a worker: lay down a tile; False where it has to be sent."""
    memory = _opened(layout.where) if layout is not None and layout.fits(tile) else None
    if layout is None or memory is None:
        return False
    layout.view(memory, number, 1)[0] = tile
    return True


@functools.cache
def _opened(where: str) -> mmap.mmap | None:
    """The memory of the parent; None where this system does not let a child open it."""
    try:
        with open(where, "r+b") as handle:  # noqa: PTH123 (a path of /proc)
            return mmap.mmap(handle.fileno(), 0)
    except OSError:
        return None
