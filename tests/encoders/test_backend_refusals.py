"""What a checkpoint, its entry or its code must not be, and the paragraph that says so. Nothing is ever half loaded."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the families' suite needs torch")
pytest.importorskip("transformers", reason="the families' suite needs transformers")

from PIL import Image  # noqa: E402
from tiny_checkpoints import (  # noqa: E402
    BICUBIC,
    MODELLING,
    OF_TIMM,
    SIDE,
    TINY,
    Tiny,
    cls_and_mean,
    keep,
    of_pil,
    remote_tokens,
    transformers_dinov2,
    transformers_vit,
)

from croma_bundle.encoders.backends import network  # noqa: E402
from croma_bundle.encoders.forward import TorchForward  # noqa: E402
from croma_bundle.encoders.loading import load  # noqa: E402
from croma_bundle.errors import (  # noqa: E402
    ArtifactError,
    DegenerateEmbedding,
    EnvironmentFault,
    InputError,
    ManifestError,
    SeveralErrors,
)
from croma_bundle.extraction.embed import embed  # noqa: E402
from croma_bundle.layout import Volume, WeightsFolder  # noqa: E402
from croma_bundle.manifests.catalogue import load_catalogue  # noqa: E402
from croma_bundle.manifests.models import Encoder  # noqa: E402
from croma_bundle.manifests.toml_text import toml_text  # noqa: E402
from croma_bundle.weights.resolve import resolve  # noqa: E402
from embedded import Recorder, add_cohort, tiles_of  # noqa: E402

pytestmark = pytest.mark.encoders

BLANK = np.zeros((2, 3, SIDE, SIDE), dtype=np.float32)
DINO, VIT, REMOTE = transformers_dinov2(), transformers_vit(), remote_tokens()


@pytest.fixture
def weights(volume: Volume) -> WeightsFolder:
    return WeightsFolder(volume.weights)


def with_timm(name: str) -> Tiny:
    pytest.importorskip("timm", reason="this family has no timm")
    return TINY[name]()


def refused(volume: Volume, tiny: Tiny, *kinds: type[Exception]) -> str:
    """The paragraph with which loading it, as files of one's own, is refused."""
    with pytest.raises(kinds or ManifestError) as caught:
        load(keep(volume, tiny), WeightsFolder(volume.weights), "cpu")
    return str(caught.value)


@pytest.mark.parametrize("name", [name for name in TINY if name not in OF_TIMM])
def test_a_private_checkpoint_loads_from_the_folder_of_ones_own(volume: Volume, weights: WeightsFolder, name: str):
    entry = keep(volume, TINY[name]())
    vectors = load(entry, weights, "cpu").embed(BLANK)
    assert vectors.shape == (2, entry.width)
    assert vectors.dtype == np.float32
    assert [file.sha256_source for file in resolve(weights, entry)] == ["manifest"] * len(entry.files)


@pytest.mark.parametrize("name", OF_TIMM)
def test_a_private_checkpoint_of_timm_loads_too(volume: Volume, weights: WeightsFolder, name: str):
    entry = keep(volume, with_timm(name))
    assert load(entry, weights, "cpu").embed(BLANK).shape == (2, entry.width)


def broken(state: dict[str, Any], how: str) -> dict[str, Any]:
    """The state with its second tensor left out, renamed, or one column short; or with one too many."""
    name = sorted(state)[1]
    kept = {key: tensor for key, tensor in state.items() if key != name}
    changed = {"missing": {}, "renamed": {f"{name}.old": state[name]}, "shape": {name: state[name][..., :-1]}}
    return {**kept, **changed[how]} if how != "one too many" else {**state, "head.weight": torch.ones(2, 2)}


@pytest.mark.parametrize("how", ["missing", "renamed", "shape", "one too many"])
@pytest.mark.parametrize("tiny", [DINO, VIT, REMOTE], ids=lambda tiny: tiny.name)
def test_a_state_dict_that_does_not_fit_is_refused_with_the_names(volume: Volume, tiny: Tiny, how: str):
    said = refused(volume, tiny.holding(broken(tiny.state, how)))
    name = sorted(tiny.state)[1]
    assert f"encoder {tiny.name}: its checkpoint does not fit its network" in said
    wanted = {
        "missing": f"1 missing: {name}",
        "renamed": f"1 missing: {name}; 1 unexpected: {name}.old",
        "shape": f"1 of another shape or kind: {name} is ",
        "one too many": "1 unexpected: head.weight",
    }
    assert wanted[how] in said


