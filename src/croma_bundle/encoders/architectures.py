"""Architectures by name, without weights: what a checkpoint of an entry will be loaded into.

Code that lives only in a checkpoint's repository is not in the image; a *stand-in* of the same tokens and width takes
its place here, and says so. It is for trying the image out, never for embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from croma_bundle.errors import ManifestError
from croma_bundle.manifests.models import Encoder

Forward = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Architecture:
    """A network and how it is called: `forward` returns what the entry's pooling takes.

    `stand_in` says what it stands in for; null where it is the published architecture.
    """

    module: nn.Module
    forward: Forward
    stand_in: str | None = None


def build(entry: Encoder) -> Architecture | None:
    """The entry's architecture on the current default device; None where it is not in the image yet.

    Raises:
        ManifestError: nobody knows the architecture.
    """
    if entry.backend == "own":
        return None
    if entry.model in BUILDERS:
        return BUILDERS[entry.model](entry)
    if entry.backend == "transformers":
        return _transformers(entry, entry.model)
    if entry.backend in ("timm", "state-dict"):
        return _timm(entry)
    raise ManifestError(
        f"encoder {entry.name}", f"there is no architecture {entry.model!r}", wanted=", ".join(BUILDERS)
    )


def _create(model: str, arguments: Mapping[str, Any]) -> nn.Module:
    """A timm model without its classifier; layers are named in the arguments."""
    import timm
    from timm.layers import SwiGLUPacked

    layers = {"SwiGLUPacked": SwiGLUPacked, "SiLU": nn.SiLU}
    named = {key: layers.get(value, value) if isinstance(value, str) else value for key, value in arguments.items()}
    module: nn.Module = timm.create_model(model, pretrained=False, **{"num_classes": 0, **named})
    return module


def _timm(entry: Encoder) -> Architecture:
    native = entry.pooling == "native"
    return Architecture(_create(entry.model, entry.arguments), _whole if native else _features)


def _transformers(entry: Encoder, model: str, stand_in: str | None = None) -> Architecture:
    import transformers

    config, network, options = {
        "vit": (transformers.ViTConfig, transformers.ViTModel, {"add_pooling_layer": False}),
        "dinov2": (transformers.Dinov2Config, transformers.Dinov2Model, {}),
        "dinov2_with_registers": (transformers.Dinov2WithRegistersConfig, transformers.Dinov2WithRegistersModel, {}),
    }[model]
    return Architecture(network(config(**entry.arguments), **options), _last_hidden_state, stand_in)


def _hibou(entry: Encoder) -> Architecture:
    return _transformers(entry, "dinov2_with_registers", stand_in="its repository's modeling_dinov2.py")


def _finetuned(entry: Encoder) -> Architecture:
    return _transformers(entry, "dinov2", stand_in="its repository's modeling_finetuned_encoder.py")


def _rudolf(entry: Encoder) -> Architecture:
    """By its width: ViT-g with SwiGLU, ViT-B or ViT-S; registers are beside the position embedding, as in DINOv2."""
    size = {1536: "giant", 768: "base", 384: "small"}[entry.arguments["embed_dim"]]
    module = _create(f"vit_{size}_patch14_reg4_dinov2", entry.arguments)
    return Architecture(module, _features, stand_in="its repository's code")


def _genbio(entry: Encoder) -> Architecture:
    module = _create("vit_giant_patch14_dinov2", {**entry.arguments, "img_size": 224})
    return Architecture(module, _cls_of_each_channel, stand_in="its repository's code")


def _mettle(entry: Encoder) -> Architecture:
    return Architecture(
        _create("vit_giant_patch14_reg4_dinov2", entry.arguments), _features, stand_in="its head, left out"
    )


BUILDERS: Mapping[str, Callable[[Encoder], Architecture]] = {
    "Dinov2 with registers": _hibou,
    "FinetunedEncoderModel": _finetuned,
    "DINOv2-style ViT": _rudolf,
    "GenBioPathFMModel": _genbio,
    "mettle": _mettle,
}
"""Stand-ins, by the entry's `model`."""


def _whole(module: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = module(batch)
    return output


def _features(module: Any, batch: Tensor) -> Tensor:
    output: Tensor = module.forward_features(batch)
    return output


def _last_hidden_state(module: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = module(pixel_values=batch).last_hidden_state
    return output


def _cls_of_each_channel(module: nn.Module, batch: Tensor) -> Tensor:
    """Each channel is an image of its own; their class tokens side by side."""
    channels = batch.flatten(0, 1)[:, None]
    return _features(module, channels)[:, 0].reshape(len(batch), -1)
