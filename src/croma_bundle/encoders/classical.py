"""Classical descriptors: encoders without weights, from the literature, as controls that run anywhere.

Each is a plain function from one tile, (H, W, 3) uint8 RGB with at least 32 pixels a side, to a vector of fixed length.
A vector depends on its tile alone: the constants that centre and scale its entries are literals, chosen once so that a
typical H&E tile gives entries of order 1 with either sign and cosine similarity is not swamped by a common offset.
Sums are numpy reductions and FFTs, never BLAS, so thread counts cannot change a bit.

``DESCRIPTORS`` is the table of what exists; ``describe`` runs one by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from skimage.feature import graycomatrix, graycoprops, local_binary_pattern

from croma_bundle.errors import InputError, PixelError, did_you_mean

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
Vector = NDArray[np.float32]

MIN_SIDE = 32
"""Pixels; below this the lowest Gabor frequency does not fit."""

# ColourStatistics
PERCENTILES = (5, 25, 50, 75, 95)
HISTOGRAM_BINS = 16
# Thumbnail
THUMBNAIL_SIDE = 16
# HaematoxylinTexture
LBP_POINTS = 8
LBP_RADII = (1, 2, 4)
GLCM_LEVELS = 16
GLCM_DISTANCES = (1, 2, 4, 8)
GLCM_ANGLES = (0.0, np.pi / 4, np.pi / 2, 3 * np.pi / 4)
# GaborEnergy
GABOR_FREQUENCIES = (0.05, 0.1, 0.2, 0.4)
GABOR_ORIENTATIONS = 6

# Grey of sRGB code values, IEC 61966-2-1.
_CODES = np.arange(256) / 255.0
_LINEAR = np.where(_CODES <= 0.04045, _CODES / 12.92, ((_CODES + 0.055) / 1.055) ** 2.4)
# Optical density of code values; 0 counts as 1.
_DENSITY = -np.log10(np.maximum(np.arange(256), 1) / 255.0)


def _lab(rgb: Pixels) -> tuple[Floats, Floats, Floats]:
    """CIE L*a*b* (D65) of sRGB pixels, three (H, W) planes."""
    red, green, blue = (_LINEAR[rgb[..., channel]] for channel in range(3))
    x = (0.412453 * red + 0.357580 * green + 0.180423 * blue) / 0.95047
    y = 0.212671 * red + 0.715160 * green + 0.072169 * blue
    z = (0.019334 * red + 0.119193 * green + 0.950227 * blue) / 1.08883
    fx, fy, fz = (np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16.0 / 116.0) for t in (x, y, z))
    return 116.0 * fy - 16.0, 500.0 * (fx - fy), 200.0 * (fy - fz)


def _moments(plane: Floats) -> tuple[float, float, float]:
    """Mean, standard deviation, and the cube root of the third central moment (Stricker & Orengo 1995)."""
    mean = plane.mean()
    away = plane - mean
    squared = away * away
    return float(mean), float(np.sqrt(squared.mean())), float(np.cbrt((squared * away).mean()))


# (centre, scale) of mean, standard deviation and third moment of L*, a*, b*.
_MOMENT_SCALES = np.array(
    [[(65, 12), (15, 8), (-6, 10)], [(26, 10), (11, 6), (3, 8)], [(-15, 8), (8, 5), (1, 6)]], dtype=np.float64
)


def colour_statistics(rgb: Pixels) -> Vector:
    """How a tile is coloured, wherever on it: moments, percentiles, histograms. Follows stain and scanner closely.

    Args:
        rgb: (H, W, 3) uint8.

    Returns:
        (72,) float32: three moments of L*, a*, b* (9); percentiles 5, 25, 50, 75, 95 of R, G, B (15); square roots of
        16-bin histograms of the opponent axes R - G, 2B - R - G, R + G + B (48).

    Source: colour moments, Stricker & Orengo 1995 (SPIE 2420); opponent histograms, Swain & Ballard 1991 (IJCV 7:11);
    L*a*b* statistics as what differs between stains, Reinhard et al. 2001 (IEEE CG&A 21:34).
    """
    moments = np.array([_moments(plane) for plane in _lab(rgb)])
    moments = (moments - _MOMENT_SCALES[..., 0]) / _MOMENT_SCALES[..., 1]
    percentiles = (np.percentile(rgb.reshape(-1, 3), PERCENTILES, axis=0) - 165.0) / 45.0
    red, green, blue = (rgb[..., channel].astype(np.int64) for channel in range(3))
    axes = (red - green + 255, 2 * blue - red - green + 510, red + green + blue)
    histograms = []
    for axis, codes in zip(axes, (511, 1021, 766), strict=True):
        counts = np.bincount((axis * HISTOGRAM_BINS // codes).ravel(), minlength=HISTOGRAM_BINS)
        histograms.append(np.sqrt(counts / axis.size))
    opponent = (np.concatenate(histograms) - 0.15) / 0.25
    return np.concatenate([moments.ravel(), percentiles.T.ravel(), opponent]).astype(np.float32)


def _bin_means(values: Floats, bins: int) -> Floats:
    """Means over ``bins`` equal stretches of the first axis, pixels shared out by fraction."""
    length = values.shape[0]
    sums = np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0)])
    edges = np.arange(bins + 1) * length / bins
    below = np.minimum(edges.astype(np.int64), length - 1)
    share = (edges - below).reshape(-1, *([1] * (values.ndim - 1)))
    at_edges = sums[below] + share * values[below]
    means: Floats = np.diff(at_edges, axis=0) * (bins / length)
    return means


def thumbnail(rgb: Pixels) -> Vector:
    """The tile itself, very small.

    Args:
        rgb: (H, W, 3) uint8.

    Returns:
        (768,) float32: area means on a 16 x 16 grid, RGB, row by row; black is -1 and white +1, never all zero for a
        tile of one colour.

    Source: tiny images, Torralba, Fergus & Freeman 2008 (IEEE TPAMI 30:1958).
    """
    rows = _bin_means(rgb.astype(np.float64), THUMBNAIL_SIDE)
    means = _bin_means(rows.transpose(1, 0, 2), THUMBNAIL_SIDE).transpose(1, 0, 2)
    return (means.ravel() / 127.5 - 1.0).astype(np.float32)


def haematoxylin(rgb: Pixels) -> Floats:
    """(H, W) haematoxylin concentration by colour deconvolution: haematoxylin, eosin and a residual as unmixed axes.

    The weights are the first column of the inverse of the matrix whose rows are the optical-density vectors of
    haematoxylin (0.650, 0.704, 0.286), eosin (0.072, 0.990, 0.105) and their normalised cross product.
    Source: Ruifrok & Johnston 2001 (Anal Quant Cytol Histol 23:291).
    """
    red, green, blue = (_DENSITY[rgb[..., channel]] for channel in range(3))
    weights = _deconvolution()
    return weights[0] * red + weights[1] * green + weights[2] * blue


@lru_cache(maxsize=1)
def _deconvolution() -> tuple[float, float, float]:
    """Weights of R, G, B density: the part of haematoxylin's vector that is orthogonal to eosin, scaled to read 1."""
    stain, other = np.array([0.650, 0.704, 0.286]), np.array([0.072, 0.990, 0.105])
    apart = stain - other * ((stain * other).sum() / (other * other).sum())
    red, green, blue = (apart / (apart * stain).sum()).tolist()
    return red, green, blue


