"""`verify artifacts`: every claim that files alone can prove, every artifact that fails it by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from croma_bundle.durable import sha256_file
from croma_bundle.layout import Volume
from embedded import add_cohort, declare_encoder, embed_here


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Volume:
    """Two tilesets; three embedded encoders in the first, one in the second."""
    root = tmp_path_factory.mktemp("verify")
    volume = Volume(root / "volume")
    add_cohort(volume, root / "one", name="one", size=32)
    add_cohort(volume, root / "two", name="two", size=32, seed=1)
    declare_encoder(volume, "Twin")
    for encoder in ("ColourStatistics", "Thumbnail", "Twin"):
        embed_here(volume, encoder, "one")
    embed_here(volume, "Thumbnail", "two")
    return volume


@pytest.fixture
def copied(whole: Volume, volume: Volume) -> Volume:
    """The same, on the volume of the `cli` fixture."""
    shutil.copytree(whole.root, volume.root, dirs_exist_ok=True)
    return volume


def test_what_holds_is_said_with_its_hash_and_exits_0(cli, copied: Volume):
    done = cli("verify", "artifacts")
    expected = [
        f"ok  {tileset} · {encoder}  sha256 {sha256_file(copied.matrix(tileset, encoder))}"
        for tileset, encoder in (
            ("one", "ColourStatistics"),
            ("one", "Thumbnail"),
            ("one", "Twin"),
            ("two", "Thumbnail"),
        )
    ]
    assert done.stdout.splitlines() == expected
    assert done.stderr == ""


def test_a_tileset_can_be_verified_alone(cli, copied: Volume):
    copied.matrix("one", "Thumbnail").write_bytes(b"")
    assert len(cli("verify", "artifacts", "--tileset", "two").stdout.splitlines()) == 1


def test_every_damage_of_several_is_named_and_the_rest_still_verified(cli, copied: Volume):
    copied.sidecar("one", "ColourStatistics").unlink()
    flipped = copied.matrix("one", "Thumbnail")
    content = bytearray(flipped.read_bytes())
    content[5000] ^= 1
    flipped.write_bytes(content)
    shutil.copy(copied.sidecar("one", "Thumbnail"), copied.sidecar("two", "Thumbnail"))
    done = cli("verify", "artifacts", exits=5)
    assert [line.split("  ")[1] for line in done.stdout.splitlines()] == ["one · Twin"]
    faults = done.stderr.split("error: ")[1:]
    assert [fault.splitlines()[0] for fault in faults] == [
        "one · ColourStatistics: half an artifact",
        "one · Thumbnail: the matrix does not match its sidecar",
        "two · Thumbnail: the matrix does not match its sidecar",
    ]
    assert f"found    {sha256_file(flipped)[:12]}…  embeddings/one/Thumbnail.npy (73,856 bytes)" in faults[1]
    assert "make embed FAMILY=classical TILESET=one ENCODERS=Thumbnail FORCE=1" in faults[1]


def test_a_pair_of_another_tileset_is_refused_by_its_rows(cli, copied: Volume):
    """The second tileset has the same rows but other pixels, so its pair is refused for the pixels."""
    for path in (copied.matrix("two", "Thumbnail"), copied.sidecar("two", "Thumbnail")):
        shutil.copy(path, copied.embeddings("one") / path.name)
    done = cli("verify", "artifacts", "--tileset", "one", exits=5)
    assert "one · Thumbnail: its pixels_sha256 is not the tileset's" in done.stderr
    path = copied.sidecar("one", "Thumbnail")
    path.write_text(json.dumps({**json.loads(path.read_text()), "manifest_fingerprint": "0" * 64}))
    done = cli("verify", "artifacts", "--tileset", "one", exits=5)
    assert "one · Thumbnail: its manifest_fingerprint is not the tileset's" in done.stderr


def test_unusable_rows_are_found_even_where_the_hash_agrees(cli, copied: Volume):
    path, marker = copied.matrix("one", "Twin"), copied.sidecar("one", "Twin")
    matrix = np.load(path)
    matrix[4] = 0
    np.save(path, matrix)
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "matrix_sha256": sha256_file(path)}))
    done = cli("verify", "artifacts", exits=3)
    assert "one · Twin: it has unusable rows" in done.stderr
    assert "only zeros in 1 row: 4" in done.stderr


@pytest.mark.parametrize("change", ["gone", "rows swapped"])
def test_the_manifest_beside_the_matrices_must_be_the_tilesets(cli, copied: Volume, change: str):
    path = copied.embedding_manifest("one")
    lines = path.read_text().splitlines(keepends=True)
    if change == "gone":
        path.unlink()
    else:
        path.write_text("".join([lines[0], lines[2], lines[1], *lines[3:]]))
    done = cli("verify", "artifacts", exits=5)
    assert "tileset one: the manifest beside its matrices is not the tileset's" in done.stderr
    assert "ok  two · Thumbnail" in done.stdout


def test_an_imported_matrix_is_verified_without_pixels(cli, copied: Volume, tmp_path: Path):
    np.save(tmp_path / "m.npy", np.random.default_rng(0).normal(size=(24, 3)).astype(np.float16))
    cli("import", "two", "Outside", tmp_path / "m.npy", "--provenance", "someone else")
    assert "ok  two · Outside" in cli("verify", "artifacts").stdout


def test_nothing_to_verify_is_an_error_not_a_pass(cli, volume: Volume):
    assert "there is no embedding to verify" in cli("verify", "artifacts", exits=3).stderr


def test_a_tileset_that_has_no_embedding_does_not_pass(cli, copied: Volume):
    shutil.rmtree(copied.embeddings("two"))
    done = cli("verify", "artifacts", "--tileset", "two,one", exits=3)
    assert "tileset two: nothing is embedded for it" in done.stderr
    assert len(done.stdout.splitlines()) == 3, "the other tileset is verified all the same"


def test_embeddings_of_a_tileset_that_nobody_declares_do_not_pass(cli, copied: Volume):
    copied.tileset_declaration("two").unlink()
    done = cli("verify", "artifacts", exits=3)
    assert "tileset 'two': it is not declared" in done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_a_tileset_typed_wrong_gets_a_suggestion(cli, copied: Volume):
    assert "did you mean 'one'?" in cli("verify", "artifacts", "--tileset", "onee", exits=3).stderr


def test_json_output_is_one_object_per_event(cli, copied: Volume):
    copied.sidecar("two", "Thumbnail").unlink()
    done = cli("--json", "verify", "artifacts", exits=5)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["encoder"] for e in events if e["event"] == "verified"] == ["ColourStatistics", "Thumbnail", "Twin"]
    assert [e["exit_code"] for e in events if e["event"] == "error"] == [5]
