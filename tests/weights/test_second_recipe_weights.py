"""Two recipes of one checkpoint: fetched once, locked once. And a recipe that only the hub's configuration states."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from hub_encoders import CONFIG, WEIGHTS, declare, one_line

from croma_bundle.manifests.catalogue import load_catalogue, packaged_manifests
from croma_bundle.manifests.models import Recipe

REPOSITORY = "owner/toy"
AGAIN = '\n["Toy@again"]\nof = "Toy"\nbatch_size = 4\ngeneration = "again-1"\nvotes = false\n'


@pytest.fixture
def lock(tmp_path) -> Path:
    folder = tmp_path / "manifests"
    shutil.copytree(packaged_manifests(), folder, ignore=shutil.ignore_patterns("weights.lock.toml"))
    return folder / "weights.lock.toml"


def declare_both(volume, *args: object, **how: object) -> None:
    declare(volume, "Toy", *args, **how)
    path = volume.encoder_declarations / "Toy.toml"
    path.write_text(path.read_text("utf-8") + AGAIN, "utf-8")


def test_the_files_of_both_are_fetched_once_and_each_has_its_record(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, "config.json": CONFIG})
    declare_both(volume, ["model.safetensors", "config.json"], repository=REPOSITORY, revision=commit)
    done = bundle.fetch("Toy", "Toy@again")
    for name in ("model.safetensors", "config.json"):
        reads = [r for r in hub.received("GET", name) if "/resolve/" in r.path]
        assert len(reads) == 1, done.stdout
    rows = bundle.record()
    assert {encoder for encoder, _ in rows} == {"Toy", "Toy@again"}
    assert rows["Toy", "model.safetensors"]["sha256"] == rows["Toy@again", "model.safetensors"]["sha256"]


def test_the_lock_has_one_table_for_both(bundle, hub, volume, lock):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS})
    declare_both(volume, ["model.safetensors"], repository=REPOSITORY)
    bundle.run("lock-weights", "--encoders", "Toy@again,Toy", "--output", lock)
    assert list(tomllib.loads(lock.read_text("utf-8"))) == ["Toy"]
    entries = load_catalogue(volume, lock.parent).encoders
    assert entries["Toy"].revision == entries["Toy@again"].revision == commit


# A stand-in of Prost40M: a timm checkpoint whose entry has no revision, no hash and no recipe.

PROST = {
    "architecture": "vit_small_patch16_224",
    "pretrained_cfg": {
        "input_size": [3, 224, 224],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "mean": [0.5, 0.25, 0.125],
        "std": [1.0, 0.5, 0.25],
    },
}


def prost(hub, lock, config) -> str:
    """Prost40M's repository on the loopback hub, with a configuration of ours."""
    repository = tomllib.loads((lock.parent / "encoders/shared.toml").read_text("utf-8"))["Prost40M"]["repository"]
    files = {"model.safetensors": WEIGHTS, "config.json": json.dumps(config).encode()}
    return hub.commit(repository, files)


def test_an_open_recipe_becomes_what_timm_makes_of_the_configuration_at_that_commit(bundle, hub, volume, lock):
    """timm resizes to floor(224 / 0.9) = 248 on PIL images and crops the middle 224."""
    commit = prost(hub, lock, PROST)
    done = bundle.run("lock-weights", "--encoders", "Prost40M", "--output", lock)
    assert "recipe: size 248, edge shorter, interpolation bicubic" in done.stderr
    entry = load_catalogue(volume, lock.parent).encoder("Prost40M")
    assert entry.recipe == Recipe(
        size=248,
        edge="shorter",
        interpolation="bicubic",
        via="pil",
        crop=224,
        mean=(0.5, 0.25, 0.125),
        std=(1.0, 0.5, 0.25),
    )
    assert (entry.revision, entry.files[0].sha256_source) == (commit, f"hub@{commit}")
    assert load_catalogue(volume, lock.parent, locked=False).encoder("Prost40M").recipe is None


def test_a_configuration_that_leaves_something_out_leaves_the_recipe_open_and_says_so(bundle, hub, volume, lock):
    config = {"pretrained_cfg": {"input_size": [3, 224, 224], "interpolation": "bicubic"}}
    prost(hub, lock, config)
    done = bundle.run("lock-weights", "--encoders", "Prost40M", "--output", lock)
    assert "its config.json does not say a whole recipe (input_size, interpolation, mean, std)" in one_line(done.stderr)
    assert load_catalogue(volume, lock.parent).encoder("Prost40M").recipe is None


def declared_with(volume, backend: str, commit: str) -> None:
    """An entry with an open question and a recipe whose mean and deviation are 0.5."""
    recipe = "[Uni.recipe]\nsize = 224\nedge = 'shorter'\ninterpolation = 'bilinear'\nvia = 'pil'\ncrop = 224\n"
    recipe += "mean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.5, 0.5]\n"
    declare(volume, "Uni", ["model.safetensors"], repository="owner/uni", revision=commit)
    path = volume.encoder_declarations / "Uni.toml"
    text = path.read_text("utf-8").replace('backend = "classical"', f'backend = "{backend}"\nopen = "its recipe"')
    path.write_text(text + recipe, "utf-8")


def test_a_configuration_that_disagrees_with_an_entry_is_told_and_changes_nothing(bundle, hub, volume, lock):
    files = {"model.safetensors": WEIGHTS, "config.json": json.dumps(PROST).encode()}
    declared_with(volume, "timm", hub.commit("owner/uni", files))
    done = bundle.run("lock-weights", "--encoders", "Uni", "--output", lock)
    assert "its config.json makes another recipe than its entry: size 248" in done.stderr
    assert load_catalogue(volume, lock.parent).encoder("Uni").recipe.size == 224


@pytest.mark.parametrize("mean", [0.5, 0.4])
def test_a_processor_s_numbers_are_told_where_they_are_not_the_entry_s(bundle, hub, volume, lock, mean):
    processor = {"image_mean": [mean, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    files = {"model.safetensors": WEIGHTS, "preprocessor_config.json": json.dumps(processor).encode()}
    declared_with(volume, "transformers", hub.commit("owner/uni", files))
    done = bundle.run("lock-weights", "--encoders", "Uni", "--output", lock)
    assert ("its preprocessor_config.json has other numbers than its entry: mean [0.4," in done.stderr) == (mean == 0.4)
