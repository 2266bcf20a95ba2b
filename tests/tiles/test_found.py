"""`tiles add` from a folder tree and from parquet, and what it reports of a cohort."""

from __future__ import annotations

import csv
import io
import os

import numpy as np
import pytest
from parquet_sets import encoded, metadata_rows, parquet_bytes, picture
from PIL import Image, ImageChops

from croma_bundle.durable import write_bytes
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tiles.report import montage


def tree(folder):
    """2 classes × 2 centres × 2 slides × 2 tiles; one tile is another's copy at the other centre, one is white."""
    seed = 0
    for label in ("normal", "tumor"):
        for centre in ("east", "west"):
            for slide in ("s1", "s2"):
                for tile in ("a", "b"):
                    rgb = picture(seed)
                    if (label, centre, slide, tile) == ("tumor", "west", "s1", "a"):
                        rgb = picture(0)  # that of normal/east/s1/a
                    if (label, centre, slide, tile) == ("tumor", "west", "s2", "b"):
                        rgb = np.full((32, 32, 3), 244, np.uint8)
                    write_bytes(
                        folder / label / centre / f"{label}-{centre}-{slide}" / f"{tile}.png", encoded(rgb, "PNG")
                    )
                    seed += 1
    return folder


def rows_of(volume, name):
    with volume.tile_manifest(name).open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_a_tree_becomes_a_cohort_in_the_order_of_its_paths(cli, volume, tmp_path):
    folder = tree(tmp_path / "tree")
    (folder / "stray.png").write_bytes(encoded(picture(99), "PNG"))
    done = cli("tiles", "add", "mine", "--folder", folder, "--workers", 0)
    rows = rows_of(volume, "mine")
    assert len(rows) == 16
    assert rows[0] == {
        "sample_id": "normal/east/normal-east-s1/a",
        "image_path": "normal/east/normal-east-s1/a.png",
        "label": "normal",
        "medical_center": "east",
        "group_id": "normal-east-s1",
    }
    assert [r["image_path"] for r in rows] == sorted(r["image_path"] for r in rows)
    assert "1 images do not match the pattern and are left out: stray.png" in done.stderr


def test_the_report_names_sizes_modes_groups_duplicates_and_empty_tiles(cli, volume, tmp_path):
    told = cli("tiles", "add", "mine", "--folder", tree(tmp_path / "tree"), "--workers", 0).stderr
    assert "sizes: 32x32 × 16" in told
    assert "stored as: PNG RGB × 16" in told
    assert "groups: 8, 2 in each of 4 cells; 0 of them in several cells" in told
    assert "same pixels: 2 tiles in 1 sets, 1 of them across labels" in told
    assert "nearly empty: 1 (tumor/west/tumor-west-s2/b)" in told


def test_folders_that_are_links_are_not_followed_and_named(cli, volume, tmp_path):
    folder = tree(tmp_path / "tree")
    (folder / "tumor" / "north").symlink_to(tree(tmp_path / "other") / "tumor" / "east", target_is_directory=True)
    (folder / "tumor" / "loop").symlink_to(folder, target_is_directory=True)
    done = cli("tiles", "add", "mine", "--folder", folder, "--workers", 0)
    assert len(rows_of(volume, "mine")) == 16
    assert "2 folders are links, which are not followed: tumor/loop, tumor/north" in done.stderr


def test_a_file_that_is_a_link_is_read_and_one_that_leads_nowhere_is_named(cli, volume, tmp_path):
    folder = tree(tmp_path / "tree")
    slide = folder / "tumor" / "east" / "tumor-east-s1"
    (slide / "c.png").symlink_to(slide / "a.png")
    cli("tiles", "add", "mine", "--folder", folder, "--workers", 0)
    assert len(rows_of(volume, "mine")) == 17
    (slide / "d.png").symlink_to(tmp_path / "gone.png")
    told = cli("tiles", "add", "other", "--folder", folder, "--workers", 0, exits=3).stderr
    assert f"{slide / 'd.png'}: there is no such file" in told


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_named_not_left_out(cli, tmp_path):
    folder = tree(tmp_path / "tree")
    (folder / "tumor" / "west").chmod(0)
    try:
        told = cli("tiles", "add", "mine", "--folder", folder, exits=3).stderr
    finally:
        (folder / "tumor" / "west").chmod(0o755)
    assert "tumor/west: it cannot be read" in told


def test_names_of_any_letters_and_paths_with_spaces_are_taken_as_they_are(cli, volume, tmp_path):
    folder = tmp_path / "Käsë tiles ✓"
    for label in ("炎症", "Bindegewebe – ödematös, mit einem sehr langen Namen"):
        for i, slide in enumerate(("S 1", "S 2")):
            write_bytes(folder / label / "Zentrum #1" / slide / "a tile.png", encoded(picture(i), "PNG"))
    done = cli("tiles", "add", "mine", "--folder", folder, "--workers", 0)
    found = {(r["label"], r["medical_center"], r["group_id"]) for r in rows_of(volume, "mine")}
    assert ("炎症", "Zentrum #1", "S 2") in found
    assert f"to look at: {volume.shown(volume.tileset_report('mine'))}" in done.stderr
    assert Image.open(volume.tileset_report("mine")).size[0] > 0


