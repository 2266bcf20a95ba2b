"""`hgsc-simulated`: which tiles are cut, what they are called, and what a simulated profile does to the dyes."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from croma_bundle.errors import InputError
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.manifests.models import Simulated
from croma_bundle.tiles.simulated import PROFILES, centroid, cuts, dyes, restained


def polygon(points, order="<"):
    """Well-known binary of one closed ring."""
    ring = [*points, points[0]]
    mark = b"\x01" if order == "<" else b"\x00"
    return mark + struct.pack(f"{order}III", 3, 1, len(ring)) + b"".join(struct.pack(f"{order}dd", *p) for p in ring)


def square(x, y, side=4.0):
    return polygon([(x - side, y - side), (x + side, y - side), (x + side, y + side), (x - side, y + side)])


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_centroid_is_that_of_the_area_not_of_the_points(order):
    triangle = polygon([(100, 100), (103, 100), (100, 106)], order)
    assert centroid(triangle) == pytest.approx((101, 102))
    extra = polygon([(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (4, 4), (0, 4)], order)
    assert centroid(extra) == pytest.approx((2, 2))


def test_what_is_no_polygon_is_refused():
    with pytest.raises(InputError, match="no polygon"):
        centroid(b"\x01" + struct.pack("<Idd", 1, 1.0, 2.0))


def test_a_tile_is_kept_by_number_and_majority_of_its_nuclei_and_grouped_by_block(tmp_path):
    nuclei = [
        (50, 50, "neoplastic"), (60, 60, "neoplastic"), (70, 70, "connective"),  # 2 of 3: kept
        (150, 50, "connective"),  # one nucleus only
        (250, 50, "connective"), (260, 60, "neoplastic"),  # 1 of 2
        (399, 399, "inflammatory"), (301, 301, "inflammatory"),  # kept, in the block's last tile
        (450, 50, "connective"), (460, 50, "connective"),  # kept, in the next block
        (650, 50, "connective"), (660, 50, "connective"),  # beyond the last whole tile of a 640-pixel image
    ]  # fmt: skip
    table = {"geometry": [square(x, y) for x, y, _ in nuclei], "class_name": [kind for *_, kind in nuclei]}
    pq.write_table(pa.table(table), tmp_path / "n.parquet")
    how = Simulated(tile_size=100, block_size=400, nuclei=2, majority=0.6)
    found = cuts("nest", np.zeros((640, 640, 3), np.uint8), tmp_path / "n.parquet", how)
    assert [(c.name, c.label, c.group) for c in found] == [
        ("nest-x0000-y0000", "neoplastic", "nest-block-0-0"),
        ("nest-x0400-y0000", "connective", "nest-block-1-0"),
        ("nest-x0300-y0300", "inflammatory", "nest-block-0-0"),
    ]


def test_the_dyes_of_a_mixture_are_what_was_mixed():
    """Beer-Lambert with the published vectors, by hand."""
    h, e = 0.4, 0.7
    light = [245.0 * 10 ** -(h * a + e * b) for a, b in zip((0.650, 0.704, 0.286), (0.072, 0.990, 0.105), strict=True)]
    pixel = np.round(np.array(light)).astype(np.uint8).reshape(1, 1, 3)
    found = [float(amount[0, 0]) for amount in dyes(pixel)]
    assert found == pytest.approx([h, e], abs=0.02)
    white = dyes(np.full((1, 1, 3), 255, np.uint8))
    assert [float(amount[0, 0]) for amount in white] == [0.0, 0.0]


def test_profiles_differ_and_a_profile_repeats_itself():
    tissue = np.random.default_rng(0).integers(90, 220, (32, 32, 3), dtype=np.uint8)
    seen = [restained(tissue, profile) for profile in range(3)]
    means = [picture.mean(axis=(0, 1)) for picture in seen]
    assert min(np.abs(a - b).max() for i, a in enumerate(means) for b in means[:i]) > 5
    assert np.array_equal(seen[0], restained(tissue, 0))


def test_it_is_called_simulated_wherever_it_is_named(tmp_path):
    entry = load_catalogue(Volume(tmp_path)).tileset("hgsc-simulated")
    assert "simulated" in entry.name
    assert entry.confounder == "simulated_center"
    assert all(profile.startswith("simulated-") for profile in PROFILES)
    assert "simulated" in entry.citation
