"""The roster of a benchmark: whatever has been embedded for its tileset, each member checked before it counts."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.artifacts.frozen_manifest import require_frozen_manifest
from croma_bundle.artifacts.pair import embedded, subject_of, verify_pair
from croma_bundle.artifacts.sidecar import is_external
from croma_bundle.durable import sha256_file
from croma_bundle.errors import ArtifactError, BundleError, InputError, did_you_mean
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Encoder, Tileset
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.pixel_record import read_pixels

READERS = 4
"""Files read at once: hashing one keeps a core busy, and more would only make a disk seek."""


@dataclass(frozen=True)
class Member:
    """An embedding that may be scored: its sidecar, its mapped matrix, and its declaration (None: an import under a
    name that is not declared)."""

    name: str
    sidecar: dict[str, Any]
    sidecar_sha256: str
    matrix: npt.NDArray[np.float32]
    entry: Encoder | None

    @property
    def external(self) -> bool:
        return is_external(self.sidecar)

    @property
    def is_control(self) -> bool:
        return bool(self.sidecar["control"]) or (self.entry is not None and self.entry.control)

    @property
    def votes(self) -> bool:
        """Whether it has a say in the shared k: declared names as declared, other imports always."""
        return self.entry.votes if self.entry else True

    def exposed(self, tileset: str) -> bool | None:
        """Whether its pretraining saw these images; None where nobody says."""
        known = self.entry.exposed if self.entry else None
        return None if known is None else tileset in known


def frozen_pixels(volume: Volume, tileset: Tileset, manifest: TileManifest) -> str | None:
    """The hash of a tileset's pixels, if it has any; raises where the manifest is not the one beside its matrices."""
    require_frozen_manifest(volume, tileset.name, manifest.public_text(tileset.confounder))
    if not volume.pixels(tileset.name).exists():
        return None
    return read_pixels(volume, tileset.name, manifest).pixels_sha256


def load_roster(
    volume: Volume,
    catalogue: Catalogue,
    tileset: str,
    *,
    fingerprint: str,
    pixels_sha256: str | None,
    wanted: Sequence[str] | None,
    threads: int | None = None,
) -> tuple[list[Member], list[BundleError]]:
    """The members that pass every check, in name order, and why the others were refused.

    Args:
        fingerprint: of the tileset's manifest; every matrix must be of these rows.
        pixels_sha256: of the tileset's pixels; every embedded (not imported) matrix must be of these pixels.
        wanted: limits the roster to these names.
        threads: matrices hashed at once; None: one per core, and never more than `READERS`.
    """
    present = embedded(volume, tileset)
    declared = functools.partial(_member, volume, catalogue, tileset, fingerprint, pixels_sha256, present)
    with ThreadPoolExecutor(min(READERS, threads or READERS, len(os.sched_getaffinity(0)))) as pool:
        found = list(pool.map(declared, sorted(wanted) if wanted is not None else present))
    return [m for m in found if isinstance(m, Member)], [f for f in found if isinstance(f, BundleError)]


def _member(
    volume: Volume,
    catalogue: Catalogue,
    tileset: str,
    fingerprint: str,
    pixels_sha256: str | None,
    present: Sequence[str],
    name: str,
) -> Member | BundleError:
    """The checked member of this name, or why it is refused."""
    subject = subject_of(tileset, name)
    if name not in present:
        found = ", ".join(present) or "nothing is embedded yet"
        return InputError(subject, f"it is not embedded{did_you_mean(name, present)}", found=found)
    try:
        sidecar, matrix = verify_pair(volume, tileset, name)
        entry = catalogue.encoders.get(name) if is_external(sidecar) else _declared(catalogue, name, subject)
        _require_rows_and_pixels(sidecar, subject, fingerprint, pixels_sha256)
    except BundleError as fault:
        return fault
    return Member(name, sidecar, sha256_file(volume.sidecar(tileset, name)), matrix, entry)


def _declared(catalogue: Catalogue, name: str, subject: str) -> Encoder:
    if name not in catalogue.encoders:
        wanted = "a declaration in manifests/encoders or <volume>/encoders: it says whether the encoder votes and ranks"
        raise InputError(subject, "its encoder is not declared here", wanted=wanted)
    return catalogue.encoders[name]


def _require_rows_and_pixels(
    sidecar: dict[str, Any], subject: str, fingerprint: str, pixels_sha256: str | None
) -> None:
    found = sidecar["manifest_fingerprint"]
    if found != fingerprint:
        wanted, has = f"manifest_fingerprint {fingerprint[:12]}…", f"{found[:12]}… in its sidecar"
        raise ArtifactError(subject, "it was made for other rows", wanted=wanted, found=has)
    if is_external(sidecar) or sidecar["pixels_sha256"] == pixels_sha256:
        return
    raise ArtifactError(
        subject,
        "it was made of other pixels than the tileset has",
        wanted=f"pixels_sha256 {(pixels_sha256 or 'none')[:12]}…",
        found=f"{(sidecar['pixels_sha256'] or 'none')[:12]}… in its sidecar",
        detail="The same tiles decode differently in another image library; embed it again with FORCE=1.",
    )
