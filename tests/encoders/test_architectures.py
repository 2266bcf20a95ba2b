"""The architectures written here, at full size: parameters, names and shapes as the published descriptions give them.

Nothing is computed: tensors on the meta device have shapes and no numbers. How the networks compute is in
test_architectures_compute.py, how they were compared with their authors' code in docs/architectures.md.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="the families' suite needs torch")
pytest.importorskip("timm", reason="these architectures are of the family shared")

from torch import Tensor  # noqa: E402

from croma_bundle.encoders.architectures import OWN, Architecture, build  # noqa: E402
from croma_bundle.errors import ManifestError  # noqa: E402
from croma_bundle.layout import Volume  # noqa: E402
from croma_bundle.manifests.catalogue import load_catalogue  # noqa: E402
from croma_bundle.manifests.models import Encoder  # noqa: E402

pytestmark = pytest.mark.encoders

LINEAR = ("weight", "bias")
BLOCK = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
"""Of a vision transformer's block in timm; each has a weight and a bias."""


def entry_of(name: str, volume: Volume) -> Encoder:
    return load_catalogue(volume).encoders[name]


def built(name: str, volume: Volume) -> Architecture:
    with torch.device("meta"):
        return build(entry_of(name, volume))


def parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def transformer(width: int, hidden: int, layers: int, tokens: int, patch: int) -> int:
    """Parameters of a vision transformer; a layer has two norms, 4 C² + 4 C of attention, and an MLP."""
    layer = 2 * 2 * width + 4 * (width**2 + width) + 2 * width * hidden + hidden + width
    return width * 3 * patch**2 + width + width + tokens * width + layers * layer + 2 * width


def named(prefix: str, layers: Iterator[str] | tuple[str, ...]) -> set[str]:
    return {f"{prefix}{layer}.{leaf}" for layer in layers for leaf in LINEAR}


def test_conch_has_the_parameters_of_vit_b_at_448_pixels_and_of_one_pooler(volume):
    module = built("CONCH", volume).module
    trunk = transformer(768, 3072, 12, tokens=28 * 28 + 1, patch=16)
    attention = 2 * 512**2 + 2 * 512 * 768 + 4 * 512
    assert parameters(module.visual.trunk) == trunk
    assert parameters(module) == trunk + 512 + attention + 2 * 512 + 2 * 768 + 2 * 512


def test_conch_takes_the_published_names_of_its_image_tower_and_leaves_out_what_it_names(volume):
    architecture = built("CONCH", volume)
    trunk = {"cls_token", "pos_embed"} | named("", ("patch_embed.proj", "norm"))
    trunk |= {name for block in range(12) for name in named(f"blocks.{block}.", BLOCK)}
    pooler = {"query", "attn.in_proj_bias"} | {f"attn.{side}_proj_weight" for side in "qkv"}
    pooler |= named("", ("attn.out_proj", "ln_q", "ln_k"))
    image = {f"visual.trunk.{name}" for name in trunk} | {f"visual.attn_pool_contrast.{name}" for name in pooler}
    image |= named("visual.", ("ln_contrast",))
    others = {"logit_scale", "text.cls_emb", "text.transformer.resblocks.0.attn.in_proj_weight", "visual.proj_contrast"}
    others |= {"visual.attn_pool_caption.query", "visual.ln_caption.weight", "text_decoder.text_projection"}
    assert_takes(architecture, image, others)
    shapes = {name: tuple(tensor.shape) for name, tensor in architecture.module.state_dict().items()}
    assert shapes["visual.trunk.pos_embed"] == (1, 785, 768)
    assert shapes["visual.attn_pool_contrast.query"] == (1, 512)
    assert shapes["visual.attn_pool_contrast.attn.k_proj_weight"] == (512, 768)


def test_conch15_has_the_trunk_of_uni_and_a_pooler_without_biases(volume):
    """UNI is published as ViT-L/16 with layer scale in 1,213,527,781 bytes: four a parameter, and little else."""
    module = built("CONCHv1.5", volume).module
    trunk = transformer(1024, 4096, 24, tokens=14 * 14 + 1, patch=16) + 24 * 2 * 1024
    assert parameters(module.trunk) == trunk
    assert 4 * trunk == pytest.approx(1_213_527_781, rel=2e-4)
    pooler = 768 + 2 * 768**2 + 2 * 1024 * 768 + 2 * 768 + 2 * 1024
    assert parameters(module) == trunk + pooler + 2 * 768


