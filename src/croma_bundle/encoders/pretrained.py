"""Checkpoints with a configuration of their own: networks that transformers has, and networks of remote code.

transformers reads the tensors (its names may carry a prefix); that they are exactly the network's is checked here.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from croma_bundle.encoders.architectures.architecture import Architecture, Forward, last_hidden_state, whole
from croma_bundle.encoders.checkpoint import Tensors, alike, read_tensors, require_fit, unlike, weights_file
from croma_bundle.encoders.poolings import OF_TOKENS
from croma_bundle.encoders.remote_code import CONFIG, code_failed, published_classes, stage
from croma_bundle.errors import ManifestError
from croma_bundle.manifests.models import Encoder
from croma_bundle.weights.resolve import LocalFile

Files = Sequence[LocalFile]
NATIVE = ("vit", "dinov2", "dinov2_with_registers")
"""Kinds of networks (`model_type` of a config.json) whose tokens and names are known here."""


def native(entry: Encoder, files: Files) -> Architecture:
    """A network that transformers has, of the kind that the entry names and the size that config.json says."""
    import transformers

    _quiet()
    with stage(entry, [file for file in files if not file.code]) as name:
        folder = Path(name)
        config = _configured(entry, transformers.AutoConfig, folder)
        if config.model_type != entry.model or entry.model not in NATIVE:
            wanted = f"{entry.model!r}" if entry.model in NATIVE else f"one of {', '.join(NATIVE)}"
            raise ManifestError(
                f"encoder {entry.name}",
                "its network is of another kind",
                wanted=wanted,
                found=f"{config.model_type!r} ({CONFIG})",
            )
        network = transformers.AutoModel._model_mapping[type(config)]
        module = _loaded(entry, files, network, config, folder, attn_implementation="sdpa")
    return Architecture(module, last_hidden_state)


def remote(entry: Encoder, files: Files) -> Architecture:
    """A network of its repository's code; the folder of the code stays as long as the network does."""
    _quiet()
    staged = stage(entry, files)
    folder = Path(staged.name)
    config_class, network = published_classes(entry, folder)
    config = _configured(entry, config_class or network.config_class, folder)
    _require_normalisation(entry, config)
    module = _loaded(entry, files, network, config, folder)
    weakref.finalize(module, staged.cleanup)
    return Architecture(module, REMOTE.get(entry.model) or (last_hidden_state if entry.pooling in OF_TOKENS else whole))


def _encode(module: Any, batch: Tensor) -> Tensor:
    vectors: Tensor = module.encode(batch)
    return vectors


def _tokens_of_encode(module: Any, batch: Tensor) -> Tensor:
    tokens: Tensor = module.model.encode(batch)["last_hidden_state"]
    return tokens


REMOTE: Mapping[str, Forward] = {
    "FinetunedEncoderModel": _encode,
    "DINOv2-style ViT": _tokens_of_encode,
    "GenBioPathFMModel": whole,
}
"""How the published pipeline calls a remote network, by the entry's `model`; others return a `last_hidden_state`."""


def _require_normalisation(entry: Encoder, config: Any) -> None:
    """Raise `ManifestError` where a configuration states a mean or deviation other than the recipe's."""
    for key, recipes in (("pixel_mean", "mean"), ("pixel_std", "std")):
        stated, own = getattr(config, key, None), getattr(entry.recipe, recipes, None)
        if stated is not None and own is not None and list(stated) != list(own):
            raise ManifestError(
                f"encoder {entry.name}",
                f"its recipe is not that of its checkpoint ({key})",
                wanted=f"{list(stated)} ({CONFIG})",
                found=f"{list(own)} (its entry)",
            )


def _configured(entry: Encoder, config_class: Any, folder: Path) -> Any:
    try:
        return config_class.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise code_failed(entry, CONFIG, error) from error


def _loaded(entry: Encoder, files: Files, network: Any, config: Any, folder: Path, **options: Any) -> nn.Module:
    """The network with every tensor of its file, float32.

    Raises:
        ManifestError: missing or unexpected tensors, or other shapes. InputError: its own code failed.
    """
    if "add_pooling_layer" in inspect.signature(network.__init__).parameters:
        options["add_pooling_layer"] = False
    published = read_tensors(entry, weights_file(entry, files))
    try:
        module, report = network.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # they are refused below
            output_loading_info=True,
            **options,
        )
        _restore_computed_buffers(module, lambda: network(config, **_of_construction(options)))
    except Exception as error:
        raise code_failed(entry, "its checkpoint", error) from error
    missing, wrong = _compared(module, published)
    require_fit(entry, {*report["missing_keys"], *missing}, report["unexpected_keys"], wrong)
    return module


def _compared(module: Any, published: Tensors) -> tuple[list[str], list[str]]:
    """The network's tensors that the file has under no name of theirs, whatever the class lets be missing, and those
    that have another shape there."""
    prefix = f"{module.base_model_prefix}."
    missing, wrong = list[str](), list[str]()
    for name, own in module.state_dict().items():
        stored = next((n for n in (name, f"{prefix}{name}", name.removeprefix(prefix)) if n in published), None)
        if stored is None:
            missing.append(name)
        elif not alike(published[stored], own):
            wrong.append(unlike(name, published[stored], own))
    return missing, wrong


def _restore_computed_buffers(module: nn.Module, construct: Callable[[], nn.Module]) -> None:
    """Give buffers that no checkpoint holds the values that construction computes: some releases lose them."""
    computed = {name for name, _ in module.named_buffers()} - module.state_dict().keys()
    if computed:
        fresh = construct()
        for name in computed:
            module.get_buffer(name).copy_(fresh.get_buffer(name))


def _quiet() -> None:
    """What transformers would warn of is an error here; its bars are not ours."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _of_construction(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name == "add_pooling_layer"}
