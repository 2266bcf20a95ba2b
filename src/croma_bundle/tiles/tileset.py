"""A tileset on the volume: its frozen manifest, where each tile is read from, and the hash of its pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from croma_bundle.durable import write_json
from croma_bundle.errors import BundleError, PixelError, SeveralErrors, some
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Tileset, plain
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.pixel_record import PIXELS_SCHEMA, manifest_sha256, pixels_sha256
from croma_bundle.tiles.pixels import Tile, decode
from croma_bundle.tiles.spool import Slice, spooled
from croma_bundle.tiles.workers import ordered_map

SHOWN = 10
BRIGHT = 215
"""A pixel whose three channels reach this is background."""
NEARLY_ALL = 0.95
"""The share of background above which a tile is empty."""
FLAT = 2.0
"""The standard deviation of all values below which a tile is one flat colour."""


def tile_paths(volume: Volume, entry: Tileset, manifest: TileManifest) -> list[Path]:
    """Where each tile lies, in manifest order."""
    root = Path(entry.root) if entry.root else volume.tileset(entry.name)
    return [root / image for image in manifest.column("image_path")]


@dataclass(frozen=True)
class HashedTile:
    """What one look at a tile tells: its pixel digest, "WIDTHxHEIGHT", what it was stored as, and whether it is empty.

    `oriented`: an EXIF orientation was ignored. `empty`: hardly anything but bright background, or one flat colour.
    """

    digest: bytes
    size: str
    format: str
    mode: str
    oriented: bool
    empty: bool


def hash_tiles(
    subject: str, paths: Sequence[Path], scratch: Path, workers: int, reporter: Reporter
) -> list[HashedTile]:
    """Decode every tile once, in the order of the paths; rows of parquet files by way of the folder `scratch`.

    Raises:
        PixelError, SeveralErrors: every unusable file, at once.
    """
    with spooled(paths, scratch) as sources:
        outcomes = ordered_map(look_at, sources, workers)
        looks = list(reporter.track(outcomes, len(paths), f"{subject}: hashing pixels"))
    raise_pixel_faults([look for look in looks if isinstance(look, PixelError)], len(paths))
    tiles = [look for look in looks if isinstance(look, HashedTile)]
    if oriented := sum(tile.oriented for tile in tiles):
        reporter.warn(f"{subject}: the EXIF orientation of {oriented} tiles was ignored")
    return tiles


def raise_pixel_faults(faults: Sequence[BundleError], total: int) -> None:
    """All faulty tiles in one error: the first in full, the rest by name."""
    if not faults:
        return
    if len(faults) <= SHOWN:
        raise SeveralErrors(faults) if len(faults) > 1 else faults[0]
    rest = [fault.subject for fault in faults[SHOWN:]]
    none_there = len(faults) == total and all(fault.problem == "there is no such file" for fault in faults)
    hint = "None of the files is there: is the root right (`tiles add --root`), and do paths use forward slashes?"
    summary = PixelError(
        f"{len(faults)} of {total} tiles",
        "cannot be used",
        found=some(rest, 50),
        detail=hint if none_there else None,
    )
    raise SeveralErrors([*faults[:SHOWN], summary])


def write_pixels(volume: Volume, entry: Tileset, manifest: TileManifest, tiles: Sequence[HashedTile]) -> str:
    """Write `pixels.json` and return its `pixels_sha256`."""
    total = pixels_sha256(tile.digest for tile in tiles)
    record = {
        "schema": PIXELS_SCHEMA,
        "pixels_sha256": total,
        "manifest_sha256": manifest_sha256(manifest),
        "declaration": plain(entry),
        "sizes": dict(sorted(Counter(tile.size for tile in tiles).items())),
        "formats": dict(sorted(Counter(tile.format for tile in tiles).items())),
        "rows": [tile.digest.hex() for tile in tiles],
    }
    write_json(volume.pixels(entry.name), record)
    return total


def look_at(tile: Path | Slice) -> HashedTile | PixelError:
    try:
        return hashed(decode(tile))
    except PixelError as error:
        return error


def hashed(tile: Tile) -> HashedTile:
    height, width, _ = tile.rgb.shape
    return HashedTile(tile.digest(), f"{width}x{height}", tile.format, tile.mode, tile.oriented, _empty(tile.rgb))


def _empty(rgb: npt.NDArray[np.uint8]) -> bool:
    background = float((rgb.min(axis=2) >= BRIGHT).mean())
    return background > NEARLY_ALL or float(rgb.std()) < FLAT
