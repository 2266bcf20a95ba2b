"""Backends: from an entry and its verified files to its network with the published weights, in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from croma_bundle.encoders.architectures import Architecture, build
from croma_bundle.encoders.checkpoint import fill, read_tensors, weights_file
from croma_bundle.encoders.pretrained import native, remote
from croma_bundle.errors import InputError
from croma_bundle.manifests.models import Encoder
from croma_bundle.weights.resolve import LocalFile

Files = Sequence[LocalFile]


def network(entry: Encoder, files: Files) -> Architecture:
    """The network on the CPU, in float32.

    Raises:
        ManifestError: the entry and its files do not fit together. InputError: a file that cannot be read.
    """
    architecture = BACKENDS[entry.backend](entry, files)
    architecture.module.eval().requires_grad_(False)
    return architecture


def _built(entry: Encoder, files: Files) -> Architecture:
    """An architecture that the image has, filled with the tensors of one file."""
    with torch.device("meta"):
        architecture = build(entry)
    if architecture.stand_in:
        problem = f"its architecture {entry.model} is not in the image, so its checkpoint cannot be loaded"
        raise InputError(f"encoder {entry.name}", problem, then="croma-bundle list encoders")
    if _computes_buffers(architecture.module):
        architecture = build(entry)
    fill(entry, architecture.module, architecture.take(read_tensors(entry, weights_file(entry, files))))
    return architecture


def _computes_buffers(module: nn.Module) -> bool:
    """Whether it holds what is in no checkpoint, and so must be constructed where it has values."""
    return bool({name for name, _ in module.named_buffers()} - module.state_dict().keys())


BACKENDS: Mapping[str, Callable[[Encoder, Files], Architecture]] = {
    "timm": _built,
    "state-dict": _built,
    "own": _built,
    "transformers": native,
    "remote-code": remote,
}
