"""`tiles add`: a user's CSV and image folder become a tileset and a benchmark; nothing half-done counts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders import folder_cohort, write_csv
from croma_bundle.durable import lock
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.manifest import load_manifest
from croma_bundle.tiles.folder import add_folder
from croma_bundle.tiles.tileset import tile_paths


@pytest.fixture
def cohort(tmp_path):
    """Four tiles: two labels at two centres."""
    return folder_cohort(tmp_path / "tiles", slides=1, tiles=1, size=16)


def listing(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def pixels_of(cohort) -> list[str]:
    """The row digests, by hashlib over the definition."""
    digests = []
    for row in cohort.rows:
        rgb = np.asarray(Image.open(cohort.root / row["image_path"]))
        size = rgb.shape[1].to_bytes(4, "little") + rgb.shape[0].to_bytes(4, "little")
        digests.append(hashlib.sha256(size + rgb.tobytes()).hexdigest())
    return digests


def test_a_cohort_becomes_a_manifest_a_pixel_record_and_a_declaration(cli, volume, cohort):
    before = {path: path.read_bytes() for path in cohort.root.iterdir()}
    said = cli("tiles", "add", "mine", "--manifest", cohort.csv, "--workers", 2)
    first, *cells, verdict, where = said.stdout.splitlines()
    assert first == "tileset mine: 4 tiles of 4 groups, confounder medical_center, design all"
    assert [line.split() for line in cells[1:]] == [
        [label, "1", "/", "1", "1", "/", "1"] for label in ("normal", "tumour")
    ]
    assert verdict.strip().endswith("score with --m 1.")
    assert where == f"  in {volume.tileset('mine')}; next: make embed FAMILY=classical TILESET=mine"
    assert listing(volume.tileset("mine")) == ["manifest.csv", "pixels.json", "report.png", "tileset.toml"]
    assert volume.tile_manifest("mine").read_text() == cohort.csv.read_text()
    record = json.loads(volume.pixels("mine").read_text())
    assert record["rows"] == pixels_of(cohort)
    assert record["pixels_sha256"] == hashlib.sha256(bytes.fromhex("".join(record["rows"]))).hexdigest()
    assert record["sizes"] == {"16x16": 4}
    declared = tomllib.loads(volume.tileset_declaration("mine").read_text())
    assert declared == {
        "source": "folder",
        "confounder": "medical_center",
        "design": "all",
        "root": str(cohort.root),
        "images": True,
        "manifest_sha256": hashlib.sha256(cohort.csv.read_bytes()).hexdigest(),
    }
    assert {path: path.read_bytes() for path in cohort.root.iterdir()} == before, "a user's folder is only read"
    assert "mine" in cli("list", "benchmarks").stdout


@pytest.mark.parametrize("workers", [0, 3])
def test_the_pixel_record_does_not_depend_on_the_number_of_workers(cli, volume, cohort, workers):
    cli("tiles", "add", "mine", "--manifest", cohort.csv, "--workers", workers)
    assert json.loads(volume.pixels("mine").read_text())["rows"] == pixels_of(cohort)


def test_the_root_may_lie_elsewhere_and_is_declared_absolute(cli, volume, cohort, tmp_path, monkeypatch):
    path = shutil.move(cohort.csv, tmp_path / "cohort.csv")
    monkeypatch.chdir(tmp_path)
    cli("tiles", "add", "mine", "--manifest", path, "--root", "tiles", "--workers", 0)
    assert tomllib.loads(volume.tileset_declaration("mine").read_text())["root"] == str(cohort.root)


def test_a_root_that_is_not_there_is_refused_and_nothing_is_written(cli, volume, cohort, tmp_path):
    said = cli("tiles", "add", "mine", "--manifest", cohort.csv, "--root", tmp_path / "nowhere", exits=3).stderr
    assert said.splitlines() == [
        f"error: --root {tmp_path / 'nowhere'}: there is no such folder",
        "  wanted   the folder that image_path starts from",
    ]
    assert listing(volume.tilesets) == []


def test_a_csv_that_is_not_there_is_refused(cli, tmp_path):
    said = cli("tiles", "add", "mine", "--manifest", tmp_path / "absent.csv", exits=3).stderr
    assert said == f"error: {tmp_path / 'absent.csv'}: it cannot be read (No such file or directory)\n"


def test_every_bad_tile_is_named_and_nothing_is_declared(cli, volume, cohort):
    names = [row["image_path"] for row in cohort.rows]
    (cohort.root / names[0]).unlink()
    (cohort.root / names[2]).write_bytes(b"")
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(cohort.root / names[3])
    said = cli("tiles", "add", "mine", "--manifest", cohort.csv, "--workers", 2, exits=3).stderr
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert errors == [
        f"error: {cohort.root / names[0]}: there is no such file",
        f"error: {cohort.root / names[2]}: this is not an image",
        f"error: {cohort.root / names[3]}: it has 16 bits per channel (mode I;16)",
    ]
    assert names[1] not in said
    assert not volume.tileset_declaration("mine").exists()
    assert "mine" not in cli("list", "tilesets").stdout


def test_after_a_failure_the_same_name_can_be_added(cli, volume, cohort):
    bad = cohort.root / cohort.rows[1]["image_path"]
    good = bad.read_bytes()
    bad.write_bytes(good[:40])
    cli("tiles", "add", "mine", "--manifest", cohort.csv, "--workers", 0, exits=3)
    bad.write_bytes(good)
    cli("tiles", "add", "mine", "--manifest", cohort.csv, "--workers", 0)
    assert json.loads(volume.pixels("mine").read_text())["rows"] == pixels_of(cohort)


def test_nothing_of_an_earlier_attempt_of_another_design_stays(cli, volume, cohort):
    paired = [{**row, "subset": "s1"} for row in cohort.rows]
    paired[0]["image_path"] = "absent.png"
    path = write_csv(cohort.root / "paired.csv", paired)
    cli("tiles", "add", "mine", "--manifest", path, "--design", "paired_2x2", "--workers", 0, exits=3)
    volume.pixels("mine").write_text("{}")
    (volume.tileset("mine") / ".manifest.csv.0badcafe.tmp").write_text("half")
    cli("tiles", "add", "mine", "--manifest", cohort.csv, "--no-images")
    assert listing(volume.tileset("mine")) == ["manifest.csv", "tileset.toml"]


def test_an_add_killed_while_hashing_leaves_nothing_declared_and_can_be_repeated(cli, volume, tmp_path):
    cohort = folder_cohort(tmp_path / "tiles", slides=2, tiles=3, size=16)
    slow = cohort.root / cohort.rows[-1]["image_path"]
    rgb = np.random.default_rng(0).integers(0, 256, (3000, 3000, 3), dtype=np.uint8)
    small = slow.read_bytes()
    Image.fromarray(rgb).save(slow, compress_level=0)
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(volume.root), "tiles", "add", "mine"]
    command += ["--manifest", str(cohort.csv), "--workers", "0"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not volume.tile_manifest("mine").exists() and run.poll() is None:
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, "it was killed in the midst"
    assert not volume.tileset_declaration("mine").exists()
    assert "mine" not in cli("list", "tilesets").stdout
    slow.write_bytes(small)
    cli("tiles", "add", "mine", "--manifest", cohort.csv, "--workers", 0)
    assert listing(volume.tileset("mine")) == ["manifest.csv", "pixels.json", "report.png", "tileset.toml"]
    assert json.loads(volume.pixels("mine").read_text())["rows"] == pixels_of(cohort)


def test_a_second_add_of_the_name_at_the_same_time_is_refused_with_the_holder(cli, volume, cohort):
    with lock(volume.tileset_lock("mine"), "tileset mine"):
        said = cli("tiles", "add", "mine", "--manifest", cohort.csv, "--workers", 0, exits=4).stderr
    assert said.startswith("error: tileset mine: another run is at work on it\n")
    assert f"uid {os.getuid()} on " in said


@pytest.mark.parametrize("name", ["mine", "phantom"])
def test_a_taken_name_is_refused_with_the_file_that_took_it_and_nothing_changes(cli, volume, cohort, name):
    cli("tiles", "add", "mine", "--manifest", cohort.csv, "--workers", 0)
    before = {path: path.read_bytes() for path in volume.tilesets.rglob("*") if path.is_file()}
    said = cli("tiles", "add", name, "--manifest", cohort.csv, "--workers", 0, exits=2).stderr
    lines = said.splitlines()
    assert lines[0] == f"error: tileset {name}: the name is taken, and a tileset is frozen once written"
    assert lines[1].split()[0] == "declared"
    assert lines[1].endswith({"mine": "mine/tileset.toml", "phantom": "tilesets/phantom.toml"}[name])
    assert {path: path.read_bytes() for path in volume.tilesets.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["../mine", "mine@scanner"])
def test_an_impossible_name_is_refused(cli, volume, cohort, name):
    said = cli("tiles", "add", name, "--manifest", cohort.csv, exits=2).stderr
    assert said.startswith(f"error: tileset {name!r}: this name cannot be used\n")
    assert listing(volume.root) == []


def test_faults_of_the_csv_come_by_line_before_any_tile_is_read(cli, volume, cohort):
    rows = [dict(row) for row in cohort.rows]
    rows[1]["label"] = ""
    rows[2]["image_path"] = "../outside.png"
    path = write_csv(cohort.root / "bad.csv", rows)
    said = cli("tiles", "add", "mine", "--manifest", path, "--workers", 0, exits=3).stderr
    assert said.splitlines() == [
        f"error: {path}: 2 faults",
        "  line 3: label is blank",
        "  line 4: image_path '../outside.png' leads outside the root; make it relative to --root",
    ]
    assert listing(volume.tilesets) == []


def test_another_confounder_column_is_asked_for_by_name(cli, volume, cohort):
    rows = [{**row, "scanner": "S1"} for row in cohort.rows]
    path = write_csv(cohort.root / "scanner.csv", rows)
    cli("tiles", "add", "mine", "--manifest", path, "--confounder", "scanner", "--workers", 0)
    assert tomllib.loads(volume.tileset_declaration("mine").read_text())["confounder"] == "scanner"
    said = cli("tiles", "add", "other", "--manifest", path, "--confounder", "scaner", "--workers", 0, exits=3).stderr
    assert "column 'scaner' is missing; did you mean 'scanner'?" in said


def test_a_paired_cohort_keeps_each_tile_once_and_all_occurrences(cli, volume, cohort):
    rows = [{**row, "subset": subset} for subset in ("s1", "s2") for row in reversed(cohort.rows)]
    path = write_csv(cohort.root / "paired.csv", rows)
    cli("tiles", "add", "mine", "--manifest", path, "--design", "paired_2x2", "--workers", 0)
    ids = [row["sample_id"] for row in reversed(cohort.rows)]
    manifest = volume.tile_manifest("mine").read_text().splitlines()
    assert [line.split(",")[0] for line in manifest] == ["sample_id", *ids]
    occurrences = volume.occurrences("mine").read_text().splitlines()
    assert occurrences == ["sample_id,subset", *(f"{i},{s}" for s in ("s1", "s2") for i in ids)]
    assert json.loads(volume.pixels("mine").read_text())["rows"] == pixels_of(cohort)[::-1]


def test_a_cohort_without_images_needs_neither_image_path_nor_folder(cli, volume, cohort, tmp_path):
    rows = [{k: v for k, v in row.items() if k != "image_path"} for row in cohort.rows]
    path = write_csv(tmp_path / "elsewhere" / "cohort.csv", rows)
    cli("tiles", "add", "mine", "--manifest", path, "--no-images")
    assert listing(volume.tileset("mine")) == ["manifest.csv", "tileset.toml"]
    declared = tomllib.loads(volume.tileset_declaration("mine").read_text())
    assert (declared["images"], "root" in declared) == (False, False)
    first = volume.tile_manifest("mine").read_text().splitlines()[1].split(",")
    assert first[0] == first[1] == rows[0]["sample_id"]


def test_case_twins_and_orientations_are_warned_about_and_added(cli, volume, cohort):
    rows = [dict(row) for row in cohort.rows]
    rows[0]["label"] = "NORMAL"
    exif = Image.Exif()
    exif[274] = 8
    Image.open(cohort.root / rows[1]["image_path"]).save(cohort.root / rows[1]["image_path"], exif=exif)
    path = write_csv(cohort.root / "case.csv", rows)
    said = cli("tiles", "add", "mine", "--manifest", path, "--workers", 0).stderr
    assert [line for line in said.splitlines() if line.startswith("warning")] == [
        "warning: label: 'NORMAL' and 'normal' look alike (case, composition or invisible characters) "
        "and are kept apart",
        "warning: tileset mine: the EXIF orientation of 1 tiles was ignored",
    ]


ODD = [
    "with space",
    "ünïcode ✓ 組織",
    "quote'\"s",
    "#hash%41&x=1",
    "[glob]*?",
    "back\\slash",
    "$HOME",
    "-dash",
    "tab\there",
]


@pytest.mark.parametrize("odd", ODD)
def test_odd_names_of_folders_files_and_volumes_are_names_like_any_other(tmp_path, odd):
    cohort = folder_cohort(tmp_path / odd / "tiles", slides=1, tiles=1, size=8)
    rows = [{**row, "image_path": f"{odd}/{row['image_path']}"} for row in cohort.rows]
    (cohort.root / odd).mkdir()
    for row in cohort.rows:
        shutil.move(cohort.root / row["image_path"], cohort.root / odd / row["image_path"])
    path = write_csv(cohort.root / f"{odd}.csv", rows)
    volume = Volume(tmp_path / odd / "volume")
    how = {"confounder": "medical_center", "design": "all", "images": True, "workers": 0, "reporter": Reporter()}
    add_folder(volume, load_catalogue(volume), "mine", path, root=None, **how)
    entry = load_catalogue(volume).tileset("mine")
    assert entry.root == str(cohort.root)
    paths = tile_paths(volume, entry, load_manifest(volume, entry))
    assert paths == [cohort.root / row["image_path"] for row in rows]
    assert all(path.is_file() for path in paths)


def test_a_relative_volume_is_taken_from_where_the_command_runs(tmp_path, cohort):
    command = [sys.executable, "-m", "croma_bundle", "--volume", "data/vol"]
    add = ["tiles", "add", "mine", "--manifest", "tiles/cohort.csv", "--workers", "0"]
    done = subprocess.run([*command, *add], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    declared = tomllib.loads((tmp_path / "data" / "vol" / "tilesets" / "mine" / "tileset.toml").read_text())
    assert declared["root"] == str(tmp_path / "tiles"), "absolute, wherever the next command runs"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_folder_whose_name_is_not_utf8_is_refused_in_words(tmp_path, as_json):
    root = os.fsencode(tmp_path) + b"/t\xfc"
    Path(os.fsdecode(root)).mkdir()
    shutil.copy(write_csv(tmp_path / "c.csv", folder_cohort(tmp_path / "x", slides=1, tiles=1).rows), root + b"/c.csv")
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(tmp_path / "v"), *(["--json"] if as_json else [])]
    done = subprocess.run(
        [*command, "tiles", "add", "mine", "--manifest", root + b"/c.csv"], capture_output=True, text=True
    )
    said = json.loads(done.stdout)["text"] if as_json else done.stderr
    assert done.returncode == 3, done.stderr
    assert "the path is not UTF-8 and cannot be declared" in said
    assert "Traceback" not in done.stderr
