"""From a declared encoder to one that computes: its files verified, its network loaded, its recipe beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.encoders.families import require_libraries
from croma_bundle.errors import BundleError, EnvironmentFault, InputError, ManifestError
from croma_bundle.layout import WeightsFolder
from croma_bundle.manifests.models import Encoder, plain
from croma_bundle.weights.resolve import LocalFile, resolve

Floats = npt.NDArray[np.float32]
Prepare = Callable[[npt.NDArray[np.uint8]], npt.NDArray[Any]]
Embed = Callable[[npt.NDArray[Any]], Floats]
Facts = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Loaded:
    """An encoder ready to compute.

    Attributes:
        prepare: tile (H, W, 3) uint8 → array of a fixed shape; importable, because worker processes run it.
        embed: stacked prepared tiles (B, …) → (B, width) float32; runs in the main process.
        preprocessing: the preparation in numbers, JSON-ready, as recorded in the sidecar.
        weights: what was loaded, as ``{file, sha256, sha256_source, bytes}``.
        remote_code: what was run of the checkpoint's repository, as ``{file, sha256}``.
    """

    prepare: Prepare
    embed: Embed
    preprocessing: Mapping[str, Any]
    weights: Facts = ()
    remote_code: Facts = ()


@dataclass(frozen=True)
class Opened:
    """An encoder whose files are there and verified; `start` loads it onto a device. All else is as of `Loaded`."""

    prepare: Prepare
    preprocessing: Mapping[str, Any]
    start: Callable[[str], Embed]
    weights: Facts = ()
    remote_code: Facts = ()

    def on(self, device: str) -> Loaded:
        return Loaded(self.prepare, self.start(device), self.preprocessing, self.weights, self.remote_code)


def load(entry: Encoder, weights: WeightsFolder, device: str) -> Loaded:
    """Make the encoder of a manifest entry ready on "cpu", "cuda" or "cuda:N"; raises as `open_encoder` and `start`."""
    return open_encoder(entry, weights).on(device)


def open_encoder(entry: Encoder, weights: WeightsFolder) -> Opened:
    """Find and verify everything that the encoder needs; offline, and without loading it.

    Raises:
        ManifestError: a descriptor that does not exist, a width that it does not have, a recipe that is open.
        EnvironmentFault: not the libraries of its family.
        InputError, ArtifactError: weights that are missing, unpinned, or of another hash.
    """
    if entry.backend == "classical":
        return _descriptor(entry)
    if entry.recipe is None:
        raise ManifestError(
            f"encoder {entry.name}",
            "its recipe is open: how its tiles are prepared is not known",
            wanted="a table [recipe] in its entry",
            found=entry.open,
            then=f"make lock-weights ENCODERS={entry.checkpoint}",
        )
    require_libraries(entry)
    from croma_bundle.encoders.recipes import prepare

    files = resolve(weights, entry)
    return Opened(
        partial(prepare, entry.recipe),
        plain(entry.recipe),
        partial(_start, entry, entry.recipe.side, files),
        tuple(file.as_recorded() for file in files if not file.code),
        tuple(file.as_recorded() for file in files if file.code),
    )


def _start(entry: Encoder, side: int, files: tuple[LocalFile, ...], device: str) -> Embed:
    import torch

    from croma_bundle.encoders.backends import network
    from croma_bundle.encoders.forward import TorchForward

    architecture = network(entry, files)
    try:
        forward = TorchForward(architecture.module, architecture.forward, entry, device)
    except torch.OutOfMemoryError:
        problem = f"its weights do not fit the free memory of {device}"
        raise EnvironmentFault(f"encoder {entry.name}", problem, then="nvidia-smi   # shows who else has it") from None
    _require_computes(entry, side, forward)
    return forward


def _require_computes(entry: Encoder, side: int, embed: Embed) -> None:
    """One blank tile: an interface that is not as the entry says shows before the first real one.

    Raises:
        InputError: whatever the network's code raises of its own.
    """
    try:
        embed(np.zeros((1, 3, side, side), dtype=np.float32))
    except (BundleError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"encoder {entry.name}",
            f"its network does not compute on {side} × {side} pixels",
            found=f"{type(error).__name__}: {error}",
        ) from error


def _descriptor(entry: Encoder) -> Opened:
    from croma_bundle.encoders import classical

    descriptor = classical.DESCRIPTORS.get(entry.model)
    if descriptor is None:
        wanted = ", ".join(classical.DESCRIPTORS)
        raise ManifestError(f"encoder {entry.name}", f"there is no descriptor {entry.model!r}", wanted=wanted)
    if descriptor.dim != entry.width:
        found = f"width = {entry.width} in the manifest"
        raise ManifestError(f"encoder {entry.name}", "its width is wrong", wanted=str(descriptor.dim), found=found)
    return Opened(partial(classical.describe, entry.model), descriptor.parameters, lambda device: np.asarray)
