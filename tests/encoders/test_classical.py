"""Classical descriptors against other implementations and against what their definitions imply."""

import json
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL import Image
from skimage.color import combine_stains, rgb2lab, separate_stains

from croma_bundle.encoders import classical
from croma_bundle.encoders.classical import DESCRIPTORS, describe
from croma_bundle.errors import InputError, PixelError
from croma_bundle.tiles.phantom import PhantomSpec, phantom_rows, render, section
from croma_bundle.tiles.phantom_optics import CENTRES, SlideShift, photograph

SPEC = PhantomSpec()
TILES = [render(SPEC, tile) for tile in phantom_rows(SPEC)[::111]]
NAMES = list(DESCRIPTORS)


def flat(*colour: int, size: int = 64) -> np.ndarray:
    return np.broadcast_to(np.array(colour, np.uint8), (size, size, 3)).copy()


def grating(frequency: float, degrees: float, amplitude: float = 80.0, size: int = 128) -> np.ndarray:
    y, x = np.mgrid[:size, :size]
    turn = np.radians(degrees)
    wave = 128 + amplitude * np.cos(2 * np.pi * frequency * (x * np.cos(turn) + y * np.sin(turn)))
    return np.repeat(np.rint(wave).astype(np.uint8)[..., None], 3, axis=2)


def cosine_distance(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(float), b.astype(float)
    return float(1 - a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(32, 32), (100, 100), (128, 128), (224, 224), (256, 256), (96, 131)])
def test_every_size_of_tile_gives_the_width_in_the_table(name, shape):
    rng = np.random.default_rng(3)
    vector = describe(name, rng.integers(0, 256, (*shape, 3), dtype=np.uint8))
    assert vector.shape == (DESCRIPTORS[name].dim,)
    assert vector.dtype == np.float32
    assert np.isfinite(vector).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("colour", [(255, 255, 255), (0, 0, 0), (127, 127, 127), (200, 30, 90)])
def test_a_blank_tile_gives_a_finite_vector_that_is_not_zero_and_no_warning(name, colour):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vector = describe(name, flat(*colour))
    assert np.isfinite(vector).all()
    assert np.abs(vector).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_entries_of_an_he_tile_have_both_signs_and_order_one(name):
    entries = np.array([describe(name, tile) for tile in TILES])
    assert (entries > 0).any()
    assert (entries < 0).any()
    assert 0.1 < np.abs(entries).mean() < 3


@pytest.mark.parametrize("move", [np.fliplr, np.flipud, np.rot90], ids=["fliplr", "flipud", "rot90"])
def test_colour_statistics_do_not_see_where_a_pixel_lies(move):
    moved = describe("ColourStatistics", np.ascontiguousarray(move(TILES[0])))
    np.testing.assert_allclose(moved, describe("ColourStatistics", TILES[0]), atol=1e-5)
    shuffled = np.random.default_rng(0).permutation(TILES[0].reshape(-1, 3)).reshape(TILES[0].shape)
    np.testing.assert_allclose(
        describe("ColourStatistics", shuffled), describe("ColourStatistics", TILES[0]), atol=1e-5
    )


def test_lab_is_that_of_scikit_image():
    ours = np.stack(classical._lab(TILES[1]), axis=-1)
    np.testing.assert_allclose(ours, rgb2lab(TILES[1]), atol=0.02)


def test_opponent_histograms_count_every_pixel_once():
    histograms = describe("ColourStatistics", TILES[2])[-48:].reshape(3, 16) * 0.25 + 0.15  # undo the scaling
    np.testing.assert_allclose((histograms**2).sum(axis=1), 1.0, atol=1e-5)
    assert (classical.colour_statistics(flat(255, 0, 0))[-48:].reshape(3, 16).argmax(axis=1) == [15, 3, 5]).all()


