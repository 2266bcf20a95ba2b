"""`--batch auto`: when doubling stops, what is picked, and that it is decided once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from croma_bundle.errors import DegenerateEmbedding, DeviceMemory
from croma_bundle.extraction import batch_size
from croma_bundle.extraction.batch_size import LARGEST, fastest, tried
from croma_bundle.layout import Volume
from embedded import Recorder, add_cohort, embed_toy, means, toy


def device(*, start: float, each: float, room: int | None = None) -> Callable[[int], float]:
    """A device that needs `start` seconds for a batch, `each` for a tile, and holds `room` tiles."""

    def seconds(size: int) -> float:
        if room is not None and size > room:
            raise DeviceMemory("toy", "it has no memory left")
        return start + each * size

    return seconds


def test_a_larger_batch_is_tried_until_it_gains_less_than_a_twentieth():
    # n tiles at 10 n/(n + 1) a second. From 8 to 16 that gains 16/17 : 8/9 = 1.0588; from 16 to 32, 1.0303.
    rates = tried(device(start=0.1, each=0.1))
    assert rates == pytest.approx({size: 10 * size / (size + 1) for size in (1, 2, 4, 8, 16, 32)})
    assert fastest(rates) == 16


def test_a_device_that_is_not_faster_by_more_tiles_gets_one():
    rates = tried(device(start=0, each=0.5))
    assert rates == {1: 2.0, 2: 2.0}
    assert fastest(rates) == 1


@pytest.mark.parametrize(("room", "found"), [(1, 1), (5, 4), (64, 64)])
def test_memory_is_where_it_ends(room: int, found: int):
    rates = tried(device(start=1, each=0, room=room))
    assert max(rates) == found == fastest(rates)


def test_what_would_not_fit_is_not_even_tried():
    rates = tried(lambda size: 1.0 if size <= 8 else None)
    assert list(rates) == [1, 2, 4, 8]


def test_one_tile_that_does_not_fit_is_the_fault():
    with pytest.raises(DeviceMemory):
        tried(device(start=1, each=0, room=0))


def test_it_ends_somewhere():
    assert max(tried(device(start=0.01, each=0))) == LARGEST


def test_a_batch_that_takes_long_is_not_doubled():
    rates = tried(device(start=8, each=1))
    assert list(rates) == [1, 2, 4], "4 tiles take 12 seconds"


# through embed


@pytest.fixture
def cohort(volume: Volume, tmp_path: Path):
    """24 tiles."""
    return add_cohort(volume, tmp_path / "tiles", size=32)


@pytest.fixture
def decides(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let this machine be fastest with so many tiles."""

    def set_to(size: int) -> None:
        rates = {n: float(min(n, size)) for n in (1, 2, 4, 8, 16)}
        monkeypatch.setattr(batch_size, "tried", lambda seconds: rates)

    return set_to


def sizes_of(volume: Volume, **options: object) -> tuple[dict[str, object], list[int], list[str]]:
    """The sidecar of an embed with `--batch auto`, the batches that were computed, and what was said."""
    sizes: list[int] = []
    said = Recorder()

    def function(batch: np.ndarray) -> np.ndarray:
        sizes.append(len(batch))
        return means(batch)

    _, sidecar = embed_toy(volume, toy(function), decide_batch=True, reporter=said, **options)
    return sidecar, sizes, said.said


def test_the_decided_size_is_computed_recorded_and_said(volume: Volume, cohort, decides):
    decides(8)
    sidecar, sizes, said = sizes_of(volume)
    assert sizes == [8, 8, 8]
    assert sidecar["batch_size"] == 8
    assert said[0] == ("cohort · Toy: batch 8, decided on cpu by tiles/s (1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0, 16: 8.0)")


def test_the_size_of_a_matrix_that_stands_there_holds(volume: Volume, cohort, decides):
    decides(8)
    sizes_of(volume)
    decides(4)
    sidecar, sizes, said = sizes_of(volume)
    assert (sidecar["batch_size"], sizes) == (8, [])
    assert said == ["cohort · Toy: batch 8, as decided before"]
    sidecar, sizes, _ = sizes_of(volume, force=True)
    assert (sidecar["batch_size"], sizes) == (4, [4] * 6)


def test_a_resumed_run_keeps_the_size_that_its_chunks_have(volume: Volume, cohort, decides):
    decides(8)
    with pytest.raises(DegenerateEmbedding):
        embed_toy(volume, toy(lambda batch: means(batch) * np.nan), decide_batch=True)
    decides(4)
    assert sizes_of(volume)[0]["batch_size"] == 8


def test_a_damaged_record_decides_nothing(volume: Volume, cohort, decides):
    decides(8)
    work = volume.work("cohort", "Toy")
    for text in ("", "[]", json.dumps({"identity": {"batch_size": "16"}}), json.dumps({"identity": {"batch_size": 0}})):
        work.mkdir(parents=True, exist_ok=True)
        (work / "job.json").write_text(text)
        sidecar, *_ = sizes_of(volume, force=True)
        assert sidecar["batch_size"] == 8


def test_a_real_trial_finds_a_size_between_1_and_the_largest(volume: Volume, cohort):
    sidecar, _, said = sizes_of(volume)
    assert 1 <= sidecar["batch_size"] <= LARGEST
    assert f"batch {sidecar['batch_size']}, decided on cpu" in said[0]


def test_the_command_takes_auto_and_no_other_word(volume: Volume, cohort, cli):
    done = cli("--json", "embed", "--tileset", "cohort", "--encoders", "Thumbnail", "--batch", "auto", "--workers", "0")
    events = [json.loads(text) for text in done.stdout.splitlines()]
    decided = next(event for event in events if event["event"] == "batch")
    sidecar = json.loads(volume.sidecar("cohort", "Thumbnail").read_text())
    assert sidecar["batch_size"] == decided["batch_size"] >= 1
    for wrong in ("many", "0", "-1"):
        done = cli("embed", "--tileset", "cohort", "--encoders", "Thumbnail", "--batch", wrong, exits=2)
        assert "--batch" in done.stderr
