"""`import`: any float matrix of the right rows, cast to float32, marked external, never over an embedded one."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from builders import cohort_rows, write_csv
from croma_bundle.artifacts.external import import_matrix
from croma_bundle.artifacts.pair import verify_pair
from croma_bundle.durable import lock
from croma_bundle.errors import ArtifactError, DegenerateEmbedding, InputError, LockHeld, UsageError
from croma_bundle.layout import Volume
from embedded import add_cohort, artifacts, embed_here, names, sha256

ROWS, WIDTH = 24, 5
FINGERPRINT = "f" * 64


def plausible(dtype: str = "float32") -> np.ndarray:
    """Rows that float16 holds exactly, so that every dtype says the same."""
    values = np.arange(1, ROWS * WIDTH + 1).reshape(ROWS, WIDTH) / 8
    return values.astype(dtype)


def bring(volume: Volume, array: np.ndarray, **changes: object) -> dict:
    """Save and import an array as `Outside`."""
    path = volume.root / "given.npy"
    np.save(path, array)
    return bring_file(volume, path, **changes)


def bring_file(volume: Volume, path: Path, **changes: object) -> dict:
    knobs = {"provenance": "made by hand", "control": False, "rows": ROWS, "fingerprint": FINGERPRINT, "force": False}
    return import_matrix(volume, "cohort", "Outside", path, **{**knobs, **changes})


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_float_dtype_and_order_is_cast_and_the_given_one_recorded(volume: Volume, dtype: str, order: str):
    sidecar = bring(volume, np.asarray(plausible(dtype), order=order))
    _, matrix = verify_pair(volume, "cohort", "Outside")
    assert matrix.dtype == np.float32
    assert np.array_equal(matrix, plausible("float32"))
    assert sidecar["extraction_contract"]["source_dtype"] == dtype
    given = (volume.root / "given.npy").read_bytes()
    assert sidecar["extraction_contract"]["source_sha256"] == sha256(given)


def test_what_an_import_cannot_know_is_null_and_it_says_external(volume: Volume):
    sidecar = bring(volume, plausible(), provenance="  model X, vendor Y  ", control=True)
    assert [sidecar[k] for k in ("pixels_sha256", "batch_size", "precision", "checkpoint_revision")] == [None] * 4
    assert sidecar["extraction_contract"] == {
        "version": 1,
        "encoder": "Outside",
        "external": True,
        "provenance": "model X, vendor Y",
        "source_dtype": "float32",
        "source_sha256": sha256((volume.root / "given.npy").read_bytes()),
    }
    assert sidecar["control"] is True
    assert sidecar["manifest_fingerprint"] == FINGERPRINT
    assert sidecar["output_shape"] == [ROWS, WIDTH]


def test_float64_rounds_to_nearest_even_like_numpy(volume: Volume):
    halfway = 1 + 2.0**-24  # between two float32; the even one is 1
    array = plausible("float64")
    array[0, 0] = halfway
    bring(volume, array)
    assert verify_pair(volume, "cohort", "Outside")[1][0, 0] == np.float32(1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a[:-1], r"does not fit the tileset(.|\n)*24 rows(.|\n)*\(23, 5\)"),
        (lambda a: np.vstack([a, a[:1]]), r"does not fit the tileset(.|\n)*\(25, 5\)"),
        (lambda a: a[:, :0], r"not a plain \.npy file|does not fit the tileset"),
        (lambda a: a[:, 0], r"another form"),
        (lambda a: a[None], r"another form"),
        (lambda a: a.astype(np.int64), r"another form(.|\n)*int64"),
        (lambda a: a.astype(np.complex64), r"another form(.|\n)*complex64"),
        (lambda a: a.astype(str), r"another form"),
        (lambda a: a.astype(object), r"not a plain \.npy file(.|\n)*object"),
    ],
    ids=["a row short", "a row more", "no width", "one axis", "three axes", "integers", "complex", "text", "objects"],
)
def test_a_matrix_that_does_not_fit_is_refused_and_nothing_is_left(volume: Volume, change, reason: str):
    with pytest.raises(InputError, match=reason):
        bring(volume, change(plausible()))
    assert names(artifacts(volume)) == set()


@pytest.mark.parametrize(("value", "rows"), [(1e39, [3]), (-3.5e38, [3, 20])])
def test_values_beyond_float32_are_refused_and_the_rows_named(volume: Volume, value: float, rows: list[int]):
    array = plausible("float64")
    array[rows, 1] = value
    with pytest.raises(InputError, match=rf"beyond float32(.|\n)*rows \(from 0\) {', '.join(map(str, rows))}$"):
        bring(volume, array)
    assert names(artifacts(volume)) == set()


@pytest.mark.parametrize(
    ("value", "reason"),
    [(np.nan, "NaN or infinity in 1 row: 7"), (np.inf, "infinity in 1 row: 7"), (0, "zeros.*: 7")],
)
def test_unusable_rows_are_refused_by_number_and_nothing_is_left(volume: Volume, value: float, reason: str):
    array = plausible()
    array[7] = value
    with pytest.raises(DegenerateEmbedding, match=reason):
        bring(volume, array)
    assert names(artifacts(volume)) == set()


def test_an_archive_is_refused_and_told_from_a_matrix(volume: Volume, tmp_path: Path):
    np.savez(tmp_path / "many.npz", plausible())
    with pytest.raises(InputError, match=r"an \.npz archive"):
        bring_file(volume, tmp_path / "many.npz")
    (tmp_path / "broken.npy").write_bytes((tmp_path / "many.npz").read_bytes()[:100])
    with pytest.raises(InputError, match=r"an \.npz archive"):
        bring_file(volume, tmp_path / "broken.npy")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"1,2,3\n4,5,6\n", b"\x93NUMPY\x01\x00\xff\xff{"])
def test_what_is_not_npy_is_refused(volume: Volume, tmp_path: Path, content: bytes):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(InputError, match=r"not a plain \.npy file"):
        bring_file(volume, tmp_path / "x.npy")


def test_a_missing_file_and_a_folder_are_told_apart(volume: Volume, tmp_path: Path):
    with pytest.raises(InputError, match="there is no such matrix"):
        bring_file(volume, tmp_path / "nowhere.npy")
    with pytest.raises(InputError, match=r"not a plain \.npy file(.|\n)*directory"):
        bring_file(volume, tmp_path)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_malicious_pickle_given_to_import_is_never_run(volume: Volume, tmp_path: Path):
    (tmp_path / "bomb.npy").write_bytes(pickle.dumps(Bomb(tmp_path / "owned")))
    array = np.empty((ROWS, WIDTH), dtype=object)
    array[:] = Bomb(tmp_path / "owned")
    np.save(tmp_path / "bombs.npy", array)
    for name in ("bomb.npy", "bombs.npy"):
        with pytest.raises(InputError, match=r"not a plain \.npy file"):
            bring_file(volume, tmp_path / name)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("provenance", ["", "   ", "\n\t"])
def test_an_import_without_provenance_is_a_usage_error(volume: Volume, provenance: str):
    with pytest.raises(UsageError, match="--provenance"):
        bring(volume, plausible(), provenance=provenance)


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "x.npy", "x.json", "", "two words", "a@b@c", "x" * 101])
def test_a_name_that_is_no_file_name_is_a_usage_error(volume: Volume, tmp_path: Path, name: str):
    np.save(tmp_path / "given.npy", plausible())
    knobs = {"provenance": "x", "control": False, "rows": ROWS, "fingerprint": FINGERPRINT, "force": False}
    with pytest.raises(UsageError, match="cannot be used"):
        import_matrix(volume, "cohort", name, tmp_path / "given.npy", **knobs)


def test_a_second_import_needs_force_and_then_replaces(volume: Volume):
    bring(volume, plausible())
    before = artifacts(volume)
    with pytest.raises(ArtifactError, match=r"imported already(.|\n)*croma-bundle import cohort Outside .* --force"):
        bring(volume, plausible() * 2)
    assert artifacts(volume) == before
    bring(volume, plausible() * 2, force=True)
    assert verify_pair(volume, "cohort", "Outside")[1][0, 0] == 0.25


def test_an_import_never_replaces_an_embedded_matrix_even_forced(volume: Volume, tmp_path: Path):
    add_cohort(volume, tmp_path / "tiles", size=32)
    embed_here(volume, "Thumbnail")
    np.save(tmp_path / "given.npy", plausible())
    before = artifacts(volume)
    for force in (False, True):
        knobs = {"provenance": "x", "control": False, "rows": ROWS, "fingerprint": FINGERPRINT, "force": force}
        with pytest.raises(ArtifactError, match=r"was embedded here(.|\n)*under another name"):
            import_matrix(volume, "cohort", "Thumbnail", tmp_path / "given.npy", **knobs)
    assert artifacts(volume) == before
    volume.sidecar("cohort", "Thumbnail").write_text("{")
    with pytest.raises(ArtifactError, match=r"cannot be told whether it was embedded(.|\n)*rm .*Thumbnail"):
        import_matrix(volume, "cohort", "Thumbnail", tmp_path / "given.npy", **{**knobs, "force": True})


def test_half_an_import_is_replaced_only_when_forced(volume: Volume):
    bring(volume, plausible())
    volume.sidecar("cohort", "Outside").unlink()
    with pytest.raises(ArtifactError, match=r"half an artifact(.|\n)*--force"):
        bring(volume, plausible())
    bring(volume, plausible(), force=True)
    verify_pair(volume, "cohort", "Outside")


def test_an_import_waits_for_no_one_who_holds_the_job(volume: Volume):
    with lock(volume.job_lock("cohort", "Outside"), "held"), pytest.raises(LockHeld, match="another run is at work"):
        bring(volume, plausible())


def test_matrices_of_a_tileset_without_images_are_imported_scored_and_verified(cli, volume: Volume, tmp_path: Path):
    rows = [{k: v for k, v in row.items() if k != "image_path"} for row in cohort_rows(slides=3, tiles=4)]
    csv = write_csv(tmp_path / "slides.csv", rows)
    cli("tiles", "add", "slides", "--manifest", csv, "--no-images")
    generator = np.random.default_rng(11)
    np.save(tmp_path / "m.npy", generator.normal(size=(len(rows), 16)))
    done = cli("import", "slides", "Private-1", tmp_path / "m.npy", "--provenance", "vendor Y, checkpoint 3")
    assert "imported from float64, external" in done.stdout
    cli("score", "--benchmark", "slides")
    metrics = json.loads((volume.metrics("median-k", "slides") / "metrics.json").read_text())
    assert '"external": true' in json.dumps(metrics)
    assert "ok  slides · Private-1" in cli("verify", "artifacts").stdout
    done = cli("embed", "--tileset", "slides", "--family", "classical", exits=3)
    assert "it has no images to embed" in done.stderr
    assert "croma-bundle import" in done.stderr


def test_the_command_line_refuses_empty_provenance_and_a_wrong_tileset(cli, volume: Volume, tmp_path: Path):
    add_cohort(volume, tmp_path / "tiles", size=32)
    np.save(tmp_path / "m.npy", plausible())
    assert "--provenance" in cli("import", "cohort", "X", tmp_path / "m.npy", exits=2).stderr
    cli("import", "cohort", "X", tmp_path / "m.npy", "--provenance", " ", exits=2)
    done = cli("import", "cohrot", "X", tmp_path / "m.npy", "--provenance", "me", exits=3)
    assert "did you mean 'cohort'?" in done.stderr