def grey_levels(field: Floats) -> Pixels:
    """A field as 256 grey levels between its own 1st and 99th percentiles: proportional changes of stain cancel.

    A spread below 0.05 (optical density) is stretched no further than 0.05, so that a blank tile stays blank.
    """
    low, high = np.percentile(field, (1, 99))
    stretched = np.clip((field - low) / max(float(high - low), 0.05), 0.0, 1.0)
    grey: Pixels = np.rint(stretched * 255.0).astype(np.uint8)
    return grey


def lbp_histograms(grey: Pixels) -> Floats:
    """(radii, 10) shares of the uniform, rotation-invariant local binary patterns of eight points; rows sum to 1."""
    bins = LBP_POINTS + 2
    counts = []
    for radius in LBP_RADII:
        patterns = local_binary_pattern(grey, LBP_POINTS, radius, method="uniform")  # type: ignore[no-untyped-call]
        counts.append(np.bincount(patterns.astype(np.int64).ravel(), minlength=bins))
    return np.array(counts) / grey.size


# (property, centre, scale) of the co-occurrence statistics at 16 levels.
GLCM_STATISTICS = (
    ("dissimilarity", 1.5, 1.0),
    ("homogeneity", 0.6, 0.15),
    ("energy", 0.2, 0.1),
    ("correlation", 0.6, 0.3),
)


