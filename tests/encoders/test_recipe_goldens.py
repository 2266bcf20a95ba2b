"""Recipes against numbers worked by hand, resampling written out in numpy, and the libraries that the published used.

Resampling by hand. With antialias the kernel is as wide as an output pixel: halving four pixels, output 0 is centred on
the edge of inputs 0 and 1, whose centres are 1/4 of the stretched kernel away, then 3/4, then 5/4.

    bilinear, 1 - |t|                        3/4   3/4   1/4          →   3 : 3 : 1       of   7
    bicubic, Keys' kernel with a = -1/2      .8671875 twice, .2265625, -.0703125
                                                                      → 111 : 111 : 29 : -9   of 242

Without antialias only the neighbours of the point count: (1/2, 1/2), and for bicubic, there with a = -3/4,
(-.09375, .59375, .59375, -.09375).
"""

from __future__ import annotations

import math
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the families' suite needs torch")
pytest.importorskip("torchvision", reason="the families' suite needs torchvision")

from PIL import Image  # noqa: E402
from torchvision.transforms import ToTensor, v2  # noqa: E402

from croma_bundle.encoders.recipes import prepare  # noqa: E402
from croma_bundle.layout import Volume  # noqa: E402
from croma_bundle.manifests.catalogue import load_catalogue  # noqa: E402
from croma_bundle.manifests.hub_recipe import recipe_of  # noqa: E402
from croma_bundle.manifests.models import Recipe  # noqa: E402

pytestmark = pytest.mark.encoders

VIAS = ("pil", "tensor", "processor")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HOPTIMUS = ((0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517))
HIBOU = ((0.7068, 0.5755, 0.722), (0.195, 0.2316, 0.1816))
RUDOLF = ((0.7072, 0.5787, 0.7036), (0.2119, 0.2301, 0.1775))
GENBIO = ((0.697, 0.575, 0.728), (0.188, 0.240, 0.187))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def recipe(**changes: Any) -> Recipe:
    """Two pixels a side, bilinear, and levels that can be read off: mean 0, std 1."""
    plain = {"size": 2, "edge": "squash", "interpolation": "bilinear", "via": "pil"}
    return Recipe(**{**plain, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), **changes})


def levels(chosen: Recipe, tile: np.ndarray) -> np.ndarray:
    """(3, side, side) grey levels; the recipe must have mean 0 and std 1."""
    prepared = prepare(chosen, tile) * 255
    whole = np.rint(prepared)
    assert np.abs(prepared - whole).max() < 1e-4, "pixels are whole levels after the resize"
    return whole.astype(int)


def rows_of(values: list[int], height: int) -> np.ndarray:
    """A tile whose rows are all `values`, in all channels."""
    return np.broadcast_to(np.array(values, np.uint8)[None, :, None], (height, len(values), 3)).copy()


