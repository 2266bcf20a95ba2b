"""The embed loop: tiles in manifest order → prepared by workers → batches → chunks. It knows no encoder by name.

While a batch is computed the next one is prepared and, by an encoder that can, begun; chunks are stored behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.artifacts.matrix import Floats, require_usable_rows
from croma_bundle.durable import write_bytes
from croma_bundle.encoders.loading import Loaded
from croma_bundle.errors import BundleError, ManifestError, PixelError
from croma_bundle.extraction.chunks import ChunkStore
from croma_bundle.extraction.embed_input import EmbedInput
from croma_bundle.extraction.prepared import Preparation, Source, batches
from croma_bundle.manifests.models import Encoder
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.table import csv_text
from croma_bundle.tiles.tileset import raise_pixel_faults

Array = npt.NDArray[Any]


def fill(
    store: ChunkStore,
    done: set[int],
    tiles: EmbedInput,
    entry: Encoder,
    loaded: Loaded,
    workers: int,
    subject: str,
    reporter: Reporter,
) -> None:
    """Compute and store every chunk that is not there yet."""
    spans = store.spans()
    todo = [(number, *spans[number]) for number in range(len(spans)) if number not in done]
    rows = [row for _, first, end in todo for row in range(first, end)]
    how = Preparation(loaded.prepare, entry.batch_size, workers, getattr(loaded.embed, "on_cpu", False))
    expected = tiles.pixels.rows
    sources = [Source(tiles.paths[row], expected[row]) for row in rows]
    faults: list[BundleError] = []
    before = store.rows - len(rows)
    with closing(
        batches(how, sources, store.folder, lambda seen: reporter.track(seen, store.rows, subject, before))
    ) as prepared:
        vectors = computed(_without_faults(prepared, faults), loaded.embed)
        placed = zip(rows[:: entry.batch_size], vectors, strict=False)
        _store(store, todo, (_checked(found, count, first, entry, subject) for first, (count, found) in placed))
    if faults:
        failing = csv_text(("image_path", "reason"), [(fault.subject, fault.problem) for fault in faults])
        listed = store.folder / "failing.csv"
        write_bytes(listed, failing.encode())
        reporter.say(f"{subject}: the failing tiles are listed in {tiles.volume.shown(listed)}")
        raise_pixel_faults(faults, len(rows))


def computed(prepared: Iterator[Array], embed: Callable[[Array], Array]) -> Iterator[tuple[int, Array]]:
    """(tiles, vectors) of each batch, in order.

    An `embed` with a method `begin` is given the next batch before the vectors of the last are waited for.
    """
    begin = getattr(embed, "begin", None)
    under_way: deque[tuple[int, Callable[[], Array]]] = deque()
    for batch in prepared:
        under_way.append((len(batch), begin(batch) if begin else partial(embed, batch)))
        while len(under_way) > (1 if begin else 0):
            count, wait = under_way.popleft()
            yield count, wait()
    for count, wait in under_way:
        yield count, wait()


def _without_faults(prepared: Iterator[Array | list[PixelError]], faults: list[BundleError]) -> Iterator[Array]:
    """The batches before the first faulty one; the rest is only prepared: every failing tile is named at once."""
    for batch in prepared:
        if isinstance(batch, list):
            faults += batch
        elif not faults:
            yield batch


def _store(store: ChunkStore, todo: list[tuple[int, int, int]], vectors: Iterator[Floats]) -> None:
    """Write each chunk once all its rows are there, in a thread: while one is written the next is computed."""
    written: Future[None] | None = None
    with ThreadPoolExecutor(1, "chunks") as thread:
        for number, first, end in todo:
            chunk = _rows(vectors, end - first)
            if written:
                written.result()
            if chunk is None:  # a tile has failed
                return
            written = thread.submit(store.write, number, chunk)
        if written:
            written.result()


def _rows(vectors: Iterator[Floats], count: int) -> Floats | None:
    """The next `count` rows; None where there are not so many."""
    parts, have = [], 0
    while have < count:
        if (part := next(vectors, None)) is None:
            return None
        parts.append(part)
        have += len(part)
    return np.concatenate(parts)


def _checked(vectors: Array, count: int, first: int, entry: Encoder, subject: str) -> Floats:
    """The batch as float32, if it may be stored: a chunk with an unusable row would be resumed for ever."""
    if vectors.shape != (count, entry.width):
        found = f"{vectors.shape} for {count} tiles"
        raise ManifestError(
            subject, "its output is not of the declared width", wanted=f"({count}, {entry.width})", found=found
        )
    with np.errstate(over="ignore"):
        rows: Floats = vectors.astype(np.float32)  # a copy: what is prepared is overwritten
    require_usable_rows(rows, subject, first)
    return rows