def haematoxylin_texture(rgb: Pixels) -> Vector:
    """Texture of the haematoxylin channel relative to the tile's own range: chromatin and nuclei, little of the stain.

    Args:
        rgb: (H, W, 3) uint8.

    Returns:
        (46,) float32: square roots of local-binary-pattern histograms at radii 1, 2, 4 (30), then dissimilarity,
        homogeneity, energy and correlation of co-occurrences at distances 1, 2, 4, 8, means over four angles (16).

    Source: colour deconvolution, Ruifrok & Johnston 2001; uniform patterns, Ojala, Pietikäinen & Mäenpää 2002 (IEEE
    TPAMI 24:971); co-occurrence statistics, Haralick, Shanmugam & Dinstein 1973 (IEEE TSMC 3:610).
    """
    grey = grey_levels(haematoxylin(rgb))
    patterns = (np.sqrt(lbp_histograms(grey)) - 0.3) / 0.1
    levels = grey // (256 // GLCM_LEVELS)
    pairs = graycomatrix(  # type: ignore[no-untyped-call]
        levels, GLCM_DISTANCES, GLCM_ANGLES, levels=GLCM_LEVELS, symmetric=True, normed=True
    )
    statistics = []
    for name, centre, scale in GLCM_STATISTICS:
        by_distance = graycoprops(pairs, name).mean(axis=1)  # type: ignore[no-untyped-call]
        statistics.append((by_distance - centre) / scale)
    return np.concatenate([patterns.ravel(), *statistics]).astype(np.float32)


@lru_cache(maxsize=4)
def _gabor_bank(height: int, width: int) -> Floats:
    """(frequencies, orientations, H, W) transfer functions: Gaussians that touch at half height, on one half-plane."""
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None, :]
    ratio = GABOR_FREQUENCIES[1] / GABOR_FREQUENCIES[0]
    half_height = np.sqrt(2.0 * np.log(2.0))
    bank = np.empty((len(GABOR_FREQUENCIES), GABOR_ORIENTATIONS, height, width))
    for scale, frequency in enumerate(GABOR_FREQUENCIES):
        radial = (ratio - 1.0) / (ratio + 1.0) * frequency / half_height
        tangential = np.tan(np.pi / (2 * GABOR_ORIENTATIONS)) * frequency / half_height
        for turn in range(GABOR_ORIENTATIONS):
            cos, sin = np.cos(turn * np.pi / GABOR_ORIENTATIONS), np.sin(turn * np.pi / GABOR_ORIENTATIONS)
            u, v = fx * cos + fy * sin - frequency, fy * cos - fx * sin
            bank[scale, turn] = np.exp(-0.5 * ((u / radial) ** 2 + (v / tangential) ** 2))
    bank[..., 0, 0] = 0.0
    return bank


