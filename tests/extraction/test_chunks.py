"""Chunks of a run under way: whole or absent, of one job or discarded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from croma_bundle.durable import sha256_file
from croma_bundle.errors import ArtifactError, DegenerateEmbedding
from croma_bundle.extraction import chunks
from croma_bundle.extraction.chunks import ChunkStore, chunk_rows
from croma_bundle.layout import Volume
from embedded import Recorder, add_cohort, declare_encoder, embed_here, embed_toy, entry_of, means, toy

ROWS, STEP = 10, 4


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    opened = ChunkStore("cohort · Toy", tmp_path / "work", {"encoder": "Toy", "width": 2}, ROWS, STEP)
    assert opened.open()
    return opened


def values(first: int, end: int) -> np.ndarray:
    return np.arange(first * 2, end * 2, dtype=np.float32).reshape(-1, 2)


def fill(store: ChunkStore) -> None:
    for number, (first, end) in enumerate(store.spans()):
        store.write(number, values(first, end))


@pytest.mark.parametrize("batch", [1, 7, 64, 255, 256, 257, 1000])
def test_a_chunk_is_the_smallest_multiple_of_the_batch_that_holds_256_tiles(batch: int):
    rows = chunk_rows(batch)
    assert rows % batch == 0
    assert rows >= 256
    assert rows - batch < 256


def test_the_spans_cover_every_row_once_and_only_the_last_is_shorter(store: ChunkStore):
    assert store.spans() == [(0, 4), (4, 8), (8, 10)]


def test_what_was_written_comes_back_in_order(store: ChunkStore):
    for number in (2, 0, 1):
        store.write(number, values(*store.spans()[number]))
    assert store.finished() == [0, 1, 2]
    assert np.array_equal(np.concatenate(list(store.blocks())), values(0, ROWS))


@pytest.mark.parametrize("offset", [0, 10, 130, -1])
def test_a_flipped_byte_makes_a_chunk_absent(store: ChunkStore, offset: int):
    fill(store)
    path = store.folder / "chunk-00001.npy"
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    assert store.finished() == [0, 2]
    with pytest.raises(ArtifactError, match=r"cohort · Toy: a chunk changed(.|\n)*chunk-00001\.npy(.|\n)*again"):
        list(store.blocks())


@pytest.mark.parametrize("harm", ["no marker", "no rows", "empty marker", "empty rows", "markers swapped"])
def test_half_a_chunk_is_absent(store: ChunkStore, harm: str):
    fill(store)
    rows, marker = store.folder / "chunk-00000.npy", store.folder / "chunk-00000.json"
    other = store.folder / "chunk-00001.json"
    if harm == "no marker":
        marker.unlink()
    elif harm == "no rows":
        rows.unlink()
    elif harm == "empty marker":
        marker.write_bytes(b"")
    elif harm == "empty rows":
        rows.write_bytes(b"")
    else:
        marker.write_bytes(other.read_bytes())
    assert store.finished() == [1, 2]


@pytest.mark.parametrize(
    "change", [{"identity": {"encoder": "Toy", "width": 3}}, {"rows": ROWS + 1}, {"step": STEP * 2}], ids=str
)
def test_chunks_of_another_job_are_discarded_and_it_is_said(store: ChunkStore, change: dict):
    fill(store)
    assert store.open(), "the same job keeps its chunks"
    assert store.finished() == [0, 1, 2]
    other = replace(store, **change)
    assert not other.open()
    assert other.finished() == []
    assert sorted(p.name for p in other.folder.iterdir()) == ["job.json"]


def test_temporaries_of_a_killed_writer_are_swept(store: ChunkStore):
    (store.folder / ".chunk-00000.npy.abcd.tmp").write_bytes(b"half")
    store.open()
    assert sorted(p.name for p in store.folder.iterdir()) == ["job.json"]


# the same through the loop


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two batches of 4."""
    monkeypatch.setattr(chunks, "TILES_PER_CHUNK", 8)