@pytest.mark.parametrize("how", ["missing", "renamed", "shape", "one too many"])
def test_so_is_one_for_a_network_of_timm(volume: Volume, how: str):
    tiny = with_timm("TinyTimm")
    name = sorted(tiny.state)[1]
    said = refused(volume, tiny.holding(broken(tiny.state, how)))
    assert "its checkpoint does not fit its network" in said
    assert ("head.weight" if how == "one too many" else name) in said


def test_a_published_tensor_without_use_must_be_named_in_the_entry(volume: Volume, weights: WeightsFolder):
    for tiny in (DINO, REMOTE):
        extra = tiny.holding({**tiny.state, "head.weight": torch.ones(2, 2)})
        assert 'state = { ignore = ["head."] }' in refused(volume, extra)
        entry = keep(volume, extra.saying(state={"ignore": ["head."]}))
        plain = load(keep(volume, tiny), weights, "cpu").embed(BLANK)
        keep(volume, extra)
        assert np.array_equal(load(entry, weights, "cpu").embed(BLANK), plain)


def test_code_that_lets_a_tensor_be_missing_does_not_decide_here(volume: Volume):
    lenient = MODELLING.replace(
        b'base_model_prefix = "tiny"', b'base_model_prefix = "tiny"\n    _keys_to_ignore_on_load_missing = [r"mix"]'
    )
    assert lenient != MODELLING
    state = {name: tensor for name, tensor in REMOTE.state.items() if name != "model.mix.bias"}
    assert "1 missing: model.mix.bias" in refused(volume, REMOTE.holding(state).with_file("modeling_tiny.py", lenient))


def test_where_the_tensors_lie_must_be_as_the_entry_says(volume: Volume):
    tiny = with_timm("TinyState")
    said = refused(volume, tiny.saying(state={"prefix": "backbone."}))
    assert "its tensors are not where the entry says" in said
    assert "0 tensors, and 'epoch' (int), 'teacher' (dict)" in said
    assert "under 'model'" in refused(volume, tiny.saying(state={"inside": "model"}))
    other = tiny.saying(state={"inside": "teacher", "prefix": "module.", "ignore": ["dino_head."]})
    assert "do not start with 'module.'" in refused(volume, other)
    assert "1 unexpected: dino_head.weight" in refused(
        volume, replace(tiny, files={"Tiny.pth": unwrapped(tiny)}).saying(state={"inside": "teacher"})
    )


def unwrapped(tiny: Tiny) -> bytes:
    return tiny.holding({"teacher": {**tiny.state, "dino_head.weight": torch.ones(3)}}).files[tiny.weights]