def gabor_magnitudes(rgb: Pixels) -> Floats:
    """(frequencies, orientations, 2): mean and standard deviation of the response magnitude on luminance (0..1).

    An eighth of the tile at each edge is left out, where the transform wraps round.
    """
    red, green, blue = (rgb[..., channel].astype(np.int64) for channel in range(3))
    luminance = (299 * red + 587 * green + 114 * blue) / 255_000.0
    height, width = luminance.shape
    inside = (slice(height // 8, height - height // 8), slice(width // 8, width - width // 8))
    spectrum = np.fft.fft2(luminance)
    bank = _gabor_bank(height, width)
    energies = np.empty((*bank.shape[:2], 2))
    for where in np.ndindex(*bank.shape[:2]):
        magnitude = np.abs(np.fft.ifft2(spectrum * bank[where])[inside])
        energies[where] = magnitude.mean(), magnitude.std()
    return energies


def gabor_energy(rgb: Pixels) -> Vector:
    """How much luminance changes at four frequencies (0.05 to 0.4 cycles a pixel) in six directions.

    Args:
        rgb: (H, W, 3) uint8.

    Returns:
        (48,) float32: mean and standard deviation of the magnitude by frequency and orientation, as
        ``(log10(value + 1e-4) + 1.9) / 0.4``: a change of contrast is an offset, not a factor.

    Source: Manjunath & Ma 1996 (IEEE TPAMI 18:837).
    """
    return ((np.log10(gabor_magnitudes(rgb).ravel() + 1e-4) + 1.9) / 0.4).astype(np.float32)


@dataclass(frozen=True)
class Descriptor:
    """A classical encoder: what it computes, how wide, with which numbers, after whom."""

    function: Callable[[Pixels], Vector]
    dim: int
    parameters: Mapping[str, object]
    citation: str


# fmt: off
DESCRIPTORS: Mapping[str, Descriptor] = MappingProxyType({
    "ColourStatistics": Descriptor(
        colour_statistics, 72,
        {"moments": "mean, std, cbrt(m3) of L*a*b* (D65)", "percentiles": list(PERCENTILES),
         "histogram_bins": HISTOGRAM_BINS, "histogram_axes": ["R-G", "2B-R-G", "R+G+B"], "version": 1},
        "Stricker & Orengo 1995; Swain & Ballard 1991; Reinhard et al. 2001"),
    "Thumbnail": Descriptor(
        thumbnail, 768,
        {"side": THUMBNAIL_SIDE, "resampling": "area", "black": -1.0, "white": 1.0, "version": 1},
        "Torralba, Fergus & Freeman 2008"),
    "HaematoxylinTexture": Descriptor(
        haematoxylin_texture, 46,
        {"haematoxylin_od": [0.650, 0.704, 0.286], "eosin_od": [0.072, 0.990, 0.105], "grey_percentiles": [1, 99],
         "lbp_points": LBP_POINTS, "lbp_radii": list(LBP_RADII), "glcm_levels": GLCM_LEVELS,
         "glcm_distances": list(GLCM_DISTANCES), "glcm_angles": 4,
         "glcm_statistics": [name for name, _, _ in GLCM_STATISTICS], "version": 1},
        "Ruifrok & Johnston 2001; Ojala, Pietikäinen & Mäenpää 2002; Haralick, Shanmugam & Dinstein 1973"),
    "GaborEnergy": Descriptor(
        gabor_energy, 48,
        {"frequencies": list(GABOR_FREQUENCIES), "orientations": GABOR_ORIENTATIONS, "statistics": ["mean", "std"],
         "scale": "log10", "version": 1},
        "Manjunath & Ma 1996"),
})
# fmt: on


def describe(name: str, rgb: Pixels) -> Vector:
    """The vector of one tile under a named descriptor.

    Args:
        name: a key of ``DESCRIPTORS``.
        rgb: (H, W, 3) uint8, at least 32 pixels a side.

    Returns:
        (dim,) float32, finite, not all zero.

    Raises:
        InputError: no such descriptor.
        PixelError: not an 8-bit RGB tile, or too small.
    """
    if name not in DESCRIPTORS:
        known = ", ".join(DESCRIPTORS)
        raise InputError("classical", f"no descriptor '{name}'{did_you_mean(name, DESCRIPTORS)}", wanted=known)
    if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3 or min(rgb.shape[:2]) < MIN_SIDE:
        wanted = f"(H, W, 3) uint8, H and W at least {MIN_SIDE}"
        raise PixelError(name, "cannot describe these pixels", wanted=wanted, found=f"{rgb.shape} {rgb.dtype}")
    return DESCRIPTORS[name].function(rgb)
