"""`smoke`: an encoder with its real weights over the golden tiles, twice; what it gives is written for comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.artifacts.environment import bundle_version, capture, utc_now
from croma_bundle.artifacts.golden import Golden, write_golden
from croma_bundle.artifacts.matrix import Floats, require_usable_rows
from croma_bundle.encoders.loading import Opened, open_encoder
from croma_bundle.errors import BundleError, VerdictFailed, raise_all
from croma_bundle.extraction.boundary import fault_of
from croma_bundle.extraction.device import kind, resolve_device
from croma_bundle.extraction.embed import extraction_contract
from croma_bundle.extraction.golden_tiles import GoldenTiles, golden_tiles
from croma_bundle.layout import Volume, WeightsFolder
from croma_bundle.manifests.models import Encoder
from croma_bundle.progress import Reporter
from croma_bundle.weights.wanted import require_pinned

UNIT = 1e-5
"""How far from 1 the length of a normalised float32 vector may be."""


def smoke_all(volume: Volume, entries: Sequence[Encoder], device: str, reporter: Reporter) -> None:
    """Smoke each encoder and print a line; golden vectors go to `<volume>/parity`.

    Raises:
        BundleError, SeveralErrors: everything that failed, after all the rest ran.
    """
    volume.require_writable()
    tiles, faults = golden_tiles(), list[BundleError]()
    for entry in entries:
        try:
            golden = smoke(entry, WeightsFolder(volume.weights), device, tiles)
        except Exception as error:
            fault = fault_of(f"encoder {entry.name}", error)
            faults.append(fault)
            reporter.say(f"{entry.name}: failed, {getattr(fault, 'problem', 'see below')}", "failed")
            continue
        path = volume.golden(entry.name)
        write_golden(path, golden)
        _report(entry, golden, volume.shown(path), reporter)
    raise_all(faults)


def smoke(
    entry: Encoder,
    weights: WeightsFolder,
    device: str,
    tiles: GoldenTiles,
    opener: Callable[[Encoder, WeightsFolder], Opened] = open_encoder,
) -> Golden:
    """The golden vectors of one encoder; `opener` as for `embed`.

    Raises:
        VerdictFailed: other vectors the second time, or a length that cannot be.
        DegenerateEmbedding: vectors that are not finite, or all zero. And whatever loading raises.
    """
    require_pinned(entry)
    device = resolve_device(entry, device)
    opened = opener(entry, weights)
    loaded = opened.on(device)
    prepared = np.stack([loaded.prepare(tile) for tile in tiles.pixels])
    vectors, again = loaded.embed(prepared), loaded.embed(prepared)
    require_usable_rows(vectors, f"golden tiles · {entry.name}")
    _require_same(entry, vectors, again)
    _require_unit(entry, vectors)
    return Golden(_identity(entry, opened, tiles), _made(entry, device, len(prepared)), tiles.names, vectors)


def _identity(entry: Encoder, opened: Opened, tiles: GoldenTiles) -> dict[str, Any]:
    return {
        "encoder": entry.name,
        "checkpoint_revision": entry.revision,
        "extraction_contract": extraction_contract(entry, opened),
        "weights": [{key: file[key] for key in ("file", "sha256")} for file in opened.weights],
        "remote_code": [{key: file[key] for key in ("file", "sha256")} for file in opened.remote_code],
        "tiles": tiles.identity(),
    }


def _made(entry: Encoder, device: str, batch: int) -> dict[str, Any]:
    return {
        "arithmetic": entry.precision_on(device),
        "batch_size": batch,
        "environment": capture(kind(device)),
        "bundle": bundle_version(),
        "finished": utc_now(),
    }


def _require_same(entry: Encoder, vectors: Floats, again: Floats) -> None:
    if vectors.shape != again.shape or not np.array_equal(vectors, again):
        found = f"differences up to {np.abs(vectors - again).max():.3g}" if vectors.shape == again.shape else "a shape"
        raise VerdictFailed(f"encoder {entry.name}", "the same tiles gave other vectors the second time", found=found)


def _require_unit(entry: Encoder, vectors: Floats) -> None:
    lengths = norms(vectors)
    if entry.norms == (1.0, 1.0) and np.abs(lengths - 1).max() > UNIT:
        raise VerdictFailed(
            f"encoder {entry.name}",
            "its vectors have other lengths than 1",
            wanted=f"1 within {UNIT:g}",
            found=_range(lengths),
            declared="norms in its entry",
        )


def norms(vectors: Floats) -> npt.NDArray[np.float64]:
    lengths: npt.NDArray[np.float64] = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return lengths


def _range(lengths: npt.NDArray[np.float64]) -> str:
    return f"{lengths.min():.6g} to {lengths.max():.6g}"


def _report(entry: Encoder, golden: Golden, path: str | Path, reporter: Reporter) -> None:
    lengths = norms(golden.vectors)
    rows, width = golden.vectors.shape
    arithmetic, device = golden.made["arithmetic"], golden.made["environment"]["device"]
    text = f"{entry.name}: {rows} golden tiles × {width:,}, twice the same, {arithmetic} on {device}, "
    text += f"lengths {_range(lengths)}" + _published(entry, lengths) + f"; {path}"
    fields = {"least": float(lengths.min()), "greatest": float(lengths.max()), "published": entry.norms}
    reporter.result(text, "smoke", encoder=entry.name, arithmetic=arithmetic, device=device, path=str(path), **fields)


def _published(entry: Encoder, lengths: npt.NDArray[np.float64]) -> str:
    """The published lengths beside ours; those are of real tiles, so leaving their range is told and proves nothing."""
    if entry.norms is None:
        return ""
    low, high = entry.norms
    inside = (low <= lengths.min() and lengths.max() <= high) or low == high
    return f" (published, of real tiles: {low:g} to {high:g}{'' if inside else '; these lie outside'})"
