"""The public croma 1.0.1 pipeline reads our `embeddings/<tileset>/`: its own functions, from its own sdist."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from builders import cohort_rows, write_csv
from croma_bundle.layout import Volume
from embedded import add_cohort, embed_here

pytest.importorskip("croma", reason="the oracle, croma==1.0.1, is a test-time extra")
pytest.importorskip("pandas", reason="the oracle takes pandas frames")

SDIST_SHA256 = "5162b9f9f3cad4b5febf6c689b975137bb36f79484d9295267e801c7cdef7951"
NAME = "croma-1.0.1.tar.gz"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "sdist"
HERE = Path(__file__).parent
BENCHMARK = "pathorob-camelyon"
REFERENCE = [
    *("batch_size", "checkpoint_revision", "extraction_contract", "manifest_fingerprint"),
    *("output_dtype", "output_shape", "precision"),
]


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `scripts/bench` of the source distribution, whose hash is checked before it is unpacked."""
    archive = sdist()
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert found == SDIST_SHA256, f"{archive} is not croma 1.0.1: sha256 {found}"
    folder = tmp_path_factory.mktemp("croma")
    with tarfile.open(archive) as handle:
        handle.extractall(folder, filter="data")
    return folder / "croma-1.0.1" / "scripts" / "bench"


