"""`--image-path-map`: reads go elsewhere, identity does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from croma_bundle.errors import TileManifestError
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.path_map import read_path_map

MANIFEST = TileManifest(
    ("sample_id", "image_path", "label", "centre", "group_id"),
    (("007", "a.png", "t", "x", "g"), ("7", "b.png", "t", "x", "g"), ("c", "c d.png", "t", "x", "g")),
)
HEADER = "sample_id,canonical_image_path,access_path\n"
GOOD = ("007,a.png,/fast/1.png\n", "7,b.png,/fast/2.png\n", "c,c d.png,/fast/ü 3.png\n")
PATHS = [Path("/fast/1.png"), Path("/fast/2.png"), Path("/fast/ü 3.png")]


@pytest.fixture
def mapped(tmp_path):
    def read(content: str) -> list[Path]:
        path = tmp_path / "map.csv"
        path.write_text(content, encoding="utf-8")
        return read_path_map(path, MANIFEST)

    return read


@pytest.fixture
def faults(mapped):
    def read(*lines: str) -> list[str]:
        with pytest.raises(TileManifestError) as caught:
            mapped(HEADER + "".join(lines))
        return [line.strip() for line in caught.value.paragraph().splitlines()[1:]]

    return read


def test_paths_come_in_the_order_of_the_manifest(mapped):
    assert mapped(HEADER + "".join(GOOD)) == PATHS


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_the_order_of_the_map_does_not_matter(mapped, order):
    assert mapped(HEADER + "".join(GOOD[i] for i in order)) == PATHS


def test_a_missing_row_is_named(faults):
    assert faults(GOOD[0], GOOD[2]) == ["sample_id '7' of the manifest is missing"]


def test_an_unknown_sample_is_named_by_line(faults):
    assert faults(*GOOD, "x,x.png,/fast/x.png\n") == ["line 5: sample_id 'x' is not in the manifest"]


def test_a_double_is_named_by_line(faults):
    assert faults(*GOOD, GOOD[1]) == ["line 5: sample_id '7' stands there a second time"]


def test_a_canonical_path_of_another_row_is_named_with_the_right_one(faults):
    assert faults("007,b.png,/fast/1.png\n", *GOOD[1:]) == [
        "line 2: canonical_image_path of '007' is 'a.png' in the manifest"
    ]


def test_a_blank_access_path_is_named_by_line(faults):
    assert faults(GOOD[0], "7,b.png, \n", GOOD[2]) == ["line 3: access_path is blank"]


def test_two_images_read_from_one_file_are_not_one_to_one(faults):
    assert faults(GOOD[0], "7,b.png,/fast/1.png\n", GOOD[2]) == [
        "line 3: access_path '/fast/1.png' is that of 'a.png' already"
    ]


def test_every_fault_is_told_at_once(faults):
    assert faults("007,x.png,/1\n", "y,y.png,/2\n", "7,b.png,\n", "7,b.png,/3\n") == [
        "line 2: canonical_image_path of '007' is 'a.png' in the manifest",
        "line 3: sample_id 'y' is not in the manifest",
        "line 4: access_path is blank",
        "line 5: sample_id '7' stands there a second time",
        "sample_id 'c' of the manifest is missing",
    ]


def test_a_missing_column_is_named(mapped):
    with pytest.raises(TileManifestError, match="column 'access_path' is missing; did you mean 'acces_path'"):
        mapped("sample_id,canonical_image_path,acces_path\n007,a.png,/1\n")


def test_reading_a_map_leaves_the_fingerprint_as_it_was(mapped):
    before = MANIFEST.fingerprint("centre"), MANIFEST.text()
    mapped(HEADER + "".join(GOOD))
    assert (MANIFEST.fingerprint("centre"), MANIFEST.text()) == before
