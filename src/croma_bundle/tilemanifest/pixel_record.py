"""`pixels.json`: the pixels of a tileset as first decoded. Scoring reads it too, so no image library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from croma_bundle.errors import InputError
from croma_bundle.layout import Volume
from croma_bundle.tilemanifest.manifest import TileManifest

PIXELS_SCHEMA = 1


@dataclass(frozen=True)
class PixelRecord:
    """`pixels.json`: the pixels of a tileset as first decoded.

    `rows` are the SHA-256 of each tile in manifest order (hex), `sizes` counts tiles by "WIDTHxHEIGHT".
    """

    pixels_sha256: str
    rows: tuple[str, ...]
    sizes: dict[str, int]
    manifest_sha256: str
    declaration: dict[str, Any]


def pixels_sha256(digests: Iterable[bytes]) -> str:
    """SHA-256 over the tiles' digests in row order: the identity of a tileset's pixels."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def read_pixels(volume: Volume, tileset: str, manifest: TileManifest) -> PixelRecord:
    """`pixels.json`, checked to belong to this manifest.

    Raises:
        InputError: it is absent, unreadable, or of another manifest.
    """
    path = volume.pixels(tileset)
    subject = f"tileset {tileset}"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        record = PixelRecord(
            stored["pixels_sha256"],
            tuple(stored["rows"]),
            stored["sizes"],
            stored["manifest_sha256"],
            stored["declaration"],
        )
        whole = pixels_sha256(bytes.fromhex(row) for row in record.rows) == record.pixels_sha256
    except FileNotFoundError:
        raise InputError(subject, "its pixels were never hashed", wanted=str(path)) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            subject, f"{path} is not a pixel record", then="Remove it and fetch the tiles again."
        ) from None
    if not whole or record.manifest_sha256 != manifest_sha256(manifest) or len(record.rows) != len(manifest):
        raise InputError(
            subject,
            "its manifest changed after its pixels were hashed",
            found=f"{volume.tile_manifest(tileset)} and {path} do not belong together",
            detail="A tileset is frozen once written; add the changed cohort under a new name.",
        )
    return record


def manifest_sha256(manifest: TileManifest) -> str:
    return hashlib.sha256(manifest.text().encode()).hexdigest()
