"""One matrix: an encoder over a tileset, published with its sidecar, or reused, completed or resumed.

Killed at any moment it loses at most one chunk, leaves nothing that looks finished, and resumes to the bitwise same
matrix.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from PIL import features

from croma_bundle.artifacts.contract import CONTRACT_VERSION, Contract
from croma_bundle.artifacts.environment import bundle_version, capture, utc_now
from croma_bundle.artifacts.frozen_manifest import freeze_manifest
from croma_bundle.artifacts.matrix import Floats, require_usable_rows, spread
from croma_bundle.artifacts.pair import complete, complete_pair, publish, require_same_identity, subject_of, verify_pair
from croma_bundle.artifacts.sidecar import make_sidecar, read_sidecar
from croma_bundle.durable import lock, sweep_temporaries
from croma_bundle.encoders.loading import Loaded, load
from croma_bundle.errors import (
    EnvironmentFault,
    ManifestError,
    UsageError,
)
from croma_bundle.extraction.chunks import ChunkStore, chunk_rows
from croma_bundle.extraction.embed_input import EmbedInput
from croma_bundle.extraction.loop import fill
from croma_bundle.manifests.models import Encoder
from croma_bundle.progress import Reporter

DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
Outcome = Literal["embedded", "completed", "there"]


def embed(
    tiles: EmbedInput,
    entry: Encoder,
    *,
    device: str,
    workers: int,
    force: bool,
    reporter: Reporter,
    loader: Callable[[Encoder], Loaded] = load,
) -> tuple[Outcome, dict[str, Any]]:
    """Embed one tileset with one encoder, or reuse, complete or resume what is there; returns the sidecar too.

    `loader` makes the encoder ready to compute; it is called after the device and the lock are had.

    Raises:
        ManifestError: the encoder is unpinned. UsageError: there is no such kind of device.
        EnvironmentFault: the device cannot be had. LockHeld.
        ArtifactError: what stands there is damaged or of another contract.
        PixelError: tiles that are missing, unreadable, or no longer the pixels that were hashed.
        DegenerateEmbedding: NaN, infinity or all-zero rows.
    """
    volume, name = tiles.volume, tiles.tileset.name
    subject = subject_of(name, entry.name)
    _require_pinned(entry)
    device = resolve_device(entry, device)
    volume.require_writable()
    with lock(volume.job_lock(name, entry.name), subject):
        sweep_temporaries(volume.embeddings(name), f"{entry.name}.npy")
        freeze_manifest(volume, name, tiles.manifest.public_text(tiles.tileset.confounder))
        loaded = loader(entry)
        contract = contract_of(tiles, entry, loaded, device)
        if not force:
            if (sidecar := complete(volume, name, entry.name, contract)) is not None:
                _store(tiles, entry, contract).discard()
                return "completed", sidecar
            if complete_pair(volume, name, entry.name):
                _store(tiles, entry, contract).discard()
                return "there", _reusable(tiles, entry, contract, subject)
        return "embedded", _run(tiles, entry, loaded, contract, workers, subject, reporter)


def contract_of(tiles: EmbedInput, entry: Encoder, loaded: Loaded, device: str) -> Contract:
    """The identity of the matrix that this encoder makes of these tiles."""
    return Contract(
        checkpoint_revision=entry.revision,
        extraction_contract={
            "version": CONTRACT_VERSION,
            "encoder": entry.name,
            "family": entry.family,
            "backend": entry.backend,
            "model": entry.model,
            "generation": entry.generation,
            "preprocessing": dict(loaded.preprocessing),
            "pooling": entry.pooling,
            "source_tile_size": sorted(tiles.pixels.sizes),
        },
        precision=entry.precision,
        batch_size=entry.batch_size,
        output_shape=(len(tiles.manifest), entry.width),
        manifest_fingerprint=tiles.manifest.fingerprint(tiles.tileset.confounder),
        pixels_sha256=tiles.pixels.pixels_sha256,
        weights=loaded.weights,
        device=device,
    )


def resolve_device(entry: Encoder, device: str) -> str:
    """The kind of device that computes.

    Raises:
        UsageError: there is no such kind of device. EnvironmentFault: the asked one cannot be had.
    """
    if device in ("auto", "cpu"):
        return "cpu"
    if not DEVICE.fullmatch(device):
        raise UsageError(f"--device {device}", "there is no such device", wanted="auto, cpu, cuda or cuda:N")
    raise EnvironmentFault(
        f"--device {device}",
        f"{entry.name} computes on the CPU only (family {entry.family})",
        wanted="auto or cpu",
    )


def libjpeg() -> str | None:
    """The JPEG decoder of this process: another one may give other pixels."""
    turbo = features.version("libjpeg_turbo")
    return f"libjpeg-turbo {turbo}" if turbo else features.version("jpg")


def _require_pinned(entry: Encoder) -> None:
    if not entry.pinned:
        found = f"repository {entry.repository}, revision null"
        raise ManifestError(
            f"encoder {entry.name}",
            "it is unpinned",
            wanted="a revision of 40 hex digits",
            found=found,
            then=f"make lock-weights ENCODERS={entry.name}",
        )


def _reusable(tiles: EmbedInput, entry: Encoder, contract: Contract, subject: str) -> dict[str, Any]:
    name = tiles.tileset.name
    then = f"make embed FAMILY={entry.family} TILESET={name} ENCODERS={entry.name} FORCE=1   # replaces it"
    require_same_identity(contract, read_sidecar(tiles.volume.sidecar(name, entry.name), subject), subject, then)
    return verify_pair(tiles.volume, name, entry.name)[0]


def _store(tiles: EmbedInput, entry: Encoder, contract: Contract) -> ChunkStore:
    folder = tiles.volume.work(tiles.tileset.name, entry.name)
    subject = subject_of(tiles.tileset.name, entry.name)
    return ChunkStore(subject, folder, contract.identity(), len(tiles.manifest), chunk_rows(entry.batch_size))


def _run(
    tiles: EmbedInput,
    entry: Encoder,
    loaded: Loaded,
    contract: Contract,
    workers: int,
    subject: str,
    reporter: Reporter,
) -> dict[str, Any]:
    store = _store(tiles, entry, contract)
    started = utc_now()
    if not store.open():
        reporter.say(f"{subject}: chunks of another contract were discarded")
    done = store.finished()
    if done:
        reporter.say(
            f"{subject}: resuming after {len(done)} of {len(store.spans())} chunks", "resume", chunks=len(done)
        )
    fill(store, set(done), tiles, entry, loaded, workers, subject, reporter)

    def finish(digest: str, matrix: Floats) -> dict[str, Any]:
        require_usable_rows(matrix, subject)
        measured = spread(matrix)
        if measured.collapsed:
            reporter.warn(f"{subject}: nearly collapsed, every cosine is above {measured.cosine_min:.6f}")
        return make_sidecar(
            contract,
            matrix_sha256=digest,
            control=entry.control,
            spread=measured,
            environment=capture(contract.device, {"libjpeg": libjpeg()}),
            bundle=bundle_version(),
            replay={
                "command": "embed",
                "tileset": tiles.tileset.name,
                "encoder": entry.name,
                "device": contract.device,
            },
            started=started,
            finished=utc_now(),
        )

    sidecar = publish(tiles.volume, tiles.tileset.name, entry.name, contract.output_shape, store.blocks(), finish)
    store.discard()
    return sidecar
