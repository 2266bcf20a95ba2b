"""Matrix and sidecar as one artifact: its states on disk, publication, reuse and verification.

The sidecar is the completion marker: written last, removed first. Before the matrix is renamed into place, the sidecar
to come stands in the job's work folder (`publish.json`), so that a run killed between the two renames can be completed;
any other lone half is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from croma_bundle.artifacts.contract import Contract, differences, identity_of
from croma_bundle.artifacts.matrix import (
    Floats,
    UnusableRows,
    hash_and_check,
    open_matrix,
    require_usable_rows,
    write_matrix,
)
from croma_bundle.artifacts.sidecar import is_external, read_sidecar, require_sidecar
from croma_bundle.durable import atomic_file, fsync_folder, listing, remove, sha256_file, write_json
from croma_bundle.errors import ArtifactError
from croma_bundle.layout import Volume

PUBLISH = "publish.json"


def subject_of(tileset: str, encoder: str) -> str:
    return f"{tileset} · {encoder}"


def remake(sidecar: dict[str, Any], tileset: str, encoder: str) -> str:
    """The command that replaces the artifact of this sidecar."""
    if is_external(sidecar):
        return f"croma-bundle import {tileset} {encoder} MATRIX.npy --provenance … --force"
    family = sidecar["extraction_contract"].get("family", "…")
    return f"make embed FAMILY={family} TILESET={tileset} ENCODERS={encoder} FORCE=1"


def embedded(volume: Volume, tileset: str) -> list[str]:
    """Encoders of which the tileset's folder holds a matrix or a sidecar, in sorted order."""
    members = [name for name in listing(volume.embeddings(tileset)) if _is_member(name)]
    return sorted({name.removesuffix(".json").removesuffix(".npy") for name in members})


def _is_member(name: str) -> bool:
    return not name.startswith(".") and name.endswith((".npy", ".npy.json"))


def complete_pair(volume: Volume, tileset: str, encoder: str) -> bool:
    """True where both halves stand, False where neither does.

    Raises:
        ArtifactError: one half stands alone.
    """
    matrix, sidecar = volume.matrix(tileset, encoder), volume.sidecar(tileset, encoder)
    if matrix.exists() == sidecar.exists():
        return matrix.exists()
    present, absent = (matrix, sidecar) if matrix.exists() else (sidecar, matrix)
    raise ArtifactError(
        subject_of(tileset, encoder),
        "half an artifact",
        wanted=f"both {matrix.name} and {sidecar.name}",
        found=f"{volume.relative(present)} without {absent.name}",
        detail="It was not finished, or one file was moved. Nothing reads it as it is. Embed or import it again:",
        then=f"croma-bundle embed --tileset {tileset} --encoders {encoder} --force",
    )


def verify_pair(volume: Volume, tileset: str, encoder: str) -> tuple[dict[str, Any], Floats]:
    """The sidecar and the mapped matrix, after checking every claim that the files alone can prove.

    Raises:
        ArtifactError: half a pair, damage, hash or shape mismatch, a sidecar of another encoder.
        DegenerateEmbedding: NaN, infinity or all-zero rows.
    """
    subject = subject_of(tileset, encoder)
    if not complete_pair(volume, tileset, encoder):
        raise ArtifactError(subject, "it is not embedded", wanted=volume.relative(volume.matrix(tileset, encoder)))
    path = volume.matrix(tileset, encoder)
    sidecar = read_sidecar(volume.sidecar(tileset, encoder), subject)
    named = sidecar["extraction_contract"].get("encoder")
    if named != encoder:
        where = f"extraction_contract.encoder in {path.name}.json"
        raise ArtifactError(subject, "the sidecar is of another encoder", wanted=encoder, found=f"{named!r}, {where}")
    found, rows = _examined(path, *sidecar["output_shape"])
    if found != sidecar["matrix_sha256"]:
        raise ArtifactError(
            subject,
            "the matrix does not match its sidecar",
            wanted=f"matrix_sha256 {sidecar['matrix_sha256'][:12]}…  {volume.relative(path)}.json",
            found=f"{found[:12]}…  {volume.relative(path)} ({path.stat().st_size:,} bytes)",
            detail="It changed after it was written. Make it again:",
            then=remake(sidecar, tileset, encoder),
        )
    matrix = open_matrix(path, subject)
    if list(matrix.shape) != sidecar["output_shape"]:
        raise ArtifactError(
            subject, "its shape is not the stated one", wanted=str(sidecar["output_shape"]), found=str(matrix.shape)
        )
    if rows is None:
        require_usable_rows(matrix, subject)
    else:
        rows.refuse(subject)
    return sidecar, matrix


