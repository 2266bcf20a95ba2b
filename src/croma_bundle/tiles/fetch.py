"""`tiles fetch`: put a declared tileset on the volume, from whatever its source is."""

from __future__ import annotations

from croma_bundle.durable import lock
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Tileset
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.manifest import TileManifest, load_manifest
from croma_bundle.tiles.generated import fetch_phantom
from croma_bundle.tiles.tileset import hash_tiles, tile_paths, write_pixels


def fetch(volume: Volume, entry: Tileset, workers: int, reporter: Reporter) -> TileManifest:
    """The frozen manifest of a tileset whose tiles are now in place.

    A folder's tiles stay where they are; they are hashed again if their record is gone.
    """
    if entry.source == "phantom":
        return fetch_phantom(volume, entry, workers, reporter)
    manifest = load_manifest(volume, entry)
    if entry.images and not volume.pixels(entry.name).exists():
        volume.require_writable()
        with lock(volume.tileset_lock(entry.name), f"tileset {entry.name}"):
            paths = tile_paths(volume, entry, manifest)
            digests, sizes = hash_tiles(f"tileset {entry.name}", paths, workers, reporter)
            write_pixels(volume, entry, manifest, digests, sizes)
    return manifest
