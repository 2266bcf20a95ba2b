"""The claim of the demo: as centres drift apart, colour loses its margin and texture keeps more of it.

CRoMa is computed here by brute force, from its definition, so that the claim does not lean on our metrics.
"""

import numpy as np
import pytest

from croma_bundle.encoders.classical import DESCRIPTORS, describe
from croma_bundle.tiles.phantom import PhantomSpec, phantom_rows, render

STRENGTHS = (0.0, 0.5, 1.0, 1.5, 2.0)
M = 5


def croma_median(x, labels, centres, groups) -> float:
    x = x.astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    margins = []
    for i in range(len(x)):
        distance = np.clip(1.0 - x @ x[i], 0.0, 2.0)
        other = groups != groups[i]
        so = np.sort(distance[other & (labels == labels[i]) & (centres != centres[i])])
        os = np.sort(distance[other & (labels != labels[i]) & (centres == centres[i])])
        assert min(len(so), len(os)) >= M
        margins.append((os[:M].mean() - so[:M].mean()) / (os[:M].mean() + so[:M].mean()))
    return float(np.median(margins))


@pytest.fixture(scope="module")
def medians() -> dict[str, list[float]]:
    """CRoMa median (m = 5) of every descriptor at each strength, on 108 tiles of 18 slides."""
    found: dict[str, list[float]] = {name: [] for name in DESCRIPTORS}
    for strength in STRENGTHS:
        spec = PhantomSpec(slides_per_cell=2, tiles_per_slide=6, centre_strength=strength)
        rows = phantom_rows(spec)
        pixels = [render(spec, row) for row in rows]
        columns = (np.array([getattr(row, key) for row in rows]) for key in ("label", "medical_center", "group_id"))
        labels, centres, groups = columns
        for name in DESCRIPTORS:
            matrix = np.array([describe(name, tile) for tile in pixels])
            found[name].append(croma_median(matrix, labels, centres, groups))
    return found


def test_colour_loses_its_margin_strictly_with_every_step(medians):
    assert (np.diff(medians["ColourStatistics"]) < -0.05).all(), medians["ColourStatistics"]


@pytest.mark.parametrize("name", ["HaematoxylinTexture", "GaborEnergy"])
def test_texture_loses_less_than_half_of_what_colour_loses(medians, name):
    lost = {encoder: values[0] - values[-1] for encoder, values in medians.items()}
    assert 0.0 < lost[name] < 0.5 * lost["ColourStatistics"], lost


def test_with_identical_centres_biology_leads_wherever_position_does_not_matter(medians):
    assert min(medians[name][0] for name in ("ColourStatistics", "HaematoxylinTexture", "GaborEnergy")) > 0.4


def test_at_strength_one_colour_and_thumbnail_are_confounded_and_texture_is_not(medians):
    at_one = {name: values[STRENGTHS.index(1.0)] for name, values in medians.items()}
    assert at_one["ColourStatistics"] < 0.0
    assert at_one["Thumbnail"] < 0.05
    assert at_one["HaematoxylinTexture"] > 0.3
    assert at_one["GaborEnergy"] > 0.2
