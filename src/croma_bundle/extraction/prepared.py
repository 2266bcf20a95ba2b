"""Tiles decoded, compared with their hashes and prepared by workers, as batches in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import PixelError
from croma_bundle.extraction.ring import Layout, Ring, place
from croma_bundle.tiles.pixels import decode
from croma_bundle.tiles.spool import Slice, spooled
from croma_bundle.tiles.workers import AHEAD, ordered_map

Array = npt.NDArray[Any]
Prepare = Callable[[npt.NDArray[np.uint8]], Array]
Outcome = Array | PixelError | None
"""Of one tile: null where a worker has laid it down in the ring."""
TILES_PER_CALL = 8
NICE = 5
"""How much workers give way where the encoder computes on the same cores."""


@dataclass(frozen=True)
class Source:
    """One tile: its file, and the hash of its pixels when the tileset was made."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Preparation:
    """How tiles become batches: `give_way` where the encoder computes on the cores that the workers use."""

    prepare: Prepare
    batch_size: int
    workers: int
    give_way: bool = False

    @property
    def per_call(self) -> int:
        return min(TILES_PER_CALL, self.batch_size) if self.workers else 1

    @property
    def calls_ahead(self) -> int:
        """Enough for every worker, and for a batch beside the one that is computed."""
        return max(AHEAD * self.workers, -(-self.batch_size // self.per_call))


def batches(
    how: Preparation, sources: Sequence[Source], scratch: Path, track: Callable[[Iterator[Outcome]], Iterator[Outcome]]
) -> Generator[Array | list[PixelError]]:
    """Each batch of prepared tiles, stacked, or the faults of its tiles. `track` sees every tile pass.

    Rows of parquet files are read by way of the folder `scratch`. A batch is overwritten once the one after it has been
    asked for.
    """
    size, step = how.batch_size, how.per_call
    paths = [source.path for source in sources]
    with Ring(size, (how.calls_ahead + 1) * step) as ring, spooled(paths, scratch) as read:
        ready = ((place, source.sha256) for place, source in zip(read, sources, strict=True))
        calls = (
            (how.prepare, ring.layout if how.workers else None, first, list(itertools.islice(ready, step)))
            for first in range(0, len(sources), step)
        )
        nice = NICE if how.give_way else 0
        prepared = ordered_map(_prepare_all, calls, how.workers, how.calls_ahead, nice)
        outcomes = track(itertools.chain.from_iterable(prepared))
        for first in range(0, len(sources), size):
            count = min(size, len(sources) - first)
            taken = zip(range(first, first + count), sources[first : first + count], outcomes, strict=False)
            faults = [fault for number, source, outcome in taken if (fault := _laid(ring, number, source, outcome))]
            yield faults or ring.tiles(first, count)


def _laid(ring: Ring, number: int, source: Source, outcome: Outcome) -> PixelError | None:
    """The tile in the ring, or its fault."""
    if outcome is None or isinstance(outcome, PixelError):
        return outcome
    if ring.put(number, outcome):
        return None
    shape = ring.layout.shape if ring.layout else ()
    return PixelError(
        str(source.path),
        "it becomes an input of another shape than the first tile",
        wanted=str(shape),
        found=str(outcome.shape),
    )


def _prepare_all(call: tuple[Prepare, Layout | None, int, Sequence[tuple[Path | Slice, str]]]) -> list[Outcome]:
    """In a worker: a few tiles, each laid down where that is possible, else returned."""
    prepare, layout, first, sources = call
    return [_placed(layout, number, _prepared(prepare, *source)) for number, source in enumerate(sources, first)]


def _placed(layout: Layout | None, number: int, outcome: Array | PixelError) -> Outcome:
    if isinstance(outcome, PixelError) or not place(layout, number, outcome):
        return outcome
    return None


def _prepared(prepare: Prepare, source: Path | Slice, expected: str) -> Array | PixelError:
    """A tile decoded completely, its pixels compared with the record, and prepared."""
    try:
        tile = decode(source)
    except PixelError as error:
        return error
    digest = tile.digest().hex()
    if digest != expected:
        return PixelError(
            str(source),
            "its pixels are not those that were hashed when the tileset was made",
            wanted=f"sha256 {expected[:12]}…  pixels.json",
            found=f"{digest[:12]}…",
        )
    try:
        return prepare(tile.rgb)
    except PixelError as error:
        error.subject = f"{source} ({error.subject})"
        return error
