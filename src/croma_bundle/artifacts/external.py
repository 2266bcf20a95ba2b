"""`import`: embeddings made elsewhere, marked external in every table."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.artifacts.contract import CONTRACT_VERSION, Contract
from croma_bundle.artifacts.environment import bundle_version, capture, utc_now
from croma_bundle.artifacts.matrix import Floats, NotPlainNpy, map_npy, require_usable_rows, row_blocks, spread
from croma_bundle.artifacts.pair import pending, publish, remake, subject_of
from croma_bundle.artifacts.sidecar import is_external, make_sidecar, read_sidecar
from croma_bundle.durable import lock, sha256_file, sweep_temporaries
from croma_bundle.errors import ArtifactError, BundleError, InputError, UsageError, some
from croma_bundle.layout import Volume, checked_name

DTYPES = ("float16", "float32", "float64")


def import_matrix(
    volume: Volume,
    tileset: str,
    encoder: str,
    source: Path,
    *,
    provenance: str,
    control: bool,
    rows: int,
    fingerprint: str,
    force: bool,
) -> dict[str, Any]:
    """Publish `source` (a `.npy` of `rows` rows in tileset order) as an external artifact; returns its sidecar.

    float16, float32 and float64 are cast to float32; the dtype and the file's SHA-256 are recorded.

    Raises:
        UsageError: no provenance. InputError: the file does not fit. ArtifactError: the name holds an embedded matrix.
    """
    checked_name("encoder", encoder)
    try:
        provenance.encode()
    except UnicodeEncodeError:
        raise UsageError("--provenance", "it is not UTF-8 text") from None
    if not provenance.strip():
        raise UsageError("--provenance", "it is empty", wanted="who made the matrix, from what, with which checkpoint")
    subject = subject_of(tileset, encoder)
    given = _open_given(source, rows, subject)
    contract = Contract(
        checkpoint_revision=None,
        extraction_contract={
            "version": CONTRACT_VERSION,
            "encoder": encoder,
            "external": True,
            "provenance": provenance.strip(),
            "source_dtype": str(given.dtype),
            "source_sha256": sha256_file(source),
        },
        precision=None,
        batch_size=None,
        output_shape=(given.shape[0], given.shape[1]),
        manifest_fingerprint=fingerprint,
        pixels_sha256=None,
        device="external",
    )
    volume.require_writable()
    with lock(volume.job_lock(tileset, encoder), subject):
        _refuse_replacing(volume, tileset, encoder, subject, force)
        sweep_temporaries(volume.work(tileset, encoder))
        sweep_temporaries(volume.embeddings(tileset), f"{encoder}.npy")
        started = utc_now()

        def finish(digest: str, matrix: Floats) -> dict[str, Any]:
            require_usable_rows(matrix, subject)
            return make_sidecar(
                contract,
                matrix_sha256=digest,
                control=control,
                spread=spread(matrix),
                environment=capture("external"),
                bundle=bundle_version(),
                replay={"command": "import", "tileset": tileset, "encoder": encoder},
                started=started,
                finished=utc_now(),
            )

        try:
            sidecar = publish(volume, tileset, encoder, contract.output_shape, _as_float32(given, subject), finish)
        except BundleError:
            shutil.rmtree(volume.work(tileset, encoder), ignore_errors=True)
            raise
        shutil.rmtree(volume.work(tileset, encoder), ignore_errors=True)
        return sidecar


def _open_given(source: Path, rows: int, subject: str) -> npt.NDArray[Any]:
    if not source.exists():
        raise InputError(subject, "there is no such matrix", found=str(source))
    try:
        given = map_npy(source)
    except NotPlainNpy as error:
        wanted = "one matrix of numbers as .npy"
        raise InputError(subject, "this is not a plain .npy file", wanted=wanted, found=f"{source} ({error})") from None
    if given.dtype.name not in DTYPES or given.ndim != 2:
        found = f"{given.dtype} {given.shape}, {source}"
        raise InputError(
            subject, "the matrix has another form", wanted="(rows, width) of float16, 32 or 64", found=found
        )
    if len(given) != rows or not given.shape[1]:
        wanted = f"{rows:,} rows, one per row of the tileset manifest, in its order"
        raise InputError(
            subject, "the matrix does not fit the tileset", wanted=wanted, found=f"{given.shape} in {source}"
        )
    return given


def _as_float32(given: npt.NDArray[Any], subject: str) -> Iterator[Floats]:
    for start, block in row_blocks(given):
        with np.errstate(over="ignore"):
            cast = block.astype(np.float32)
        if lost := np.flatnonzero((np.isinf(cast) & np.isfinite(block)).any(axis=1)).tolist():
            wanted = f"at most {np.finfo(np.float32).max:.3g} in size"
            found = f"{given.dtype} rows (from 0) {some([start + row for row in lost])}"
            raise InputError(subject, "values beyond float32", wanted=wanted, found=found)
        yield cast


def _refuse_replacing(volume: Volume, tileset: str, encoder: str, subject: str, force: bool) -> None:
    """Raise `ArtifactError` where an embedded matrix stands or is being published, or, unless forced, any other."""
    matrix, marker = volume.matrix(tileset, encoder), volume.sidecar(tileset, encoder)
    if marker.exists():
        try:
            stands = read_sidecar(marker, subject)
        except ArtifactError as fault:
            detail = "So it cannot be told whether it was embedded here, which an import never replaces."
            then = f"rm {matrix} {marker}   # then import again"
            raise ArtifactError(subject, fault.problem, found=fault.found, detail=detail, then=then) from None
    elif matrix.exists() and (begun := pending(volume, tileset, encoder)):
        stands = begun.sidecar
    elif matrix.exists() and not force:
        raise ArtifactError(subject, "half an artifact stands under this name", then="Import with --force.")
    else:
        return
    if not is_external(stands):
        detail = "An import never replaces an embedded matrix; import it under another name."
        raise ArtifactError(subject, "this encoder was embedded here", found=volume.relative(matrix), detail=detail)
    if not force:
        raise ArtifactError(
            subject,
            "it was imported already",
            found=volume.relative(matrix),
            then=remake(stands, tileset, encoder),
        )
