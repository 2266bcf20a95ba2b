"""`verify run`: a scored folder, scored again from the matrices; what differs is named, inputs first."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imported_cohort import NAME, add_matrix, matrix, mini_volume, score_mini

from croma_bundle.errors import ArtifactError, BundleError, InputError, VerdictFailed
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.progress import Reporter
from croma_bundle.verification.rerun import verify_run

M = 3


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Volume:
    """The cohort, scored at m = 3."""
    folder = tmp_path_factory.mktemp("run")
    volume = mini_volume(Volume(folder / "volume"), folder)
    score_mini(volume, m=M)
    return volume


@pytest.fixture
def copied(original: Volume, volume: Volume) -> Volume:
    """The same, on the volume of the `cli` fixture."""
    shutil.copytree(original.root, volume.root, dirs_exist_ok=True)
    return volume


@pytest.fixture
def theirs(original: Volume, tmp_path: Path) -> Path:
    """Someone else's folder of the run, which may be changed."""
    return Path(shutil.copytree(original.metrics("median-k", NAME), tmp_path / "theirs"))


def verify(volume: Volume, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a folder that holds."""
    capsys.readouterr()
    verify_run(volume, load_catalogue(volume), folder, Reporter())
    return capsys.readouterr().out


def refused(volume: Volume, folder: Path, kind: type[BundleError]) -> str:
    with pytest.raises(kind) as caught:
        verify_run(volume, load_catalogue(volume), folder, Reporter())
    return caught.value.paragraph()


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "run.json"
    run = json.loads(path.read_text(encoding="utf-8"))
    change(run)
    path.write_text(json.dumps(run), encoding="utf-8")


def tamper(folder: Path, name: str, column: str, value: str, *, hide: bool = False) -> None:
    """Change the first row's cell; with `hide`, put the new hash into run.json too."""
    path = folder / (f"{name}.gz" if name.startswith("per_sample/") else name)
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = content.decode().split("\n")
    cells = lines[1].split(",")
    cells[lines[0].split(",").index(column)] = value
    changed = "\n".join([lines[0], ",".join(cells), *lines[2:]]).encode()
    path.write_bytes(gzip.compress(changed) if path.suffix == ".gz" else changed)
    if hide:
        edit(folder, lambda run: run["outputs"].update({name: hashlib.sha256(changed).hexdigest()}))


def tables(folder: Path) -> int:
    return len(json.loads((folder / "run.json").read_text(encoding="utf-8"))["outputs"])


# --- equal ---


def test_a_run_of_this_volume_is_equal_byte_for_byte(cli, copied: Volume, theirs: Path) -> None:
    done = cli("verify", "run", theirs)
    assert done.stdout == f"equal: {tables(theirs)} tables of mini · median-k scored again, byte for byte\n"


def test_it_writes_nothing_to_the_volume(original: Volume, theirs: Path, capsys) -> None:
    before = {p: p.stat().st_mtime_ns for p in original.root.rglob("*")}
    verify(original, theirs, capsys)
    assert {p: p.stat().st_mtime_ns for p in original.root.rglob("*")} == before


@pytest.mark.parametrize(
    "knobs",
    [
        {"m": 1, "k": 5},
        {"m": 2, "tau": 0.1},
        {"m": M, "protocol": "k-star"},
        {"m": M, "k_grid": "dense", "k_max": 8},
        {"m": M, "encoders": ["Tissue", "Mixed"]},
        {"m": M, "confounder": "scanner"},
        {"m": M, "seed": 3},
    ],
    ids=str,
)
def test_a_run_is_repeated_with_the_knobs_it_recorded(copied: Volume, knobs, capsys) -> None:
    folder = score_mini(copied, **knobs)
    assert verify(copied, folder, capsys).endswith("byte for byte\n")


def test_an_encoder_that_joined_later_changes_nothing(copied: Volume, theirs: Path, tmp_path: Path, capsys) -> None:
    add_matrix(copied, tmp_path, "Later", np.random.default_rng(5).normal(size=(48, 4)).astype(np.float32))
    assert "byte for byte" in verify(copied, theirs, capsys)


def test_another_version_that_computes_the_same_is_told(original: Volume, theirs: Path, capsys) -> None:
    edit(theirs, lambda run: run["versions"].update(numpy="1.0", bundle={"version": "0.0.9", "git_commit": "ab" * 20}))
    told = verify(original, theirs, capsys).splitlines()[1]
    assert "made with croma-bundle 0.0.9 (abababababab)" in told
    assert "numpy 1.0; here croma-bundle" in told


def test_last_bits_of_a_number_may_differ_and_are_told(original: Volume, theirs: Path, capsys) -> None:
    path = theirs / "metrics.csv"
    cell = path.read_text().splitlines()[1].split(",")[path.read_text().split("\n")[0].split(",").index("ri")]
    tamper(theirs, "metrics.csv", "ri", repr(float(cell) + 5e-10), hide=True)
    assert "numbers within 1e-09; other bytes in metrics.csv" in verify(original, theirs, capsys)


def test_where_croma_was_undefined_it_is_so_again(copied: Volume, tmp_path: Path, capsys) -> None:
    """m = 20 is more than the 12 candidates of a type that a row has."""
    with pytest.raises(BundleError):
        score_mini(copied, m=20)
    assert "byte for byte" in verify(copied, copied.metrics("median-k", NAME), capsys)


# --- tables that do not follow ---


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize(
    ("name", "column", "row"),
    [
        ("metrics.csv", "croma_median", "mini, Centre"),
        ("k_sweep.csv", "ri", "mini, Centre"),
        ("per_sample/Mixed.csv", "croma_m2", "0, normal-east-0-0"),
    ],
)
def test_a_tampered_number_is_found_by_its_place(original, theirs, name, column, row, hide) -> None:
    tamper(theirs, name, column, "0.987", hide=hide)
    text = refused(original, theirs, VerdictFailed)
    assert text.startswith(f"{theirs}: its tables do not follow from the matrices with its knobs: one difference\n")
    assert f"{name} row 1 ({row}), {column}: 0.987, wanted " in text
    assert (f"Not the tables that its own run.json states: {name}." in text) is not hide


def test_a_tampered_name_or_json_is_found_too(original: Volume, theirs: Path) -> None:
    tamper(theirs, "metrics.csv", "generation", "croma-1.0.1", hide=True)
    assert "generation: croma-1.0.1, wanted empty" in refused(original, theirs, VerdictFailed)
    path = theirs / "metrics.json"
    table = json.loads(path.read_text())
    table["rows"][0]["mari"] = 0.987
    path.write_text(json.dumps(table))
    assert "metrics.json row 1 (mini, Centre), mari: 0.987, wanted" in refused(original, theirs, VerdictFailed)


def test_a_table_that_is_missing_damaged_or_unknown_is_a_difference(original: Volume, theirs: Path) -> None:
    (theirs / "m_sweep.csv").unlink()
    (theirs / "metrics.json").write_text("{")
    (theirs / "per_sample/Mixed.csv.gz").write_bytes(b"x")
    edit(theirs, lambda run: run["outputs"].update({"more.csv": "0" * 64}))
    edit(theirs, lambda run: run["outputs"].pop("k_sweep.csv"))
    text = refused(original, theirs, VerdictFailed)
    assert "5 differences" in text
    assert f"m_sweep.csv: it is missing in {theirs}" in text
    assert "metrics.json: this table cannot be read" in text
    assert "per_sample/Mixed.csv: this table is empty" in text
    assert "more.csv: scoring it again makes no such table" in text
    assert "run.json states no k_sweep.csv" in text


def test_other_knobs_than_were_used_are_found_in_what_they_decide(original: Volume, theirs: Path) -> None:
    edit(theirs, lambda run: run["replay"].update(m=1))
    text = refused(original, theirs, VerdictFailed)
    assert "metrics.csv row 1 (mini, Centre), m: 3, wanted 1" in text
    assert "its own run.json" not in text


def test_derived_facts_of_run_json_are_checked(original: Volume, theirs: Path) -> None:
    edit(theirs, lambda run: run["resolved"].update(k_panel=["Somebody"]))
    text = refused(original, theirs, VerdictFailed)
    assert "one difference" in text
    assert "run.json resolved.k_panel: ['Somebody'], wanted [" in text


def test_right_numbers_in_files_that_run_json_does_not_state_are_an_artifact_error(original, theirs: Path) -> None:
    edit(theirs, lambda run: run["outputs"].update({"m_sweep.csv": "0" * 64}))
    text = refused(original, theirs, ArtifactError)
    assert "its numbers hold, but files are not those that its run.json states" in text
    assert "found    m_sweep.csv" in text


# --- inputs first ---


def test_a_changed_matrix_is_named_before_anything_is_scored(copied, theirs, tmp_path, monkeypatch) -> None:
    rows = [{"label": "tumour", "medical_center": "east"}] * 48
    add_matrix(copied, tmp_path, "Mixed", matrix("Mixed", rows, seed=9))
    monkeypatch.setattr("croma_bundle.verification.rerun.score_all", None)
    tamper(theirs, "metrics.csv", "ri", "0.987")
    text = refused(copied, theirs, ArtifactError)
    assert "this volume has other inputs than the run was scored from" in text
    recorded = json.loads((theirs / "run.json").read_text())["inputs"]["encoders"]["Mixed"]["matrix_sha256"]
    assert f"found    Mixed matrix_sha256: recorded {recorded[:12]}…, here " in text
    assert "Tissue" not in text
    assert f"{theirs} --tolerance" in text


def test_other_rows_are_named_before_anything_is_scored(original: Volume, theirs: Path) -> None:
    edit(theirs, lambda run: run["inputs"].update(manifest_sha256="0" * 64))
    assert "manifest_sha256: recorded 000000000000…, here " in refused(original, theirs, ArtifactError)


def test_other_evaluated_rows_are_named(original: Volume, theirs: Path) -> None:
    edit(theirs, lambda run: run["inputs"].update(view_sha256="0" * 64))
    text = refused(original, theirs, ArtifactError)
    assert "view_sha256: recorded 000000000000…, here " in text
    assert "manifest" not in text.split("found")[1].split("Copy")[0]


def test_a_matrix_that_flipped_a_bit_is_refused_as_damaged(copied: Volume, theirs: Path) -> None:
    path = copied.matrix(NAME, "Mixed")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleError) as caught:
        verify_run(copied, load_catalogue(copied), theirs, Reporter())
    assert "the matrix does not match its sidecar" in caught.value.paragraph()
    assert caught.value.exit_code == 5


