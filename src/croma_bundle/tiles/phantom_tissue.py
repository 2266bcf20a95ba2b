"""The tissue itself: where nuclei and fibres lie and how much dye each takes up, before any centre sees it.

A section is two fields, haematoxylin and eosin concentration, at about half a micrometre a pixel. All that makes a
class is in ``CLASSES``; all that is random comes from the generator that is handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Range = tuple[float, float]

REFERENCE_SIDE = 128
"""Pixels; nuclei counts in ``CLASSES`` are per square of this side."""
LATTICE = 128
"""Knots of a noise lattice, a power of two."""
BATCH = 8
"""Nuclei evaluated at once: their windows stay in the cache."""
MARGIN = 24
"""Pixels beyond the tile in which nuclei are placed too, so that its edges cut through some."""


@dataclass(frozen=True)
class Cells:
    """One kind of nucleus. Lengths in pixels, dye in optical density of a centre at 1.0.

    Attributes:
        attempts: tried per 128 x 128 pixels; fewer fit.
        semi_major, aspect: size, and minor over major axis.
        nucleus: haematoxylin.
        disorder: spread of direction about the fibres, radians (pi: any).
    """

    attempts: int
    semi_major: Range
    aspect: Range
    nucleus: Range
    disorder: float


@dataclass(frozen=True)
class TissueClass:
    """What a tissue looks like.

    Attributes:
        name: the label.
        host: the nuclei that make the class.
        guest: nuclei of another kind that some tiles hold (infiltrating lymphocytes, activated large cells).
        crowding: least distance of two nuclei, times the sum of their mean radii.
        wobble: how far the outline leaves an ellipse, share.
        chromatin, chromatin_grain: contrast and size of its texture.
        rim, nucleolus: extra haematoxylin of the membrane and of a nucleolus, share.
        halo: width of the cytoplasm that a nucleus keeps even in a gap, share of its radius.
        cytoplasm: haematoxylin outside nuclei.
        eosin, fibre_contrast: mean eosin, and its share that follows the fibres.
        fibre_length, fibre_width, waviness: of the fibres.
        gap_length, gap_width, gap_level: of white clefts and lumina; the level is the share of the field below which
            there is none of the tissue (0: no gaps).
    """

    name: str
    host: Cells
    guest: Cells
    crowding: float
    wobble: float
    chromatin: float
    chromatin_grain: float
    rim: float
    nucleolus: float
    halo: float
    cytoplasm: float
    eosin: float
    fibre_contrast: float
    fibre_length: float
    fibre_width: float
    waviness: float
    gap_length: float
    gap_width: float
    gap_level: float


# fmt: off
ANY = 3.1416
CLASSES = (
    TissueClass(
        name="tumour",
        host=Cells(attempts=95, semi_major=(7.5, 13.5), aspect=(0.58, 0.95), nucleus=(0.42, 0.85), disorder=ANY),
        guest=Cells(attempts=60, semi_major=(4.1, 5.6), aspect=(0.80, 1.00), nucleus=(0.70, 1.05), disorder=ANY),
        crowding=0.88, wobble=0.12, chromatin=0.95, chromatin_grain=4.2, rim=0.40, nucleolus=0.80, halo=0.45,
        cytoplasm=0.11, eosin=0.27, fibre_contrast=0.45, fibre_length=14.0, fibre_width=10.0, waviness=6.0,
        gap_length=34.0, gap_width=26.0, gap_level=0.26,
    ),
    TissueClass(
        name="lymphoid",
        host=Cells(attempts=260, semi_major=(4.1, 5.6), aspect=(0.80, 1.00), nucleus=(0.70, 1.05), disorder=ANY),
        guest=Cells(attempts=30, semi_major=(6.5, 10.0), aspect=(0.70, 1.00), nucleus=(0.42, 0.75), disorder=ANY),
        crowding=0.98, wobble=0.07, chromatin=0.80, chromatin_grain=2.8, rim=0.15, nucleolus=0.00, halo=0.30,
        cytoplasm=0.05, eosin=0.17, fibre_contrast=0.60, fibre_length=9.0, fibre_width=7.0, waviness=3.0,
        gap_length=16.0, gap_width=14.0, gap_level=0.30,
    ),
    TissueClass(
        name="stroma",
        host=Cells(attempts=20, semi_major=(8.5, 13.0), aspect=(0.20, 0.34), nucleus=(0.60, 0.90), disorder=0.25),
        guest=Cells(attempts=60, semi_major=(4.1, 5.6), aspect=(0.80, 1.00), nucleus=(0.70, 1.05), disorder=ANY),
        crowding=1.05, wobble=0.08, chromatin=0.60, chromatin_grain=2.8, rim=0.10, nucleolus=0.00, halo=0.30,
        cytoplasm=0.02, eosin=0.33, fibre_contrast=0.90, fibre_length=60.0, fibre_width=4.5, waviness=9.0,
        gap_length=70.0, gap_width=8.0, gap_level=0.30,
    ),
)
# fmt: on


@dataclass(frozen=True)
class Nuclei:
    """Placed nuclei: centre (pixels, up to ``MARGIN`` outside the tile), semi-axes, angle, dye; each (n,)."""

    x: Floats
    y: Floats
    major: Floats
    minor: Floats
    angle: Floats
    dye: Floats

    def inside(self, size: int) -> int:
        """How many have their centre on a tile of this size."""
        return int(((self.x >= 0) & (self.x < size) & (self.y >= 0) & (self.y < size)).sum())


@dataclass(frozen=True)
class Section:
    """Dye concentrations (S, S) and the nuclei that are in them."""

    haematoxylin: Floats
    eosin: Floats
    nuclei: Nuclei


class _Noise:
    """Smooth noise in [0, 1]: a random lattice, repeated every 128 knots, with smoothstep between knots."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._values = rng.random(LATTICE * LATTICE)

    def __call__(self, u: Floats, v: Floats) -> Floats:
        column, row = np.floor(u), np.floor(v)
        a, b = u - column, v - row
        a, b = a * a * (3.0 - 2.0 * a), b * b * (3.0 - 2.0 * b)
        left = column.astype(np.int32) & (LATTICE - 1)
        top = (row.astype(np.int32) & (LATTICE - 1)) * LATTICE
        right = (left + 1) & (LATTICE - 1)
        below = (top + LATTICE) & (LATTICE * LATTICE - 1)
        take = self._values.take
        upper, lower = take(top + left), take(below + left)
        upper += a * (take(top + right) - upper)
        lower += a * (take(below + right) - lower)
        smooth: Floats = upper + b * (lower - upper)
        return smooth