def test_the_montage_of_very_many_names_shows_twelve_of_each_and_says_how_many_it_leaves_out(tmp_path):
    rows = [(f"{i}-{j}", "t.png", f"label {i:02d}", f"centre {j:02d}", "g") for i in range(14) for j in range(13)]
    manifest = TileManifest(("sample_id", "image_path", "label", "medical_center", "group_id"), tuple(rows))
    write_bytes(tmp_path / "t.png", encoded(picture(0), "PNG"))
    paths = [tmp_path / "t.png"] * len(rows)
    big = Image.open(io.BytesIO(montage(manifest, "medical_center", paths, tmp_path)))
    cut = [row for row in rows if row[2] < "label 12" and row[3] < "centre 12"]
    manifest = TileManifest(manifest.columns, tuple(cut))
    small = Image.open(io.BytesIO(montage(manifest, "medical_center", paths[: len(cut)], tmp_path)))
    assert big.size == small.size
    differs = ImageChops.difference(big, small).getbbox()
    assert differs is not None
    assert differs[1] > big.height - 20, "only the line at the foot"


def test_the_montage_shows_the_first_tile_of_a_cell_at_its_place(cli, volume, tmp_path):
    cli("tiles", "add", "mine", "--folder", tree(tmp_path / "tree"), "--workers", 0)
    sheet = np.asarray(Image.open(volume.tileset_report("mine")))
    first = picture(0)
    height, width, _ = sheet.shape
    places = [
        (y, x)
        for y in range(height - 32)
        for x in range(width - 32)
        if (sheet[y, x] == first[0, 0]).all() and (sheet[y : y + 32, x : x + 32] == first).all()
    ]
    assert len(places) == 2, "normal × east, and its copy in tumor × west"
    assert places[0][0] < places[1][0]
    assert places[0][1] < places[1][1]


def test_another_word_of_the_pattern_is_a_confounder_of_that_name(cli, volume, tmp_path):
    pattern = "<class>/<scanner>/<slide>/*.png"
    cli("tiles", "add", "mine", "--folder", tree(tmp_path / "t"), "--pattern", pattern, "--confounder", "scanner")
    assert {r["scanner"] for r in rows_of(volume, "mine")} == {"east", "west"}


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--pattern", "<class>/<centre>/*/*.png"), 2, "it says of no part that it is the group_id"),
        (("--pattern", "<class>/<class>/<slide>/*.png"), 2, "it names label twice"),
        (("--pattern", "<class>/<centre>/<slide>/*.jpg"), 3, "no file below it matches"),
        (("--parquet", "x.parquet"), 2, "where are the tiles?"),
    ],
)
def test_what_cannot_be_meant_is_refused(cli, volume, tmp_path, options, code, told):
    done = cli("tiles", "add", "mine", "--folder", tree(tmp_path / "tree"), *options, exits=code)
    assert told in done.stderr
    assert not volume.tileset_declaration("mine").exists()


def test_a_parquet_file_is_read_where_it_lies(cli, volume, tmp_path):
    rows = metadata_rows(slides=2, tiles=2, ood=0)
    path = tmp_path / "own.parquet"
    path.write_bytes(parquet_bytes(rows, [encoded(picture(i), "JPEG") for i in range(len(rows))]))
    cli("tiles", "add", "mine", "--parquet", path, "--workers", 0)
    found = rows_of(volume, "mine")
    assert [(r["sample_id"], r["label"], r["group_id"], r["medical_center"]) for r in found] == [
        (f"{r['slide_id']}__{r['patch_id']}", r["biological_class"], r["slide_id"], r["medical_center"]) for r in rows
    ]
    assert [r["image_path"] for r in found] == [f"own.parquet#{i}" for i in range(len(rows))]


@pytest.mark.parametrize(
    ("pictures", "told"),
    [
        ([None], "own.parquet#3: there is no image in this row"),
        ([b"no image"], "own.parquet#3: this is not an image"),
        ([encoded(picture(1), "PNG")[:-9]], "own.parquet#3: it is truncated"),
    ],
)
def test_a_row_without_a_whole_image_is_named(cli, tmp_path, pictures, told):
    rows = metadata_rows(slides=2, tiles=2, ood=0)
    images = [encoded(picture(i), "PNG") for i in range(len(rows))]
    images[3] = pictures[0]
    path = tmp_path / "own.parquet"
    path.write_bytes(parquet_bytes(rows, images))
    assert told in cli("tiles", "add", "mine", "--parquet", path, "--workers", 0, exits=3).stderr


def test_what_is_not_parquet_says_so(cli, tmp_path):
    path = tmp_path / "own.parquet"
    path.write_bytes(io.BytesIO(b"PAR0 nothing").getvalue())
    assert "this is not a parquet file" in cli("tiles", "add", "mine", "--parquet", path, exits=3).stderr
