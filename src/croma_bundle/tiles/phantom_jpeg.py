"""A JPEG round trip in numpy: what a lossy scanner file does to pixels, without a libjpeg.

Only the lossy half is here (colour transform, chroma subsampling, 8 x 8 DCT, quantisation, and back); entropy
coding loses nothing. The point is that phantom pixels depend on no codec version.

Source: ITU-T T.81 (1992), Annex A (DCT) and Annex K (tables); JFIF 1.02 (YCbCr); quality scaling and chroma
interpolation as the Independent JPEG Group's library does them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# T.81 table K.1 and K.2, rows by vertical frequency.
LUMINANCE = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ],
    dtype=np.int64,
)
CHROMINANCE = np.array(
    [
        [17, 18, 24, 47, 99, 99, 99, 99],
        [18, 21, 26, 66, 99, 99, 99, 99],
        [24, 26, 56, 99, 99, 99, 99, 99],
        [47, 66, 99, 99, 99, 99, 99, 99],
        [99, 99, 99, 99, 99, 99, 99, 99],
        [99, 99, 99, 99, 99, 99, 99, 99],
        [99, 99, 99, 99, 99, 99, 99, 99],
        [99, 99, 99, 99, 99, 99, 99, 99],
    ],
    dtype=np.int64,
)

# Exact halves are common here (a DC coefficient is a sum of integers over 8) and must not be decided by the last
# bit of a sum, which differs between CPUs: anything within 1e-9 of a half goes up.
HALF = 0.5 + 1e-9


def round_half_up(values: Floats) -> Floats:
    """The nearest integer as float64, halves up, with a guard against last-bit differences."""
    rounded: Floats = np.floor(values + HALF)
    return rounded


def _dct_matrix() -> Floats:
    k = np.arange(8)
    basis: Floats = 0.5 * np.cos((2 * k[None, :] + 1) * k[:, None] * np.pi / 16)
    basis[0] = np.sqrt(0.125)
    return basis


DCT = _dct_matrix()
"""(8, 8) orthonormal DCT-II, rows are frequencies."""


@lru_cache(maxsize=32)
def quantisation_table(quality: int, *, chroma: bool) -> Floats:
    """(8, 8) quantisation steps at a quality of 1 to 100, scaled as the IJG library scales Annex K."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    base = CHROMINANCE if chroma else LUMINANCE
    return np.clip((base * scale + 50) // 100, 1, 255).astype(np.float64)


def _blockwise(plane: Floats, basis: Floats) -> Floats:
    """``basis @ block @ basis.T`` for every 8 x 8 block; sums in a fixed order (einsum, no BLAS)."""
    height, width = plane.shape
    rows = np.einsum("ux,bxw->buw", basis, plane.reshape(height // 8, 8, width), optimize=False)
    columns = np.ascontiguousarray(rows.reshape(height, width // 8, 8).transpose(1, 2, 0))
    both = np.einsum("ux,bxh->buh", basis, columns, optimize=False)
    return np.ascontiguousarray(both.transpose(2, 0, 1)).reshape(height, width)


def _plane_round_trip(plane: Floats, table: Floats) -> Floats:
    """One component (multiple of 8 on both sides) through DCT, quantisation and back, as whole numbers 0..255."""
    height, width = plane.shape
    steps = np.tile(table, (height // 8, width // 8))
    coefficients = round_half_up(_blockwise(plane - 128.0, DCT) / steps) * steps
    return np.clip(round_half_up(_blockwise(coefficients, DCT.T) + 128.0), 0.0, 255.0)


def _halve(plane: Floats) -> Floats:
    """2 x 2 means of whole numbers, rounded; halves go down and up in turn by column, as in the IJG library."""
    sums = plane[0::2, 0::2] + plane[0::2, 1::2] + plane[1::2, 0::2] + plane[1::2, 1::2]
    bias = 1.0 + np.arange(sums.shape[1]) % 2
    halved: Floats = np.floor((sums + bias) * 0.25)
    return halved


def _double(plane: Floats) -> Floats:
    """Twice the rows and columns of whole numbers, rounded; halves go up in even columns and down in odd ones."""
    doubled = 16.0 * _double_rows(_double_rows(plane).T).T
    bias = 8.0 - np.arange(doubled.shape[1]) % 2
    rounded: Floats = np.floor((doubled + bias) * 0.0625)
    return rounded


def _double_rows(plane: Floats) -> Floats:
    """Twice the rows, triangle weights 3:1 between the nearest and the next ("fancy upsampling")."""
    padded = np.concatenate([plane[:1], plane, plane[-1:]])
    doubled = np.empty((2 * plane.shape[0], plane.shape[1]))
    doubled[0::2] = 0.75 * plane + 0.25 * padded[:-2]
    doubled[1::2] = 0.75 * plane + 0.25 * padded[2:]
    return doubled


def jpeg_round_trip(rgb: NDArray[np.uint8], *, quality: int, subsample: bool = True) -> NDArray[np.uint8]:
    """The pixels that come back when a tile has been stored as JPEG.

    Args:
        rgb: (H, W, 3) uint8, H and W multiples of 16 (of 8 without subsampling).
        quality: 1 to 100, the IJG scale.
        subsample: 4:2:0 chroma, as most slide scanners write; otherwise 4:4:4.

    Returns:
        (H, W, 3) uint8.
    """
    red, green, blue = (rgb[..., channel].astype(np.float64) for channel in range(3))
    luma = round_half_up(0.299 * red + 0.587 * green + 0.114 * blue)
    blueness = round_half_up(128.0 - 0.168735892 * red - 0.331264108 * green + 0.5 * blue)
    redness = round_half_up(128.0 + 0.5 * red - 0.418687589 * green - 0.081312411 * blue)
    luma = _plane_round_trip(luma, quantisation_table(quality, chroma=False))
    chroma_table = quantisation_table(quality, chroma=True)
    if subsample:
        blueness, redness = (_halve(np.minimum(plane, 255.0)) for plane in (blueness, redness))
    blueness, redness = (_plane_round_trip(plane, chroma_table) for plane in (blueness, redness))
    if subsample:
        blueness, redness = (_double(plane) for plane in (blueness, redness))
    blueness, redness = blueness - 128.0, redness - 128.0
    planes = (
        luma + 1.402 * redness,
        luma - 0.344136286 * blueness - 0.714136286 * redness,
        luma + 1.772 * blueness,
    )
    return np.clip(np.stack([round_half_up(plane) for plane in planes], axis=-1), 0.0, 255.0).astype(np.uint8)
