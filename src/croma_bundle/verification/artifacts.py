"""`verify artifacts`: every claim that files alone can prove, re-hashed."""

from __future__ import annotations

from collections.abc import Sequence

from croma_bundle.artifacts.frozen_manifest import require_frozen_manifest
from croma_bundle.artifacts.pair import embedded, subject_of, verify_pair
from croma_bundle.artifacts.sidecar import is_external
from croma_bundle.errors import ArtifactError, BundleError, InputError, raise_all
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.manifest import load_manifest
from croma_bundle.tilemanifest.pixel_record import read_pixels


def verify_all(volume: Volume, catalogue: Catalogue, tilesets: Sequence[str] | None, reporter: Reporter) -> None:
    """Re-hash every artifact of the tilesets and say ok for each that holds.

    Raises:
        BundleError, SeveralErrors: every artifact that does not hold, after all were checked.
    """
    names = tilesets or _with_embeddings(volume)
    if not names:
        raise InputError(f"volume {volume.root}", "there is no embedding to verify", then="make embed TILESET=…")
    faults: list[BundleError] = []
    for name in names:
        try:
            entry = catalogue.tileset(name)
            if not embedded(volume, name):
                raise InputError(f"tileset {name}", "nothing is embedded for it", then=f"make embed TILESET={name}")
            manifest = load_manifest(volume, entry)
            require_frozen_manifest(volume, name, manifest.public_text(entry.confounder))
            fingerprint = manifest.fingerprint(entry.confounder)
            pixels = read_pixels(volume, name, manifest).pixels_sha256 if entry.images else None
        except BundleError as fault:
            faults.append(fault)
            continue
        for encoder in embedded(volume, name):
            try:
                digest = _verify_one(volume, name, encoder, fingerprint, pixels)
            except BundleError as fault:
                faults.append(fault)
                continue
            text = f"ok  {subject_of(name, encoder)}  sha256 {digest}"
            reporter.result(text, "verified", tileset=name, encoder=encoder, matrix_sha256=digest)
    raise_all(faults)


def _with_embeddings(volume: Volume) -> list[str]:
    """Tilesets of which anything is embedded, declared or not: what nobody declares cannot pass."""
    folders = volume.embeddings_root.iterdir() if volume.embeddings_root.is_dir() else ()
    return sorted(folder.name for folder in folders if embedded(volume, folder.name))


def _verify_one(volume: Volume, tileset: str, encoder: str, fingerprint: str, pixels: str | None) -> str:
    sidecar, _ = verify_pair(volume, tileset, encoder)
    claims = {"manifest_fingerprint": fingerprint}
    if not is_external(sidecar):
        claims["pixels_sha256"] = str(pixels)
    for key, wanted in claims.items():
        if sidecar[key] != wanted:
            subject, found = subject_of(tileset, encoder), f"{str(sidecar[key])[:12]}… in its sidecar"
            raise ArtifactError(subject, f"its {key} is not the tileset's", wanted=f"{wanted[:12]}…", found=found)
    return str(sidecar["matrix_sha256"])
