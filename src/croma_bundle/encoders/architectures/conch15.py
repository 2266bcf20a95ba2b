"""CONCHv1.5: ViT-L/16 whose positions are stretched to the image, pooled by one learnt query.

Written from two published copies of its code (docs/architectures.md). The positions of the checkpoint are those of
224 pixels, 14 to a side; at 448 they are stretched to 28, bicubically, by a factor a little above two.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention

from croma_bundle.encoders.architectures.architecture import Architecture, whole
from croma_bundle.encoders.architectures.conch import ImageTower
from croma_bundle.manifests.models import Encoder

MARGIN = 0.1
"""Added to the patches of a side before the factor is taken: part of what the network computes, as in DINO."""


def build(entry: Encoder) -> Architecture:
    return Architecture(conch15(entry.width, **entry.arguments), whole)


def conch15(width: int, *, embed_dim: int, pooler_heads: int, **trunk: Any) -> ImageTower:
    """Square images of whole patches → (B, width). The trunk's arguments are timm's."""
    transformer = StretchedTransformer(embed_dim=embed_dim, num_classes=0, dynamic_img_size=True, **trunk)
    return ImageTower(transformer, BareAttentionPooler(embed_dim, width, pooler_heads), width)


class StretchedTransformer(VisionTransformer):
    """A vision transformer whose positions are stretched to the image."""

    def _pos_embed(self, x: Tensor) -> Tensor:
        """Patches (B, side, side, C) → the class token and they, with positions: (B, 1 + side², C)."""
        cls = self.cls_token.expand(len(x), -1, -1)
        tokens = torch.cat([cls, x.flatten(1, 2)], dim=1)
        return tokens + stretched(self.pos_embed, x.shape[1])


def stretched(positions: Tensor, side: int) -> Tensor:
    """Positions (1, 1 + own side², C), the class token's first, as (1, 1 + side², C)."""
    own = round((positions.shape[1] - 1) ** 0.5)
    if own == side:
        return positions
    grid = positions[:, 1:].unflatten(1, (own, own)).permute(0, 3, 1, 2)
    grid = interpolate(grid, scale_factor=(side + MARGIN) / own, mode="bicubic")
    return torch.cat([positions[:, :1], grid.flatten(2).transpose(1, 2)], dim=1)


class BareAttentionPooler(nn.Module):
    """As CONCH's attention of one learnt query, with projections without biases: (B, tokens, context) → (B, width)."""

    def __init__(self, context: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.zeros(1, width))
        self.ln_q = nn.LayerNorm(width)
        self.ln_k = nn.LayerNorm(context)
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(context, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        query = self.to_q(self.ln_q(self.query)).expand(len(tokens), -1, -1)
        keys, values = self.to_kv(self.ln_k(tokens)).chunk(2, dim=-1)
        attended = scaled_dot_product_attention(self._split(query), self._split(keys), self._split(values))
        pooled: Tensor = self.to_out(attended.transpose(1, 2).flatten(2))
        return pooled[:, 0]

    def _split(self, tokens: Tensor) -> Tensor:
        """(B, tokens, width) → (B, heads, tokens, width / heads)."""
        return tokens.unflatten(-1, (self.heads, -1)).transpose(1, 2)
