"""Putting a generated tileset (the phantom) on the volume as PNG files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from croma_bundle.durable import lock, sweep_temporaries, write_bytes
from croma_bundle.errors import ArtifactError
from croma_bundle.layout import Volume, checked_name
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Tileset, plain
from croma_bundle.manifests.toml_text import toml_text
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.manifest import TileManifest, load_manifest
from croma_bundle.tilemanifest.pixel_record import read_pixels
from croma_bundle.tiles.naming import refuse_taken
from croma_bundle.tiles.phantom import PhantomSpec, PhantomTile, phantom_rows, render
from croma_bundle.tiles.pixels import Tile, save_png
from croma_bundle.tiles.tileset import HashedTile, hashed, tile_paths, write_pixels
from croma_bundle.tiles.workers import ordered_map

COLUMNS = ("sample_id", "image_path", "label", "medical_center", "group_id")


def fetch_phantom(volume: Volume, entry: Tileset, workers: int, reporter: Reporter) -> TileManifest:
    """Render every tile of the cohort to `source/`, or confirm that it is there.

    `pixels.json` is written last; without it everything is rendered again, which gives the same pixels.

    Raises:
        ArtifactError: the tileset on the volume was made from another declaration.
    """
    if volume.pixels(entry.name).exists():
        manifest = load_manifest(volume, entry)
        found = read_pixels(volume, entry.name, manifest).declaration
        if found.get("phantom") != plain(entry)["phantom"]:
            raise ArtifactError(
                f"tileset {entry.name}",
                "the one on the volume was made from another declaration",
                wanted=str(plain(entry)["phantom"]),
                found=str(found.get("phantom")),
                detail=f"Move {volume.tileset(entry.name)} and its embeddings away to make it anew.",
            )
        missing = sum(not path.is_file() for path in tile_paths(volume, entry, manifest))
        if not missing:
            reporter.say(f"tileset {entry.name}: {len(manifest):,} tiles are there", "done", tileset=entry.name)
            return manifest
        reporter.warn(f"tileset {entry.name}: {missing:,} of {len(manifest):,} tiles are gone and are rendered again")
    volume.require_writable()
    with lock(volume.tileset_lock(entry.name), f"tileset {entry.name}"):
        return _render_all(volume, entry, workers, reporter)


def declare_phantom(volume: Volume, catalogue: Catalogue, name: str, parameters: Mapping[str, Any]) -> None:
    """Declare a phantom of other parameters as tileset and benchmark `name` of the volume.

    Raises:
        UsageError: the name is taken or impossible. CohortError: a parameter out of range.
    """
    refuse_taken(catalogue, checked_name("tileset", name))
    PhantomSpec(**parameters)
    volume.require_writable()
    table = {"source": "phantom", "confounder": "medical_center", "phantom": parameters}
    write_bytes(volume.tileset_declaration(name), toml_text(table, "A generated cohort with known truth.").encode())


def _render_all(volume: Volume, entry: Tileset, workers: int, reporter: Reporter) -> TileManifest:
    spec = PhantomSpec(**plain(entry)["phantom"])
    tiles = phantom_rows(spec)
    names = [f"source/{tile.sample_id}.png" for tile in tiles]
    rows = [(t.sample_id, n, t.label, t.medical_center, t.group_id) for t, n in zip(tiles, names, strict=True)]
    manifest = TileManifest(COLUMNS, tuple(rows))
    for folder in (volume.tileset(entry.name), volume.tile_source(entry.name)):
        sweep_temporaries(folder)
    write_bytes(volume.tile_manifest(entry.name), manifest.text().encode())
    work = [(spec, tile, volume.tileset(entry.name) / name) for tile, name in zip(tiles, names, strict=True)]
    rendered = reporter.track(ordered_map(_render, work, workers), len(work), f"tileset {entry.name}: rendering")
    write_pixels(volume, entry, manifest, list(rendered))
    return manifest


def _render(job: tuple[PhantomSpec, PhantomTile, Path]) -> HashedTile:
    spec, tile, path = job
    rgb = render(spec, tile)
    write_bytes(path, save_png(rgb))
    return hashed(Tile(rgb, oriented=False))
