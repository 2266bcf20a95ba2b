"""Centre physics: each step against what it must do, the JPEG round trip against Pillow's."""

import io
from dataclasses import fields, replace

import numpy as np
import pytest
from PIL import Image

from croma_bundle.tiles.phantom import PhantomSpec, phantom_rows, section
from croma_bundle.tiles.phantom_jpeg import DCT, jpeg_round_trip, quantisation_table
from croma_bundle.tiles.phantom_optics import (
    CENTRES,
    EOSIN,
    HAEMATOXYLIN,
    LIMITS,
    Centre,
    SlideShift,
    blurred,
    centre_at,
    illumination,
    photograph,
    tinted,
    transmitted,
)

NO_SHIFT = SlideShift(haematoxylin=1.0, eosin=1.0, light=1.0)
PLAIN = Centre(
    name="plain",
    haematoxylin_tint=(0.0, 0.0, 0.0),
    eosin_tint=(0.0, 0.0, 0.0),
    haematoxylin=1.0,
    eosin=1.0,
    lamp=(1.0, 1.0, 1.0),
    vignette=0.0,
    gradient_x=0.0,
    gradient_y=0.0,
    blur=0.5,
    gamma=1.0,
    jpeg_quality=98.0,
)
NUMBERS = [field.name for field in fields(Centre) if field.name != "name"]


def numbers(centre: Centre) -> np.ndarray:
    return np.concatenate([np.atleast_1d(getattr(centre, name)) for name in NUMBERS])


def unit(vector: object) -> np.ndarray:
    vector = np.asarray(vector, dtype=float)
    return vector / np.linalg.norm(vector)


def test_pure_haematoxylin_has_the_optical_density_direction_of_its_vector():
    dye = np.linspace(0.1, 2.0, 16).reshape(4, 4)
    density = -np.log10(
        transmitted(dye, np.zeros_like(dye), (tinted(HAEMATOXYLIN, (0, 0, 0)), tinted(EOSIN, (0, 0, 0))))
    )
    np.testing.assert_allclose(density / dye[..., None], np.broadcast_to(unit(HAEMATOXYLIN), (4, 4, 3)), rtol=1e-12)


@pytest.mark.parametrize(("vector", "which"), [(HAEMATOXYLIN, 0), (EOSIN, 1)])
def test_a_plain_camera_keeps_that_direction_in_the_pixels(vector, which):
    dyes = [np.zeros((32, 32)), np.zeros((32, 32))]
    dyes[which][:] = 0.6
    pixels = photograph(*dyes, PLAIN, NO_SHIFT)
    density = -np.log10(pixels[16, 16] / 255.0)
    assert density @ unit(vector) / np.linalg.norm(density) > 0.9995
    assert np.linalg.norm(density) == pytest.approx(0.6, rel=0.03)


def test_twice_the_dye_squares_the_light():
    dye = np.full((2, 2), 0.37)
    vectors = tinted(HAEMATOXYLIN, (0, 0, 0)), tinted(EOSIN, (0, 0, 0))
    np.testing.assert_allclose(transmitted(2 * dye, 2 * dye, vectors), transmitted(dye, dye, vectors) ** 2, rtol=1e-12)


def test_clear_glass_shows_the_lamp():
    amber = replace(PLAIN, lamp=(1.0, 0.8, 0.6))
    pixels = photograph(np.zeros((32, 32)), np.zeros((32, 32)), amber, NO_SHIFT)
    assert np.abs(pixels.astype(int) - [255, 204, 153]).max() <= 2


def test_the_camera_curve_is_a_power_of_the_light():
    dim = replace(PLAIN, lamp=(0.5, 0.5, 0.5), gamma=2.0)
    assert photograph(np.zeros((16, 16)), np.zeros((16, 16)), dim, NO_SHIFT)[8, 8].tolist() == [64, 64, 64]  # 255 / 4


def test_vignette_takes_its_share_in_the_corners_only():
    light = illumination(256, replace(PLAIN, vignette=0.2))
    assert light[128, 128] == pytest.approx(1.0, abs=1e-4)
    assert light[0, 0] == pytest.approx(0.8, abs=0.002)
    sloped = illumination(256, replace(PLAIN, gradient_x=0.1))
    assert sloped[7, -1] - sloped[7, 0] == pytest.approx(0.1, abs=0.001)