class Touch:
    """A pickle that would run a command when it is read."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("name", ["TinyVit", "TinyPickle"])
def test_a_pickle_that_asks_for_code_is_refused_and_runs_nothing(volume: Volume, tmp_path: Path, name: str):
    tiny = VIT if name == "TinyVit" else with_timm(name)
    said = refused(volume, tiny.holding({**tiny.state, "more": Touch(tmp_path / "ran")}), InputError)
    assert "this pickle asks for more than tensors and plain values" in said
    assert "system" in said
    assert "in a container without network" in said
    assert not (tmp_path / "ran").exists()


def odd_tensors(like: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "complex64": like.to(torch.complex64),
        "float8_e4m3fn": like.to(torch.float8_e4m3fn),
        "float32 sparse_coo": like.to_sparse(),
        "float32 meta": like.to("meta"),
        "qint8": torch.quantize_per_tensor(like, 0.1, 0, torch.qint8),
    }


@pytest.mark.parametrize("kind", list(odd_tensors(torch.ones(2))))
def test_tensors_that_nothing_here_computes_with_are_refused_by_name(volume: Volume, kind: str):
    name = sorted(VIT.state)[1]
    said = refused(volume, VIT.holding({**VIT.state, name: odd_tensors(VIT.state[name])[kind]}))
    assert "1 of its tensors are of a kind that no network here has" in said
    assert f"{name} ({kind})" in said


@pytest.mark.parametrize("kind", ["int64", "int8", "bool"])
@pytest.mark.parametrize("tiny", [DINO, VIT, REMOTE], ids=lambda tiny: tiny.name)
def test_whole_numbers_do_not_stand_for_weights(volume: Volume, tiny: Tiny, kind: str):
    name = sorted(tiny.state)[1]
    whole = {**tiny.state, name: tiny.state[name].to(getattr(torch, kind))}
    said = refused(volume, tiny.holding(whole), InputError, ManifestError)
    by_torch, here = "Only Tensors of floating point", f"is {kind}, not float32"
    assert by_torch in said or here in said  # transformers 4 lets them through to the comparison of every tensor


def test_so_it_is_with_a_network_of_timm(volume: Volume):
    tiny = with_timm("TinyTimm")
    name = sorted(tiny.state)[1]
    said = refused(volume, tiny.holding({**tiny.state, name: tiny.state[name].to(torch.int32)}))
    assert f"1 of another shape or kind: {name} is int32, not float32" in said


def test_what_the_entry_can_say_is_told_by_the_kind_of_misfit(volume: Volume):
    name = sorted(VIT.state)[1]
    renamed = {("other." + key if key == name else key): value for key, value in VIT.state.items()}
    assert "prefix =" in refused(volume, VIT.holding(renamed))
    fewer = {key: value for key, value in VIT.state.items() if key != name}
    said = refused(volume, VIT.holding(fewer))
    assert "`model` and `arguments`" in said
    assert "ignore" not in said
    assert "ignore =" in refused(volume, VIT.holding({**VIT.state, "head.weight": torch.ones(2)}))


def test_a_model_that_timm_does_not_have_is_told_with_the_nearest(volume: Volume):
    said = refused(volume, with_timm("TinyTimm").saying(model="vit_tinny_patch16_224"))
    assert "has no model 'vit_tinny_patch16_224'; did you mean 'vit_tiny_patch16_224'?" in said


@pytest.mark.parametrize("key", [1, ("a", "b"), None])
def test_tensors_without_a_name_are_refused(volume: Volume, key: Any):
    said = refused(volume, VIT.holding({**VIT.state, key: torch.ones(2)}))
    assert "its tensors are not where the entry says" in said
    assert f"{key!r} (Tensor)" in said


@pytest.mark.parametrize(
    "content",
    [b"\x80\x02.", b"\x80\x02(0.", b"\x80\x02h\x05.", b"\x80\x02]K\x05K\x06s.", b"\x80\x09N.", b"\x80\x02q\x00."],
    ids=["nothing", "a mark", "no memo", "an index", "protocol 9", "nothing to keep"],
)
def test_a_pickle_that_is_no_sentence_is_damaged(volume: Volume, content: bytes, recwarn: pytest.WarningsRecorder):
    said = refused(volume, VIT.with_file(VIT.weights, content), InputError)
    assert f"encoder {VIT.name}, {VIT.weights}: " in said
    assert "it cannot be read as a checkpoint" in said or "so it was not read" in said
    assert not [warning for warning in recwarn if "ickle" in str(warning.message)]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"\x08\0\0\0\0\0\0\0{}      weights"])
@pytest.mark.parametrize("tiny", [DINO, VIT], ids=lambda tiny: tiny.name)
def test_a_damaged_file_of_tensors_is_told_as_such(volume: Volume, tiny: Tiny, content: bytes):
    with pytest.raises(InputError) as caught:
        load(keep(volume, tiny.with_file(tiny.weights, content)), WeightsFolder(volume.weights), "cpu")
    assert tiny.weights in str(caught.value) or "does not fit" in str(caught.value)


@pytest.mark.parametrize("tiny", [DINO, VIT, REMOTE], ids=lambda tiny: tiny.name)
def test_one_flipped_byte_of_any_file_is_refused_before_it_is_read(volume: Volume, weights, tiny: Tiny):
    entry = keep(volume, tiny)
    for name, content in tiny.files.items():
        path = weights.local(tiny.name) / name
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ArtifactError, match=f"{name}: its bytes are not those that were pinned"):
            load(entry, weights, "cpu")
        path.write_bytes(content)
    load(entry, weights, "cpu")


def test_code_that_changes_after_it_was_hashed_does_not_run(volume: Volume, weights: WeightsFolder, tmp_path: Path):
    entry = keep(volume, REMOTE)
    files = resolve(weights, entry)
    code = weights.local(REMOTE.name) / "modeling_tiny.py"
    code.write_bytes(f"open({str(tmp_path / 'ran')!r}, 'w')\n".encode() + MODELLING)
    with pytest.raises(ArtifactError, match="it was changed while it was read"):
        network(entry, files)
    assert not (tmp_path / "ran").exists()


def test_weights_that_are_not_there_are_told_with_the_line_that_brings_them(volume: Volume, weights: WeightsFolder):
    entry = keep(volume, DINO)
    (weights.local(DINO.name) / "model.safetensors").unlink()
    with pytest.raises(InputError, match=rf"cp model\.safetensors {weights.local(DINO.name)}/"):
        load(entry, weights, "cpu")
    moved = entry.model_copy(update={"repository": "tiny/dino", "revision": "ab" * 20})
    with pytest.raises(SeveralErrors, match=r"tiny/dino@abababababab(.|\n)*make weights FAMILY=private") as caught:
        load(moved, weights, "cpu")
    assert len(caught.value.errors) == len(entry.files)


def test_another_width_or_other_tokens_are_refused_before_any_tile(volume: Volume):
    assert "wanted   width = 65 (its entry)\n  found    width 64" in refused(volume, DINO.saying(width=65))
    said = refused(volume, DINO.saying(tokens={"registers": 4, "patches": 16}))
    assert "its tokens are others\n  wanted   21 tokens (1 class, 4 registers, 16 patches)" in said


def test_another_kind_of_network_than_its_configuration_says_is_refused(volume: Volume):
    assert "wanted   'vit'\n  found    'dinov2' (config.json)" in refused(volume, DINO.saying(model="vit"))
    assert "one of vit, dinov2, dinov2_with_registers" in refused(volume, DINO.saying(model="clip"))


def test_code_must_be_listed_pinned_and_whole(volume: Volume):
    without = {name: content for name, content in REMOTE.files.items() if name != "configuration_tiny.py"}
    said = refused(
        volume,
        replace(REMOTE, files=without).with_file(
            "config.json", b'{"auto_map": {"AutoModel": "modeling_tiny.TinyModel"}}'
        ),
    )
    assert "its code imports configuration_tiny.py, which is not among the files of its entry" in said
    elsewhere = REMOTE.with_file("config.json", b'{"auto_map": {"AutoModel": "other/code--modeling_tiny.TinyModel"}}')
    assert "code_repository = 'other/code' and a code_revision" in refused(volume, elsewhere)
    assert "wanted   AutoModel\n  found    no auto_map" in refused(volume, REMOTE.with_file("config.json", b"{}"))
    assert "its files lack config.json" in refused(
        volume, replace(REMOTE, files={k: v for k, v in REMOTE.files.items() if k != "config.json"})
    )


def test_a_configuration_that_states_another_normalisation_than_the_recipe_is_refused(volume: Volume):
    stated = json.loads(REMOTE.files["config.json"])
    for key in ("mean", "std"):
        other = REMOTE.with_file("config.json", json.dumps({**stated, f"pixel_{key}": [0.5, 0.5, 0.5]}).encode())
        said = refused(volume, other)
        assert (
            f"its recipe is not that of its checkpoint (pixel_{key})\n  wanted   [0.5, 0.5, 0.5] (config.json)" in said
        )
    same = {**stated, "pixel_mean": REMOTE.stated["recipe"]["mean"], "pixel_std": REMOTE.stated["recipe"]["std"]}
    load(keep(volume, REMOTE.with_file("config.json", json.dumps(same).encode())), WeightsFolder(volume.weights), "cpu")


def test_code_that_fails_or_needs_what_is_not_installed_is_told_in_a_paragraph(volume: Volume):
    failing = REMOTE.with_file("modeling_tiny.py", b"import torch\n1 / 0\n")
    assert "modeling_tiny.py: it failed while it was loaded\n  found    ZeroDivisionError" in refused(
        volume, failing, InputError
    )
    needing = REMOTE.with_file("modeling_tiny.py", b"import no_such_library\n" + MODELLING)
    said = refused(volume, needing, EnvironmentFault)
    assert "its code imports no_such_library, which is not installed here" in said
    assert "make embed FAMILY=private" in said
    without = REMOTE.with_file("modeling_tiny.py", MODELLING.replace(b"last_hidden_state=", b"pooler_output="))
    assert "its network does not compute on 28 × 28 pixels" in refused(volume, without, InputError)


def test_two_loads_of_one_code_do_not_share_modules(volume: Volume, weights: WeightsFolder):
    entry = keep(volume, REMOTE)
    first, second = (network(entry, resolve(weights, entry)) for _ in range(2))
    assert type(first.module) is not type(second.module)
    assert first.module.model.angles is not second.module.model.angles
    assert torch.equal(first.module.model.angles, second.module.model.angles)
    assert first.module.model.angles[-1] == 3, "a computed buffer has the value that its code gives it"


def test_a_loaded_network_is_in_evaluation_mode_and_one_in_training_is_refused(volume: Volume, weights: WeightsFolder):
    entry = keep(volume, REMOTE)
    made = network(entry, resolve(weights, entry))
    assert not [name for name, part in made.module.named_modules() if part.training]
    assert not [name for name, weight in made.module.named_parameters() if weight.dtype != torch.float32]
    made.module.model.norm.train()
    with pytest.raises(EnvironmentFault, match="training mode"):
        TorchForward(made.module, made.forward, entry, "cpu")


def test_half_precision_tensors_are_computed_with_as_float32(volume: Volume, weights: WeightsFolder):
    halves = {name: tensor.half() for name, tensor in DINO.state.items()}
    found = load(keep(volume, DINO.holding(halves)), weights, "cpu").embed(BLANK)
    as_float = load(keep(volume, DINO.holding({n: t.float() for n, t in halves.items()})), weights, "cpu").embed(BLANK)
    assert np.array_equal(found, as_float)


def test_weights_that_give_nan_leave_no_matrix(volume: Volume, tmp_path: Path):
    add_cohort(volume, tmp_path / "tiles", size=40, slides=1, tiles=1)
    state = {**DINO.state, "layernorm.bias": torch.full_like(DINO.state["layernorm.bias"], float("nan"))}
    entry = keep(volume, DINO.holding(state))
    with pytest.raises(DegenerateEmbedding, match="NaN or infinity"):
        embedded_here(volume, entry)
    assert not volume.matrix("cohort", entry.name).exists()
    assert not volume.sidecar("cohort", entry.name).exists()


def embedded_here(volume: Volume, entry: Encoder) -> tuple[str, dict[str, Any]]:
    return embed(tiles_of(volume), entry, device="cpu", workers=0, force=False, reporter=Recorder())


def test_other_weights_code_or_arguments_are_another_matrix(volume: Volume, tmp_path: Path):
    add_cohort(volume, tmp_path / "tiles", size=40, slides=1, tiles=1)
    assert embedded_here(volume, keep(volume, REMOTE))[0] == "embedded"
    assert embedded_here(volume, keep(volume, REMOTE))[0] == "there"
    commented = REMOTE.with_file("modeling_tiny.py", MODELLING + b"# another version\n")
    changed = {
        "remote_code": commented,
        "weights": REMOTE.holding({**REMOTE.state, "model.mix.bias": REMOTE.state["model.mix.bias"] + 1}),
        "extraction_contract.arguments": REMOTE.saying(arguments={"image_size": 28}),
    }
    for key, tiny in changed.items():
        with pytest.raises(ArtifactError, match=rf"{key}[\w.]*: wanted"):
            embedded_here(volume, keep(volume, tiny))


def test_a_second_recipe_runs_by_its_name_on_the_checkpoint_of_the_first(volume: Volume, tmp_path: Path):
    cohort = add_cohort(volume, tmp_path / "tiles", size=40, slides=1, tiles=1)
    keep(volume, DINO)
    second = {**DINO.stated["recipe"], "edge": "squash", "interpolation": "bicubic"}
    stated = {"of": DINO.name, "generation": "tiny-0", "votes": False, "recipe": second}
    with (volume.encoder_declarations / f"{DINO.name}.toml").open("a", encoding="utf-8") as handle:
        handle.write(toml_text({"TinyDino@tiny-0": stated}, "Of a test."))
    outcome, sidecar = embedded_here(volume, load_catalogue(volume).encoder("TinyDino@tiny-0"))
    assert (outcome, sidecar["extraction_contract"]["generation"]) == ("embedded", "tiny-0")
    module = loaded_module(volume, DINO)
    prepare = of_pil((SIDE, SIDE), BICUBIC)
    picture = Image.open(cohort.root / cohort.rows[0]["image_path"])
    with torch.inference_mode():
        expected = cls_and_mean(module(prepare(picture)[None]).last_hidden_state, 1)[0].numpy()
    assert np.load(volume.matrix("cohort", "TinyDino@tiny-0"))[0] == pytest.approx(expected, abs=2e-5)


def loaded_module(volume: Volume, tiny: Tiny) -> Any:
    """The network by transformers alone."""
    import transformers

    folder = WeightsFolder(volume.weights).local(tiny.name)
    return transformers.Dinov2Model.from_pretrained(folder, local_files_only=True).eval()


def test_an_encoder_in_another_familys_image_is_told_its_own(volume: Volume, weights: WeightsFolder):
    entry = keep(volume, DINO)
    import transformers

    other = "waiv" if transformers.__version__.startswith("4.") else "shared"
    with pytest.raises(EnvironmentFault, match=rf"make embed FAMILY={other} TILESET=… ENCODERS=TinyDino"):
        load(entry.model_copy(update={"family": other}), weights, "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_that_is_not_there_is_an_error_never_the_cpu(volume: Volume, tmp_path: Path, device: str):
    add_cohort(volume, tmp_path / "tiles", size=40, slides=1, tiles=1)
    entry = keep(volume, DINO)
    with pytest.raises(EnvironmentFault, match=rf"--device {device}: it cannot be had here"):
        embed(tiles_of(volume), entry, device=device, workers=0, force=False, reporter=Recorder())
