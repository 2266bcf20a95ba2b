"""A small real cohort without images: imported matrices of known order, which `score` scores in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from builders import cohort_rows, write_csv
from croma_bundle.artifacts.external import import_matrix
from croma_bundle.artifacts.frozen_manifest import freeze_manifest
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue, load_catalogue
from croma_bundle.progress import Reporter
from croma_bundle.scoring.run import Request, score_all
from croma_bundle.scoring.score import Knobs
from croma_bundle.tilemanifest.manifest import load_manifest
from croma_bundle.tiles.folder import add_folder

NAME = "mini"
CENTRE_WEIGHT = {"Tissue": 0.2, "Mixed": 1.0, "Centre": 3.0}
"""How much more the centre moves a vector than the label does: the more, the lower its CRoMa."""


def matrix(encoder: str, rows: list[dict[str, str]], seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(len(rows), 6))
    for vector, of in zip(noise, rows, strict=True):
        vector[0] += 3 if of["label"] == "tumour" else -3
        vector[1] += 3 * CENTRE_WEIGHT[encoder] * (1 if of["medical_center"] == "east" else -1)
    return noise.astype(np.float32)


def add_mini(volume: Volume, folder: Path) -> list[dict[str, str]]:
    """Tileset and benchmark `mini`: 2 labels × 2 centres × 3 slides × 4 tiles, with a column `scanner`."""
    rows = [{**r, "scanner": f"s{i % 2}"} for i, r in enumerate(cohort_rows(slides=3, tiles=4))]
    add_folder(
        volume,
        load_catalogue(volume),
        NAME,
        write_csv(folder / "mini.csv", rows),
        root=None,
        confounder="medical_center",
        design="all",
        images=False,
        workers=0,
        reporter=Reporter(as_json=True),
    )
    return rows


def add_matrix(volume: Volume, folder: Path, encoder: str, values: np.ndarray, *, control: bool = False) -> None:
    """Import a matrix, over an earlier one of that name."""
    path = folder / f"{encoder}.npy"
    np.save(path, values)
    entry = load_catalogue(volume).tileset(NAME)
    manifest = load_manifest(volume, entry)
    freeze_manifest(volume, NAME, manifest.public_text(entry.confounder))
    import_matrix(
        volume,
        NAME,
        encoder,
        path,
        provenance="a test",
        control=control,
        rows=len(manifest),
        fingerprint=manifest.fingerprint(entry.confounder),
        force=True,
    )


def mini_volume(volume: Volume, folder: Path) -> Volume:
    """The cohort with its three encoders; `Centre` is a control."""
    rows = add_mini(volume, folder)
    for encoder in CENTRE_WEIGHT:
        add_matrix(volume, folder, encoder, matrix(encoder, rows), control=encoder == "Centre")
    return volume


def score_mini(
    volume: Volume, catalogue: Catalogue | None = None, *, confounder: str | None = None, **knobs: Any
) -> Path:
    """Score it and return the folder."""
    request = Request([NAME], knobs.pop("encoders", None), [confounder] if confounder else None, None, Knobs(**knobs))
    score_all(volume, catalogue or load_catalogue(volume), request, Reporter(as_json=True))
    return volume.metrics(knobs.get("protocol") or "median-k", NAME, confounder)
