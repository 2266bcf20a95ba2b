"""`pixels.json`: the identity of a tileset's pixels, and what it refuses to vouch for."""

from __future__ import annotations

import hashlib
import json

import pytest

from croma_bundle.errors import InputError
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.pixel_record import pixels_sha256, read_pixels

MANIFEST = TileManifest(
    ("sample_id", "image_path", "label", "centre", "group_id"),
    (("a", "a.png", "t", "x", "g"), ("b", "b.png", "t", "x", "g")),
)
DIGESTS = [hashlib.sha256(name).digest() for name in (b"first", b"second")]


@pytest.fixture
def stored(volume):
    """Write a good record with some keys changed."""

    def write(**changes):
        record = {
            "schema": 1,
            "pixels_sha256": hashlib.sha256(DIGESTS[0] + DIGESTS[1]).hexdigest(),
            "manifest_sha256": hashlib.sha256(MANIFEST.text().encode()).hexdigest(),
            "declaration": {},
            "sizes": {"48x48": 2},
            "rows": [digest.hex() for digest in DIGESTS],
            **changes,
        }
        volume.pixels("mine").parent.mkdir(parents=True)
        volume.pixels("mine").write_text(json.dumps({k: v for k, v in record.items() if v is not None}))
        return record

    return write


def test_the_identity_is_the_hash_of_the_concatenated_row_hashes_in_row_order():
    assert pixels_sha256(DIGESTS) == hashlib.sha256(DIGESTS[0] + DIGESTS[1]).hexdigest()
    assert pixels_sha256(DIGESTS[::-1]) == hashlib.sha256(DIGESTS[1] + DIGESTS[0]).hexdigest()


def test_a_good_record_is_read(volume, stored):
    record = stored()
    got = read_pixels(volume, "mine", MANIFEST)
    assert (got.pixels_sha256, list(got.rows), got.sizes) == (record["pixels_sha256"], record["rows"], {"48x48": 2})


def test_a_tileset_whose_pixels_were_never_hashed_is_told_so(volume):
    with pytest.raises(InputError, match="tileset mine: its pixels were never hashed"):
        read_pixels(volume, "mine", MANIFEST)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": [DIGESTS[1].hex(), DIGESTS[0].hex()]},
        {"rows": [DIGESTS[0].hex()]},
        {"pixels_sha256": "0" * 64},
        {"manifest_sha256": "0" * 64},
    ],
    ids=["rows swapped", "a row less", "total changed", "another manifest"],
)
def test_a_record_that_does_not_belong_to_the_manifest_is_refused_with_both_files(volume, stored, changes):
    stored(**changes)
    with pytest.raises(InputError) as caught:
        read_pixels(volume, "mine", MANIFEST)
    said = caught.value.paragraph()
    assert str(volume.tile_manifest("mine")) in said
    assert str(volume.pixels("mine")) in said


@pytest.mark.parametrize("row", range(2))
@pytest.mark.parametrize("column", range(5))
def test_any_changed_value_of_the_manifest_ends_the_belonging(volume, stored, row, column):
    stored()
    rows = [list(values) for values in MANIFEST.rows]
    rows[row][column] += "'"
    with pytest.raises(InputError, match="its manifest changed after its pixels were hashed"):
        read_pixels(volume, "mine", TileManifest(MANIFEST.columns, tuple(map(tuple, rows))))


@pytest.mark.parametrize("key", ["pixels_sha256", "rows", "sizes", "manifest_sha256", "declaration"])
def test_a_record_without_one_of_its_keys_is_no_record(volume, stored, key):
    stored(**{key: None})
    with pytest.raises(InputError, match="is not a pixel record"):
        read_pixels(volume, "mine", MANIFEST)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"rows": [1]}'])
def test_what_is_no_json_object_is_no_record(volume, content):
    volume.pixels("mine").parent.mkdir(parents=True)
    volume.pixels("mine").write_bytes(content)
    with pytest.raises(InputError, match="is not a pixel record"):
        read_pixels(volume, "mine", MANIFEST)
