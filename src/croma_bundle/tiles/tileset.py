"""A tileset on the volume: its frozen manifest, where each tile is read from, and the hash of its pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from croma_bundle.durable import write_json
from croma_bundle.errors import BundleError, PixelError, SeveralErrors, some
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Tileset, plain
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.pixel_record import PIXELS_SCHEMA, manifest_sha256, pixels_sha256
from croma_bundle.tiles.pixels import decode
from croma_bundle.tiles.workers import ordered_map

SHOWN = 10


def tile_paths(volume: Volume, entry: Tileset, manifest: TileManifest) -> list[Path]:
    """Where each tile lies, in manifest order."""
    root = Path(entry.root) if entry.root else volume.tileset(entry.name)
    return [root / image for image in manifest.column("image_path")]


def hash_tiles(
    subject: str, paths: Sequence[Path], workers: int, reporter: Reporter
) -> tuple[list[bytes], Counter[str]]:
    """Decode every tile once: its digest in order, and a count of sizes.

    Raises:
        PixelError, SeveralErrors: every unusable file, at once.
    """
    digests, sizes, faults, oriented = list[bytes](), Counter[str](), list[BundleError](), 0
    outcomes = ordered_map(_digest, paths, workers)
    for outcome in reporter.track(outcomes, len(paths), f"{subject}: hashing pixels"):
        if isinstance(outcome, PixelError):
            faults.append(outcome)
            continue
        digest, size, turned = outcome
        digests.append(digest)
        sizes[size] += 1
        oriented += turned
    raise_pixel_faults(faults, len(paths))
    if oriented:
        reporter.warn(f"{subject}: the EXIF orientation of {oriented} tiles was ignored")
    return digests, sizes


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


def write_pixels(
    volume: Volume, entry: Tileset, manifest: TileManifest, digests: Sequence[bytes], sizes: Counter[str]
) -> str:
    """Write `pixels.json` and return its `pixels_sha256`."""
    total = pixels_sha256(digests)
    record = {
        "schema": PIXELS_SCHEMA,
        "pixels_sha256": total,
        "manifest_sha256": manifest_sha256(manifest),
        "declaration": plain(entry),
        "sizes": dict(sorted(sizes.items())),
        "rows": [digest.hex() for digest in digests],
    }
    write_json(volume.pixels(entry.name), record)
    return total


def _digest(path: Path) -> tuple[bytes, str, bool] | PixelError:
    try:
        tile = decode(path)
    except PixelError as error:
        return error
    height, width, _ = tile.rgb.shape
    return tile.digest(), f"{width}x{height}", tile.oriented
