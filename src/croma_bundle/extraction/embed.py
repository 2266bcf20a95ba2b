"""The embed loop: tiles in manifest order → prepared by workers → batches → chunks → one published artifact.

It knows no encoder by name. Killed at any moment it loses at most one chunk, leaves nothing that looks finished, and
resumes to the bitwise same matrix.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import features

from croma_bundle.artifacts.contract import CONTRACT_VERSION, Contract
from croma_bundle.artifacts.environment import bundle_version, capture, utc_now
from croma_bundle.artifacts.frozen_manifest import freeze_manifest
from croma_bundle.artifacts.matrix import Floats, require_usable_rows, spread
from croma_bundle.artifacts.pair import complete, complete_pair, publish, require_same_identity, subject_of, verify_pair
from croma_bundle.artifacts.sidecar import make_sidecar, read_sidecar
from croma_bundle.durable import lock, sweep_temporaries, write_bytes
from croma_bundle.encoders.loading import Loaded, load
from croma_bundle.errors import (
    BundleError,
    EnvironmentFault,
    ManifestError,
    PixelError,
    UsageError,
)
from croma_bundle.extraction.chunks import ChunkStore, chunk_rows
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Encoder, Tileset
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.pixel_record import PixelRecord
from croma_bundle.tilemanifest.table import csv_text
from croma_bundle.tiles.parquet import file_of
from croma_bundle.tiles.pixels import decode
from croma_bundle.tiles.tileset import raise_pixel_faults
from croma_bundle.tiles.workers import ordered_map

Prepare = Callable[[npt.NDArray[np.uint8]], npt.NDArray[Any]]
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
Outcome = Literal["embedded", "completed", "there"]


@dataclass(frozen=True)
class EmbedInput:
    """The tiles of one tileset, ready to be embedded by any encoder.

    `paths` say where each tile is read from (an image path map included); they are no part of identity.
    """

    volume: Volume
    tileset: Tileset
    manifest: TileManifest
    pixels: PixelRecord
    paths: tuple[Path, ...]

    def require_files(self) -> None:
        """Raise `PixelError`s naming every file that is not there, before any encoder is loaded."""
        missing = [PixelError(str(path), "there is no such file") for path in self.paths if not file_of(path).is_file()]
        raise_pixel_faults(missing, len(self.paths))


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
    _fill(store, set(done), tiles, entry, loaded, workers, subject, reporter)

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


def _fill(
    store: ChunkStore,
    done: set[int],
    tiles: EmbedInput,
    entry: Encoder,
    loaded: Loaded,
    workers: int,
    subject: str,
    reporter: Reporter,
) -> None:
    """Compute and store every chunk that is not there yet."""
    spans = store.spans()
    todo = [(number, *spans[number]) for number in range(len(spans)) if number not in done]
    rows = [row for _, first, end in todo for row in range(first, end)]
    expected = tiles.pixels.rows
    work = ((loaded.prepare, tiles.paths[row], expected[row]) for row in rows)
    prepared = reporter.track(ordered_map(_prepare, work, workers), store.rows, subject, store.rows - len(rows))
    faults: list[BundleError] = []
    for number, first, end in todo:
        chunk = _embed_span(prepared, first, end, entry, loaded, subject, faults)
        if chunk is not None:
            store.write(number, chunk)
    if faults:
        failing = csv_text(("image_path", "reason"), [(fault.subject, fault.problem) for fault in faults])
        listed = store.folder / "failing.csv"
        write_bytes(listed, failing.encode())
        reporter.say(f"{subject}: the failing tiles are listed in {tiles.volume.shown(listed)}")
        raise_pixel_faults(faults, len(rows))


def _embed_span(
    prepared: Iterator[npt.NDArray[Any] | PixelError],
    first: int,
    end: int,
    entry: Encoder,
    loaded: Loaded,
    subject: str,
    faults: list[BundleError],
) -> Floats | None:
    """The rows [first, end) as (end − first, width) float32, or None once any tile has failed."""
    parts = []
    for start in range(first, end, entry.batch_size):
        batch = list(itertools.islice(prepared, min(entry.batch_size, end - start)))
        faults += [item for item in batch if isinstance(item, PixelError)]
        if faults:
            continue  # go on decoding, so that every failing tile is named at once
        vectors = np.asarray(loaded.embed(np.stack([item for item in batch if not isinstance(item, PixelError)])))
        parts.append(_checked(vectors, len(batch), start, entry, subject))
    return None if faults else np.concatenate(parts)


def _checked(vectors: npt.NDArray[Any], count: int, start: int, entry: Encoder, subject: str) -> Floats:
    """The batch as float32, if it may be stored: a chunk with an unusable row would be resumed for ever."""
    if vectors.shape != (count, entry.width):
        found = f"{vectors.shape} for {count} tiles"
        raise ManifestError(
            subject, "its output is not of the declared width", wanted=f"({count}, {entry.width})", found=found
        )
    with np.errstate(over="ignore"):
        rows = vectors.astype(np.float32, copy=False)
    require_usable_rows(rows, subject, start)
    return rows


def _prepare(job: tuple[Prepare, Path, str]) -> npt.NDArray[Any] | PixelError:
    """In a worker: decode a tile completely, compare its pixels with the record, prepare it."""
    prepare, path, expected = job
    try:
        tile = decode(path)
    except PixelError as error:
        return error
    digest = tile.digest().hex()
    if digest != expected:
        return PixelError(
            str(path),
            "its pixels are not those that were hashed when the tileset was made",
            wanted=f"sha256 {expected[:12]}…  pixels.json",
            found=f"{digest[:12]}…",
        )
    try:
        return prepare(tile.rgb)
    except PixelError as error:
        error.subject = f"{path} ({error.subject})"
        return error
