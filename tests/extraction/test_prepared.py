"""How prepared tiles travel: through shared memory from workers, in order, the same bytes however many workers."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croma_bundle.errors import PixelError
from croma_bundle.extraction.prepared import Preparation, Source, batches
from croma_bundle.extraction.ring import Layout, Ring, place
from croma_bundle.tiles.pixels import decode


def halves(tile: np.ndarray) -> np.ndarray:
    """A tile as float32 (3, H, W), halved."""
    return np.ascontiguousarray(tile.transpose(2, 0, 1), dtype=np.float32) / 2


def process_of(tile: np.ndarray) -> np.ndarray:
    return np.array([os.getpid()], dtype=np.int64)


def write_tiles(folder: Path, count: int, side: int = 12) -> list[Source]:
    random = np.random.default_rng(5)
    sources = []
    for i in range(count):
        path = folder / f"{i}.png"
        Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path)
        sources.append(Source(path, decode(path).digest().hex()))
    return sources


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    return write_tiles(tmp_path, 45)


def taken(how: Preparation, sources: Sequence[Source]) -> Iterator[np.ndarray | list[PixelError]]:
    """The batches, copied before the next is asked for."""
    for batch in batches(how, sources, sources[0].path.parent, iter):
        yield batch if isinstance(batch, list) else batch.copy()


@pytest.mark.parametrize(("size", "workers"), [(1, 0), (7, 0), (45, 0), (64, 0), (1, 2), (7, 2), (16, 1)])
def test_batches_are_the_prepared_tiles_in_order(sources: list[Source], size: int, workers: int):
    expected = [halves(np.asarray(Image.open(source.path))) for source in sources]
    found = list(taken(Preparation(halves, size, workers), sources))
    assert [len(batch) for batch in found] == [size] * (45 // size) + [45 % size] * (45 % size > 0)
    assert np.array_equal(np.concatenate(found), np.stack(expected))


def test_a_batch_is_contiguous_and_begins_on_a_page(sources: list[Source]):
    for batch in batches(Preparation(halves, 7, 0), sources, sources[0].path.parent, iter):
        assert isinstance(batch, np.ndarray)
        assert batch.flags.c_contiguous
        assert batch.ctypes.data % 4096 == 0


def test_workers_prepare_and_this_process_does_not(sources: list[Source]):
    found = np.concatenate(list(taken(Preparation(process_of, 8, 2), sources)))
    assert os.getpid() not in found
    assert set(np.concatenate(list(taken(Preparation(process_of, 8, 0), sources))).ravel()) == {os.getpid()}


def test_of_a_batch_with_bad_tiles_all_of_them_are_told_and_the_rest_goes_on(sources: list[Source]):
    sources[9] = Source(sources[9].path, "0" * 64)
    sources[11].path.unlink()
    for workers in (0, 1):
        found = list(taken(Preparation(halves, 8, workers), sources))
        assert [isinstance(batch, list) for batch in found] == [False, True, False, False, False, False]
        assert [fault.subject for fault in found[1]] == [str(sources[9].path), str(sources[11].path)]
        assert "not those that were hashed" in found[1][0].problem


@pytest.mark.parametrize("workers", [0, 1])
def test_a_tile_that_becomes_another_shape_is_named(sources: list[Source], tmp_path: Path, workers: int):
    """A recipe without a crop keeps the sides of a tile that is no square."""
    (tmp_path / "wide").mkdir()
    wide = write_tiles(tmp_path / "wide", 1, side=13)
    found = list(taken(Preparation(halves, 8, workers), [*sources[:40], *wide]))
    assert [type(batch) for batch in found] == [np.ndarray] * 5 + [list]
    assert found[-1][0].subject == str(wide[0].path)
    assert (found[-1][0].wanted, found[-1][0].found) == ("(3, 12, 12)", "(3, 13, 13)")


def test_the_memory_is_given_back(sources: list[Source]):
    def held() -> int:
        found = 0
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # the listing's own file is closed by now
                found += "croma-bundle prepared tiles" in str(link.readlink())
        return found

    preparing = batches(Preparation(halves, 8, 0), sources, sources[0].path.parent, iter)
    next(preparing)
    assert held() > 0
    preparing.close()
    gc.collect()
    assert held() == 0


# The ring


def tile_of(number: int) -> np.ndarray:
    return np.full((2, 3), number, dtype=np.float32)


def test_a_tile_keeps_its_place_until_as_many_as_are_ahead_have_come_after_its_batch():
    with Ring(batch=4, ahead=6) as ring:
        for number in range(8):
            assert ring.put(number, tile_of(number))
        first = ring.tiles(0, 4)
        for number in range(8, 10):  # six past the first batch
            ring.put(number, tile_of(number))
        assert first[:, 0, 0].tolist() == [0, 1, 2, 3]
        assert ring.tiles(4, 4)[:, 0, 0].tolist() == [4, 5, 6, 7]
        assert ring.tiles(8, 2)[:, 0, 0].tolist() == [8, 9]


def test_another_shape_or_type_than_the_first_is_not_taken():
    with Ring(batch=2, ahead=2) as ring:
        assert ring.put(0, tile_of(1))
        assert not ring.put(1, np.zeros((3, 2), np.float32))
        assert not ring.put(1, np.zeros((2, 3), np.float64))


def test_where_the_memory_cannot_be_opened_a_tile_is_sent_instead():
    closed = Layout("/proc/self/fd/none", batch=2, batches=2, shape=(2, 3), dtype="<f4")
    assert not place(closed, 0, tile_of(1))
    assert not place(None, 0, tile_of(1))


def test_batches_do_not_share_a_page():
    layout = Layout("", batch=3, batches=2, shape=(5, 5), dtype="<f8")
    assert (layout.tile_bytes, layout.batch_bytes) == (200, 4096)
    assert Layout("", batch=3, batches=2, shape=(1024,), dtype="<f4").batch_bytes == 3 * 4096