def _step(values: Floats, low: float, high: float) -> Floats:
    """0 below ``low``, 1 above ``high``, linear between."""
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def _tried(cells: Cells, number: float, swelling: float, direction: float, rng: np.random.Generator) -> list[Floats]:
    """Semi-axes, angle and dye of ``number`` cells of a kind, each (n,)."""
    tries = round(number)
    major, aspect, dye, turn = rng.random((4, tries))
    (least, most), (thin, round_), (pale, dark) = cells.semi_major, cells.aspect, cells.nucleus
    major = (least + (most - least) * major) * swelling
    minor = major * (thin + (round_ - thin) * aspect)
    return [major, minor, direction + cells.disorder * (2.0 * turn - 1.0), pale + (dark - pale) * dye]


def _place(tissue: TissueClass, size: int, direction: float, swelling: float, rng: np.random.Generator) -> Nuclei:
    """Nuclei tried one after the other at uniform places; one that would crowd an earlier one is left out.

    Guests come first; their number is the class's greatest times the square of a uniform draw: few on most tiles.
    """
    side = size + 2 * MARGIN
    area = (side / REFERENCE_SIDE) ** 2
    guests = _tried(tissue.guest, tissue.guest.attempts * area * float(rng.random()) ** 2, swelling, direction, rng)
    hosts = _tried(tissue.host, tissue.host.attempts * area, swelling, direction, rng)
    major, minor, angle, dye = (np.concatenate(pair) for pair in zip(guests, hosts, strict=True))
    x, y = rng.random((2, major.size)) * side - MARGIN
    radius = np.sqrt(major * minor)
    free = np.ones(major.size, dtype=bool)
    for index in range(major.size - 1):
        if free[index]:
            later = slice(index + 1, None)
            reach = tissue.crowding * (radius[index] + radius[later])
            free[later] &= (x[later] - x[index]) ** 2 + (y[later] - y[index]) ** 2 >= reach * reach
    return Nuclei(x[free], y[free], major[free], minor[free], angle[free], dye[free])