def test_blur_is_a_gaussian_of_the_stated_width_and_loses_no_light():
    point = np.zeros((33, 33, 3))
    point[16, 16] = 1.0
    spread = blurred(point, 0.8)[..., 1]
    offsets = np.arange(33) - 16
    assert spread.sum() == pytest.approx(1.0, abs=1e-12)
    assert (spread.sum(axis=0) * offsets**2).sum() == pytest.approx(0.8**2, rel=0.01)
    np.testing.assert_allclose(blurred(np.full((16, 16, 3), 0.3), 1.2), 0.3, rtol=1e-12)


def test_at_strength_zero_all_centres_are_one_and_its_pixels_too():
    tile = phantom_rows(PhantomSpec())[30]
    tissue = section(PhantomSpec(), tile)
    centres = [centre_at(index, 0.0) for index in range(len(CENTRES))]
    for centre in centres[1:]:
        np.testing.assert_array_equal(numbers(centre), numbers(centres[0]))
    seen = [photograph(tissue.haematoxylin, tissue.eosin, centre, NO_SHIFT) for centre in centres]
    assert all(np.array_equal(pixels, seen[0]) for pixels in seen)
    far = [photograph(tissue.haematoxylin, tissue.eosin, centre_at(i, 1.0), NO_SHIFT) for i in range(len(CENTRES))]
    assert min(np.abs(far[a].astype(int) - far[b]).mean() for a, b in ((0, 1), (0, 2), (1, 2))) > 5


def test_centres_move_linearly_from_their_mean_and_stay_within_limits():
    mean = np.mean([numbers(centre) for centre in CENTRES], axis=0)
    for index, tabled in enumerate(CENTRES):
        np.testing.assert_allclose(numbers(centre_at(index, 1.0)), numbers(tabled), atol=1e-12)
        np.testing.assert_allclose(numbers(centre_at(index, 0.5)) - mean, 0.5 * (numbers(tabled) - mean), atol=1e-12)
        for name in NUMBERS:
            low, high = LIMITS[name]
            extreme = np.atleast_1d(getattr(centre_at(index, 3.0), name))
            assert ((extreme >= low) & (extreme <= high)).all(), name


def test_the_dct_is_orthonormal_and_its_first_row_a_mean():
    np.testing.assert_allclose(DCT @ DCT.T, np.eye(8), atol=1e-14)
    np.testing.assert_allclose(DCT[0], 1 / np.sqrt(8), atol=1e-15)


def test_quantisation_tables_are_annex_k_at_50_and_what_pillow_writes_elsewhere():
    assert quantisation_table(50, chroma=False)[0].tolist() == [16, 11, 10, 16, 24, 40, 51, 61]
    for quality in (10, 35, 75, 92, 100):
        file = io.BytesIO()
        Image.new("RGB", (16, 16)).save(file, "JPEG", quality=quality)
        written = Image.open(file).quantization
        for key, chroma in ((0, False), (1, True)):
            assert quantisation_table(quality, chroma=chroma).ravel().astype(int).tolist() == list(written[key])


def pillow_round_trip(rgb: np.ndarray, quality: int, subsample: bool) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(rgb).save(file, "JPEG", quality=quality, subsampling=2 if subsample else 0)
    return np.asarray(Image.open(file).convert("RGB"))


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255.0**2 / np.mean((a.astype(float) - b) ** 2)))


@pytest.mark.parametrize("subsample", [True, False])
@pytest.mark.parametrize("quality", [40, 75, 90])
def test_the_jpeg_round_trip_is_pillows_within_rounding(quality, subsample):
    tile = phantom_rows(PhantomSpec())[0]
    tissue = section(PhantomSpec(), tile)
    sharp = photograph(tissue.haematoxylin, tissue.eosin, PLAIN, NO_SHIFT)
    ours, theirs = (
        jpeg_round_trip(sharp, quality=quality, subsample=subsample),
        pillow_round_trip(sharp, quality, subsample),
    )
    assert np.abs(ours.astype(int) - theirs).mean() < 0.5
    assert psnr(ours, sharp) == pytest.approx(psnr(theirs, sharp), abs=0.15)
    assert psnr(ours, theirs) > psnr(ours, sharp) + 6  # nearer to the other codec than to the original


def test_a_grey_level_that_survives_quantisation_comes_back_exactly():
    flat = np.full((16, 16, 3), 128, np.uint8)
    np.testing.assert_array_equal(jpeg_round_trip(flat, quality=30), flat)
