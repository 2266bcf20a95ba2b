"""The embed loop with encoders of the tests' own: what is published, and what aborts before anything is."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croma_bundle.durable import sha256_file
from croma_bundle.errors import (
    BundleError,
    DegenerateEmbedding,
    ManifestError,
    PixelError,
    SeveralErrors,
)
from croma_bundle.layout import Volume
from embedded import Recorder, add_cohort, artifacts, embed_here, embed_toy, entry_of, means, names, tiles_of, toy


@pytest.fixture
def cohort(volume: Volume, tmp_path: Path):
    """24 tiles."""
    return add_cohort(volume, tmp_path / "tiles", size=32)


def published(volume: Volume) -> set[str]:
    return names(artifacts(volume)) & {"Toy.npy", "Toy.npy.json"}


def with_row(row: int, value: float):
    """An encoder whose vector of tile `row` (in manifest order) has `value` in every entry."""
    count = 0

    def function(batch: np.ndarray) -> np.ndarray:
        nonlocal count
        vectors = means(batch)
        if count <= row < count + len(batch):
            vectors[row - count] = value
        count += len(batch)
        return vectors

    return function


def test_row_i_of_the_matrix_is_row_i_of_the_manifest(volume: Volume, cohort):
    embed_toy(volume, toy(means))
    matrix = np.load(volume.matrix("cohort", "Toy"))
    for row, expected in zip(matrix, cohort.rows, strict=True):
        rgb = np.asarray(Image.open(cohort.root / expected["image_path"])).astype(np.float64)
        assert row == pytest.approx([rgb[..., 0].mean(), rgb.mean() + 1], rel=1e-6)


@pytest.mark.parametrize(
    ("value", "row", "reason"),
    [
        (np.nan, 0, "NaN or infinity in 1 row: 0"),
        (np.inf, 13, "NaN or infinity in 1 row: 13"),
        (-np.inf, 23, "NaN or infinity in 1 row: 23"),
        (0.0, 6, "only zeros in 1 row: 6"),
    ],
)
def test_an_unusable_row_aborts_before_publishing_and_is_named(volume: Volume, cohort, value, row, reason):
    with pytest.raises(DegenerateEmbedding, match=rf"cohort · Toy: .*(.|\n)*{reason}(.|\n)*manifest order"):
        embed_toy(volume, toy(with_row(row, value)))
    assert published(volume) == set()


def test_a_float64_vector_beyond_float32_is_infinity_not_a_value(volume: Volume, cohort):
    with pytest.raises(DegenerateEmbedding, match="NaN or infinity in 4 rows: 0, 1, 2, 3"):
        embed_toy(volume, toy(lambda batch: means(batch).astype(np.float64) * 1e300))
    assert published(volume) == set()


@pytest.mark.parametrize("change", [lambda v: v[:, :1], lambda v: np.hstack([v, v]), lambda v: v[:-1], lambda v: v[0]])
def test_another_width_than_the_declared_aborts_at_the_first_batch(volume: Volume, cohort, change):
    with pytest.raises(ManifestError, match=r"not of the declared width(.|\n)*wanted +\(4, 2\)"):
        embed_toy(volume, toy(lambda batch: change(means(batch))))
    assert published(volume) == set()
    assert not list(volume.work("cohort", "Toy").glob("chunk-*"))


def test_collapse_is_measured_in_the_sidecar_and_warned_about(volume: Volume, cohort):
    said = Recorder()
    _, sidecar = embed_toy(volume, toy(lambda batch: np.full((len(batch), 2), 3, np.float32)), reporter=said)
    assert sidecar["spread"] == {
        "cosine_min": pytest.approx(1, abs=1e-12),
        "cosine_mean": pytest.approx(1, abs=1e-12),
        "cosine_max": pytest.approx(1, abs=1e-12),
        "equal_rows": 23,
        "constant_columns": 2,
    }
    assert any(text.startswith("warning: cohort · Toy: nearly collapsed") for text in said.said)


def test_no_collapse_is_warned_about_where_there_is_none(volume: Volume, cohort):
    said = Recorder()
    signs = np.resize([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], (4, 2)).astype(np.float32)
    _, sidecar = embed_toy(volume, toy(lambda batch: signs[: len(batch)]), reporter=said)
    # 24 rows in 4 directions, 6 of each: 276 pairs, of which 60 equal, 72 opposite, 144 at right angles
    spread = sidecar["spread"]
    assert (spread["cosine_min"], spread["cosine_max"]) == (-1, 1)
    assert spread["cosine_mean"] == pytest.approx((60 - 72) / 276)
    assert (spread["equal_rows"], spread["constant_columns"]) == (20, 0)
    assert said.said == []


def test_missing_files_are_all_named_before_an_encoder_is_loaded(volume: Volume, cohort):
    gone = [cohort.root / cohort.rows[i]["image_path"] for i in (2, 17)]
    for path in gone:
        path.unlink()
    loaded = []
    with pytest.raises(SeveralErrors) as refused:
        embed_toy(volume, lambda entry: loaded.append(entry))
    assert [fault.subject for fault in refused.value.errors] == [str(path) for path in gone]
    assert refused.value.exit_code == 3
    assert loaded == []


def test_a_long_list_of_missing_files_is_told_to_the_last_name(volume: Volume, cohort):
    for row in cohort.rows:
        (cohort.root / row["image_path"]).unlink()
    with pytest.raises(SeveralErrors) as refused:
        tiles_of(volume)
    text = refused.value.paragraph()
    assert [row["image_path"] for row in cohort.rows if row["image_path"] not in text] == []
    assert "24 of 24 tiles" in text


def test_a_tile_that_vanishes_mid_run_fails_the_run_and_is_named(volume: Volume, cohort):
    victim = cohort.root / cohort.rows[21]["image_path"]

    def function(batch: np.ndarray) -> np.ndarray:
        victim.unlink(missing_ok=True)
        return means(batch)

    with pytest.raises(PixelError, match="there is no such file") as refused:
        embed_toy(volume, toy(function))
    assert refused.value.subject == str(victim)
    assert published(volume) == set()


def test_every_tile_that_changed_after_hashing_is_named_and_listed(volume: Volume, cohort):
    changed = cohort.root / cohort.rows[3]["image_path"]
    broken = cohort.root / cohort.rows[20]["image_path"]
    Image.new("RGB", (32, 32), (9, 9, 9)).save(changed)
    broken.write_bytes(broken.read_bytes()[:200])
    said = Recorder()
    with pytest.raises(SeveralErrors) as refused:
        embed_toy(volume, toy(means), reporter=said)
    assert [fault.subject for fault in refused.value.errors] == [str(changed), str(broken)]
    assert "not those that were hashed" in refused.value.errors[0].problem
    listed = volume.work("cohort", "Toy") / "failing.csv"
    with listed.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["image_path"] for row in rows] == [str(changed), str(broken)]
    assert all(row["reason"] for row in rows)
    assert any("embeddings/cohort/.work/Toy/failing.csv" in text for text in said.said)
    assert published(volume) == set()


def test_a_tile_that_the_encoder_cannot_take_is_named_with_its_file(volume: Volume, cohort, tmp_path: Path):
    add_cohort(volume, tmp_path / "small", name="small", size=16)
    with pytest.raises(SeveralErrors) as refused:
        embed_here(volume, "GaborEnergy", "small")
    first = tmp_path / "small" / "normal-east-0-0.png"
    assert refused.value.errors[0].subject.startswith(f"{first} ")
    assert "32" in refused.value.paragraph(), "the smallest side is said"


def test_after_the_tiles_are_mended_the_run_goes_on(volume: Volume, cohort):
    path = cohort.root / cohort.rows[3]["image_path"]
    good = path.read_bytes()
    path.write_bytes(good[:200])
    with pytest.raises(PixelError):
        embed_toy(volume, toy(means))
    path.write_bytes(good)
    assert embed_toy(volume, toy(means))[0] == "embedded"
    assert names(artifacts(volume)) == {"manifest.csv", "Toy.npy", "Toy.npy.json"}


def test_reuse_is_by_contract_and_tells_every_key_that_differs(volume: Volume, cohort):
    embed_toy(volume, toy(means))
    assert embed_toy(volume, toy(means))[0] == "there"
    before = artifacts(volume)
    other = entry_of(batch_size=8, generation="toy-2")
    with pytest.raises(BundleError) as refused:
        embed_toy(volume, toy(means), other)
    assert refused.value.exit_code == 5
    text = refused.value.paragraph()
    assert "batch_size: wanted 8, found 4" in text
    assert "extraction_contract.generation: wanted 'toy-2', found 'toy-1'" in text
    assert "pooling" not in text, "what agrees is not told"
    assert "make embed FAMILY=toys TILESET=cohort ENCODERS=Toy FORCE=1" in text
    assert artifacts(volume) == before
    outcome, sidecar = embed_toy(volume, toy(means), other, force=True)
    assert (outcome, sidecar["batch_size"]) == ("embedded", 8)


def test_another_environment_is_no_other_contract(volume: Volume, cohort, monkeypatch: pytest.MonkeyPatch):
    _, first = embed_toy(volume, toy(means))
    monkeypatch.setenv("CROMA_IMAGE", "another/image:2")
    monkeypatch.setenv("CROMA_GIT_COMMIT", "1" * 40)
    outcome, second = embed_toy(volume, toy(means))
    assert (outcome, second) == ("there", first)
    _, forced = embed_toy(volume, toy(means), force=True)
    assert forced["environment"]["image"] == "another/image:2"
    assert forced["matrix_sha256"] == first["matrix_sha256"]


def test_a_matrix_of_other_weights_pixels_or_device_is_not_reused(volume: Volume, cohort):
    embed_toy(volume, toy(means))
    path = volume.sidecar("cohort", "Toy")
    text = path.read_text()
    for old, new, key in (
        ('"weights": []', '"weights": [{"file": "model.safetensors", "sha256": "ab"}]', "weights"),
        ('"device": "cpu"', '"device": "cuda"', "device"),
        ('"pixels_sha256": "', '"pixels_sha256": "0', "pixels_sha256"),
        ('"manifest_fingerprint": "', '"manifest_fingerprint": "0', "manifest_fingerprint"),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(BundleError, match=rf"{key}: wanted") as refused:
            embed_toy(volume, toy(means))
        assert refused.value.exit_code == 5
    path.write_text(text)
    assert embed_toy(volume, toy(means))[0] == "there"


def test_an_unpinned_encoder_is_refused_before_anything_is_written(volume: Volume, cohort):
    with pytest.raises(ManifestError, match=r"it is unpinned(.|\n)*40 hex(.|\n)*org/model, revision null"):
        embed_toy(volume, toy(means), entry_of(repository="org/model"))
    assert not volume.embeddings("cohort").exists()


class Begun:
    """An encoder that can begin a batch, and notes when."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        return self.begin(batch)()

    def begin(self, batch: np.ndarray) -> Callable[[], np.ndarray]:
        number = sum(event.startswith("begin") for event in self.events)
        self.events.append(f"begin {number}")
        vectors = means(batch)

        def wait() -> np.ndarray:
            self.events.append(f"wait {number}")
            return vectors

        return wait


def test_a_batch_is_begun_before_the_last_one_is_waited_for(volume: Volume, cohort):
    embed_toy(volume, toy(means))
    expected = np.load(volume.matrix("cohort", "Toy"))
    encoder = Begun()
    embed_toy(volume, toy(encoder), force=True)
    assert encoder.events == [
        *("begin 0", "begin 1", "wait 0", "begin 2", "wait 1", "begin 3", "wait 2"),
        *("begin 4", "wait 3", "begin 5", "wait 4", "wait 5"),
    ]
    assert np.array_equal(np.load(volume.matrix("cohort", "Toy")), expected)


@pytest.mark.parametrize("name", ["ColourStatistics", "Thumbnail"])
def test_any_number_of_workers_gives_the_same_bytes(volume: Volume, cohort, name: str):
    digests = set()
    for workers in (0, 1, 3):
        embed_here(volume, name, workers=workers, force=True)
        digests.add(sha256_file(volume.matrix("cohort", name)))
    assert len(digests) == 1
