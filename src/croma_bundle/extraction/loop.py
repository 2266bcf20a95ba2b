"""The embed loop: tiles in manifest order → prepared by workers → batches → chunks. It knows no encoder by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.artifacts.matrix import Floats, require_usable_rows
from croma_bundle.durable import write_bytes
from croma_bundle.encoders.loading import Loaded
from croma_bundle.errors import BundleError, ManifestError, PixelError
from croma_bundle.extraction.chunks import ChunkStore
from croma_bundle.extraction.embed_input import EmbedInput
from croma_bundle.manifests.models import Encoder
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.table import csv_text
from croma_bundle.tiles.pixels import decode
from croma_bundle.tiles.tileset import raise_pixel_faults
from croma_bundle.tiles.workers import ordered_map

Prepare = Callable[[npt.NDArray[np.uint8]], npt.NDArray[Any]]


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
    expected = tiles.pixels.rows
    work = ((loaded.prepare, tiles.paths[row], expected[row]) for row in rows)
    prepared = reporter.track(ordered_map(_prepare, work, workers), store.rows, subject, store.rows - len(rows))
    faults: list[BundleError] = []
    for number, first, end in todo:
        chunk = _embed_span(prepared, first, end, entry, loaded, subject, faults)
        if chunk is not None:
            store.write(number, chunk)
    if faults:
        failing = csv_text(("image_path", "reason"), [(fault.subject, fault.problem) for fault in faults])
        listed = store.folder / "failing.csv"
        write_bytes(listed, failing.encode())
        reporter.say(f"{subject}: the failing tiles are listed in {tiles.volume.shown(listed)}")
        raise_pixel_faults(faults, len(rows))


def _embed_span(
    prepared: Iterator[npt.NDArray[Any] | PixelError],
    first: int,
    end: int,
    entry: Encoder,
    loaded: Loaded,
    subject: str,
    faults: list[BundleError],
) -> Floats | None:
    """The rows [first, end) as (end − first, width) float32, or None once any tile has failed."""
    parts = []
    for start in range(first, end, entry.batch_size):
        batch = list(itertools.islice(prepared, min(entry.batch_size, end - start)))
        faults += [item for item in batch if isinstance(item, PixelError)]
        if faults:
            continue  # go on decoding, so that every failing tile is named at once
        vectors = np.asarray(loaded.embed(np.stack([item for item in batch if not isinstance(item, PixelError)])))
        parts.append(_checked(vectors, len(batch), start, entry, subject))
    return None if faults else np.concatenate(parts)


def _checked(vectors: npt.NDArray[Any], count: int, start: int, entry: Encoder, subject: str) -> Floats:
    """The batch as float32, if it may be stored: a chunk with an unusable row would be resumed for ever."""
    if vectors.shape != (count, entry.width):
        found = f"{vectors.shape} for {count} tiles"
        raise ManifestError(
            subject, "its output is not of the declared width", wanted=f"({count}, {entry.width})", found=found
        )
    with np.errstate(over="ignore"):
        rows = vectors.astype(np.float32, copy=False)
    require_usable_rows(rows, subject, start)
    return rows


def _prepare(job: tuple[Prepare, Path, str]) -> npt.NDArray[Any] | PixelError:
    """In a worker: decode a tile completely, compare its pixels with the record, prepare it."""
    prepare, path, expected = job
    try:
        tile = decode(path)
    except PixelError as error:
        return error
    digest = tile.digest().hex()
    if digest != expected:
        return PixelError(
            str(path),
            "its pixels are not those that were hashed when the tileset was made",
            wanted=f"sha256 {expected[:12]}…  pixels.json",
            found=f"{digest[:12]}…",
        )
    try:
        return prepare(tile.rgb)
    except PixelError as error:
        error.subject = f"{path} ({error.subject})"
        return error