@pytest.mark.parametrize("size", [64, 128, 224])
def test_the_thumbnail_is_pillows_box_resize(size):
    tile = np.asarray(Image.fromarray(TILES[3]).resize((size, size), Image.Resampling.BICUBIC))
    theirs = np.asarray(Image.fromarray(tile).resize((16, 16), Image.Resampling.BOX), dtype=float)
    ours = (describe("Thumbnail", tile).reshape(16, 16, 3) + 1) * 127.5
    assert np.abs(ours - theirs).max() < 1.1  # Pillow rounds after each axis


def test_a_thumbnail_of_a_size_that_does_not_divide_is_an_area_mean():
    tile = TILES[3][:100, :100]
    finer = tile.repeat(4, axis=0).repeat(4, axis=1).astype(float)  # 400 = 16 * 25: every bin is whole pixels
    blocks = finer.reshape(16, 25, 16, 25, 3).mean(axis=(1, 3))
    np.testing.assert_allclose((describe("Thumbnail", tile).reshape(16, 16, 3) + 1) * 127.5, blocks, atol=1e-4)


def test_the_thumbnail_shares_cut_pixels_by_area():
    ramp = np.arange(40, dtype=float)[:, None]  # 2.5 pixels a bin: the mean of a bin weighs the cut pixel by half
    means = classical._bin_means(ramp, 16)[:, 0]
    assert means[0] == pytest.approx((0 + 1 + 0.5 * 2) / 2.5)
    assert means[1] == pytest.approx((0.5 * 2 + 3 + 4) / 2.5)
    assert means.sum() * 2.5 == pytest.approx(ramp.sum())


def test_the_thumbnail_of_one_colour_is_that_colour():
    for size in (64, 100):
        expected = np.array([51, 102, 255]) / 127.5 - 1
        np.testing.assert_allclose(
            describe("Thumbnail", flat(51, 102, 255, size=size)).reshape(-1, 3), np.tile(expected, (256, 1)), atol=1e-6
        )


def test_haematoxylin_is_scikit_images_colour_deconvolution():
    stains = np.array([[0.650, 0.704, 0.286], [0.072, 0.990, 0.105]])
    stains = np.vstack([stains, np.cross(*stains)])
    safe = np.maximum(TILES[4], 1)
    theirs = separate_stains(safe, np.linalg.inv(stains))[..., 0]  # in units of log(1e-6), clipped at 0
    density = -np.log10(safe / 255.0) @ np.linalg.inv(stains)
    np.testing.assert_allclose(classical.haematoxylin(safe), density[..., 0], atol=1e-9)
    np.testing.assert_allclose(np.maximum(classical.haematoxylin(safe), 0) / 6, np.maximum(theirs, 0), atol=1e-6)
    assert combine_stains(np.zeros((1, 1, 3)), stains).max() == 1.0  # their zero is white, as is ours
    assert np.abs(classical.haematoxylin(flat(255, 255, 255))).max() == 0.0


def test_haematoxylin_reads_the_dye_and_not_the_eosin():
    vector, other = np.array([0.650, 0.704, 0.286]), np.array([0.072, 0.990, 0.105])
    blue = np.rint(255 * 10 ** (-0.8 * vector)).astype(np.uint8)
    pink = np.rint(255 * 10 ** (-0.8 * other)).astype(np.uint8)
    assert classical.haematoxylin(flat(*blue)).mean() == pytest.approx(0.8, abs=0.02)
    assert classical.haematoxylin(flat(*pink)).mean() == pytest.approx(0.0, abs=0.02)


def test_lbp_histograms_sum_to_one_at_each_radius():
    grey = classical.grey_levels(classical.haematoxylin(TILES[5]))
    histograms = classical.lbp_histograms(grey)
    assert histograms.shape == (3, 10)
    np.testing.assert_allclose(histograms.sum(axis=1), 1.0, rtol=1e-12)


def test_lbp_of_a_flat_field_is_the_all_equal_pattern_inside():
    histograms = classical.lbp_histograms(np.full((64, 64), 9, np.uint8))
    for radius, shares in zip(classical.LBP_RADII, histograms, strict=True):
        assert shares[8] == pytest.approx(((64 - 2 * radius) / 64) ** 2)  # eight points not below the centre


