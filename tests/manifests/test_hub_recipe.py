"""A recipe read off a repository's configuration, by hand; against timm: tests/encoders/test_recipe_goldens.py."""

from __future__ import annotations

import pytest

from croma_bundle.errors import ManifestError
from croma_bundle.manifests.hub_recipe import recipe_of
from croma_bundle.manifests.models import Encoder, Recipe
from croma_bundle.manifests.weights_lock import LockedWeights, with_lock
from embedded import entry_of

MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
STATED = {"input_size": (3, 224, 224), "interpolation": "bicubic", "mean": MEAN, "std": STD}
COMMIT = "ab" * 20


def recipe(size: int, crop: int = 224, edge: str = "shorter", interpolation: str = "bicubic") -> Recipe:
    return Recipe(size=size, edge=edge, interpolation=interpolation, via="pil", crop=crop, mean=MEAN, std=STD)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, recipe(256)),  # crop_pct 0.875
        ({"crop_pct": 1.0}, recipe(224)),
        ({"crop_pct": 0.9}, recipe(248)),  # 248.9 is cut, not rounded
        ({"crop_pct": 1}, recipe(224)),
        ({"crop_mode": "squash", "crop_pct": 1.0}, recipe(224, edge="squash")),
        ({"interpolation": "bilinear"}, recipe(256, interpolation="bilinear")),
        ({"input_size": (3, 518, 518), "crop_pct": 1.0}, recipe(518, crop=518)),
    ],
)
def test_the_middle_is_cropped_of_a_tile_resized_to_the_side_over_crop_pct(said, wanted):
    assert recipe_of({**STATED, **said}) == wanted


@pytest.mark.parametrize("missing", STATED)
def test_what_a_configuration_does_not_state_stays_open(missing):
    assert recipe_of({key: value for key, value in STATED.items() if key != missing}) is None


@pytest.mark.parametrize(
    "said",
    [
        {"crop_mode": "border"},
        {"interpolation": "random"},
        {"input_size": (3, 224, 256)},
        {"mean": (0.1, 0.2)},
        {"mean": 0.5},
        {"crop_pct": 0},
        {"crop_pct": "1.0"},
    ],
    ids=str,
)
def test_what_no_recipe_can_say_stays_open(said):
    assert recipe_of({**STATED, **said}) is None


def locked(**transform: object) -> LockedWeights:
    return LockedWeights(
        name="Toy", repository="o/r", revision=COMMIT, resolved="2026-12-01", transform=dict(transform)
    )


def open_entry(**fields: object) -> Encoder:
    return entry_of(**{"backend": "timm", "repository": "o/r", "open": "recipe", **fields})


def test_the_lock_fills_a_recipe_that_is_open():
    assert with_lock(open_entry(), locked(**STATED)).recipe == recipe(256)
    assert with_lock(open_entry(), locked(mean=MEAN)).recipe is None


def test_it_never_overrules_a_recipe_and_speaks_for_timm_only():
    assert with_lock(open_entry(recipe=recipe(224)), locked(**STATED)).recipe == recipe(224)
    assert with_lock(open_entry(backend="transformers"), locked(**STATED)).recipe is None


def test_a_recipe_of_another_commit_is_not_taken():
    with pytest.raises(ManifestError, match="its revision is not that of"):
        with_lock(open_entry(revision="cd" * 20), locked(**STATED))


@pytest.mark.parametrize("via", ["pil", "processor"])
def test_sampling_at_points_is_refused_where_it_would_be_ignored(via):
    """PIL and the processors always antialias; torchvision warns at most."""
    numbers = {"size": 8, "edge": "squash", "interpolation": "bilinear", "mean": MEAN, "std": STD}
    assert Recipe(**numbers, via="tensor", antialias=False).antialias is False
    with pytest.raises(ValueError, match="antialias = false goes with via = 'tensor'"):
        Recipe(**numbers, via=via, antialias=False)
