"""What a medical centre does to tissue: stain, light, lens, camera, file.

A section becomes pixels in the order in which it happens: two dyes absorb (Beer–Lambert), the lamp lights unevenly,
the lens blurs, the camera applies its curve, the scanner stores a JPEG. Every number of a centre is in ``CENTRES``.

Source: optical-density vectors, Ruifrok & Johnston 2001 (Anal Quant Cytol Histol 23:291).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from croma_bundle.tiles.phantom_jpeg import jpeg_round_trip, round_half_up

Floats = NDArray[np.float64]
Triple = tuple[float, float, float]

HAEMATOXYLIN: Triple = (0.650, 0.704, 0.286)
EOSIN: Triple = (0.072, 0.990, 0.105)
"""Optical density per unit of dye in R, G, B, unit length (Ruifrok & Johnston 2001)."""


@dataclass(frozen=True)
class Centre:
    """How one medical centre stains and scans.

    Attributes:
        name: as written in the manifest.
        haematoxylin_tint, eosin_tint: added to the published optical-density vectors, which are then made unit length
            again (dye lot, pH).
        haematoxylin, eosin: dye concentration, relative (staining time).
        lamp: light that reaches the sensor through clear glass, share of full scale in R, G, B.
        vignette: loss of light in the corners, share.
        gradient_x, gradient_y: change of light from one edge to the other, share.
        blur: standard deviation of the point spread function, pixels.
        gamma: exponent of the camera curve on light (1 = linear).
        jpeg_quality: IJG scale.
    """

    name: str
    haematoxylin_tint: Triple
    eosin_tint: Triple
    haematoxylin: float
    eosin: float
    lamp: Triple
    vignette: float
    gradient_x: float
    gradient_y: float
    blur: float
    gamma: float
    jpeg_quality: float


# fmt: off
CENTRES = (
    Centre(
        name="harbour",
        haematoxylin_tint=(+0.05, 0.00, +0.06), eosin_tint=(0.03, 0.00, 0.14),
        haematoxylin=1.14, eosin=0.80, lamp=(0.925, 0.940, 0.965),
        vignette=0.05, gradient_x=+0.03, gradient_y=0.00, blur=0.60, gamma=0.96, jpeg_quality=90,
    ),
    Centre(
        name="meadow",
        haematoxylin_tint=(-0.12, 0.00, +0.14), eosin_tint=(0.07, 0.00, 0.34),
        haematoxylin=0.90, eosin=1.22, lamp=(0.965, 0.935, 0.900),
        vignette=0.09, gradient_x=-0.03, gradient_y=0.02, blur=0.80, gamma=1.08, jpeg_quality=80,
    ),
    Centre(
        name="summit",
        haematoxylin_tint=(-0.02, 0.00, +0.10), eosin_tint=(0.05, 0.00, 0.24),
        haematoxylin=0.76, eosin=0.74, lamp=(0.985, 0.980, 0.975),
        vignette=0.02, gradient_x=0.00, gradient_y=-0.03, blur=0.70, gamma=0.92, jpeg_quality=85,
    ),
)

# The widest a centre may become, whatever its strength.
LIMITS: dict[str, tuple[float, float]] = {
    "haematoxylin_tint": (-0.40, 0.60), "eosin_tint": (-0.06, 0.80),
    "haematoxylin": (0.30, 2.20), "eosin": (0.20, 2.40),
    "lamp": (0.75, 1.00), "vignette": (0.00, 0.25), "gradient_x": (-0.12, 0.12), "gradient_y": (-0.12, 0.12),
    "blur": (0.40, 1.40), "gamma": (0.70, 1.40), "jpeg_quality": (50, 98),
}
# fmt: on


@dataclass(frozen=True)
class SlideShift:
    """How one slide differs from its centre's habit: factors near 1 on the dyes and the light."""

    haematoxylin: float
    eosin: float
    light: float


def centre_at(index: int, strength: float) -> Centre:
    """Centre ``index`` moved to ``strength`` times its distance from the mean of all centres, within ``LIMITS``."""
    moved: dict[str, object] = {"name": CENTRES[index].name}
    for name in (field.name for field in fields(Centre) if field.name != "name"):
        values = np.array([getattr(centre, name) for centre in CENTRES], dtype=np.float64)
        mean = values.mean(axis=0)
        value = np.clip(mean + strength * (values[index] - mean), *LIMITS[name])
        moved[name] = tuple(value.tolist()) if value.ndim else float(value)
    return Centre(**moved)  # type: ignore[arg-type]


def tinted(vector: Triple, tint: Triple) -> Floats:
    """(3,) unit optical-density vector, no component below 0.01 (no dye emits light)."""
    moved = np.maximum(np.array(vector) + np.array(tint), 0.01)
    unit: Floats = moved / np.sqrt((moved * moved).sum())
    return unit


def transmitted(haematoxylin: Floats, eosin: Floats, vectors: tuple[Floats, Floats]) -> Floats:
    """Share of light that passes, (H, W, 3) in (0, 1]: Beer–Lambert, ``10 ** -(h * H + e * E)``."""
    first, second = vectors
    density = haematoxylin[..., None] * first + eosin[..., None] * second
    light: Floats = np.exp(density * -np.log(10.0))
    return light


def illumination(size: int, centre: Centre) -> Floats:
    """(size, size) light field: 1 at the middle, less in the corners, a slope across."""
    axis = (np.arange(size) + 0.5) / size * 2.0 - 1.0
    x, y = axis[None, :], axis[:, None]
    slope = 0.5 * (centre.gradient_x * x + centre.gradient_y * y)
    return (1.0 + slope) * (1.0 - 0.5 * centre.vignette * (x * x + y * y))


def blurred(light: Floats, sigma: float) -> Floats:
    """Gaussian point spread on (H, W, 3), seven taps a side at most, edges reflected."""
    taps = np.arange(-3, 4)
    kernel = np.exp(-0.5 * (taps / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        length = light.shape[axis]
        padded = np.pad(light, [(3, 3) if axis == a else (0, 0) for a in range(3)], mode="reflect")
        middle = kernel[3] * light
        for tap in (1, 2, 3):
            before, after = ((slice(None),) * axis + (slice(3 + s, 3 + s + length),) for s in (-tap, tap))
            middle = middle + kernel[3 + tap] * (padded[before] + padded[after])
        light = middle
    return light


def photograph(haematoxylin: Floats, eosin: Floats, centre: Centre, shift: SlideShift) -> NDArray[np.uint8]:
    """The tile that a centre stores of a section.

    Args:
        haematoxylin, eosin: (S, S) dye concentrations, S a multiple of 16.
        centre: its stain and scanner.
        shift: how this slide differs from the centre's habit.

    Returns:
        (S, S, 3) uint8 RGB.
    """
    vectors = tinted(HAEMATOXYLIN, centre.haematoxylin_tint), tinted(EOSIN, centre.eosin_tint)
    light = transmitted(
        haematoxylin * (centre.haematoxylin * shift.haematoxylin), eosin * (centre.eosin * shift.eosin), vectors
    )
    light = blurred(light, centre.blur)
    light *= (illumination(light.shape[0], centre) * shift.light)[..., None] * np.array(centre.lamp)
    seen = np.clip(light, 0.0, 1.0) ** centre.gamma
    pixels = round_half_up(seen * 255.0).astype(np.uint8)
    return jpeg_round_trip(pixels, quality=int(round_half_up(np.array(centre.jpeg_quality))))