def _examined(path: Path, rows: int, width: int) -> tuple[str, UnusableRows | None]:
    """The SHA-256 of a matrix, and its unusable rows where it is as long as a matrix of this shape."""
    if width > 0 and 0 < 4 * rows * width < path.stat().st_size:
        return hash_and_check(path, (rows, width))
    return sha256_file(path), None


def require_same_identity(wanted: Contract, sidecar: dict[str, Any], subject: str, then: str) -> None:
    """Raise `ArtifactError` with every key that differs between what is asked for and what stands there."""
    rows = differences(wanted.identity(), identity_of(sidecar))
    if rows:
        detail = "\n  ".join(f"{key}: wanted {a!r}, found {b!r}" for key, a, b in rows)
        raise ArtifactError(subject, "another artifact stands under this name", detail=detail, then=then)


def publish(
    volume: Volume,
    tileset: str,
    encoder: str,
    shape: tuple[int, int],
    blocks: Iterable[Floats],
    finish: Callable[[str, Floats], dict[str, Any]],
) -> dict[str, Any]:
    """Write the pair so that a crash at any moment leaves either nothing, the old pair, or what `complete` finishes.

    Args:
        blocks: float32 row blocks that add up to `shape`.
        finish: called with the matrix's sha256 and the written matrix (mapped), checks it, returns the sidecar.

    Returns:
        the sidecar.
    """
    path, marker = volume.matrix(tileset, encoder), volume.sidecar(tileset, encoder)
    work = volume.work(tileset, encoder)
    work.mkdir(parents=True, exist_ok=True)
    staged = work / "matrix.staged"
    with atomic_file(staged) as handle:
        digest = write_matrix(handle, shape, blocks)
    sidecar = finish(digest, open_matrix(staged, subject_of(tileset, encoder)))
    replaces = sha256_file(path) if path.exists() else None
    write_json(work / PUBLISH, {"sidecar": sidecar, "replaces": replaces})
    remove(marker)
    staged.replace(path)
    _finish(path, marker, work, sidecar)
    return sidecar


def complete(volume: Volume, tileset: str, encoder: str, wanted: Contract) -> dict[str, Any] | None:
    """Finish a publication that was cut between its renames; None where there is none of this contract.

    The staged or published matrix must have the recorded hash, and the recorded sidecar the wanted identity.
    """
    path, marker = volume.matrix(tileset, encoder), volume.sidecar(tileset, encoder)
    work = volume.work(tileset, encoder)
    record = pending(volume, tileset, encoder)
    if record is None or marker.exists():
        return None
    sidecar = record.sidecar
    if differences(wanted.identity(), identity_of(sidecar)):
        return None
    staged = work / "matrix.staged"
    standing = sha256_file(path) if path.exists() else None
    if staged.exists() and standing in (None, record.replaces):
        if sha256_file(staged) != sidecar["matrix_sha256"]:
            return None
        staged.replace(path)
    elif standing != sidecar["matrix_sha256"]:
        return None
    _finish(path, marker, work, sidecar)
    return sidecar


@dataclass(frozen=True)
class Pending:
    """A publication under way: the sidecar to come, and the SHA-256 of the matrix that it replaces, if any."""

    sidecar: dict[str, Any]
    replaces: str | None


def pending(volume: Volume, tileset: str, encoder: str) -> Pending | None:
    """The publication that was begun and not finished; None where there is none that can be read."""
    try:
        record = json.loads((volume.work(tileset, encoder) / PUBLISH).read_text(encoding="utf-8"))
        return Pending(require_sidecar(record["sidecar"], PUBLISH, subject_of(tileset, encoder)), record["replaces"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError, ArtifactError):
        return None


def _finish(path: Path, marker: Path, work: Path, sidecar: dict[str, Any]) -> None:
    fsync_folder(path.parent)
    write_json(marker, sidecar)
    remove(work / PUBLISH)
