"""`embeddings/<tileset>/manifest.csv`: the rows that all matrices of the folder share."""

from __future__ import annotations

from croma_bundle.durable import write_bytes
from croma_bundle.errors import ArtifactError
from croma_bundle.layout import Volume


def freeze_manifest(volume: Volume, tileset: str, text: str) -> None:
    """Write the manifest beside the matrices once; afterwards only confirm it.

    Raises:
        ArtifactError: the folder's manifest is of other rows.
    """
    path = volume.embedding_manifest(tileset)
    if not path.exists():
        write_bytes(path, text.encode())
    require_frozen_manifest(volume, tileset, text)


def require_frozen_manifest(volume: Volume, tileset: str, text: str) -> None:
    """Raise `ArtifactError` where the folder's manifest is absent or of other rows."""
    path = volume.embedding_manifest(tileset)
    if not path.exists() or path.read_bytes() != text.encode():
        raise ArtifactError(
            f"tileset {tileset}",
            "the manifest beside its matrices is not the tileset's",
            wanted=f"the rows of {volume.relative(volume.tile_manifest(tileset))}",
            found=f"{volume.relative(path)}{'' if path.exists() else ' is missing'}",
            detail="Row i of a matrix is row i of the manifest: with other rows no number is right.",
        )
