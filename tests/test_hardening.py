"""Files that change behind our back, closed streams, folders that may not be read: refused or told, by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from builders import cohort_rows, folder_cohort, write_csv

ROOT = Path(__file__).resolve().parents[1]


def bare(cli, folder: Path, name: str = "c", **extra: str) -> list[dict[str, str]]:
    """A tileset without images and an imported encoder `A`."""
    rows = [{**row, **extra} for row in cohort_rows(slides=4)]
    cli("tiles", "add", name, "--manifest", write_csv(folder / f"{name}.csv", rows), "--no-images")
    np.save(folder / "a.npy", np.random.default_rng(0).normal(size=(len(rows), 6)).astype(np.float32))
    cli("import", name, "A", folder / "a.npy", "--provenance", "random")
    return rows


@pytest.mark.parametrize("command", [("score",), ("verify", "artifacts")])
def test_an_edited_extra_column_of_a_frozen_manifest_is_refused(cli, volume, tmp_path, command):
    bare(cli, tmp_path, scanner="S1")
    path = volume.tile_manifest("c")
    path.write_text(path.read_text().replace("S1", "S2", 1))
    done = cli(*command, exits=5)
    assert "error: tileset c: its manifest.csv changed after it was added" in done.stderr


def test_edited_occurrences_of_a_paired_tileset_are_refused(cli, volume, tmp_path):
    rows = [{**row, "subset": "s"} for row in cohort_rows(slides=4)]
    csv = write_csv(tmp_path / "p.csv", rows)
    cli("tiles", "add", "p", "--manifest", csv, "--no-images", "--design", "paired_2x2")
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(len(rows), 6)).astype(np.float32))
    cli("import", "p", "A", tmp_path / "a.npy", "--provenance", "random")
    cli("score")
    path = volume.occurrences("p")
    path.write_text(path.read_text().replace(",s\n", ",t\n", 1))
    assert "its occurrences.csv changed after it was added" in cli("score", exits=5).stderr


def test_an_import_under_the_name_of_a_classical_control_stays_a_control_without_a_vote(cli, volume, tmp_path):
    bare(cli, tmp_path)
    rows = len(np.load(tmp_path / "a.npy"))
    np.save(tmp_path / "b.npy", np.random.default_rng(1).normal(size=(rows, 6)).astype(np.float32))
    cli("import", "c", "GaborEnergy", tmp_path / "b.npy", "--provenance", "random")
    cli("score")
    run = json.loads((volume.metrics("median-k", "c") / "run.json").read_text())
    assert run["resolved"]["k_panel"] == ["A"]
    table = (volume.metrics("median-k", "c") / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[1:4] for line in table[1:]] == [["A", "false", "true"], ["GaborEnergy", "true", "true"]]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("folder", ["embeddings/c", "tilesets/c"])
def test_a_folder_that_may_not_be_read_is_an_error_and_not_an_empty_one(cli, volume, tmp_path, folder):
    bare(cli, tmp_path)
    for path in (volume.root, *volume.root.rglob("*"), *volume.root.parents):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    (volume.root / folder).chmod(0o700)
    program = (
        "import os, sys; os.setgid(12345); os.setuid(12345); from croma_bundle.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, "--volume", str(volume.root), "verify", "artifacts"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip("the other user cannot read this Python's packages")
    assert done.returncode == 4, done.stderr
    assert f"({volume.root / folder})" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_changes_no_exit_code(volume, closed):
    command = f"{sys.executable} -m croma_bundle --volume '{volume.root}' list encoders {closed}"
    assert subprocess.run(["bash", "-c", command]).returncode == 0


def test_a_full_disk_under_stdout_is_exit_4_in_both_languages(volume):
    for option in ("", "--json"):
        command = f"{sys.executable} -m croma_bundle --volume '{volume.root}' {option} list encoders >/dev/full"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert done.returncode == 4
        assert "Traceback" not in done.stderr


def test_a_deeply_nested_sidecar_is_damaged_and_no_crash(cli, volume, tmp_path):
    bare(cli, tmp_path)
    volume.sidecar("c", "A").write_text("[" * 200_000)
    assert "its sidecar is damaged" in cli("verify", "artifacts", exits=5).stderr


def test_a_provenance_that_is_not_utf8_is_a_usage_error_and_leaves_nothing(volume, cli, tmp_path):
    bare(cli, tmp_path)
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(volume.root), "import", "c", "P"]
    done = subprocess.run(
        [*command, str(tmp_path / "a.npy"), "--provenance", b"caf\xe9"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--provenance: it is not UTF-8 text" in done.stderr
    assert not volume.work("c", "P").exists()


def test_a_k_max_beyond_all_rows_is_cut_at_the_rows(cli, volume, tmp_path):
    bare(cli, tmp_path)
    cli("score", "--k-grid", "dense", "--k-max", "3000000000")
    run = json.loads((volume.metrics("median-k", "c") / "run.json").read_text())
    rows = run["resolved"]["n_rows"]
    assert run["resolved"]["usable_k"] == list(range(1, rows))


def test_names_that_look_alike_are_warned_about(cli, tmp_path):
    rows = cohort_rows()
    rows[0]["medical_center"], rows[-1]["medical_center"] = "Z\u00fcrich", "Zu\u0308rich"
    done = cli("tiles", "add", "c", "--manifest", write_csv(tmp_path / "c.csv", rows), "--no-images")
    assert r"'Z\xfcrich' look alike" in done.stderr


def test_export_view_never_writes_over_the_volume(cli, volume, tmp_path):
    bare(cli, tmp_path)
    before = volume.tile_manifest("c").read_bytes()
    done = cli("tiles", "export-view", "c", "--output", volume.tile_manifest("c"), exits=2)
    assert "it lies among the volume's own files" in done.stderr
    assert volume.tile_manifest("c").read_bytes() == before


def test_a_lost_pixel_record_of_a_folder_is_made_again_by_fetch(cli, volume, tmp_path):
    cohort = folder_cohort(tmp_path / "tiles")
    cli("tiles", "add", "f", "--manifest", cohort.csv)
    before = volume.pixels("f").read_bytes()
    volume.pixels("f").unlink()
    cli("tiles", "fetch", "f")
    assert json.loads(volume.pixels("f").read_bytes())["rows"] == json.loads(before)["rows"]


def test_make_refuses_to_erase_a_folder_that_is_no_venv(tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("here")
    done = subprocess.run(["make", "status", f"VENV={tmp_path}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is no virtual environment; it would be erased" in done.stderr
    assert precious.read_text() == "here"


@pytest.mark.parametrize(("interpreter", "made_again"), [("/bin/sh", False), ("/no/such/python3.11", True)])
def test_make_makes_a_venv_again_whose_python_is_gone(tmp_path, interpreter, made_again):
    """An upgrade took its Python away, or it was moved with its checkout. (`make -n` only shows what it would do.)"""
    (tmp_path / "pyvenv.cfg").touch()
    command = tmp_path / "bin" / "croma-bundle"
    command.parent.mkdir()
    command.write_text(f"#!{interpreter}\n")
    command.chmod(0o755)
    done = subprocess.run(["make", "-n", "status", f"VENV={tmp_path}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert ("-m venv --clear" in done.stdout) is made_again


def test_make_results_keeps_what_is_there_when_nothing_is_scored(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    (results / "metrics.csv").write_text("kept")
    venv = Path(sys.prefix)
    arguments = [f"RESULTS={results}", f"CROMA_VOLUME={tmp_path / 'volume'}", f"VENV={venv}"]
    done = subprocess.run(
        ["make", "-o", f"{venv}/bin/croma-bundle", "results", *arguments], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 2
    assert (results / "metrics.csv").read_text() == "kept"


def test_force_0_does_not_force():
    done = subprocess.run(["make", "-n", "embed", "FORCE=0"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--force" not in done.stdout
