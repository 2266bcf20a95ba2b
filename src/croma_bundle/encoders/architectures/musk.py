"""The vision side of MUSK: BEiT-3's large transformer with 16-pixel patches of 384 pixels, seen at two scales.

Written from the published code of lilab-stanford/MUSK at 714b666969c1911e5efe70d991140a21030f4ef3
(docs/architectures.md). In a checkpoint each layer has two sides, A for images and B for texts; only A is here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate, scaled_dot_product_attention

from croma_bundle.encoders.architectures.architecture import Architecture
from croma_bundle.manifests.models import Encoder

UNUSED_POSITIONS = 2
"""The first two rows of the positions: those of padding in texts."""
LEFT_OUT = (
    "beit3.text_embed.*",
    "beit3.encoder.embed_positions.B.*",
    "beit3.encoder.layers.*.B.*",
    "beit3.encoder.layer_norm.B.*",
    "beit3.vision_embed.mask_token",
    "vision_head.*",
    "language_head.*",
    "logit_scale",
)


def build(entry: Encoder) -> Architecture:
    return Architecture(Musk(**entry.arguments), at_two_scales, adapt=adapt, left_out=LEFT_OUT)


def adapt(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The side is no part of a name here."""
    return {name.removeprefix("beit3.").replace(".A.", "."): tensor for name, tensor in published.items()}


def at_two_scales(module: nn.Module, batch: Tensor) -> Tensor:
    """Images (B, 3, side, side) → (B, 2 C): the class token of each, beside the mean of its enlarged quarters'."""
    quarters = quartered(interpolate(batch, scale_factor=2, mode="bicubic"))
    classes = torch.stack([module(quarter)[:, 0] for quarter in quarters])
    return torch.cat([module(batch)[:, 0], classes.mean(dim=0)], dim=-1)


def quartered(images: Tensor) -> list[Tensor]:
    """The four quarters of images (B, C, H, W), row by row, each (B, C, H / 2, W / 2)."""
    return [quarter for half in images.chunk(2, dim=2) for quarter in half.chunk(2, dim=3)]


class Musk(nn.Module):
    """Images (B, 3, side, side) → tokens (B, 1 + patches, width), the class token first."""

    def __init__(self, *, img_size: int, patch_size: int, width: int, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.vision_embed = PatchEmbedding(width, patch_size)
        self.encoder = Transformer((img_size // patch_size) ** 2 + 1, width, hidden, heads, layers)

    def forward(self, batch: Tensor) -> Tensor:
        tokens: Tensor = self.encoder(self.vision_embed(batch))
        return tokens


class PatchEmbedding(nn.Module):
    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.proj = nn.Conv2d(3, width, kernel_size=patch, stride=patch)

    def forward(self, batch: Tensor) -> Tensor:
        patches = self.proj(batch).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token.expand(len(batch), -1, -1), patches], dim=1)


class Transformer(nn.Module):
    def __init__(self, tokens: int, width: int, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed_positions = nn.Embedding(tokens + UNUSED_POSITIONS, width)
        self.layers = nn.ModuleList(Layer(width, hidden, heads) for _ in range(layers))
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.embed_positions.weight[UNUSED_POSITIONS:]
        for layer in self.layers:
            tokens = layer(tokens)
        normed: Tensor = self.layer_norm(tokens)
        return normed


class Layer(nn.Module):
    """A transformer layer that normalises before attention and before its network, and once more within each."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.self_attn = Attention(width, heads)
        self.final_layer_norm = nn.LayerNorm(width)
        self.ffn = FeedForward(width, hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.self_attn(self.self_attn_layer_norm(tokens))
        tokens = tokens + self.ffn(self.final_layer_norm(tokens))
        return tokens


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.inner_attn_ln = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = (
            projection(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        projected: Tensor = self.out_proj(self.inner_attn_ln(attended))
        return projected


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.ffn_layernorm = nn.LayerNorm(hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        projected: Tensor = self.fc2(self.ffn_layernorm(gelu(self.fc1(tokens))))
        return projected
