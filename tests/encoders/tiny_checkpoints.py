"""Tiny checkpoints of random weights in the layout of real repositories, and what each must give, computed without us.

tiny = TINY["TinyTimm"]()
publish(hub, volume, tiny)            # a commit of the loopback hub, and an entry that names it
entry = keep(volume, tiny)            # or: files of one's own in <weights>/local--TinyTimm/
tiny.expected(picture)                # the vector, by timm, transformers and torchvision alone
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor, nn
from torchvision.transforms import v2

from croma_bundle.layout import Volume, WeightsFolder
from croma_bundle.manifests.load import read_named
from croma_bundle.manifests.models import Encoder
from croma_bundle.manifests.toml_text import toml_text
from loopback_hub import LoopbackHub

SIDE = 28
MEAN, STD = (0.7, 0.58, 0.7), (0.21, 0.23, 0.18)
State = dict[str, Tensor]


@dataclass(frozen=True)
class Tiny:
    """An encoder: `stated` is its entry's table, `files` what its repository holds, `state` its tensors.

    `expected` gives the vector of a picture.
    """

    name: str
    stated: Mapping[str, Any]
    files: Mapping[str, bytes]
    state: State
    expected: Callable[[Image.Image], np.ndarray]

    @property
    def weights(self) -> str:
        """The name of the file of tensors."""
        return next(name for name in self.files if name.endswith((".safetensors", ".bin", ".pth")))

    def holding(self, state: Any) -> Tiny:
        """With other content in its file of tensors."""
        return self.with_file(self.weights, packed(self.weights, state))

    def with_file(self, name: str, content: bytes) -> Tiny:
        return replace(self, files={**self.files, name: content})

    def saying(self, **stated: Any) -> Tiny:
        """With other keys in its entry."""
        return replace(self, stated={**self.stated, **stated})


def publish(hub: LoopbackHub, volume: Volume, tiny: Tiny, *, gated: bool = False) -> str:
    """Commit its files to the hub and declare its entry; only the pickles are pinned by hash. The commit."""
    repository = f"tiny/{tiny.name}"
    commit = hub.commit(repository, tiny.files, gated=gated)
    pinned = {name: sha256(content) for name, content in tiny.files.items() if name.endswith((".bin", ".pth"))}
    source = {"repository": repository, "revision": commit, "gated": gated}
    _declare(volume, tiny, source, {name: pinned.get(name) for name in tiny.files})
    return commit


def keep(volume: Volume, tiny: Tiny) -> Encoder:
    """Put its files where a private encoder's lie and declare it; the entry."""
    folder = WeightsFolder(volume.weights).local(tiny.name)
    for name, content in tiny.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return _declare(volume, tiny, {}, {name: sha256(content) for name, content in tiny.files.items()})


def _declare(volume: Volume, tiny: Tiny, source: Mapping[str, Any], files: Mapping[str, str | None]) -> Encoder:
    rows = [f'{{name = "{name}"' + (f', sha256 = "{pin}"}}' if pin else "}") for name, pin in files.items()]
    table = toml_text({tiny.name: {**COMMON, **source, **tiny.stated}}, "Of a test.")
    path = volume.encoder_declarations / f"{tiny.name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{table}files = [{', '.join(rows)}]\n", "utf-8")
    return read_named(path, Encoder)[0]