def _windows(nuclei: Nuclei, shape: Floats, tissue: TissueClass, half: int) -> Floats:
    """Some nuclei, each in a square window around its centre.

    Args:
        nuclei: n of them.
        shape: (3, n) in [0, 1], what varies between outlines and nucleoli.
        tissue: the class.
        half: the window has 2 * half + 1 pixels a side.

    Returns:
        (n, 3, side, side): cover (0..1), haematoxylin, cell body (0..1).
    """
    offset = np.arange(-half, half + 1) + 0.5
    x = (offset - (nuclei.x - np.floor(nuclei.x))[:, None])[:, None, :]
    y = (offset - (nuclei.y - np.floor(nuclei.y))[:, None])[:, :, None]
    major, minor, angle, dye = (
        values[:, None, None] for values in (nuclei.major, nuclei.minor, nuclei.angle, nuclei.dye)
    )
    lobed, skewed, shifted = 2.0 * shape[:, :, None, None] - 1.0
    u = (x * np.cos(angle) + y * np.sin(angle)) / major
    v = (y * np.cos(angle) - x * np.sin(angle)) / minor
    squared = u * u + v * v
    radius = np.sqrt(squared) + 1e-6
    # cos 3t and sin 2t of the polar angle without trigonometry, so that the outline is lobed, not an ellipse.
    lobes = lobed * (u * (u * u - 3.0 * v * v) / (radius * squared + 1e-6)) + skewed * (u * v / (squared + 1e-6))
    depth = 1.0 + tissue.wobble * lobes - radius
    tone = 1.0 + tissue.rim * (np.clip(1.0 - np.abs(depth - 0.12) * 7.0, 0.0, 1.0) - 0.25)
    if tissue.nucleolus:
        centred = (u - 0.35 * shifted) ** 2 + (v - 0.35 * skewed) ** 2
        tone += tissue.nucleolus * np.clip(1.4 - centred * 22.0, 0.0, 1.0)
    layers = np.empty((nuclei.x.size, 3, offset.size, offset.size))
    layers[:, 0] = np.clip(depth * minor / 1.4 + 0.5, 0.0, 1.0)
    layers[:, 1] = layers[:, 0] * tone * dye
    layers[:, 2] = np.clip((depth + tissue.halo) * 5.0, 0.0, 1.0)
    return layers


def _paint(nuclei: Nuclei, tissue: TissueClass, size: int, rng: np.random.Generator) -> Floats:
    """Cover (0..1), haematoxylin and cell body (0..1) of all nuclei, (3, size, size); the higher counts in overlaps."""
    count = nuclei.x.size
    shape = rng.random((3, count))
    half = int(np.ceil(nuclei.major.max(initial=1.0) * (1.0 + tissue.wobble + tissue.halo))) + 2
    side, edge = 2 * half + 1, MARGIN + half
    canvas = np.zeros((3, size + 2 * edge, size + 2 * edge))
    for start in range(0, count, BATCH):
        some = slice(start, start + BATCH)
        batch = Nuclei(*(getattr(nuclei, field.name)[some] for field in fields(nuclei)))
        for x, y, layers in zip(batch.x, batch.y, _windows(batch, shape[:, some], tissue, half), strict=True):
            left, top = int(np.floor(x)) + MARGIN, int(np.floor(y)) + MARGIN
            there = canvas[:, top : top + side, left : left + side]
            np.maximum(there, layers, out=there)
    return canvas[:, edge : edge + size, edge : edge + size]


def place_nuclei(tissue: TissueClass, size: int, swelling: float, rng: np.random.Generator) -> tuple[Nuclei, float]:
    """The nuclei of a tile and the direction of its fibres: the first draws of a tile's generator."""
    direction = float(rng.random()) * np.pi
    return _place(tissue, size, direction, swelling, rng), direction


def grow(tissue: TissueClass, size: int, swelling: float, rng: np.random.Generator) -> Section:
    """A section of tissue.

    Args:
        tissue: the class.
        size: side of the tile in pixels.
        swelling: factor on the size of nuclei (how a slide was fixed).
        rng: the tile's own generator, fresh.

    Returns:
        Section.
    """
    nuclei, direction = place_nuclei(tissue, size, swelling, rng)
    cover, dye, cell = _paint(nuclei, tissue, size, rng)

    axis = np.arange(size, dtype=np.float64)
    x, y = np.broadcast_to(axis[None, :], (size, size)), np.broadcast_to(axis[:, None], (size, size))
    bend = _Noise(rng)(x / 37.0, y / 37.0)
    along = x * np.cos(direction) + y * np.sin(direction)
    across = y * np.cos(direction) - x * np.sin(direction) + tissue.waviness * (2.0 * bend - 1.0)
    weave = _Noise(rng)
    fibres = 0.6 * weave(along / tissue.fibre_length, across / tissue.fibre_width)
    fibres += 0.4 * weave(along / tissue.fibre_length * 2.0 + 40.0, across / tissue.fibre_width * 2.2 + 40.0)
    clefts = _Noise(rng)(along / tissue.gap_length, across / tissue.gap_width) + 0.25 * (fibres - 0.5)
    solid = _step(clefts, tissue.gap_level - 0.04, tissue.gap_level + 0.04)
    grain = _Noise(rng)
    chromatin = grain(x / tissue.chromatin_grain, y / tissue.chromatin_grain) - 0.5
    chromatin += 0.7 * (grain(x / 1.7 + 50.0, y / 1.7 + 50.0) - 0.5)

    body = np.maximum(solid, cell)
    haematoxylin = dye * (1.0 + tissue.chromatin * chromatin)
    haematoxylin += (1.0 - cover) * body * tissue.cytoplasm * (1.0 + 0.5 * chromatin)
    eosin = tissue.eosin * body * (1.0 - 0.55 * cover) * (1.0 + tissue.fibre_contrast * (2.0 * fibres - 1.0))
    return Section(np.maximum(haematoxylin, 0.0), np.maximum(eosin, 0.0), nuclei)
