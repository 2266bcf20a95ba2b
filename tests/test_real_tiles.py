"""Real H&E tiles of many centres, from adding the cohort to its scores."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders import write_csv

Rows = list[dict[str, str]]


@pytest.fixture(scope="module")
def pack(shared: Path) -> Path:
    folder = shared / "data" / "tiles" / "tcga_pack_20x"
    if not folder.is_dir():
        pytest.skip(f"no real tiles: {folder} does not exist")
    return folder


@pytest.fixture(scope="module")
def rows(pack: Path) -> Rows:
    with (pack / "manifest.csv").open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def candidates(row: dict[str, str], rows: Rows) -> tuple[int, int]:
    """How many SO (same label, other centre) and OS (other label, same centre) tiles of other patients a row has."""
    others = [other for other in rows if other["group_id"] != row["group_id"]]
    so = sum(o["label"] == row["label"] and o["medical_center"] != row["medical_center"] for o in others)
    os = sum(o["label"] != row["label"] and o["medical_center"] == row["medical_center"] for o in others)
    return so, os


def read(path: Path) -> Rows:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_the_whole_pack_gives_ri_but_is_refused_croma_by_name_for_want_of_neighbours(cli, volume, pack, rows):
    lacking_so = sum(candidates(row, rows)[0] < 5 for row in rows)
    lacking_os = sum(candidates(row, rows)[1] < 5 for row in rows)
    assert lacking_so > 0, "the pack must be one-sided for this test"
    assert lacking_os > 0
    cli("tiles", "add", "tcga", "--manifest", pack / "manifest.csv")
    cli("embed", "--encoders", "ColourStatistics,Thumbnail", "--tileset", "tcga")
    done = cli("score", "--benchmark", "tcga", exits=3)
    assert "error: tcga · ColourStatistics, Thumbnail: no CRoMa at m = 5" in done.stderr
    assert "No smaller m is supported either" in done.stderr  # some tiles have no neighbour of a type at all
    counts = f"{lacking_so} of {len(rows)} samples lack 5 SO neighbours, {lacking_os} of {len(rows)} samples lack 5 OS"
    assert counts in done.stderr
    table = read(volume.metrics("median-k", "tcga") / "metrics.csv")
    assert [row["encoder"] for row in table] == ["ColourStatistics", "Thumbnail"]
    for row in table:
        assert 0 <= float(row["ri"]) <= 1
        assert -1 <= float(row["mari"]) <= 1
        assert row["croma_median"] == row["croma_ltm10"] == row["croma_f0"] == ""


def test_rows_that_have_four_neighbours_of_each_type_are_scored_with_m_4(cli, volume, pack, rows, tmp_path: Path):
    """Lung and prostate at two hospitals that sent both: the smallest cell, prostate at Pittsburgh, has four tiles."""
    hospitals = ("Roswell Park", "University of Pittsburgh")
    chosen = [row for row in rows if row["label"] in ("lung", "prostate") and row["medical_center"] in hospitals]
    cells = Counter((row["label"], row["medical_center"]) for row in chosen)
    assert cells == {
        ("lung", "Roswell Park"): 5,
        ("lung", "University of Pittsburgh"): 7,
        ("prostate", "Roswell Park"): 30,
        ("prostate", "University of Pittsburgh"): 4,
    }
    assert min(min(candidates(row, chosen)) for row in chosen) == 4
    table = write_csv(tmp_path / "chosen.csv", chosen)
    cli("tiles", "add", "two-hospitals", "--manifest", table, "--root", pack)
    cli("embed", "--family", "classical", "--tileset", "two-hospitals")
    refused = cli("score", "--benchmark", "two-hospitals", "--m", "5", exits=3)
    assert "no CRoMa at m = 5" in refused.stderr
    cli("score", "--benchmark", "two-hospitals", "--m", "4")
    scores = read(volume.metrics("median-k", "two-hospitals") / "metrics.csv")
    assert {row["encoder"] for row in scores} == {
        *("ColourStatistics", "GaborEnergy", "HaematoxylinTexture", "Thumbnail"),
    }
    for row in scores:
        assert -2 <= float(row["croma_median"]) <= 2
        assert float(row["croma_ltm10"]) <= float(row["croma_median"])
        assert 0 <= float(row["croma_f0"]) <= 1
        assert (row["m"], row["is_control"], row["device"]) == ("4", "true", "cpu")
    assert len(cli("verify", "artifacts").stdout.splitlines()) == 4


def test_the_thumbnail_of_a_real_tile_is_its_block_means(cli, volume, pack, rows, tmp_path: Path):
    """224 / 16 = 14: every entry is the mean of a block of 14 × 14 pixels, scaled from 0…255 to −1…1."""
    first = rows[:24]
    cli("tiles", "add", "few", "--manifest", write_csv(tmp_path / "few.csv", first), "--root", pack)
    cli("embed", "--encoders", "Thumbnail", "--tileset", "few", "--workers", "0")
    matrix = np.load(volume.matrix("few", "Thumbnail"))
    for vector, row in zip(matrix, first, strict=True):
        rgb = np.asarray(Image.open(pack / row["image_path"]).convert("RGB")).astype(np.float64)
        blocks = rgb.reshape(16, 14, 16, 14, 3).mean(axis=(1, 3)) / 127.5 - 1
        assert np.sort(vector) == pytest.approx(np.sort(blocks.ravel()), abs=1e-6)
    sidecar = json.loads(volume.sidecar("few", "Thumbnail").read_text())
    assert sidecar["extraction_contract"]["source_tile_size"] == ["224x224"]