def noise(height: int, width: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


# ---- by hand

HALVED = [
    ("bilinear", [0, 70, 140, 210], [50, 160]),  # (3·0 + 3·70 + 140) / 7, (70 + 3·140 + 3·210) / 7
    ("bicubic", [0, 242, 0, 0], [111, 29]),
    ("bicubic", [0, 0, 0, 242], [0, 111]),  # -9 is cut off at 0
    ("bicubic", [255, 255, 255, 13], [255, 144]),  # 255 + 9 is cut off at 255; (29+111-9)/242·255 + 111/242·13 = 144.0
]


@pytest.mark.parametrize("via", VIAS)
@pytest.mark.parametrize(("interpolation", "values", "wanted"), HALVED)
def test_halving_with_antialias_is_the_hand_worked_mean(via, interpolation, values, wanted):
    across = levels(recipe(via=via, interpolation=interpolation), rows_of(values, 2))
    assert across.tolist() == [[wanted] * 2] * 3
    down = levels(recipe(via=via, interpolation=interpolation), rows_of(values, 2).transpose(1, 0, 2))
    assert down.tolist() == [[[wanted[0]] * 2, [wanted[1]] * 2]] * 3


@pytest.mark.parametrize("via", VIAS)
def test_doubling_weighs_the_two_nearest_pixels_by_three_to_one(via):
    """Output centres lie at -1/4, 1/4, 3/4, 5/4 of an input pixel's step; the outer two have one neighbour."""
    doubled = levels(recipe(via=via, size=4), rows_of([0, 200], 2))
    assert doubled[0].tolist() == [[0, 50, 150, 200]] * 4


@pytest.mark.parametrize(
    ("interpolation", "values", "wanted"),
    [("bilinear", [0, 70, 140, 210], [35, 175]), ("bicubic", [0, 242, 0, 0], [144, 0])],
)  # .59375 · 242 = 143.7, and -.09375 · 242 cut off at 0
def test_without_antialias_a_tensor_is_sampled_at_points(interpolation, values, wanted):
    sampled = levels(recipe(via="tensor", interpolation=interpolation, antialias=False), rows_of(values, 2))
    assert sampled[0].tolist() == [wanted] * 2


@pytest.mark.parametrize("via", VIAS)
def test_the_shorter_edge_leaves_the_middle_square_and_squash_takes_in_everything(via):
    """Red, green and blue squares side by side; the shorter edge is already right, so that nothing is resampled."""
    bands = np.zeros((10, 30, 3), np.uint8)
    for channel in range(3):
        bands[:, 10 * channel : 10 * channel + 10, channel] = 255
    for tile in (bands, bands.transpose(1, 0, 2)):
        cropped = levels(recipe(via=via, size=10, edge="shorter", crop=10), tile)
        assert [cropped[channel].min() for channel in range(3)] == [0, 255, 0]
        assert [cropped[channel].max() for channel in range(3)] == [0, 255, 0]
        squashed = levels(recipe(via=via, size=10), tile)
        assert (squashed.reshape(3, -1).mean(axis=1).round() == 85).all(), "a third of each"


@pytest.mark.parametrize("via", VIAS)
def test_a_crop_smaller_than_the_resize_drops_the_same_border_on_every_side(via):
    """Prov-GigaPath's and DINOv2-B's geometry on a published tile: 256 stays 256, and its inner 224 pixels are kept."""
    tile = noise(256, 256)
    kept = levels(recipe(via=via, size=256, edge="shorter", crop=224), tile)
    assert np.array_equal(kept, tile[16:240, 16:240].transpose(2, 0, 1))


@pytest.mark.parametrize("via", VIAS)
def test_levels_become_fractions_and_are_standardised_by_channel(via):
    """Of ImageNet's numbers: (0 - .485) / .229, (1 - .456) / .224, (51/255 - .406) / .225."""
    tile = np.broadcast_to(np.array([0, 255, 51], np.uint8), (8, 8, 3)).copy()
    prepared = prepare(recipe(via=via, mean=IMAGENET[0], std=IMAGENET[1]), tile)
    by_channel = [-2.117903930, 2.428571428, -0.915555555]
    for channel, wanted in enumerate(by_channel):
        np.testing.assert_allclose(prepared[channel], wanted, rtol=1e-6)


# ---- resampling written out


def keys(t: np.ndarray) -> np.ndarray:
    """Cubic convolution with a = -1/2 (Keys 1981)."""
    t = np.abs(t)
    near, far = 1.5 * t**3 - 2.5 * t**2 + 1, -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    return np.where(t < 1, near, np.where(t < 2, far, 0.0))


def triangle(t: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(t), 0)


KERNELS = {"bilinear": triangle, "bicubic": keys}


def weights(length: int, wanted: int, interpolation: str) -> np.ndarray:
    """(wanted, length): the share of every input pixel in every output pixel, kernel stretched where it shrinks."""
    step = length / wanted
    centres = (np.arange(wanted) + 0.5) * step
    shares = KERNELS[interpolation]((np.arange(length) + 0.5 - centres[:, None]) / max(step, 1.0))
    return shares / shares.sum(axis=1, keepdims=True)


def resampled(tile: np.ndarray, height: int, width: int, interpolation: str, rows_first: bool) -> np.ndarray:
    """(3, height, width) levels, not rounded, but cut off at 0 and 255 after each direction."""
    across, down = weights(tile.shape[1], width, interpolation), weights(tile.shape[0], height, interpolation)
    passes = [("wv,hvc->hwc", across), ("gh,hwc->gwc", down)]
    pixels = tile.astype(np.float64)
    for pattern, shares in passes if rows_first else reversed(passes):
        pixels = np.clip(np.einsum(pattern, shares, pixels, optimize=True), 0, 255)
    return pixels.transpose(2, 0, 1)


@pytest.mark.parametrize("via", VIAS)
@pytest.mark.parametrize("interpolation", KERNELS)
@pytest.mark.parametrize(("height", "width", "size"), [(256, 256, 224), (100, 100, 224), (64, 96, 24), (512, 300, 224)])
def test_every_kind_resamples_as_its_definition_does_within_rounding(via, interpolation, height, width, size):
    """Rounding to levels happens once or twice on the way: half a level each, and a little of fixed-point weights.

    Which direction comes first is the library's choice; it shows where an overshoot is cut off in between.
    """
    tile = noise(height, width)
    found = levels(recipe(via=via, interpolation=interpolation, size=size), tile)
    orders = [np.abs(found - resampled(tile, size, size, interpolation, first)) for first in (True, False)]
    away = min(orders, key=np.max)
    assert away.max() < 1.6
    assert away.mean() < 0.4, "evenly rounded numbers are a quarter off on average, twice rounded ones a third"


def test_a_pil_image_and_a_tensor_are_rounded_otherwise():
    """`via` is no decoration: same kernel, other fixed-point arithmetic."""
    tile = noise(256, 256)
    of_image, of_tensor = (levels(recipe(via=via, size=224), tile) for via in ("pil", "tensor"))
    assert np.abs(of_image - of_tensor).max() == 1


# ---- the published pipelines

PUBLISHED = {
    # encoder: (via, size, edge, interpolation, crop, mean and std)
    "Virchow2": ("pil", 224, "shorter", "bicubic", 224, IMAGENET),
    "Virchow": ("pil", 224, "shorter", "bicubic", 224, IMAGENET),
    "UNI2-h": ("pil", 224, "shorter", "bilinear", 224, IMAGENET),
    "UNI": ("pil", 224, "shorter", "bilinear", 224, IMAGENET),
    "CONCHv1.5": ("pil", 448, "shorter", "bilinear", 448, IMAGENET),
    "CONCH": ("pil", 448, "shorter", "bicubic", 448, CLIP),
    "H-optimus-1": ("tensor", 224, "shorter", "bicubic", 224, HOPTIMUS),
    "H-optimus-0": ("tensor", 224, "shorter", "bicubic", 224, HOPTIMUS),
    "H0-mini": ("pil", 224, "shorter", "bicubic", 224, HOPTIMUS),
    "Prov-GigaPath": ("tensor", 256, "shorter", "bicubic", 224, IMAGENET),
    "Midnight-12k": ("pil", 224, "shorter", "bilinear", 224, HALF),
    "mSTAR": ("pil", 224, "squash", "bicubic", None, IMAGENET),
    "DINOv2-B": ("tensor", 256, "shorter", "bicubic", 224, IMAGENET),
    "GPFM": ("pil", 224, "squash", "bicubic", None, IMAGENET),
    "MUSK": ("tensor", 384, "shorter", "bicubic", 384, HALF),
    "GenBio-PathFM": ("tensor", 224, "squash", "bicubic", None, GENBIO),
    "RudolfV-2": ("tensor", 224, "squash", "bicubic", 224, RUDOLF),
    "RudolfV-2-B": ("tensor", 224, "squash", "bicubic", 224, RUDOLF),
    "RudolfV-2-S": ("tensor", 224, "squash", "bicubic", 224, RUDOLF),
    "Mascaret": ("tensor", 224, "shorter", "bilinear", 224, HALF),
    "Phaet": ("tensor", 224, "shorter", "bilinear", 224, IMAGENET),
}
"""The preparations of the published generation croma-1.0.1, but for those in the arithmetic of a processor.

mSTAR's and GPFM's pixels were multiplied by 1/255 where the other PIL recipes divide: their last bits may differ.
"""
PROCESSORS = {
    # encoder: (size, interpolation, crop, mean and std)
    "Phikon": ({"height": 224, "width": 224}, "bilinear", None, IMAGENET),
    "Phikon-v2": ({"shortest_edge": 224}, "bicubic", 224, IMAGENET),
    "Hibou-L": ({"shortest_edge": 224}, "bicubic", 224, HIBOU),
    "Hibou-B": ({"shortest_edge": 224}, "bicubic", 224, HIBOU),
    "Mettle": ({"height": 224, "width": 224}, "bicubic", None, HOPTIMUS),
}


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    return load_catalogue(Volume(tmp_path_factory.mktemp("volume"))).encoders


def published_pipeline(
    via: str, size: int, edge: str, interpolation: str, crop: int | None, statistics: Any
) -> v2.Compose:
    """The steps that the public extraction composes of torchvision's transforms.

    A tensor is multiplied by 1/255 (`ToDtype`); what comes of a PIL image is divided by 255 (`ToTensor`).
    """
    mode = {"bilinear": v2.InterpolationMode.BILINEAR, "bicubic": v2.InterpolationMode.BICUBIC}[interpolation]
    resize = v2.Resize(size if edge == "shorter" else (size, size), interpolation=mode, antialias=True)
    shape = [resize] if crop is None else [resize, v2.CenterCrop(crop)]
    of_tensor = [v2.ToImage(), *shape, v2.ToDtype(torch.float32, scale=True)]
    steps = of_tensor if via == "tensor" else [*shape, ToTensor()]
    return v2.Compose([*steps, v2.Normalize(*map(list, statistics))])


TILES = [(256, 256), (100, 100), (300, 256), (256, 333)]


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(("height", "width"), TILES)
def test_a_declared_recipe_is_bitwise_the_published_pipeline(declared, name, height, width):
    tile = noise(height, width)
    wanted = published_pipeline(*PUBLISHED[name])(Image.fromarray(tile))
    found = prepare(declared[name].recipe, tile)
    assert np.array_equal(found, np.asarray(wanted))


@pytest.mark.parametrize("name", ["Virchow2", "Virchow", "UNI2-h", "UNI", "H0-mini"])
def test_the_recipes_of_timm_checkpoints_are_bitwise_what_timm_makes_of_their_configuration(declared, name):
    """Those whose published preparation was timm's own, with crop_pct 1."""
    data = pytest.importorskip("timm.data")
    _, size, _, interpolation, _, (mean, std) = PUBLISHED[name]
    pipeline = data.create_transform(
        input_size=(3, size, size), interpolation=interpolation, crop_pct=1.0, mean=mean, std=std, is_training=False
    )
    for height, width in TILES:
        tile = noise(height, width)
        assert np.array_equal(prepare(declared[name].recipe, tile), pipeline(Image.fromarray(tile)).numpy())


EARLIER = {
    # encoder: (input side, crop_pct, mean and std), of its config.json as far as it is known
    "DINOv2-B": (518, 1.0, IMAGENET),
    "H-optimus-0": (224, 0.875, HOPTIMUS),
    "H-optimus-1": (224, 0.875, HOPTIMUS),
    "Prov-GigaPath": (224, 1.0, IMAGENET),
    "GPFM": (518, 1.0, IMAGENET),
    "mSTAR": (224, 0.9, HALF),
}
"""The generation croma-0.3.0: timm's pipeline of these, bicubic."""


@pytest.mark.parametrize("name", EARLIER)
def test_the_recipes_of_the_earlier_generation_are_bitwise_what_timm_made_of_the_configuration(declared, name):
    data = pytest.importorskip("timm.data")
    size, crop_pct, (mean, std) = EARLIER[name]
    pipeline = data.create_transform(
        input_size=(3, size, size), interpolation="bicubic", crop_pct=crop_pct, mean=mean, std=std, is_training=False
    )
    for height, width in TILES:
        tile = noise(height, width)
        found = prepare(declared[f"{name}@croma-0.3.0"].recipe, tile)
        assert np.array_equal(found, pipeline(Image.fromarray(tile)).numpy())


@pytest.mark.parametrize("side", [224, 518])
@pytest.mark.parametrize("crop", [{}, {"crop_pct": 0.9}, {"crop_pct": 1.0}, {"crop_pct": 0.9, "crop_mode": "squash"}])
def test_a_recipe_read_off_a_configuration_is_bitwise_what_timm_makes_of_it(side, crop):
    data = pytest.importorskip("timm.data")
    configuration = {"input_size": [3, side, side], "interpolation": "bicubic", "mean": HALF[0], "std": HALF[1], **crop}
    pipeline = data.create_transform(**data.resolve_data_config(pretrained_cfg=configuration), is_training=False)
    found = recipe_of(configuration)
    for height, width in TILES:
        tile = noise(height, width)
        assert np.array_equal(prepare(found, tile), pipeline(Image.fromarray(tile)).numpy())


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize(("height", "width"), [*TILES, (301, 256), (256, 279)])
def test_the_recipe_of_a_processor_is_bitwise_what_the_processor_returns(declared, name, height, width):
    """The processors in numpy and PIL, as of transformers 4; an odd border is wider at the far side."""
    transformers = pytest.importorskip("transformers")
    if int(transformers.__version__.split(".")[0]) > 4:
        pytest.skip("transformers 5 has other processors; no encoder of its families uses one")
    size, interpolation, crop, (mean, std) = PROCESSORS[name]
    kind = transformers.ViTImageProcessor if crop is None else transformers.BitImageProcessor
    cropping = {} if crop is None else {"do_center_crop": True, "crop_size": {"height": crop, "width": crop}}
    processor = kind(
        size=size,
        resample={"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[interpolation],
        rescale_factor=1 / 255,
        image_mean=list(mean),
        image_std=list(std),
        **cropping,
    )
    tile = noise(height, width)
    (wanted,) = processor(Image.fromarray(tile), return_tensors="np")["pixel_values"]
    assert wanted.dtype == np.float32
    assert np.array_equal(prepare(declared[name].recipe, tile), wanted)


def test_every_declared_recipe_is_compared_with_something_independent(declared):
    """Left over are those whose preparation nobody has stated yet, and the control that was not published."""
    with_recipe = {name for name, entry in declared.items() if entry.recipe}
    compared = {*PUBLISHED, *PROCESSORS, *(f"{name}@croma-0.3.0" for name in EARLIER)}
    assert with_recipe - compared <= {"EfficientNet-Lite0"}
    assert compared <= with_recipe


# ---- what the embed loop relies on


@pytest.mark.parametrize("name", ["Virchow2", "H-optimus-0", "Phikon-v2", "GenBio-PathFM"])
def test_a_prepared_tile_is_a_float32_array_of_the_declared_side_whatever_the_tile(declared, name):
    chosen = declared[name].recipe
    across = pickle.loads(pickle.dumps(partial(prepare, chosen)))
    for height, width in [*TILES, (32, 40)]:
        tile = noise(height, width)
        before = tile.copy()
        prepared = across(tile)
        assert prepared.shape == (3, chosen.side, chosen.side)
        assert (prepared.dtype, prepared.flags.c_contiguous) == (np.float32, True)
        assert np.array_equal(tile, before), "the tile itself is not written to"
        assert np.array_equal(prepared, prepare(chosen, tile)), "another process, same bits"


CHANGES = [
    {"interpolation": "bicubic"},
    {"edge": "squash"},
    {"via": "tensor"},
    {"crop": 20},
    {"size": 30},
    {"mean": (0.5, 0.5, 0.4)},
    {"std": (0.5, 0.5, 0.4)},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_no_field_of_a_recipe_is_ignored(change):
    base = {"size": 24, "edge": "shorter", "crop": 22, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    tile = noise(64, 96)
    plain, changed = prepare(recipe(**base), tile), prepare(recipe(**{**base, **change}), tile)
    assert plain.shape != changed.shape or not np.array_equal(plain, changed)


def test_the_weights_written_out_here_are_those_of_the_hand_worked_case():
    assert np.allclose(weights(4, 2, "bilinear")[0] * 7, [3, 3, 1, 0])
    assert np.allclose(weights(4, 2, "bicubic")[0] * 242, [111, 111, 29, -9])
    assert math.isclose(weights(256, 224, "bicubic").sum(), 224)
