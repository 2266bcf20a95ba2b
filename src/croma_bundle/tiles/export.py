"""`tiles export`: a tileset as PNG files and a manifest of them, for those who want files."""

from __future__ import annotations

import re
from pathlib import Path

from croma_bundle.durable import write_bytes
from croma_bundle.errors import InputError, PixelError, UsageError
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Tileset
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.manifest import TileManifest, load_manifest
from croma_bundle.tilemanifest.pixel_record import read_pixels
from croma_bundle.tilemanifest.table import csv_text
from croma_bundle.tiles.pixels import decode, save_png
from croma_bundle.tiles.spool import Slice, spooled
from croma_bundle.tiles.tileset import raise_pixel_faults, tile_paths
from croma_bundle.tiles.workers import ordered_map


def export_tiles(volume: Volume, entry: Tileset, output: Path, workers: int, reporter: Reporter) -> TileManifest:
    """Write every tile losslessly as `<sample id>.png` and last `manifest.csv`, as `tiles add` takes it.

    Raises:
        UsageError: the folder lies among the volume's own files. InputError: there are no images.
        PixelError, SeveralErrors: tiles that are missing or no longer the pixels that were hashed.
    """
    if not entry.images:
        raise InputError(f"tileset {entry.name}", "it has no images to export")
    if any(output.resolve().is_relative_to((volume.root / n).resolve()) for n in ("tilesets", "embeddings", "metrics")):
        raise UsageError(f"--output {output}", "it lies among the volume's own files", wanted="a folder elsewhere")
    manifest = load_manifest(volume, entry)
    expected = read_pixels(volume, entry.name, manifest).rows
    names = _file_names(manifest.column("sample_id"))
    with spooled(tile_paths(volume, entry, manifest), output) as tiles:
        jobs = zip(tiles, expected, (output / name for name in names), strict=True)
        exported = ordered_map(_export, jobs, workers)
        outcomes = list(reporter.track(exported, len(names), f"tileset {entry.name}: exporting"))
    raise_pixel_faults([outcome for outcome in outcomes if outcome is not None], len(names))
    image = manifest.columns.index("image_path")
    rows = tuple((*row[:image], name, *row[image + 1 :]) for row, name in zip(manifest.rows, names, strict=True))
    write_bytes(output / "manifest.csv", csv_text(manifest.columns, rows).encode())
    return manifest


def _file_names(samples: list[str]) -> list[str]:
    """File names of the sample ids, other characters as `_`; a number is added where two would be one."""
    taken: set[str] = set()
    names = []
    for sample in samples:
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", sample).strip("_.") or "tile"
        name, number = stem, 0
        while name.lower() in taken:
            number += 1
            name = f"{stem}_{number:03d}"
        taken.add(name.lower())
        names.append(f"{name}.png")
    return names


def _export(job: tuple[Path | Slice, str, Path]) -> PixelError | None:
    source, expected, target = job
    try:
        tile = decode(source)
    except PixelError as error:
        return error
    if tile.digest().hex() != expected:
        return PixelError(str(source), "its pixels are not those that were hashed when the tileset was made")
    write_bytes(target, save_png(tile.rgb))
    return None
