"""`tiles fetch`: put a declared tileset on the volume, from whatever its source is."""

from __future__ import annotations

from croma_bundle.durable import lock
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.manifest import TileManifest, load_manifest
from croma_bundle.tiles.generated import fetch_phantom
from croma_bundle.tiles.published import fetch_published
from croma_bundle.tiles.simulated import fetch_simulated
from croma_bundle.tiles.tileset import hash_tiles, tile_paths, write_pixels


def fetch(volume: Volume, catalogue: Catalogue, name: str, workers: int, reporter: Reporter) -> TileManifest:
    """The frozen manifest of a tileset whose tiles are now in place.

    A folder's tiles stay where they are; they are hashed again if their record is gone.
    """
    entry = catalogue.tileset(name)
    if entry.source == "phantom":
        return fetch_phantom(volume, entry, workers, reporter)
    if entry.source == "hub":
        benchmarks = [one for one in catalogue.benchmarks.values() if one.tileset == name]
        return fetch_published(volume, entry, benchmarks, workers, reporter)
    if entry.source == "simulated":
        return fetch_simulated(volume, entry, workers, reporter)
    manifest = load_manifest(volume, entry)
    if entry.images and not volume.pixels(entry.name).exists():
        volume.require_writable()
        with lock(volume.tileset_lock(entry.name), f"tileset {entry.name}"):
            paths = tile_paths(volume, entry, manifest)
            tiles = hash_tiles(f"tileset {entry.name}", paths, volume.tileset(entry.name), workers, reporter)
            write_pixels(volume, entry, manifest, tiles)
    return manifest
