"""The image tower of CONCH: ViT-B/16 at 448 pixels, pooled by one learnt query, before the contrastive projection.

Written from the published code of mahmoodlab/CONCH at 141cc09c7d4ff33d8eda562bd75169b457f71a62 (docs/architectures.md).
"""

from __future__ import annotations

from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from croma_bundle.encoders.architectures.architecture import Architecture, whole
from croma_bundle.manifests.models import Encoder

LEFT_OUT = ("text.*", "text_decoder.*", "logit_scale", "visual.attn_pool_caption.*", "visual.ln_caption.*")
PROJECTION = "visual.proj_contrast"
"""Into the space shared with texts; the published embedding is taken before it."""


def build(entry: Encoder) -> Architecture:
    return Architecture(Conch(entry.width, **entry.arguments), whole, left_out=(*LEFT_OUT, PROJECTION))


class Conch(nn.Module):
    """Images (B, 3, side, side) → (B, width). The trunk's arguments are timm's."""

    def __init__(self, width: int, *, embed_dim: int, pooler_heads: int, **trunk: Any) -> None:
        super().__init__()
        transformer = VisionTransformer(embed_dim=embed_dim, num_classes=0, **trunk)
        self.visual = ImageTower(transformer, AttentionPooler(embed_dim, width, pooler_heads), width)

    def forward(self, batch: Tensor) -> Tensor:
        pooled: Tensor = self.visual(batch)
        return pooled


class ImageTower(nn.Module):
    """Tokens of a vision transformer, pooled by attention and normalised: images (B, 3, H, W) → (B, width)."""

    def __init__(self, trunk: VisionTransformer, pooler: nn.Module, width: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.attn_pool_contrast = pooler
        self.ln_contrast = nn.LayerNorm(width)

    def forward(self, batch: Tensor) -> Tensor:
        tokens = self.trunk.forward_features(batch)
        normed: Tensor = self.ln_contrast(self.attn_pool_contrast(tokens))
        return normed


class AttentionPooler(nn.Module):
    """Multi-head attention of one learnt query over the tokens: (B, tokens, context) → (B, width)."""

    def __init__(self, context: int, width: int, heads: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(1, width))
        self.ln_q = nn.LayerNorm(width)
        self.ln_k = nn.LayerNorm(context)
        self.attn = nn.MultiheadAttention(width, heads, kdim=context, vdim=context, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        query = self.ln_q(self.query).expand(len(tokens), -1, -1)
        keys = self.ln_k(tokens)
        pooled: Tensor = self.attn(query, keys, keys, need_weights=False)[0]
        return pooled[:, 0]
