"""`tiles fetch`: put a declared tileset on the volume, from whatever its source is."""

from __future__ import annotations

from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Tileset
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.manifest import TileManifest, load_manifest
from croma_bundle.tiles.generated import fetch_phantom


def fetch(volume: Volume, entry: Tileset, workers: int, reporter: Reporter) -> TileManifest:
    """The frozen manifest of a tileset whose tiles are now in place (a folder's tiles stay where they are)."""
    if entry.source == "phantom":
        return fetch_phantom(volume, entry, workers, reporter)
    return load_manifest(volume, entry)
