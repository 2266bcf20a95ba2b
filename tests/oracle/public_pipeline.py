"""Runs inside a process of its own, with croma's scripts/bench on sys.path: what its functions say of our folder.

    python public_pipeline.py BENCHMARK ENCODER EMBEDDINGS_ROOT VIEW_CSV

Prints one JSON object. `tampered` maps each of the seven fields to what the reuse check says once it differs.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import views
from embedding_artifacts import (
    PROVENANCE_FIELDS,
    ArtifactCompatibilityError,
    EmbeddingArtifactContract,
    artifact_is_reusable,
    sidecar_path,
)
from input_fingerprint import embedding_fingerprint, manifest_fingerprint

OTHER = {
    "checkpoint_revision": "0" * 40,
    "extraction_contract": {"version": 0},
    "precision": "mixed-float16",
    "manifest_fingerprint": "0" * 64,
    "batch_size": 1,
    "output_dtype": "float64",
    "output_shape": (1, 1),
}


def reuse(path: Path, contract: EmbeddingArtifactContract) -> object:
    try:
        return artifact_is_reusable(path, contract)
    except ArtifactCompatibilityError as error:
        return str(error)


def main(benchmark: str, encoder: str, root: Path, view_csv: Path) -> dict[str, object]:
    folder = root / views.benchmarks.get(benchmark).tileset
    path = folder / f"{encoder}.npy"
    stored = json.loads(sidecar_path(path).read_text(encoding="utf-8"))
    manifest = pd.read_csv(folder / "manifest.csv")  # as extract_embeddings reads a tileset's manifest
    fingerprint = manifest_fingerprint(manifest)
    wanted = {name: stored[name] for name in PROVENANCE_FIELDS}
    wanted |= {"output_shape": tuple(stored["output_shape"]), "manifest_fingerprint": fingerprint}
    contract = EmbeddingArtifactContract(**wanted)
    view = views.load_view(benchmark, embeddings_root=root, eval_manifest_path=view_csv)
    features = view.features(encoder)
    return {
        "fields": sorted(PROVENANCE_FIELDS),
        "fingerprint": fingerprint,
        "embedding_fingerprint": embedding_fingerprint(path),
        "reusable": reuse(path, contract),
        "tampered": {k: reuse(path, dataclasses.replace(contract, **{k: v})) for k, v in OTHER.items()},
        "models": list(view.models),
        "rows": [int(row) for row in view.rows],
        "sample_ids": view.eval_manifest["sample_id"].tolist(),
        "confounders": view.eval_manifest["confounder"].tolist(),
        "dtype": str(features.dtype),
        "features": np.asarray(features, dtype=np.float64).tolist(),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))))
