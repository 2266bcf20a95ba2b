"""Architectures by name, without weights: what a checkpoint of an entry will be loaded into.

Code that lives only in a checkpoint's repository is not in the image; a *stand-in* of the same tokens and width takes
its place here, and says so. It is for trying the image out, never for embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from croma_bundle.encoders.architectures import stand_ins
from croma_bundle.encoders.architectures.architecture import Adapt, Architecture, Forward
from croma_bundle.encoders.architectures.libraries import of_timm, of_transformers
from croma_bundle.errors import BundleError, ManifestError
from croma_bundle.manifests.models import Encoder

__all__ = ["OWN", "STAND_INS", "Adapt", "Architecture", "Forward", "build"]

OWN: Mapping[str, str] = {
    "conch_ViT-B-16": "conch",
    "conch_v1_5": "conch15",
    "musk_large_patch16_384": "musk",
    "mettle": "mettle",
    "tf_efficientnet_lite0": "efficientnet_lite",
}
"""Modules here, by the `model` of entries with a plain state dict; `build` of each takes the entry."""

STAND_INS: Mapping[str, Callable[[Encoder], Architecture]] = {
    "Dinov2 with registers": stand_ins.hibou,
    "FinetunedEncoderModel": stand_ins.finetuned,
    "DINOv2-style ViT": stand_ins.rudolf,
    "GenBioPathFMModel": stand_ins.genbio,
}
"""By the `model` of entries whose code comes with the checkpoint."""


def build(entry: Encoder) -> Architecture:
    """The entry's architecture on the current default device.

    Raises:
        ManifestError: nobody knows it, or it does not take the entry's arguments.
    """
    subject = f"encoder {entry.name}"
    builder = _builder(entry)
    if builder is None:
        known = {"own": OWN, "remote-code": STAND_INS}.get(entry.backend, {})
        raise ManifestError(subject, f"there is no architecture {entry.model!r}", wanted=", ".join(known))
    try:
        return builder(entry)
    except (BundleError, MemoryError):
        raise
    except Exception as error:  # what a library trips over in arguments that it does not take is of any kind
        found = f"{type(error).__name__}: {error}"
        wanted = f"arguments that {entry.model} takes"
        raise ManifestError(subject, "its architecture cannot be built", wanted=wanted, found=found) from error


def _builder(entry: Encoder) -> Callable[[Encoder], Architecture] | None:
    if entry.backend in ("own", "state-dict") and entry.model in OWN:
        own: Callable[[Encoder], Architecture] = import_module(f"{__name__}.{OWN[entry.model]}").build
        return own
    if entry.backend == "remote-code":
        return STAND_INS.get(entry.model)
    return {"timm": of_timm, "state-dict": of_timm, "transformers": of_transformers}.get(entry.backend)