class Counting:
    """An encoder that counts its calls, and fails at call `fails_at`."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.sizes: list[int] = []
        self.fails_at = fails_at

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        if len(self.sizes) == self.fails_at:
            return np.full((len(batch), 2), np.nan, np.float32)
        self.sizes.append(len(batch))
        return means(batch)


def test_a_resumed_run_forms_the_very_batches_of_an_uninterrupted_one(
    volume: Volume, tmp_path: Path, small_chunks: None
):
    add_cohort(volume, tmp_path / "tiles", size=32, slides=3, tiles=3)  # 36 tiles: chunks of 8, 8, 8, 8, 4
    whole = Counting()
    embed_toy(volume, toy(whole))
    undisturbed = sha256_file(volume.matrix("cohort", "Toy"))
    assert whole.sizes == [4] * 9
    volume.matrix("cohort", "Toy").unlink()
    volume.sidecar("cohort", "Toy").unlink()

    broken = Counting(fails_at=5)
    with pytest.raises(DegenerateEmbedding, match="NaN or infinity in 4 rows: 20, 21, 22, 23"):
        embed_toy(volume, toy(broken))
    work = volume.work("cohort", "Toy")
    assert len(list(work.glob("chunk-*.json"))) == 2, "chunk 2 held the bad batch"
    flipped = work / "chunk-00000.npy"
    content = bytearray(flipped.read_bytes())
    content[-1] ^= 1
    flipped.write_bytes(content)

    resumed, said = Counting(), Recorder()
    embed_toy(volume, toy(resumed), reporter=said)
    assert resumed.sizes == [4] * 7, "chunk 1 is kept; the flipped chunk 0 and chunks 2, 3, 4 are computed"
    assert "cohort · Toy: resuming after 1 of 5 chunks" in said.said
    assert sha256_file(volume.matrix("cohort", "Toy")) == undisturbed
    assert not work.exists()


def test_a_model_swapped_for_another_of_equal_width_never_mixes(volume: Volume, tmp_path: Path, small_chunks: None):
    add_cohort(volume, tmp_path / "tiles", size=32, slides=3, tiles=3)
    with pytest.raises(DegenerateEmbedding):
        embed_toy(volume, toy(Counting(fails_at=5)))
    said = Recorder()
    embed_toy(volume, toy(lambda batch: -means(batch)), entry_of(generation="toy-2"), reporter=said)
    assert "cohort · Toy: chunks of another contract were discarded" in said.said
    assert (np.load(volume.matrix("cohort", "Toy")) < 0).all()


def test_chunks_of_another_recipe_of_a_declared_encoder_are_discarded(
    volume: Volume, tmp_path: Path, small_chunks: None
):
    add_cohort(volume, tmp_path / "tiles", size=32)
    declare_encoder(volume, "Mine", model="HaematoxylinTexture", width=46)
    embed_here(volume, "Mine")
    expected = sha256_file(volume.matrix("cohort", "Mine"))
    store_of_old = ChunkStore("x", volume.work("cohort", "Mine"), {"of": "another contract"}, 24, 8)
    for marker in (volume.matrix("cohort", "Mine"), volume.sidecar("cohort", "Mine")):
        marker.unlink()
    store_of_old.open()
    for number in range(3):
        store_of_old.write(number, np.full((8, 46), 7, np.float32))
    embed_here(volume, "Mine")
    assert sha256_file(volume.matrix("cohort", "Mine")) == expected


def test_an_unusable_row_is_never_stored_in_a_chunk(volume: Volume, tmp_path: Path, small_chunks: None):
    """A chunk of zeros would be resumed for ever, even once the fault is mended."""
    add_cohort(volume, tmp_path / "tiles", size=32)
    with pytest.raises(DegenerateEmbedding, match="only zeros"):
        embed_toy(volume, toy(lambda batch: means(batch) * 0))
    outcome, _ = embed_toy(volume, toy(means))
    assert outcome == "embedded"
    assert (np.load(volume.matrix("cohort", "Toy")) != 0).all()


def test_the_job_of_the_chunks_is_the_contract(volume: Volume, tmp_path: Path, small_chunks: None):
    add_cohort(volume, tmp_path / "tiles", size=32)
    with pytest.raises(DegenerateEmbedding):
        embed_toy(volume, toy(Counting(fails_at=3)))
    job = json.loads((volume.work("cohort", "Toy") / "job.json").read_text())
    assert (job["rows"], job["step"]) == (24, 8)
    assert job["identity"]["extraction_contract"]["encoder"] == "Toy"
    assert "environment" not in job["identity"], "another machine may go on"


def test_a_chunk_that_cannot_be_written_ends_the_run_though_it_is_written_behind(
    volume: Volume, tmp_path: Path, small_chunks: None
):
    add_cohort(volume, tmp_path / "tiles", size=32, slides=3, tiles=3)  # chunks of 8, 8, 8, 8, 4
    in_the_way = volume.work("cohort", "Toy") / "chunk-00001.npy"
    counting = Counting()

    def function(batch: np.ndarray) -> np.ndarray:
        in_the_way.mkdir(exist_ok=True)
        return counting(batch)

    with pytest.raises(OSError, match="directory"):
        embed_toy(volume, toy(function))
    assert len(counting.sizes) <= 6, "it ends by the chunk after it"
    assert sorted(path.name for path in in_the_way.parent.glob("chunk-*.json")) == ["chunk-00000.json"]
    in_the_way.rmdir()
    resumed = Counting()
    embed_toy(volume, toy(resumed))
    assert resumed.sizes == [4] * 7