def test_conch15_takes_all_of_its_published_names(volume):
    trunk = {"cls_token", "pos_embed"} | named("", ("patch_embed.proj", "norm"))
    trunk |= {name for block in range(24) for name in named(f"blocks.{block}.", BLOCK)}
    trunk |= {f"blocks.{block}.{scale}.gamma" for block in range(24) for scale in ("ls1", "ls2")}
    pooler = {"query", "to_q.weight", "to_kv.weight", "to_out.weight"} | named("", ("ln_q", "ln_k"))
    published = {f"trunk.{name}" for name in trunk} | {f"attn_pool_contrast.{name}" for name in pooler}
    architecture = built("CONCHv1.5", volume)
    assert_takes(architecture, published | named("", ("ln_contrast",)), set())
    assert architecture.module.state_dict()["trunk.pos_embed"].shape == (1, 197, 1024)
    assert architecture.module.state_dict()["attn_pool_contrast.to_kv.weight"].shape == (1536, 1024)


MUSK_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj", "inner_attn_ln")
MUSK_NORMS = ("self_attn_layer_norm", "final_layer_norm")
"""Parts of a layer of MUSK, each with a side A for images and B for texts; of its network, the sides have the parts."""


def musk_side(side: str) -> set[str]:
    published = {f"beit3.encoder.embed_positions.{side}.weight"} | named("beit3.encoder.", (f"layer_norm.{side}",))
    for layer in range(24):
        prefix = f"beit3.encoder.layers.{layer}."
        published |= named(f"{prefix}self_attn.", tuple(f"{part}.{side}" for part in MUSK_ATTENTION))
        published |= named(prefix, tuple(f"{part}.{side}" for part in MUSK_NORMS))
        published |= named(f"{prefix}ffn.{side}.", ("fc1", "fc2", "ffn_layernorm"))
    return published


def test_musk_takes_the_image_side_of_each_layer_and_leaves_out_the_text_side(volume):
    image = musk_side("A") | {"beit3.vision_embed.cls_token"} | named("beit3.vision_embed.", ("proj",))
    others = musk_side("B") | {"beit3.text_embed.weight", "beit3.vision_embed.mask_token", "logit_scale"}
    others |= {"vision_head.weight", "language_head.weight"}
    architecture = built("MUSK", volume)
    assert_takes(architecture, image, others)
    shapes = {name: tuple(tensor.shape) for name, tensor in architecture.module.state_dict().items()}
    assert shapes["encoder.embed_positions.weight"] == (24 * 24 + 1 + 2, 1024)
    assert shapes["encoder.layers.23.ffn.fc1.weight"] == (4096, 1024)


def test_musk_has_the_parameters_of_vit_l_and_two_norms_more_a_layer(volume):
    vit = transformer(1024, 4096, 24, tokens=24 * 24 + 1 + 2, patch=16)
    assert parameters(built("MUSK", volume).module) == vit + 24 * 2 * (1024 + 4096)


def test_mettle_is_the_backbone_of_h_optimus_0_and_its_head(volume):
    """H-optimus-0's file is published with 4,539,305,018 bytes: four a parameter, and little else."""
    architecture = built("Mettle", volume)
    backbone = parameters(architecture.module.backbone)
    assert backbone == parameters(built("H-optimus-0", volume).module)
    assert 4 * backbone == pytest.approx(4_539_305_018, rel=1e-4)
    two_layers = [1536 * 256 + 256 + 256 * out + out for out in (16, 1536)]
    assert parameters(architecture.module) == backbone + 2 * 16 * 1536 * 8 + sum(two_layers)
    head = {"head.P", "head.Q"} | named("head.", ("mix.0", "mix.2", "shift.0", "shift.2"))
    theirs = set(built("H-optimus-0", volume).module.state_dict())
    assert_takes(architecture, head | {f"backbone.{name}" for name in theirs}, set())


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def lite0_names() -> set[str]:
    """The names of the author's code: 16 blocks, the first without an expansion."""
    convolutions = {"_conv_stem", "_conv_head"} | {f"_blocks.{block}._expand_conv" for block in range(1, 16)}
    convolutions |= {f"_blocks.{block}.{conv}" for block in range(16) for conv in ("_depthwise_conv", "_project_conv")}
    norms = {"_bn0", "_bn1"} | {f"_blocks.{block}._bn{number}" for block in range(16) for number in (1, 2)}
    norms |= {f"_blocks.{block}._bn0" for block in range(1, 16)}
    return {f"{conv}.weight" for conv in convolutions} | {f"{norm}.{leaf}" for norm in norms for leaf in NORM}