def test_grey_levels_cancel_a_proportional_change_of_stain():
    field = np.random.default_rng(0).gamma(2.0, 0.3, (64, 64))
    change = np.abs(classical.grey_levels(field).astype(int) - classical.grey_levels(0.6 * field + 0.1))
    assert change.max() <= 1


@pytest.mark.parametrize("scale", range(4))
@pytest.mark.parametrize("turn", range(6))
def test_gabor_energy_peaks_where_a_grating_is(scale, turn):
    frequency, degrees = classical.GABOR_FREQUENCIES[scale], 30.0 * turn
    vector = describe("GaborEnergy", grating(frequency, degrees)).reshape(4, 6, 2)
    assert np.unravel_index(vector[..., 0].argmax(), (4, 6)) == (scale, turn)


def test_gabor_energy_of_a_grating_is_half_its_amplitude_and_contrast_an_offset():
    strong, weak = (classical.gabor_magnitudes(grating(0.125 * 0.8, 0, a))[1, 0, 0] for a in (80.0, 40.0))
    assert strong == pytest.approx(0.5 * 80 / 255, rel=0.03)
    assert strong / weak == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("name", ["HaematoxylinTexture", "GaborEnergy"])
def test_texture_follows_a_change_of_stain_much_less_than_colour_does(name):
    """Same tissue, same scanner, both dyes at 75 %; in units of how far two tissues are apart."""
    rows = phantom_rows(SPEC)
    tumour, stroma = (next(row for row in rows if row.label == label) for label in ("tumour", "stroma"))

    def seen(tile, dye):
        tissue = section(SPEC, tile)
        return photograph(tissue.haematoxylin, tissue.eosin, CENTRES[0], SlideShift(dye, dye, 1.0))

    def sensitivity(encoder):
        usual, pale, other = (describe(encoder, seen(*of)) for of in ((tumour, 1.0), (tumour, 0.75), (stroma, 1.0)))
        return cosine_distance(usual, pale) / cosine_distance(usual, other)

    assert sensitivity(name) < 0.5 * sensitivity("ColourStatistics")


PROBE = """
import hashlib
from croma_bundle.encoders.classical import DESCRIPTORS, describe
from croma_bundle.tiles.phantom import PhantomSpec, phantom_rows, render
spec = PhantomSpec()
digest = hashlib.sha256()
for tile in phantom_rows(spec)[::111]:
    pixels = render(spec, tile)
    for name in DESCRIPTORS:
        digest.update(describe(name, pixels).tobytes())
print(digest.hexdigest())
"""


def test_vectors_are_the_same_to_the_bit_whatever_the_hash_seed_and_the_threads():
    digests = []
    for hash_seed, threads in (("0", "1"), ("12345", "4")):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        ran = subprocess.run([sys.executable, "-c", PROBE], env=env, capture_output=True, text=True, check=True)
        digests.append(ran.stdout)
    assert digests[0] == digests[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_view_of_the_pixels_gives_the_vector_of_the_copy(name):
    view = np.zeros((128, 256, 3), np.uint8)[:, ::2]
    view[:] = TILES[6]
    np.testing.assert_array_equal(describe(name, view), describe(name, TILES[6]))


def test_provenance_is_numbers_that_json_can_hold_and_papers_with_their_year():
    for descriptor in DESCRIPTORS.values():
        assert json.loads(json.dumps(dict(descriptor.parameters))) == dict(descriptor.parameters)
        assert all(re.search(r" (19|20)\d\d$", paper) for paper in descriptor.citation.split("; "))


def test_a_mistyped_name_gets_a_suggestion():
    with pytest.raises(InputError, match="did you mean 'GaborEnergy'"):
        describe("gaborenergy", TILES[0])


@pytest.mark.parametrize(
    "pixels", [np.zeros((64, 64), np.uint8), np.zeros((64, 64, 3), np.float32), np.zeros((16, 64, 3), np.uint8)]
)
def test_pixels_that_are_no_8_bit_rgb_tile_are_refused(pixels):
    with pytest.raises(PixelError, match=r"wanted .*uint8"):
        describe("Thumbnail", pixels)
