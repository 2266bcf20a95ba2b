"""Reading rows of parquet files in any order: the bytes that were stored, whatever the layout of the file."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_sets import encoded, parquet_bytes, picture

from croma_bundle.errors import PixelError
from croma_bundle.tiles.parquet import image_bytes
from croma_bundle.tiles.pixels import decode
from croma_bundle.tiles.spool import Slice, spooled

ROWS = 40
PICTURES = [encoded(picture(i, 16), "PNG") for i in range(ROWS)]
CELLS = [{"slide_id": "s", "patch_id": str(i), "biological_class": "c", "medical_center": "m"} for i in range(ROWS)]


def shuffled(paths, seed=0):
    return [paths[i] for i in np.random.default_rng(seed).permutation(len(paths))]


def contents(paths, scratch, **how):
    with spooled(paths, scratch, **how) as tiles:
        return [tile.content() if isinstance(tile, Slice) else tile for tile in tiles]


LAYOUTS = {
    "struct, as published": (pa.struct([("bytes", pa.binary()), ("path", pa.string())]), {}),
    "plain column": (pa.binary(), {}),
    "large binary": (pa.large_binary(), {}),
    "no dictionary, small pages": (pa.binary(), {"use_dictionary": False, "data_page_size": 200}),
    "zstd, pages of version 2": (pa.binary(), {"compression": "zstd", "data_page_version": "2.0"}),
    "not compressed": (pa.binary(), {"compression": "none"}),
}


@pytest.mark.parametrize("group_size", [1, 7, 17, 1000])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_row_is_the_image_that_was_stored_in_it(tmp_path, layout, group_size):
    kind, how = LAYOUTS[layout]
    stored = [{"bytes": p, "path": "x.png"} for p in PICTURES] if pa.types.is_struct(kind) else PICTURES
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"image": pa.array(stored, kind)}), path, row_group_size=group_size, **how)
    rows = shuffled([*range(ROWS), 3, 3, 39])
    paths = [tmp_path / f"x.parquet#{row}" for row in rows]
    assert contents(paths, tmp_path / "scratch") == [PICTURES[row] for row in rows]
    assert [image_bytes(path, row) for row in (0, 6, 7, 39)] == [PICTURES[row] for row in (0, 6, 7, 39)]


def two_files(folder):
    """Rows 0–24 in one file, the rest in another, and the path of each."""
    (folder / "a.parquet").write_bytes(parquet_bytes(CELLS[:25], PICTURES[:25]))
    (folder / "b.parquet").write_bytes(parquet_bytes(CELLS[25:], PICTURES[25:]))
    return [folder / (f"a.parquet#{i}" if i < 25 else f"b.parquet#{i - 25}") for i in range(ROWS)]


@pytest.mark.parametrize("window", [1, 2000, 1 << 30])
def test_files_of_images_stay_what_they_are_and_rows_of_several_parquet_files_keep_their_order(tmp_path, window):
    paths = two_files(tmp_path)
    plain = tmp_path / "plain.png"
    plain.write_bytes(PICTURES[0])
    by_path = dict(zip(paths, PICTURES, strict=True)) | {plain: plain}
    mixed = shuffled([*paths, plain])
    assert contents(mixed, tmp_path / "scratch", window=window) == [by_path[path] for path in mixed]


def test_two_scratch_files_at_most_stand_there_and_none_afterwards(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / ".images-1.tmp").write_bytes(b"of a killed run")
    seen = set()
    with spooled(shuffled(two_files(tmp_path)), scratch, window=2000) as tiles:
        for _ in tiles:
            seen.add(len(list(scratch.iterdir())))
    assert seen == {2}
    assert list(scratch.iterdir()) == []


def test_a_slice_outlives_the_window_that_it_came_with_by_one(tmp_path):
    paths = two_files(tmp_path)
    size = sum(map(len, PICTURES)) / ROWS
    with spooled(paths, tmp_path / "scratch", window=int(10.5 * size)) as tiles:
        first = [next(tiles) for _ in range(10)]
        while (later := next(tiles)).file == first[0].file:
            pass
        assert later.file != first[0].file
        assert [tile.content() for tile in first] == PICTURES[:10]


def test_no_folder_is_made_where_no_tile_lies_in_a_parquet_file(tmp_path):
    contents([tmp_path / "a.png"], tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


FAULTY = {
    "x.parquet#5": "there is no image in this row",
    "x.parquet#40": "there is no such row",
    "gone.parquet#0": "there is no such file",
    "cut.parquet#0": "this is not a parquet file",
    "words.parquet#0": "there is no column of images",
    "paths.parquet#0": "holds no bytes",
}


@pytest.mark.parametrize(("name", "told"), FAULTY.items())
def test_a_row_that_cannot_be_read_is_told_when_it_is_decoded_and_the_others_are_read(tmp_path, name, told):
    (tmp_path / "x.parquet").write_bytes(parquet_bytes(CELLS, [*PICTURES[:5], None, *PICTURES[6:]]))
    (tmp_path / "cut.parquet").write_bytes(parquet_bytes(CELLS, PICTURES)[:-200])
    pq.write_table(pa.table({"words": ["a"]}), tmp_path / "words.parquet")
    pq.write_table(pa.table({"image": [{"path": "a.png"}]}), tmp_path / "paths.parquet")
    paths = [tmp_path / "x.parquet#4", tmp_path / name, tmp_path / "x.parquet#6"]
    with spooled(paths, tmp_path / "scratch") as tiles:
        before, bad, after = tiles
        assert (before.content(), after.content()) == (PICTURES[4], PICTURES[6])
        with pytest.raises(PixelError) as fault:
            decode(bad)
    assert told in str(fault.value)
    assert name.partition("#")[0] in str(fault.value)
    with pytest.raises(PixelError, match=told):
        decode(paths[1])


def test_a_damaged_row_group_costs_its_rows_and_no_others(tmp_path):
    sink = io.BytesIO()
    table = pa.table({"image": pa.array(PICTURES, pa.binary())})
    pq.write_table(table, sink, row_group_size=10, compression="gzip", use_dictionary=False)
    content = bytearray(sink.getvalue())
    begin = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(1).column(0).data_page_offset
    content[begin : begin + 40] = b"\xff" * 40
    (tmp_path / "x.parquet").write_bytes(content)
    paths = [tmp_path / f"x.parquet#{row}" for row in range(ROWS)]
    with spooled(paths, tmp_path / "scratch") as tiles:
        read = [tile.content() if isinstance(tile, Slice) else None for tile in tiles]
    assert read == [None if 10 <= row < 20 else PICTURES[row] for row in range(ROWS)]
    with pytest.raises(PixelError, match="row group 1"):
        decode(paths[10])