def sdist() -> Path:
    """CROMA_SDIST, or the copy in .cache/sdist, or a download into it; skips where it cannot be had."""
    if given := os.environ.get("CROMA_SDIST"):
        return Path(given)
    archive = CACHE / NAME
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "croma"]
        command += ["--retries", "1", "--timeout", "15", "croma==1.0.1"]
        try:
            done = subprocess.run([*command, "-d", str(CACHE)], capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            pytest.skip("croma 1.0.1's source distribution was not downloaded within 120 s (CROMA_SDIST names a copy)")
        if done.returncode or not archive.exists():
            reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            pytest.skip(f"croma 1.0.1's source distribution cannot be had (CROMA_SDIST names a copy): {reason}")
    return archive


def ask(bench: Path, volume, view: Path, encoder: str = "Thumbnail") -> dict:
    """What the public functions say."""
    command = [sys.executable, str(HERE / "public_pipeline.py"), BENCHMARK, encoder]
    path = os.pathsep.join([str(bench), *sys.path])
    done = subprocess.run(
        [*command, str(volume.embeddings_root), str(view)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Volume:
    """A volume with two embedded encoders, and the exported view beside it."""
    root = tmp_path_factory.mktemp("public")
    volume = Volume(root / "volume")
    add_cohort(volume, root / "tiles", name=BENCHMARK, size=32)
    for encoder in ("Thumbnail", "ColourStatistics"):
        embed_here(volume, encoder, BENCHMARK)
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(volume.root), "tiles", "export-view", BENCHMARK]
    subprocess.run([*command, "--output", str(root / "view.csv")], check=True, capture_output=True)
    return volume


@pytest.fixture(scope="module")
def answer(bench: Path, ours: Volume) -> dict:
    return ask(bench, ours, ours.root.parent / "view.csv")


def test_its_manifest_fingerprint_of_our_folder_is_the_one_in_our_sidecar(answer: dict, ours: Volume):
    sidecar = json.loads(ours.sidecar(BENCHMARK, "Thumbnail").read_text())
    assert answer["fingerprint"] == sidecar["manifest_fingerprint"]


def test_it_finds_our_artifact_reusable_by_the_seven_fields_and_refuses_each_that_differs(answer: dict):
    assert answer["fields"] == REFERENCE
    assert answer["reusable"] is True
    assert sorted(answer["tampered"]) == REFERENCE
    for field, said in answer["tampered"].items():
        assert said == f"incompatible embedding artifact provenance: {field}"


def test_its_view_has_our_rows_and_features(answer: dict, ours: Volume):
    rows = cohort_rows()
    matrix = np.load(ours.matrix(BENCHMARK, "Thumbnail"))
    assert answer["models"] == ["ColourStatistics", "Thumbnail"]
    assert answer["rows"] == list(range(24))
    assert answer["sample_ids"] == [row["sample_id"] for row in rows]
    assert answer["confounders"] == [row["medical_center"] for row in rows]
    assert answer["dtype"] == "float32"
    assert np.array_equal(np.array(answer["features"], dtype=np.float32), matrix)


def test_it_refuses_our_artifact_once_a_sidecar_or_matrix_is_tampered_with(bench: Path, cli, volume, tmp_path: Path):
    add_cohort(volume, tmp_path / "tiles", name=BENCHMARK, size=32)
    cli("embed", "--encoders", "Thumbnail", "--tileset", BENCHMARK, "--workers", "0")
    cli("tiles", "export-view", BENCHMARK, "--output", tmp_path / "view.csv")
    marker = volume.sidecar(BENCHMARK, "Thumbnail")
    good = json.loads(marker.read_text())
    marker.write_text(json.dumps({**good, "manifest_fingerprint": "0" * 64}))
    said = ask(bench, volume, tmp_path / "view.csv")["reusable"]
    assert said == "incompatible embedding artifact provenance: manifest_fingerprint"
    marker.write_text(json.dumps(good))
    np.save(volume.matrix(BENCHMARK, "Thumbnail"), np.ones((24, 768)))
    said = ask(bench, volume, tmp_path / "view.csv")["reusable"]
    assert str(said).startswith("incompatible embedding matrix: expected shape=(24, 768), dtype=float32; got")


def test_a_view_of_fewer_rows_in_another_order_reaches_the_same_tiles(bench: Path, cli, volume, tmp_path: Path):
    """Their join is by the row's text: a tileset with extra columns, awkward names and reversed rows."""
    cohort = add_cohort(volume, tmp_path / "scratch", name="scratch", size=32)
    awkward = {"east": "Zürich, Üni", "west": 'St. "Mary\'s"'}
    rows = [
        {**row, "medical_center": awkward[row["medical_center"]], "scanner": f"s{i % 2}"}
        for i, row in enumerate(cohort.rows)
    ]
    table = write_csv(tmp_path / "awkward.csv", rows[::-1])
    cli("tiles", "add", BENCHMARK, "--manifest", table, "--root", cohort.root)
    cli("embed", "--encoders", "Thumbnail", "--tileset", BENCHMARK, "--workers", "0")
    view = tmp_path / "view.csv"
    cli("tiles", "export-view", BENCHMARK, "--output", view)
    lines = view.read_text(encoding="utf-8").splitlines(keepends=True)
    view.write_text("".join([lines[0], *lines[:0:-1][:10]]), encoding="utf-8")  # its last ten rows, the last first
    answer = ask(bench, volume, view)
    assert answer["rows"] == list(range(23, 13, -1))
    assert answer["sample_ids"] == [row["sample_id"] for row in rows[:10]]
    assert answer["confounders"] == [row["medical_center"] for row in rows[:10]]
    assert (
        answer["fingerprint"] == json.loads(volume.sidecar(BENCHMARK, "Thumbnail").read_text())["manifest_fingerprint"]
    )
    matrix = np.load(volume.matrix(BENCHMARK, "Thumbnail"))
    assert np.array_equal(np.array(answer["features"], dtype=np.float32), matrix[list(range(23, 13, -1))])
    assert answer["reusable"] is True


def test_the_fingerprint_is_the_documented_one(answer: dict, ours: Volume):
    """By hand, from the contract's sentence, over the rows that this test wrote."""
    columns = ["sample_id", "label", "confounder", "group_id", "image_path"]
    named = {name: "medical_center" if name == "confounder" else name for name in columns}
    rows = [[row[named[name]] for name in columns] for row in cohort_rows()]
    payload = {"columns": columns, "confounder_column": "confounder", "rows": rows}
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == answer["fingerprint"]
