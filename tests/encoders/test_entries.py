"""The entries of the published encoders: complete, consistent, and as their sources state them. Torch is not needed."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from croma_bundle.errors import ManifestError
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.manifests.models import Encoder
from croma_bundle.verification.panel import load_panel
from croma_bundle.verification.published import published_name
from embedded import add_cohort, embed_here, entry_of

# encoder: (family, width, tokens as class + registers + patches), from the models' cards and papers. None: it returns
# vectors, or its tokens are not stated.
FACTS = {
    "Virchow2": ("shared", 2560, (1, 4, 256)),
    "Virchow": ("shared", 2560, (1, 0, 256)),
    "UNI2-h": ("shared", 1536, (1, 8, 256)),
    "UNI": ("shared", 1024, (1, 0, 196)),
    "CONCHv1.5": ("shared", 768, None),
    "CONCH": ("shared", 512, None),
    "H-optimus-1": ("shared", 1536, (1, 4, 256)),
    "H-optimus-0": ("shared", 1536, (1, 4, 256)),
    "H0-mini": ("shared", 1536, (1, 4, 256)),
    "Prov-GigaPath": ("shared", 1536, (1, 0, 196)),
    "Midnight-12k": ("shared", 3072, (1, 0, 256)),
    "Prost40M": ("shared", 384, (1, 0, 256)),
    "Phikon": ("shared", 768, (1, 0, 196)),
    "Phikon-v2": ("shared", 1024, (1, 0, 196)),
    "Hibou-L": ("shared", 1024, (1, 4, 256)),
    "Hibou-B": ("shared", 768, (1, 4, 256)),
    "mSTAR": ("shared", 1024, (1, 0, 196)),
    "DINOv2-B": ("shared", 768, (1, 0, 256)),
    "GPFM": ("shared", 1024, (1, 0, 256)),
    "MUSK": ("shared", 2048, None),
    "GenBio-PathFM": ("shared", 4608, None),
    "Mettle": ("shared", 3072, (1, 4, 256)),
    "EfficientNet-Lite0": ("shared", 1280, None),
    "Mascaret": ("waiv", 1536, (1, 0, 256)),
    "Phaet": ("waiv", 1024, (1, 0, 196)),
    "RudolfV-2": ("rudolfv2", 3072, (1, 8, 784)),
    "RudolfV-2-B": ("rudolfv2", 1536, (1, 8, 784)),
    "RudolfV-2-S": ("rudolfv2", 768, (1, 8, 784)),
}
SECOND = {
    "DINOv2-B@croma-0.3.0": (1, 0, 1369),
    "H-optimus-0@croma-0.3.0": (1, 4, 256),
    "H-optimus-1@croma-0.3.0": (1, 4, 256),
    "Prov-GigaPath@croma-0.3.0": (1, 0, 196),
    "GPFM@croma-0.3.0": (1, 0, 1369),
    "mSTAR@croma-0.3.0": (1, 0, 196),
}
"""The recipes of the earlier generation, and their tokens: 518 pixels are 37 × 37 patches of 14."""
AUTOCAST = {"Virchow2", "Virchow", "CONCHv1.5", "H-optimus-1", "H-optimus-0", "H0-mini", "MUSK"}
CONTROLS = {"DINOv2-B", "EfficientNet-Lite0"}
ON_TCGA = ("tcga-4x4", "tcga-2x2")
DISCLOSED = {
    **dict.fromkeys(("H0-mini", "Midnight-12k", "Prost40M", "Phikon", "Phikon-v2", "mSTAR", "MUSK"), ON_TCGA),
    **dict.fromkeys(("GenBio-PathFM", "Mascaret", "Phaet"), ON_TCGA),
    "GPFM": ("camelyon", *ON_TCGA, "pcabiop"),
    **dict.fromkeys(("RudolfV-2", "RudolfV-2-B", "RudolfV-2-S"), ("tolkach-esca",)),
    **dict.fromkeys(("CONCHv1.5", "CONCH", "DINOv2-B", "EfficientNet-Lite0"), ()),
}
"""The tilesets whose source a pretraining overlaps, where its data are disclosed (croma 1.0.1, model_metadata.csv)."""


@pytest.fixture(scope="module")
def declared(tmp_path_factory) -> Mapping[str, Encoder]:
    return load_catalogue(Volume(tmp_path_factory.mktemp("empty"))).encoders


@pytest.fixture(scope="module")
def entries(declared) -> Mapping[str, Encoder]:
    """Those with a network, without second recipes."""
    return {name: e for name, e in declared.items() if e.backend != "classical" and e.of is None}


@pytest.fixture(scope="module")
def second(declared) -> Mapping[str, Encoder]:
    return {name: entry for name, entry in declared.items() if entry.of is not None}


@pytest.fixture
def stated(shared: Path, entries) -> Iterator[tuple[Encoder, dict[str, str]]]:
    """Each entry beside its row of the table of facts."""
    path = shared / "data/encoders.csv"
    if not path.is_file():
        pytest.skip(f"{path} does not exist")
    with path.open(newline="", encoding="utf-8") as handle:
        rows = {row["encoder"]: row for row in csv.DictReader(handle)}
    assert len(rows) == 26
    assert set(rows) == set(entries) - {"Mettle", "EfficientNet-Lite0"}
    return [(entries[name], row) for name, row in rows.items()]


def layout(entry: Encoder) -> tuple[int, int, int] | None:
    return entry.tokens and (entry.tokens.cls, entry.tokens.registers, entry.tokens.patches)


# Each entry by itself


def test_the_27_published_encoders_and_the_second_natural_image_control_are_declared(entries):
    assert {name: (e.family, e.width, layout(e)) for name, e in entries.items()} == FACTS


def test_controls_and_voters_are_the_published_ones(entries):
    assert {name for name, entry in entries.items() if entry.control} == CONTROLS
    assert {name for name, entry in entries.items() if not entry.votes} == {"EfficientNet-Lite0"}


def test_the_six_whose_recipe_changed_have_that_of_the_earlier_generation_as_a_second_one(entries, second):
    """A second recipe is the same checkpoint: what is loaded, and how it is treated, is said once."""
    assert {name: layout(entry) for name, entry in second.items()} == SECOND
    may_differ = {"name", "of", "generation", "votes", "recipe", "tokens", "open"}
    for name, entry in second.items():
        first = entries[entry.of]
        assert (name, entry.generation, entry.votes) == (f"{entry.of}@croma-0.3.0", "croma-0.3.0", False)
        assert {key for key in Encoder.model_fields if getattr(entry, key) != getattr(first, key)} <= may_differ
        assert entry.recipe != first.recipe


def test_they_are_the_encoders_whose_published_recipe_changed_and_are_compared_with_the_earlier_figures(second):
    panel = load_panel()
    target = panel.generations["croma-1.0.1"]
    assert (target.since, {entry.of for entry in second.values()}) == ("croma-0.3.0", target.recipes)
    for name, entry in second.items():
        assert published_name(name, panel) == entry.of
        assert entry.of in panel.cohort(entry.generation, "camelyon")


def test_exposure_is_what_is_disclosed_and_unknown_elsewhere(entries):
    assert {name: e.exposed for name, e in entries.items() if e.exposed is not None} == DISCLOSED


def test_a_remote_code_entry_lists_its_code_or_says_that_nobody_has_named_it(entries):
    for name, entry in entries.items():
        if entry.backend == "remote-code":
            listed = any(file.name.endswith(".py") for file in entry.files)
            assert listed or "code files" in (entry.open or ""), name


def test_half_precision_applies_to_the_seven_that_were_published_with_it(entries):
    assert {name for name, entry in entries.items() if entry.precision == "mixed-float16"} == AUTOCAST


def test_an_entry_without_a_commit_says_what_is_open_and_only_prost40m_is_one(entries):
    unpinned = [entry for entry in entries.values() if not entry.pinned]
    assert [entry.name for entry in unpinned] == ["Prost40M"]
    assert "revision" in unpinned[0].open


def test_a_missing_recipe_is_said_to_be_open(entries):
    assert [name for name, e in entries.items() if e.recipe is None and "recipe" not in (e.open or "")] == []


def test_every_pickle_has_a_hash(entries):
    files = [(name, file) for name, entry in entries.items() for file in entry.files]
    assert [f"{n}: {f.name}" for n, f in files if f.name.endswith((".bin", ".pth")) and f.sha256 is None] == []


def test_patches_are_the_square_of_the_input_side_over_the_patch_size(declared):
    """The token count follows from two other facts of the entry, so a slip in one of the three shows."""
    for name, entry in declared.items():
        if entry.tokens is None:
            continue
        named = re.search(r"patch(\d+)", entry.model)
        patch = entry.arguments.get("patch_size") or int(named.group(1) if named else 14)
        side = entry.recipe.side if entry.recipe else entry.arguments["img_size"]
        assert entry.tokens.patches == (side // patch) ** 2, name


def test_a_width_with_the_mean_beside_the_class_token_is_even(entries):
    assert [name for name, e in entries.items() if e.pooling == "cls+mean" and e.width % 2] == []


# As the table of facts states them


def test_commits_and_hashes_are_those_of_the_table(stated):
    other = []
    for entry, row in stated:
        if entry.revision is not None and entry.revision not in row["sha"]:
            other.append(f"{entry.name}: {entry.revision}")
        other += [
            f"{entry.name}: {f.sha256}" for f in entry.files if f.sha256 and f.sha256 not in row["weights_sha256"]
        ]
        if entry.repository not in row["hf_repo"]:
            other.append(f"{entry.name}: {entry.repository}")
    assert other == []


def test_widths_tokens_and_arguments_are_those_of_the_table(stated):
    for entry, row in stated:
        assert entry.width == int(row["dim"]), entry.name
        if (counted := re.match(r"(\d+) = CLS", row["tokens"])) is not None:
            assert entry.tokens.total == int(counted[1]), entry.name
        registers = re.search(r"(\d+) registers", row["tokens"])
        if entry.tokens:
            assert entry.tokens.registers == int(registers[1] if registers else 0), entry.name
        if entry.backend == "timm":
            numbers = re.findall(
                r"(init_values|patch_size|depth|num_heads|embed_dim|reg_tokens|mlp_ratio) ([\d.e-]+)", row["kwargs"]
            )
            assert {key: entry.arguments[key] for key, _ in numbers} == {key: float(value) for key, value in numbers}


def test_recipes_are_those_of_the_table(stated):
    for entry, row in stated:
        if (recipe := entry.recipe) is None:
            continue
        resize = row["resize"].partition("[")[0]
        squash = resize.startswith("(") or entry.family == "rudolfv2"
        assert (recipe.edge == "squash") == squash, entry.name
        assert recipe.size == int(re.search(r"\d+", resize)[0]), entry.name
        assert recipe.interpolation == re.match("bilinear|bicubic", row["interpolation"])[0], entry.name
        assert recipe.via == {"PIL": "pil", "uint8 tensor": "tensor", "processor": "processor"}[row["resize_on"]]
        crop = re.search(r"center (\d+)", row["crop"].partition("[")[0])
        assert recipe.crop == (int(crop[1]) if crop else None), entry.name
        assert recipe.side == int(row["input_px"]), entry.name
        if row["mean_std"].startswith("0."):
            means, deviations = row["mean_std"].partition(" [")[0].partition(" (")[0].split(" / ")
            assert (recipe.mean, recipe.std) == (triple(means), triple(deviations)), entry.name


def triple(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))


def test_precision_and_gate_are_those_of_the_table(stated):
    for entry, row in stated:
        assert (entry.precision == "mixed-float16") == row["prec_croma"].startswith("fp16 autocast"), entry.name
        assert entry.gated == row["gated"].startswith("yes"), entry.name


# What embed answers


def test_embed_refuses_the_unpinned_one_with_the_command_that_pins_it(tmp_path):
    volume = Volume(tmp_path / "volume")
    volume.root.mkdir()
    add_cohort(volume, tmp_path / "files")
    with pytest.raises(ManifestError, match=r"Prost40M: it is unpinned(.|\n)*make lock-weights ENCODERS=Prost40M"):
        embed_here(volume, "Prost40M")
    assert not volume.embeddings("cohort").exists()


def test_what_was_never_pretrained_saw_no_cohort_and_of_others_it_is_not_known_unless_stated(entries):
    assert entry_of().exposed == ()
    assert entry_of(backend="timm").exposed is None
    assert entry_of(backend="timm", exposed=("camelyon",)).exposed == ("camelyon",)
    assert entries["Virchow2"].exposed is None
