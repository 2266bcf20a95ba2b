"""From a declared encoder to one that computes: the only place that knows the backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import InputError, ManifestError
from croma_bundle.manifests.models import Encoder

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Loaded:
    """An encoder ready to compute.

    Attributes:
        prepare: tile (H, W, 3) uint8 → array of a fixed shape; importable, because worker processes run it.
        embed: stacked prepared tiles (B, …) → (B, width) float32; runs in the main process.
        preprocessing: the preparation in numbers, JSON-ready, as recorded in the sidecar.
        weights: what was loaded, as ``{file, sha256, sha256_source, bytes}``.
    """

    prepare: Callable[[npt.NDArray[np.uint8]], npt.NDArray[Any]]
    embed: Callable[[npt.NDArray[Any]], Floats]
    preprocessing: Mapping[str, Any]
    weights: tuple[Mapping[str, Any], ...] = ()


def load(entry: Encoder) -> Loaded:
    """Make the encoder of a manifest entry ready.

    Raises:
        ManifestError: the entry names a descriptor that does not exist, or a width that it does not have.
        InputError: its backend's checkpoints cannot be loaded by this version.
    """
    if entry.backend != "classical":
        raise InputError(
            f"encoder {entry.name}",
            f"this version cannot load checkpoints of the backend {entry.backend}, so it cannot embed with it",
            wanted="an encoder of the backend classical",
            detail="Its entry is known and its weights can be fetched. Matrices that were made elsewhere come in with "
            "`croma-bundle import`.",
            then=f"croma-bundle construct --encoders {entry.name}   # runs its architecture with random weights",
        )
    from croma_bundle.encoders import classical

    descriptor = classical.DESCRIPTORS.get(entry.model)
    if descriptor is None:
        wanted = ", ".join(classical.DESCRIPTORS)
        raise ManifestError(f"encoder {entry.name}", f"there is no descriptor {entry.model!r}", wanted=wanted)
    if descriptor.dim != entry.width:
        found = f"width = {entry.width} in the manifest"
        raise ManifestError(f"encoder {entry.name}", "its width is wrong", wanted=str(descriptor.dim), found=found)
    return Loaded(partial(classical.describe, entry.model), np.asarray, descriptor.parameters)