def test_efficientnet_lite0_takes_every_name_of_its_checkpoint_but_the_classifier_s(volume):
    architecture = built("EfficientNet-Lite0", volume)
    assert_takes(architecture, lite0_names(), {"_fc.weight", "_fc.bias"})
    classifier = 1280 * 1000 + 1000
    assert round((parameters(architecture.module) + classifier) / 1e5) == 47  # published: 4.7 M


def test_a_published_shape_decides_which_block_of_efficientnet_lite0_a_tensor_goes_to(volume):
    """From the paper: kernels of five in stages 2, 4 and 5; widths of 16, 24, 40, 80, 112, 192 and 320."""
    architecture = built("EfficientNet-Lite0", volume)
    shapes = architecture.module.state_dict()
    repeats, widths, kernels = (1, 2, 2, 3, 3, 4, 1), (16, 24, 40, 80, 112, 192, 320), (3, 3, 5, 3, 5, 5, 3)
    stages = [stage for stage, count in enumerate(repeats) for _ in range(count)]
    marks = {name: torch.empty(()) for name in lite0_names()}
    for block, stage in enumerate(stages):
        depthwise, project = (
            next(iter(architecture.take({name: marks[name]})))
            for name in (f"_blocks.{block}._depthwise_conv.weight", f"_blocks.{block}._project_conv.weight")
        )
        assert shapes[depthwise].shape[-1] == kernels[stage]
        assert shapes[project].shape[0] == widths[stage]


BUILD = """
import torch
from pathlib import Path
from croma_bundle.encoders.architectures import build
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue
entry = load_catalogue(Volume(Path("nowhere"))).encoders["CONCH"]
with torch.device("meta"):
    print(next(build(entry).module.parameters()).device)
"""


def test_the_first_thing_a_process_builds_may_be_on_the_meta_device():
    done = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["meta"], done.stderr


def test_every_own_architecture_is_of_an_entry(volume):
    entries = load_catalogue(volume).encoders.values()
    assert {entry.model for entry in entries if entry.backend in ("own", "state-dict")} >= set(OWN)


@pytest.mark.parametrize(("name", "blocks"), [("CONCH", 12), ("CONCHv1.5", 24)])
def test_the_trunks_of_conch_normalise_with_timm_s_epsilon_and_their_poolers_with_torch_s(volume, name, blocks):
    module = built(name, volume).module
    epsilons = Counter(part.eps for part in module.modules() if isinstance(part, torch.nn.LayerNorm))
    assert epsilons == {1e-6: 2 * blocks + 1, 1e-5: 3}


def test_musk_normalises_with_torch_s_epsilon(volume):
    module = built("MUSK", volume).module
    epsilons = Counter(part.eps for part in module.modules() if isinstance(part, torch.nn.LayerNorm))
    assert epsilons == {1e-5: 4 * 24 + 1}


def test_two_tensors_that_come_to_one_name_are_refused(volume):
    twice = {name: torch.empty(0) for name in ("beit3.encoder.layer_norm.A.bias", "encoder.layer_norm.bias")}
    with pytest.raises(ManifestError, match="come to one name"):
        built("MUSK", volume).take(twice)


def test_what_nobody_names_is_kept_for_the_strict_loading_to_refuse(volume):
    unknown = {"visual.trunk.blocks.12.norm1.weight", "beit3.encoder.layers.0.C.weight", "_blocks.16._bn1.weight"}
    for name in ("CONCH", "MUSK", "EfficientNet-Lite0"):
        architecture = built(name, volume)
        taken = architecture.take({key: torch.empty(0) for key in unknown})
        assert not set(taken) & set(architecture.module.state_dict())
        assert len(taken) == len(unknown)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "beit3"}, "there is no architecture 'beit3'\n.*wanted.*conch_v1_5"),
        ({"arguments": {"layers": 2}}, "cannot be built\n.*wanted .*arguments that musk_large_patch16_384 takes"),
    ],
)
def test_an_architecture_that_does_not_exist_or_refuses_its_arguments_is_the_entry_s_fault(volume, change, message):
    with pytest.raises(ManifestError) as caught:
        build(entry_of("MUSK", volume).model_copy(update=change))
    assert caught.match(message)


def assert_takes(architecture: Architecture, kept: set[str], left_out: set[str]) -> None:
    """Of a file with these names just the kept are taken, one for each of the network's own."""
    published: dict[str, Tensor] = {name: torch.tensor(number) for number, name in enumerate(sorted(kept | left_out))}
    taken = architecture.take(published)
    assert set(taken) == set(architecture.module.state_dict())
    assert {int(tensor) for tensor in taken.values()} == {int(published[name]) for name in kept}
