"""`embed`: a family's encoders over one tileset; one failing does not stop the others."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from croma_bundle.errors import BundleError, InputError, raise_all
from croma_bundle.extraction.boundary import fault_of
from croma_bundle.extraction.device import cpu_note
from croma_bundle.extraction.embed import embed
from croma_bundle.extraction.embed_input import EmbedInput
from croma_bundle.layout import Volume, WeightsFolder
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.choice import choose_encoders
from croma_bundle.manifests.models import Tileset
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.manifest import load_manifest
from croma_bundle.tilemanifest.path_map import read_path_map
from croma_bundle.tilemanifest.pixel_record import read_pixels
from croma_bundle.tiles.tileset import tile_paths

DONE = {
    "embedded": "embedded",
    "completed": "completed (its publication had been cut off)",
    "there": "up to date, skipped",
}


def embed_all(
    volume: Volume,
    catalogue: Catalogue,
    *,
    tileset: str,
    family: str | None,
    encoders: Sequence[str] | None,
    device: str,
    path_map: Path | None,
    workers: int,
    force: bool,
    reporter: Reporter,
    batch: int | Literal["auto"] | None = None,
    weights: Path | None = None,
) -> None:
    """Embed and print a line per encoder: embedded, skipped or failed.

    `batch` stands in for the entries' batch size; "auto" decides it for each on this device.
    `weights` stands in for the volume's weights folder.

    Raises:
        BundleError, SeveralErrors: everything that failed, after all the rest was embedded.
    """
    chosen = choose_encoders(catalogue, "embed", family, encoders)
    tiles = open_tiles(volume, catalogue.tileset(tileset), path_map)
    if note := cpu_note(chosen, device):
        reporter.say(note)
    faults: list[BundleError] = []
    for declared in chosen:
        gc.collect()  # the network of the one before
        entry = declared.model_copy(update={"batch_size": batch}) if isinstance(batch, int) else declared
        subject = f"{tileset} · {entry.name}"
        try:
            outcome, sidecar = embed(
                tiles,
                entry,
                device=device,
                workers=workers,
                force=force,
                reporter=reporter,
                decide_batch=batch == "auto",
                weights=WeightsFolder((weights or volume.weights).absolute()),
            )
        except Exception as error:
            fault = fault_of(subject, error)
            faults.append(_without_frames(fault))
            reporter.say(f"{subject}: failed, {getattr(fault, 'problem', 'see below')}", "failed")
            continue
        rows, width = sidecar["output_shape"]
        digest = sidecar["matrix_sha256"]
        text = f"{subject}: {DONE[outcome]}, {rows:,} × {width:,}, sha256 {digest[:12]}…"
        reporter.result(text, "embed", tileset=tileset, encoder=entry.name, outcome=outcome, matrix_sha256=digest)
    raise_all(faults)


def _without_frames(fault: BundleError) -> BundleError:
    """The fault alone: the frames that it passed through hold the network that failed."""
    fault.__cause__ = fault.__context__ = fault.__traceback__ = None
    return fault


def open_tiles(volume: Volume, entry: Tileset, path_map: Path | None) -> EmbedInput:
    """The tileset's manifest, pixel record and files; raises for a tileset without images and names missing files."""
    if not entry.images:
        detail = "It was added with --no-images: bring matrices in with `croma-bundle import`."
        raise InputError(f"tileset {entry.name}", "it has no images to embed", detail=detail)
    manifest = load_manifest(volume, entry)
    pixels = read_pixels(volume, entry.name, manifest)
    paths = read_path_map(path_map, manifest) if path_map else tile_paths(volume, entry, manifest)
    tiles = EmbedInput(volume, entry, manifest, pixels, tuple(paths))
    tiles.require_files()
    return tiles
