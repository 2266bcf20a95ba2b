"""`tiles phantom` and `tiles fetch`: a generated tileset, complete or repaired, never mixed."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest
from PIL import Image

from croma_bundle.durable import lock
from croma_bundle.tiles.phantom import PhantomSpec, phantom_rows, render

SMALL = ("--tile-size", "32", "--slides-per-cell", "1", "--tiles-per-slide", "2", "--seed", "5")
SPEC = PhantomSpec(seed=5, tile_size=32, slides_per_cell=1, tiles_per_slide=2)
COUNT = 3 * 3 * 1 * 2  # tissues, centres, slides, tiles


@pytest.fixture
def declared(cli, volume):
    """The volume with a small phantom `tiny` declared and not yet generated."""
    cli("tiles", "phantom", "tiny", *SMALL)
    return volume


def digest(rgb: np.ndarray) -> str:
    size = rgb.shape[1].to_bytes(4, "little") + rgb.shape[0].to_bytes(4, "little")
    return hashlib.sha256(size + rgb.tobytes()).hexdigest()


def contents(folder) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_phantom_of_one_s_own_is_declared_with_its_parameters_and_joins_the_lists(cli, volume):
    said = cli("tiles", "phantom", "tiny", *SMALL, "--centre-strength", "0.5").stdout
    assert said == "tileset tiny is declared; next: croma-bundle tiles fetch tiny\n"
    assert tomllib.loads(volume.tileset_declaration("tiny").read_text()) == {
        "source": "phantom",
        "confounder": "medical_center",
        "phantom": {
            "seed": 5, "tile_size": 32, "slides_per_cell": 1, "tiles_per_slide": 2, "centre_strength": 0.5
        },
    }  # fmt: skip
    assert "tiny" in cli("list", "tilesets").stdout
    assert "tiny" in cli("list", "benchmarks").stdout


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fetched_phantom_holds_the_rendered_pixels_of_every_row_in_order(cli, volume, declared, workers):
    said = cli("tiles", "fetch", "tiny", "--workers", workers)
    assert said.stdout == f"tileset tiny: {COUNT} tiles in {volume.tileset('tiny')}\n"
    header, *lines = declared.tile_manifest("tiny").read_text().splitlines()
    assert header == "sample_id,image_path,label,medical_center,group_id"
    rows = phantom_rows(SPEC)
    assert len(rows) == COUNT
    assert lines == [f"{t.sample_id},source/{t.sample_id}.png,{t.label},{t.medical_center},{t.group_id}" for t in rows]
    record = json.loads(declared.pixels("tiny").read_text())
    for row, stored in zip(rows, record["rows"], strict=True):
        rgb = np.asarray(Image.open(declared.tile_source("tiny") / f"{row.sample_id}.png"))
        np.testing.assert_array_equal(rgb, render(SPEC, row))
        assert stored == digest(rgb)
    assert record["sizes"] == {"32x32": COUNT}


def test_fetching_again_says_that_all_is_there_and_writes_nothing(cli, declared):
    cli("tiles", "fetch", "tiny", "--workers", 0)
    before = {p: p.stat().st_mtime_ns for p in declared.tileset("tiny").rglob("*")}
    said = cli("tiles", "fetch", "tiny", "--workers", 0)
    assert said.stderr == f"tileset tiny: {COUNT} tiles are there\n"
    assert {p: p.stat().st_mtime_ns for p in declared.tileset("tiny").rglob("*")} == before


def test_a_tile_that_was_deleted_is_made_again_and_said(cli, declared):
    cli("tiles", "fetch", "tiny", "--workers", 0)
    before = contents(declared.tileset("tiny"))
    for path in sorted(declared.tile_source("tiny").iterdir())[:2]:
        path.unlink()
    said = cli("tiles", "fetch", "tiny", "--workers", 0).stderr
    assert said == f"warning: tileset tiny: 2 of {COUNT} tiles are gone and are rendered again\n"
    assert contents(declared.tileset("tiny")) == before


def test_a_fetch_killed_in_the_midst_is_not_complete_and_is_repaired(cli, volume):
    cli("tiles", "phantom", "tiny", "--tile-size", "32", "--slides-per-cell", "1", "--tiles-per-slide", "4")
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(volume.root), "tiles", "fetch", "tiny"]
    run = subprocess.Popen([*command, "--workers", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(volume.tile_source("tiny").glob("*.png")) and run.poll() is None:
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, "it was killed in the midst"
    assert not volume.pixels("tiny").exists()
    assert "not complete" in cli("status").stdout
    time.sleep(1.5)  # the workers have noticed by now
    (volume.tile_source("tiny") / ".half.png.0badcafe.tmp").write_bytes(b"half")
    cli("tiles", "fetch", "tiny", "--workers", 2)
    tiles = phantom_rows(PhantomSpec(tile_size=32, slides_per_cell=1, tiles_per_slide=4))
    names = {f"source/{tile.sample_id}.png" for tile in tiles} | {"manifest.csv", "pixels.json", "tileset.toml"}
    assert set(contents(volume.tileset("tiny"))) == names, "no temporary is left"
    stored = json.loads(volume.pixels("tiny").read_text())["rows"]
    for tile, row in zip(tiles, stored, strict=True):
        assert row == digest(np.asarray(Image.open(volume.tile_source("tiny") / f"{tile.sample_id}.png")))
    assert stored[7] == digest(render(PhantomSpec(tile_size=32, slides_per_cell=1, tiles_per_slide=4), tiles[7]))


def test_a_changed_declaration_is_refused_with_both_sides_and_nothing_is_overwritten(cli, declared):
    cli("tiles", "fetch", "tiny", "--workers", 0)
    before = contents(declared.tile_source("tiny"))
    path = declared.tileset_declaration("tiny")
    path.write_text(path.read_text().replace("seed = 5", "seed = 6"))
    said = cli("tiles", "fetch", "tiny", "--workers", 0, exits=5).stderr.splitlines()
    assert said[0] == "error: tileset tiny: the one on the volume was made from another declaration"
    assert "'seed': 6" in said[1]
    assert "wanted" in said[1]
    assert "'seed': 5" in said[2]
    assert "found" in said[2]
    assert contents(declared.tile_source("tiny")) == before


def test_two_fetches_at_once_do_not_mix(cli, declared):
    with lock(declared.tileset_lock("tiny"), "tileset tiny"):
        said = cli("tiles", "fetch", "tiny", "--workers", 0, exits=4).stderr
    assert said.startswith("error: tileset tiny: another run is at work on it\n")
    assert not declared.tile_manifest("tiny").exists()


def test_a_taken_name_is_refused_with_the_file_that_took_it(cli, declared):
    before = declared.tileset_declaration("tiny").read_bytes()
    said = cli("tiles", "phantom", "tiny", exits=2).stderr
    assert "tileset tiny: the name is taken" in said
    assert str(declared.tileset_declaration("tiny")) in said
    assert "tilesets/phantom.toml" in cli("tiles", "phantom", "phantom", exits=2).stderr
    assert declared.tileset_declaration("tiny").read_bytes() == before


def test_all_parameters_that_cannot_be_used_are_told_at_once_and_nothing_is_declared(cli, volume):
    said = cli("tiles", "phantom", "bad", "--tile-size", "100", "--centre-strength", "nan", exits=3).stderr
    assert said.count("error: phantom: ") == 2
    assert "tile_size cannot be used" in said
    assert "a multiple of 16" in said
    assert "centre_strength cannot be used" in said
    assert not volume.tilesets.exists()


def test_a_mistyped_tileset_is_told_the_nearest_one(cli):
    said = cli("tiles", "fetch", "phantm", exits=3).stderr
    assert said.startswith("error: tileset 'phantm': it is not declared; did you mean 'phantom'?")


def test_fetching_a_folder_tileset_confirms_its_rows(cli, volume, tmp_path):
    from builders import folder_cohort

    cohort = folder_cohort(tmp_path / "tiles", slides=1, tiles=1, size=8)
    cli("tiles", "add", "mine", "--manifest", cohort.csv, "--workers", 0)
    assert cli("tiles", "fetch", "mine").stdout == f"tileset mine: 4 tiles in {volume.tileset('mine')}\n"