def test_a_matrix_that_is_not_here_is_named(copied: Volume, theirs: Path) -> None:
    for path in (copied.matrix(NAME, "Mixed"), copied.sidecar(NAME, "Mixed")):
        path.unlink()
    text = refused(copied, theirs, InputError)
    assert text.startswith("mini · Mixed: the run was scored from this matrix, and it is not on this volume")


# --- folders that are no runs, and the exit codes ---


def test_a_folder_that_is_no_run_is_refused(original: Volume, tmp_path: Path, theirs: Path) -> None:
    assert "there is no such folder" in refused(original, tmp_path / "none", InputError)
    (theirs / "run.json").unlink()
    assert "this is not a scored benchmark" in refused(original, theirs, InputError)


@pytest.mark.parametrize(("block", "key"), [("replay", "m"), ("replay", "benchmark"), ("inputs", "encoders")])
def test_a_run_json_without_what_a_repetition_needs_is_damaged(original, theirs, block, key) -> None:
    edit(theirs, lambda run: run[block].pop(key))
    assert f"it is damaged: it lacks {block}.{key}" in refused(original, theirs, ArtifactError)


def test_a_benchmark_that_nobody_declares_here_gets_a_suggestion(original: Volume, theirs: Path) -> None:
    edit(theirs, lambda run: run["replay"].update(benchmark="minj"))
    assert "did you mean 'mini'?" in refused(original, theirs, InputError)


def test_exit_codes_are_those_documented(cli, copied: Volume, theirs: Path, tmp_path: Path) -> None:
    assert "there is no such folder" in cli("verify", "run", tmp_path / "none", exits=3).stderr
    tamper(theirs, "metrics.csv", "ri", "0.987")
    assert "ri: 0.987, wanted" in cli("verify", "run", theirs, exits=1).stderr
    (theirs / "run.json").write_text("{")
    assert "it is damaged" in cli("verify", "run", theirs, exits=5).stderr