COMMON = {
    "family": "private",
    "precision": "float32",
    "batch_size": 4,
    "generation": "tiny-1",
    "control": False,
    "votes": False,
    "licence": "CC0-1.0",
    "citation": "none",
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def packed(name: str, content: Any) -> bytes:
    """A file of tensors of the kind that its name says."""
    if name.endswith(".safetensors"):
        return save({key: tensor.contiguous() for key, tensor in content.items()})
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def noisy(module: nn.Module, seed: int) -> State:
    """Weights for a module, drawn so that every one of them matters."""
    generator = torch.Generator().manual_seed(seed)
    state: State = {}
    for name, tensor in module.state_dict().items():
        drawn = torch.randn(tensor.shape, generator=generator) * 0.15
        state[name] = drawn + 1 if "norm" in name and name.endswith("weight") else drawn
    module.load_state_dict(state, strict=True)
    module.eval()
    return state


def recipe(via: str, edge: str, interpolation: str, *, size: int = SIDE, crop: int | None = SIDE) -> dict[str, Any]:
    made = {"size": size, "edge": edge, "interpolation": interpolation, "via": via, "mean": MEAN, "std": STD}
    return {**made, "crop": crop} if crop else made


def of_pil(size: Any, mode: v2.InterpolationMode) -> Callable[[Image.Image], Tensor]:
    """A torchvision pipeline on the picture."""
    return v2.Compose(
        [
            v2.Resize(size, interpolation=mode),
            v2.CenterCrop(SIDE),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def of_tensor(size: Any, mode: v2.InterpolationMode) -> Callable[[Image.Image], Tensor]:
    """A torchvision pipeline on the picture's pixels."""
    return v2.Compose(
        [
            v2.ToImage(),
            v2.Resize(size, interpolation=mode, antialias=True),
            v2.CenterCrop(SIDE),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def of_processor(size: dict[str, int], resample: int, crop: bool) -> Callable[[Image.Image], Tensor]:
    """The image processor that these repositories name, in the arithmetic of transformers 4 (PIL and numpy)."""
    import transformers

    in_4 = transformers.__version__.startswith("4.")
    kind = transformers.BitImageProcessor if in_4 else transformers.BitImageProcessorPil
    processor = kind(size=size, resample=resample, do_center_crop=crop, crop_size=SIDE, image_mean=MEAN, image_std=STD)
    return lambda picture: torch.as_tensor(processor(picture, return_tensors="pt")["pixel_values"][0])


def of(prepare: Callable[[Image.Image], Tensor], network: Callable[[Tensor], Tensor]) -> Callable[..., np.ndarray]:
    def expected(picture: Image.Image) -> np.ndarray:
        with torch.inference_mode():
            vector: np.ndarray = network(prepare(picture)[None])[0].numpy()
        return vector

    return expected


def cls_and_mean(tokens: Tensor, skipped: int) -> Tensor:
    return torch.cat([tokens[:, 0], tokens[:, skipped:].mean(1)], dim=-1)


BICUBIC, BILINEAR = v2.InterpolationMode.BICUBIC, v2.InterpolationMode.BILINEAR
VIT = {"img_size": SIDE, "patch_size": 7, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 0}


def timm_registers() -> Tiny:
    """As Virchow2: safetensors, registers, SwiGLU, class token beside the mean of the patches."""
    import timm
    from timm.layers import SwiGLUPacked

    arguments = {**VIT, "reg_tokens": 4, "init_values": 1e-5, "global_pool": "", "mlp_ratio": 4.0}
    layers = {"mlp_layer": "SwiGLUPacked", "act_layer": "SiLU"}
    module = timm.create_model("vit_tiny_patch16_224", mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, **arguments)
    state = noisy(module, 1)
    stated = {
        "backend": "timm",
        "model": "vit_tiny_patch16_224",
        "width": 64,
        "pooling": "cls+mean",
        "tokens": {"registers": 4, "patches": 16},
        "arguments": {**arguments, **layers},
        "recipe": recipe("pil", "shorter", "bicubic", size=32),
    }
    expected = of(of_pil(32, BICUBIC), lambda x: cls_and_mean(module.forward_features(x), 5))
    return Tiny("TinyTimm", stated, {"model.safetensors": packed("model.safetensors", state)}, state, expected)


def timm_pickle() -> Tiny:
    """As H-optimus-0: a pickle, the class token."""
    import timm

    module = timm.create_model("vit_tiny_patch16_224", **VIT)
    state = noisy(module, 2)
    stated = {
        "backend": "timm",
        "model": "vit_tiny_patch16_224",
        "width": 32,
        "pooling": "cls",
        "tokens": {"patches": 16},
        "arguments": dict(VIT),
        "recipe": recipe("tensor", "shorter", "bicubic"),
    }
    expected = of(of_tensor(SIDE, BICUBIC), lambda x: module.forward_features(x)[:, 0])
    return Tiny("TinyPickle", stated, {"pytorch_model.bin": packed("x.bin", state)}, state, expected)


def state_dict() -> Tiny:
    """A training checkpoint: the tensors of a known architecture inside other things, each with a prefix."""
    import timm

    module = timm.create_model("vit_tiny_patch16_224", **VIT)
    state = noisy(module, 3)
    content = {
        "epoch": 7,
        "teacher": {
            **{f"backbone.{name}": tensor for name, tensor in state.items()},
            "dino_head.weight": torch.ones(3),
        },
    }
    stated = {
        "backend": "state-dict",
        "model": "vit_tiny_patch16_224",
        "width": 32,
        "pooling": "cls",
        "tokens": {"patches": 16},
        "arguments": dict(VIT),
        "state": {"inside": "teacher", "prefix": "backbone.", "ignore": ["dino_head."]},
        "recipe": recipe("pil", "squash", "bicubic", crop=None),
    }
    expected = of(of_pil((SIDE, SIDE), BICUBIC), lambda x: module.forward_features(x)[:, 0])
    return Tiny("TinyState", stated, {"Tiny.pth": packed("Tiny.pth", content)}, state, expected)


def transformers_dinov2() -> Tiny:
    """As Midnight: a network of transformers, its configuration beside the tensors."""
    import transformers

    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, patch_size=7, image_size=SIDE, use_swiglu_ffn=True
    )
    module = transformers.Dinov2Model(config)
    state = noisy(module, 4)
    stated = {
        "backend": "transformers",
        "model": "dinov2",
        "width": 64,
        "pooling": "cls+mean",
        "tokens": {"patches": 16},
        "recipe": recipe("pil", "shorter", "bilinear"),
    }
    files = {"model.safetensors": packed("model.safetensors", state), "config.json": _json(config)}
    expected = of(of_pil(SIDE, BILINEAR), lambda x: cls_and_mean(module(x).last_hidden_state, 1))
    return Tiny("TinyDino", stated, files, state, expected)


def transformers_vit() -> Tiny:
    """As Phikon: no pooler in the checkpoint, a pickle here, squashed by the arithmetic of a processor."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, patch_size=7, image_size=SIDE
    )
    module = transformers.ViTModel(config, add_pooling_layer=False)
    state = noisy(module, 5)
    stated = {
        "backend": "transformers",
        "model": "vit",
        "width": 32,
        "pooling": "cls",
        "tokens": {"patches": 16},
        "recipe": recipe("processor", "squash", "bilinear", crop=None),
    }
    files = {"pytorch_model.bin": packed("x.bin", state), "config.json": _json(config)}
    prepare = of_processor({"height": SIDE, "width": SIDE}, 2, crop=False)
    return Tiny("TinyVit", stated, files, state, of(prepare, lambda x: module(x).last_hidden_state[:, 0]))


def own_conch() -> Tiny:
    """As CONCH: an architecture of this package, and a text tower in the file that has no place in it."""
    from croma_bundle.encoders.architectures.conch import Conch

    arguments = {k: v for k, v in VIT.items() if k != "num_classes"} | {"pooler_heads": 4}
    module = Conch(16, **arguments)
    state = noisy(module, 10)
    published = {**state, "text.positional_embedding": torch.ones(2), "logit_scale": torch.ones(())}
    stated = {
        "backend": "own",
        "model": "conch_ViT-B-16",
        "width": 16,
        "pooling": "native",
        "arguments": arguments,
        "recipe": recipe("pil", "shorter", "bicubic"),
    }
    files = {"pytorch_model.bin": packed("x.bin", published)}
    return Tiny("TinyOwn", stated, files, state, of(of_pil(SIDE, BICUBIC), module))


CONFIGURATION = b'''"""Configuration of a tiny network."""
from transformers import PretrainedConfig


class TinyConfig(PretrainedConfig):
    model_type = "tiny"

    def __init__(self, width=32, patch=7, side=28, registers=0, channels=3, **more):
        super().__init__(**more)
        self.width, self.patch, self.side = width, patch, side
        self.registers, self.channels = registers, channels
'''
MODELLING = b'''"""A tiny network behind the interfaces of published remote code."""
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from .configuration_tiny import TinyConfig


class Inner(nn.Module):
    def __init__(self, config):
        super().__init__()
        count = (config.side // config.patch) ** 2
        self.embed = nn.Conv2d(config.channels, config.width, config.patch, config.patch)
        self.first = nn.Parameter(torch.zeros(1, 1 + config.registers, config.width))
        self.mix = nn.Linear(1 + config.registers + count, 1 + config.registers + count)
        self.norm = nn.LayerNorm(config.width)
        self.register_buffer("angles", torch.linspace(0, 3, 1 + config.registers + count)[:, None], persistent=False)

    def encode(self, pixels):
        patches = self.embed(pixels).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(pixels), -1, -1), patches], dim=1) + torch.sin(self.angles)
        return {"last_hidden_state": self.norm(self.mix(tokens.transpose(1, 2)).transpose(1, 2))}


class TinyModel(PreTrainedModel):
    config_class = TinyConfig
    base_model_prefix = "tiny"
    main_input_name = "pixel_values"

    def __init__(self, config):
        super().__init__(config)
        self.model = Inner(config)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, pixel_values):
        return BaseModelOutput(last_hidden_state=self.model.encode(pixel_values)["last_hidden_state"])

    def encode(self, pixels):
        return nn.functional.normalize(self.forward(pixels).last_hidden_state[:, 0], dim=-1)


class TinyChannels(TinyModel):
    def forward(self, pixels):
        tokens = self.model.encode(pixels.flatten(0, 1)[:, None])["last_hidden_state"]
        return tokens[:, 0].reshape(len(pixels), -1)
'''


def remote_tokens() -> Tiny:
    """As Hibou: a last hidden state, four registers, prepared by a processor."""
    prepare = of_processor({"shortest_edge": 32}, 3, crop=True)
    stated = {"width": 32, "pooling": "cls", "tokens": {"registers": 4, "patches": 16}}
    said = recipe("processor", "shorter", "bicubic", size=32)
    return _remote("TinyHidden", stated, said, "Tiny", 4, prepare, lambda m, x: m(x).last_hidden_state[:, 0], seed=6)


def remote_encode() -> Tiny:
    """As Mascaret and Phaet: what its own encode returns, of length 1."""
    stated = {"width": 32, "pooling": "native encode"}
    said, prepare = recipe("tensor", "shorter", "bilinear"), of_tensor(SIDE, BILINEAR)
    return _remote("TinyUnit", stated, said, "FinetunedEncoderModel", 0, prepare, lambda m, x: m.encode(x), seed=7)


def remote_inner_encode() -> Tiny:
    """As RudolfV-2: the tokens of an inner encode, eight registers in neither class token nor mean."""
    stated = {"width": 64, "pooling": "cls+mean", "tokens": {"registers": 8, "patches": 16}}
    said, prepare = recipe("tensor", "squash", "bicubic", crop=SIDE), of_tensor((SIDE, SIDE), BICUBIC)
    tokens = "last_hidden_state"
    network = "DINOv2-style ViT"
    return _remote(
        "TinyInner", stated, said, network, 8, prepare, lambda m, x: cls_and_mean(m.model.encode(x)[tokens], 9), seed=8
    )


def remote_channels() -> Tiny:
    """As GenBio-PathFM: a class token of each channel, side by side, from the forward pass itself."""
    stated = {"width": 96, "pooling": "channel cls"}
    said, prepare = recipe("tensor", "squash", "bicubic", crop=None), of_tensor((SIDE, SIDE), BICUBIC)
    return _remote("TinyChannel", stated, said, "GenBioPathFMModel", 0, prepare, lambda m, x: m(x), seed=9)


def _remote(
    name: str,
    stated: Mapping[str, Any],
    said: Mapping[str, Any],
    model: str,
    registers: int,
    prepare: Callable[[Image.Image], Tensor],
    network: Callable[[Any, Tensor], Tensor],
    seed: int,
) -> Tiny:
    channels = 1 if model == "GenBioPathFMModel" else 3
    kind = "TinyChannels" if channels == 1 else "TinyModel"
    config = {"model_type": "tiny", "width": 32, "patch": 7, "side": SIDE, "registers": registers, "channels": channels}
    config["auto_map"] = {"AutoConfig": "configuration_tiny.TinyConfig", "AutoModel": f"modeling_tiny.{kind}"}
    code = _imported(name)
    module = getattr(code, kind)(code.TinyConfig(**{k: v for k, v in config.items() if k != "model_type"}))
    state = noisy(module, seed)
    files = {
        "model.safetensors": packed("model.safetensors", state),
        "config.json": json.dumps(config).encode(),
        "configuration_tiny.py": CONFIGURATION,
        "modeling_tiny.py": MODELLING,
    }
    entry = {"backend": "remote-code", "model": model, **stated, "recipe": said}
    return Tiny(name, entry, files, state, of(prepare, lambda x: network(module, x)))


def _imported(name: str) -> Any:
    """The code as a package of this process, from a folder of its own."""
    package = f"of_{name.lower()}"
    folder = Path(tempfile.mkdtemp())
    (folder / "configuration_tiny.py").write_bytes(CONFIGURATION)
    (folder / "modeling_tiny.py").write_bytes(MODELLING)
    (folder / "__init__.py").write_text("from .modeling_tiny import TinyChannels, TinyConfig, TinyModel\n")
    spec = importlib.util.spec_from_file_location(package, folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
    return module


def _json(config: Any) -> bytes:
    text: str = config.to_json_string()
    return text.encode()


TINY: Mapping[str, Callable[[], Tiny]] = {
    "TinyTimm": timm_registers,
    "TinyPickle": timm_pickle,
    "TinyState": state_dict,
    "TinyOwn": own_conch,
    "TinyDino": transformers_dinov2,
    "TinyVit": transformers_vit,
    "TinyHidden": remote_tokens,
    "TinyUnit": remote_encode,
    "TinyInner": remote_inner_encode,
    "TinyChannel": remote_channels,
}
OF_TIMM = ("TinyTimm", "TinyPickle", "TinyState", "TinyOwn")
"""Those that a family without timm cannot compute."""
