"""One matrix: an encoder over a tileset, published with its sidecar, or reused, completed or resumed.

Killed at any moment it loses at most one chunk and what was begun while that was written, leaves nothing that looks
finished, and resumes to the bitwise same matrix.
"""

from __future__ import annotations

import functools
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
from croma_bundle.encoders.loading import Loaded, Opened, open_encoder
from croma_bundle.extraction.batch_size import with_decided_batch
from croma_bundle.extraction.chunks import ChunkStore, chunk_rows
from croma_bundle.extraction.device import kind, resolve_device
from croma_bundle.extraction.embed_input import EmbedInput
from croma_bundle.extraction.loop import fill
from croma_bundle.layout import WeightsFolder
from croma_bundle.manifests.models import Encoder, plain
from croma_bundle.progress import Reporter
from croma_bundle.weights.wanted import require_pinned

Outcome = Literal["embedded", "completed", "there"]


def embed(
    tiles: EmbedInput,
    entry: Encoder,
    *,
    device: str,
    workers: int,
    force: bool,
    reporter: Reporter,
    decide_batch: bool = False,
    weights: WeightsFolder | None = None,
    opener: Callable[[Encoder, WeightsFolder], Opened] = open_encoder,
) -> tuple[Outcome, dict[str, Any]]:
    """Embed one tileset with one encoder, or reuse, complete or resume what is there; returns the sidecar too.

    `opener` finds the encoder and what it needs, after the device and the lock are had; it is loaded only to compute.
    `decide_batch`: the batch size that is fastest here, instead of the entry's.

    Raises:
        ManifestError: the encoder is unpinned. UsageError: there is no such kind of device.
        EnvironmentFault: the device cannot be had. LockHeld.
        InputError: weights that are missing or do not fit.
        ArtifactError: what stands there is damaged or of another contract; weights of another hash.
        PixelError: tiles that are missing, unreadable, or no longer the pixels that were hashed.
        DegenerateEmbedding: NaN, infinity or all-zero rows.
    """
    volume, name = tiles.volume, tiles.tileset.name
    subject = subject_of(name, entry.name)
    require_pinned(entry)
    device = resolve_device(entry, device)
    volume.require_writable()
    with lock(volume.job_lock(name, entry.name), subject):
        sweep_temporaries(volume.embeddings(name), f"{entry.name}.npy")
        freeze_manifest(volume, name, tiles.manifest.public_text(tiles.tileset.confounder))
        opened = opener(entry, weights or WeightsFolder(volume.weights))
        loaded = functools.cache(lambda: opened.on(device))
        if decide_batch:
            entry = with_decided_batch(tiles, entry, device, loaded, force, reporter)
        contract = contract_of(tiles, entry, opened, device)
        if not force:
            if (sidecar := complete(volume, name, entry.name, contract)) is not None:
                _store(tiles, entry, contract).discard()
                return "completed", sidecar
            if complete_pair(volume, name, entry.name):
                _store(tiles, entry, contract).discard()
                return "there", _reusable(tiles, entry, contract, subject)
        return "embedded", _run(tiles, entry, loaded(), contract, workers, subject, reporter)


def contract_of(tiles: EmbedInput, entry: Encoder, opened: Opened, device: str) -> Contract:
    """The identity of the matrix that this encoder makes of these tiles."""
    return Contract(
        checkpoint_revision=entry.revision,
        extraction_contract={
            **extraction_contract(entry, opened),
            "source_tile_size": sorted(tiles.pixels.sizes),
        },
        precision=entry.precision_on(device),
        batch_size=entry.batch_size,
        output_shape=(len(tiles.manifest), entry.width),
        manifest_fingerprint=tiles.manifest.fingerprint(tiles.tileset.confounder),
        pixels_sha256=tiles.pixels.pixels_sha256,
        weights=opened.weights,
        remote_code=opened.remote_code,
        device=kind(device),
    )


def extraction_contract(entry: Encoder, opened: Opened) -> dict[str, Any]:
    """What an encoder does to a tile of whatever size."""
    return {
        "version": CONTRACT_VERSION,
        "encoder": entry.name,
        "family": entry.family,
        "backend": entry.backend,
        "model": entry.model,
        "generation": entry.generation,
        "preprocessing": dict(opened.preprocessing),
        "pooling": entry.pooling,
        **_network(entry),
    }


def _network(entry: Encoder) -> dict[str, Any]:
    """What else of an entry decides what its network computes; descriptors have none."""
    if entry.backend == "classical":
        return {}
    stated = plain(entry)
    return {key: stated[key] for key in ("arguments", "state", "tokens")}


def libjpeg() -> str | None:
    """The JPEG decoder of this process: another one may give other pixels."""
    turbo = features.version("libjpeg_turbo")
    return f"libjpeg-turbo {turbo}" if turbo else features.version("jpg")


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
