"""Networks of the same tokens and width as those whose code lives only in a checkpoint's repository.

They are for trying an image out, never for embedding.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize

from croma_bundle.encoders.architectures.architecture import Architecture, features, last_hidden_state
from croma_bundle.encoders.architectures.libraries import create, create_transformers
from croma_bundle.manifests.models import Encoder


def hibou(entry: Encoder) -> Architecture:
    module = create_transformers("dinov2_with_registers", entry.arguments)
    return Architecture(module, last_hidden_state, stand_in="its repository's modeling_dinov2.py")


def finetuned(entry: Encoder) -> Architecture:
    module = create_transformers("dinov2", entry.arguments)
    return Architecture(module, _unit_cls, stand_in="its repository's modeling_finetuned_encoder.py")


def rudolf(entry: Encoder) -> Architecture:
    """By its width: ViT-g with SwiGLU, ViT-B or ViT-S; registers are beside the position embedding, as in DINOv2."""
    size = {1536: "giant", 768: "base", 384: "small"}[entry.arguments["embed_dim"]]
    module = create(f"vit_{size}_patch14_reg4_dinov2", entry.arguments)
    return Architecture(module, features, stand_in="its repository's code")


def genbio(entry: Encoder) -> Architecture:
    module = create("vit_giant_patch14_dinov2", {**entry.arguments, "img_size": 224})
    return Architecture(module, _cls_of_each_channel, stand_in="its repository's code")


def _unit_cls(module: nn.Module, batch: Tensor) -> Tensor:
    return normalize(last_hidden_state(module, batch)[:, 0], dim=1)


def _cls_of_each_channel(module: nn.Module, batch: Tensor) -> Tensor:
    """Each channel is an image of its own; their class tokens side by side."""
    channels = batch.flatten(0, 1)[:, None]
    return features(module, channels)[:, 0].reshape(len(batch), -1)
