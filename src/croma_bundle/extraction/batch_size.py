"""`--batch auto`: the batch size at which this device is fastest, decided once, before the contract is fixed.

A batch size is part of what a matrix is. So whatever was decided for a matrix that stands there, or for chunks that are
under way, holds.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Mapping
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.encoders.loading import Loaded
from croma_bundle.errors import DeviceMemory
from croma_bundle.extraction.embed_input import EmbedInput
from croma_bundle.manifests.models import Encoder
from croma_bundle.progress import Reporter
from croma_bundle.scoring.memory import half_of_free
from croma_bundle.tiles.pixels import decode

LARGEST = 1024
GAIN = 1.05
"""A doubling that gains less is not taken."""
PATIENCE = 10.0
"""Seconds: a batch that takes longer is not doubled."""
TRIALS = 3
RING = 4
"""Prepared batches that wait in memory, about."""


def with_decided_batch(
    tiles: EmbedInput, entry: Encoder, device: str, loaded: Callable[[], Loaded], force: bool, reporter: Reporter
) -> Encoder:
    """The entry with the batch size that was decided earlier, or that is fastest now.

    Raises:
        DeviceMemory: not even one tile fits. PixelError: the first tile, which is tried, cannot be used.
    """
    subject = f"{tiles.tileset.name} · {entry.name}"
    size = _decided(tiles, entry, force)
    if size:
        reporter.say(f"{subject}: batch {size}, as decided before", "batch", batch_size=size)
    else:
        rates = tried(_seconds_of(tiles, loaded()))
        size = fastest(rates)
        told = ", ".join(f"{batch}: {rate:,.1f}" for batch, rate in rates.items())
        reporter.say(
            f"{subject}: batch {size}, decided on {device} by tiles/s ({told})", "batch", batch_size=size, rates=rates
        )
    return entry.model_copy(update={"batch_size": size})


def tried(seconds: Callable[[int], float | None]) -> dict[int, float]:
    """Tiles per second of each batch size tried, doubled from 1 until it does not pay, fit, or end soon.

    `seconds` is what a batch takes, null where it would not fit.

    Raises:
        DeviceMemory: not even one tile fits.
    """
    rates: dict[int, float] = {}
    for size in takewhile(lambda size: size <= LARGEST, (2**power for power in count())):
        try:
            took = seconds(size)
        except DeviceMemory:
            if not rates:
                raise
            took = None
        if took is None:
            break
        rates[size] = size / took
        if took > PATIENCE or (size > 1 and rates[size] < GAIN * rates[size // 2]):
            break
    return rates


def fastest(rates: Mapping[int, float]) -> int:
    """The smallest size that no tried one beats by the gain."""
    best = max(rates.values())
    return min(size for size, rate in rates.items() if rate * GAIN >= best)


def _decided(tiles: EmbedInput, entry: Encoder, force: bool) -> int | None:
    """The batch size of the chunks under way, or of the matrix that would be reused."""
    name = tiles.tileset.name
    under_way = tiles.volume.work(name, entry.name) / "job.json"
    size = _number(under_way, "identity", "batch_size")
    return size if size or force else _number(tiles.volume.sidecar(name, entry.name), "batch_size")


def _number(path: Path, *keys: str) -> int | None:
    """A number of a JSON file; null where it is not there: what is damaged is refused by those who need it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if type(value) is int and value > 0 else None


def _seconds_of(tiles: EmbedInput, loaded: Loaded) -> Callable[[int], float | None]:
    """What a batch of the first tile takes, the best of a few; null where memory would run short on the way."""
    tile = loaded.prepare(decode(tiles.paths[0]).rgb)
    grown = 0

    def seconds(size: int) -> float | None:
        nonlocal grown
        if 2 * grown + RING * size * tile.nbytes > half_of_free():
            return None
        before = _peak()
        batch = np.repeat(tile[None], size, axis=0)
        times = [_timed(loaded, batch)]  # the first is slower, and tells how slow
        while len(times) < TRIALS and times[0] <= PATIENCE:
            times.append(_timed(loaded, batch))
        grown = _peak() - before
        return min(times)

    return seconds


def _timed(loaded: Loaded, batch: npt.NDArray[Any]) -> float:
    began = time.perf_counter()
    loaded.embed(batch)
    return time.perf_counter() - began


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
