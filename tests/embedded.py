"""Embedding in this process: small cohorts on a volume, and encoders of a test's own behind the loop's interface."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from builders import FolderCohort, folder_cohort
from croma_bundle.durable import sha256_file
from croma_bundle.encoders.loading import Opened
from croma_bundle.extraction.embed import embed
from croma_bundle.extraction.embed_input import EmbedInput
from croma_bundle.extraction.run import open_tiles
from croma_bundle.layout import Volume, WeightsFolder
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.manifests.models import Encoder
from croma_bundle.progress import Reporter
from croma_bundle.tiles.folder import add_folder

Opener = Callable[[Encoder, WeightsFolder], Opened]

ENCODER_TOML = """
[{name}]
family = "{family}"
backend = "classical"
model = "{model}"
width = {width}
pooling = "whole tile"
batch_size = {batch_size}
generation = "test-1"
control = true
votes = false
licence = "CC0-1.0"
citation = "none"
"""


class Recorder(Reporter):
    """A reporter that keeps what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, text: str, event: str = "note", **fields: Any) -> None:
        self.said.append(text)


def declare_encoder(
    volume: Volume,
    name: str,
    *,
    model: str = "ColourStatistics",
    width: int = 72,
    batch_size: int = 8,
    family: str = "private",
) -> None:
    """Declare a private encoder on the volume, or change it."""
    path = volume.encoder_declarations / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        ENCODER_TOML.format(name=name, family=family, model=model, width=width, batch_size=batch_size), "utf-8"
    )


def add_cohort(volume: Volume, folder: Path, name: str = "cohort", **shape: Any) -> FolderCohort:
    """Write a folder cohort and add it to the volume as tileset `name`."""
    cohort = folder_cohort(folder, **shape)
    add_folder(
        volume,
        load_catalogue(volume),
        name,
        cohort.csv,
        root=None,
        confounder="medical_center",
        design="all",
        images=True,
        workers=0,
        reporter=Recorder(),
    )
    return cohort


def tiles_of(volume: Volume, tileset: str = "cohort") -> EmbedInput:
    return open_tiles(volume, load_catalogue(volume).tileset(tileset), None)


def embed_here(
    volume: Volume,
    encoder: str = "ColourStatistics",
    tileset: str = "cohort",
    *,
    force: bool = False,
    workers: int = 0,
    reporter: Reporter | None = None,
) -> tuple[str, dict[str, Any]]:
    """Embed a declared encoder in this process: the outcome and the sidecar."""
    entry = load_catalogue(volume).encoder(encoder)
    return embed(
        tiles_of(volume, tileset),
        entry,
        device="auto",
        workers=workers,
        force=force,
        reporter=reporter or Recorder(),
    )


def entry_of(name: str = "Toy", width: int = 2, batch_size: int = 4, **fields: Any) -> Encoder:
    """A declared encoder of a test's own."""
    values = {
        "family": "toys",
        "backend": "classical",
        "model": name,
        "pooling": "none",
        "generation": "toy-1",
        "control": True,
        "votes": False,
        "licence": "CC0-1.0",
        "citation": "none",
    }
    return Encoder(name=name, width=width, batch_size=batch_size, **{**values, **fields})


def toy(
    function: Callable[[np.ndarray], np.ndarray], prepare: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> Opener:
    """An encoder that computes `function` on stacked tiles."""
    return lambda entry, weights: Opened(prepare, {"toy": entry.name}, lambda device: function)


def embed_toy(
    volume: Volume,
    opener: Opener,
    entry: Encoder | None = None,
    *,
    tileset: str = "cohort",
    force: bool = False,
    decide_batch: bool = False,
    reporter: Reporter | None = None,
) -> tuple[str, dict[str, Any]]:
    """Embed with an encoder of a test's own."""
    return embed(
        tiles_of(volume, tileset),
        entry or entry_of(),
        device="auto",
        workers=0,
        force=force,
        reporter=reporter or Recorder(),
        decide_batch=decide_batch,
        opener=opener,
    )


def means(batch: np.ndarray) -> np.ndarray:
    """(B, 2): a tile's mean over red, and over all channels plus one. Easy to recompute."""
    flat = batch.astype(np.float64)
    return np.stack([flat[..., 0].mean((1, 2)), flat.mean((1, 2, 3)) + 1], axis=1).astype(np.float32)


def artifacts(volume: Volume, tileset: str = "cohort") -> dict[str, str]:
    """SHA-256 of every file of the tileset's embeddings folder, work folders included, by relative path."""
    folder = volume.embeddings(tileset)
    return {str(p.relative_to(folder)): sha256_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def names(files: Sequence[str]) -> set[str]:
    """File names less the lock files, which stay."""
    return {name for name in files if not name.endswith(".lock")}
