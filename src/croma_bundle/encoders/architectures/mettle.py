"""Mettle: H-optimus-0's ViT-g/14 with a small head that refines the class token; patches go past it.

Written from the published description of the head; its sizes are those of the repository's config.json
(docs/architectures.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from croma_bundle.encoders.architectures.architecture import Architecture, whole
from croma_bundle.encoders.architectures.libraries import create
from croma_bundle.manifests.models import Encoder

ATOMS, RANK, HIDDEN = 16, 8, 256


def build(entry: Encoder) -> Architecture:
    backbone = create("vit_giant_patch14_reg4_dinov2", entry.arguments)
    return Architecture(Mettle(backbone, backbone.num_features), whole)


class Mettle(nn.Module):
    """Images → the backbone's tokens (B, tokens, C), the class token refined."""

    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = RefiningHead(width)

    def forward(self, batch: Tensor) -> Tensor:
        tokens = self.backbone.forward_features(batch)
        return torch.cat([self.head(tokens[:, 0])[:, None], tokens[:, 1:]], dim=1)


class RefiningHead(nn.Module):
    """e → e + Σₖ mixₖ(e) · Qₖ Pₖᵀ e + shift(e), on (B, C)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.P = nn.Parameter(torch.zeros(ATOMS, width, RANK))
        self.Q = nn.Parameter(torch.zeros(ATOMS, width, RANK))
        self.mix = _two_layers(width, ATOMS)
        self.shift = _two_layers(width, width)

    def forward(self, embedding: Tensor) -> Tensor:
        coordinates = torch.einsum("bc,kcr->bkr", embedding, self.P)
        change = torch.einsum("bk,bkr,kcr->bc", self.mix(embedding), coordinates, self.Q)
        refined: Tensor = embedding + change + self.shift(embedding)
        return refined


def _two_layers(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, out))
