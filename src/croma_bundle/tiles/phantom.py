"""The phantom: a generated H&E-like cohort whose truth is known.

Three tissues times three medical centres, drawn from a seed with numpy alone: nothing to download, no licence, no
patient. The tissue of a tile depends on its class and its place in the cohort; what a centre adds (stain, light, lens,
camera, JPEG) is applied afterwards, and ``centre_strength`` says how far the centres lie apart. So the same tissue can
be seen with centres that are identical (0) or that overwhelm the biology (2), and a robustness metric has to follow.

It is a test object. It says whether a pipeline measures what it claims, nothing about patients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from croma_bundle.errors import CohortError, raise_all
from croma_bundle.tiles.phantom_optics import CENTRES, SlideShift, centre_at, photograph
from croma_bundle.tiles.phantom_tissue import CLASSES, Section, grow, place_nuclei

LABELS = tuple(tissue.name for tissue in CLASSES)
MEDICAL_CENTERS = tuple(centre.name for centre in CENTRES)

# Who draws what: the second word of a seed keeps slides and tiles apart.
_SLIDE, _TILE = 1, 2

# Least and greatest value of every knob. Beyond 3 the centres would leave what a microscope can do.
_RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    "tile_size": (32, 1024),
    "slides_per_cell": (1, 1000),
    "tiles_per_slide": (1, 10_000),
    "centre_strength": (0.0, 3.0),
}


@dataclass(frozen=True)
class PhantomSpec:
    """The knobs of a phantom cohort; equal knobs give equal pixels.

    Attributes:
        seed: 0 or more.
        tile_size: pixels a side, a multiple of 16 (JPEG blocks).
        slides_per_cell: slides of each class at each centre.
        tiles_per_slide: tiles of each slide.
        centre_strength: 0 = all centres identical, 1 = as tabled in ``CENTRES``, at most 3.

    Raises:
        CohortError: a knob is not a number of its kind or out of range; all such knobs are named.
    """

    seed: int = 0
    tile_size: int = 128
    slides_per_cell: int = 4
    tiles_per_slide: int = 25
    centre_strength: float = 1.0

    def __post_init__(self) -> None:
        raise_all([fault for field in fields(self) if (fault := self._fault(field.name)) is not None])

    def _fault(self, name: str) -> CohortError | None:
        value, (low, high) = getattr(self, name), _RANGES[name]
        whole = name != "centre_strength"
        kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
        fits = (
            isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high
        )
        if fits and not (name == "tile_size" and value % 16):
            return None
        wanted = f"a {'whole ' if whole else ''}number from {low} to {high}"
        wanted += ", a multiple of 16" if name == "tile_size" else ""
        return CohortError("phantom", f"{name} cannot be used", wanted=wanted, found=repr(value))


@dataclass(frozen=True)
class PhantomTile:
    """One row of the cohort.

    Attributes:
        sample_id: unique, slide and tile number.
        label, medical_center: names in ``LABELS`` and ``MEDICAL_CENTERS``.
        group_id: the slide.
        slide: its number within the cell of label and centre.
        index: the tile's number on the slide.
    """

    sample_id: str
    label: str
    medical_center: str
    group_id: str
    slide: int
    index: int


def phantom_rows(spec: PhantomSpec) -> list[PhantomTile]:
    """All tiles in the cohort's fixed order: centre by centre, class by class, slide by slide."""
    return [
        PhantomTile(f"{group}-t{index:03d}", label, center, group, slide, index)
        for center in MEDICAL_CENTERS
        for label in LABELS
        for slide in range(spec.slides_per_cell)
        for group in (f"{center}-{label}-s{slide:02d}",)
        for index in range(spec.tiles_per_slide)
    ]


def _generator(spec: PhantomSpec, tile: PhantomTile, *what: int) -> np.random.Generator:
    cell = LABELS.index(tile.label), MEDICAL_CENTERS.index(tile.medical_center), tile.slide
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence(spec.seed, spawn_key=(*what[:1], *cell, *what[1:])))
    )


def _slide(spec: PhantomSpec, tile: PhantomTile) -> tuple[SlideShift, float]:
    """How a slide departs from its centre's habit, and how swollen its nuclei are; the same for all its tiles."""
    dye, counterstain, light, swelling = 2.0 * _generator(spec, tile, _SLIDE).random(4) - 1.0
    shift = SlideShift(1.0 + 0.06 * dye, 1.0 + 0.06 * counterstain, 1.0 + 0.01 * light)
    return shift, 1.0 + 0.04 * float(swelling)


def section(spec: PhantomSpec, tile: PhantomTile) -> Section:
    """The tissue on a tile: dye fields and nuclei. Does not depend on ``centre_strength``."""
    tissue = CLASSES[LABELS.index(tile.label)]
    return grow(tissue, spec.tile_size, _slide(spec, tile)[1], _generator(spec, tile, _TILE, tile.index))


def nuclei_count(spec: PhantomSpec, tile: PhantomTile) -> int:
    """True number of nuclei centred on a tile, without rendering it."""
    tissue = CLASSES[LABELS.index(tile.label)]
    swelling, rng = _slide(spec, tile)[1], _generator(spec, tile, _TILE, tile.index)
    return place_nuclei(tissue, spec.tile_size, swelling, rng)[0].inside(spec.tile_size)


def render(spec: PhantomSpec, tile: PhantomTile) -> NDArray[np.uint8]:
    """The pixels of one tile, (tile_size, tile_size, 3) uint8 RGB, independent of every other tile.

    Args:
        spec: the cohort.
        tile: one of ``phantom_rows(spec)``.

    Returns:
        RGB after the centre's stain, optics, camera and JPEG. All sums have a fixed order and rounding is guarded
        against last-bit differences, so processes, threads and, for practical purposes, CPUs agree.
    """
    tissue = section(spec, tile)
    centre = centre_at(MEDICAL_CENTERS.index(tile.medical_center), spec.centre_strength)
    return photograph(tissue.haematoxylin, tissue.eosin, centre, _slide(spec, tile)[0])
