"""Architectures that timm and transformers have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from croma_bundle.encoders.architectures.architecture import Architecture, features, last_hidden_state, whole
from croma_bundle.errors import ManifestError, did_you_mean
from croma_bundle.manifests.models import Encoder


def create(model: str, arguments: Mapping[str, Any]) -> nn.Module:
    """A timm model without its classifier; layers are named in the arguments."""
    import timm
    from timm.layers import SwiGLUPacked

    layers = {"SwiGLUPacked": SwiGLUPacked, "SiLU": nn.SiLU}
    named = {key: layers.get(value, value) if isinstance(value, str) else value for key, value in arguments.items()}
    module: nn.Module = timm.create_model(model, pretrained=False, **{"num_classes": 0, **named})
    return module


def of_timm(entry: Encoder) -> Architecture:
    import timm

    if not timm.is_model(entry.model):
        problem = f"timm {timm.__version__} has no model {entry.model!r}{did_you_mean(entry.model, timm.list_models())}"
        then = 'python -c "import timm; print(*timm.list_models())"'
        raise ManifestError(f"encoder {entry.name}", problem, then=then)
    native = entry.pooling == "native"
    return Architecture(create(entry.model, entry.arguments), whole if native else features)


def of_transformers(entry: Encoder) -> Architecture:
    return Architecture(create_transformers(entry.model, entry.arguments), last_hidden_state)


def create_transformers(model: str, arguments: Mapping[str, Any]) -> nn.Module:
    """A network of transformers, from the arguments of its configuration.

    Raises:
        KeyError: it is none of those whose last hidden state is known to be what is pooled.
    """
    import transformers

    config, network, options = {
        "vit": (transformers.ViTConfig, transformers.ViTModel, {"add_pooling_layer": False}),
        "dinov2": (transformers.Dinov2Config, transformers.Dinov2Model, {}),
        "dinov2_with_registers": (transformers.Dinov2WithRegistersConfig, transformers.Dinov2WithRegistersModel, {}),
    }[model]
    module: nn.Module = network(config(**arguments), **options)
    return module
