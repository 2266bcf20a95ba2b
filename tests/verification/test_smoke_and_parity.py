"""Golden vectors: made twice alike, written whole, and compared with somebody else's within what is stated.

Real processes and real encoders (the classical ones, which need no weights); with a network and its checkpoint:
tests/encoders/test_smoke_networks.py.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from croma_bundle.artifacts.golden import Golden, read_golden, write_golden
from croma_bundle.errors import DegenerateEmbedding, ManifestError, VerdictFailed
from croma_bundle.extraction.golden_tiles import SPEC, golden_tiles
from croma_bundle.extraction.smoke import smoke
from croma_bundle.layout import Volume, WeightsFolder
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.tilemanifest.manifest import read_manifest
from embedded import entry_of, toy

NOWHERE = Volume(Path("/nonexistent"))


@pytest.fixture(scope="module")
def tiles():
    return golden_tiles()


def smoked(tiles, function, **fields) -> Golden:
    return smoke(entry_of(**fields), WeightsFolder(NOWHERE.weights), "cpu", tiles, toy(function))


def halves(batch: np.ndarray) -> np.ndarray:
    """(B, 2) of length 1, different for every tile."""
    share = batch.astype(np.float64).mean((1, 2, 3)) / 255
    return np.stack([np.cos(share), np.sin(share)], axis=1).astype(np.float32)


# smoke


def test_the_golden_tiles_are_every_tissue_at_every_centre_once(tiles):
    assert len(tiles.names) == len(set(tiles.names)) == 9
    assert {pixels.shape for pixels in tiles.pixels} == {(256, 256, 3)}
    assert len({pixels.tobytes() for pixels in tiles.pixels}) == 9


def test_the_vectors_are_those_that_embed_makes_of_a_tileset_of_the_same_tiles(cli, volume):
    """Written as PNG files, decoded and embedded in batches of 64: the same rows."""
    knobs = {"--seed": SPEC.seed, "--tile-size": SPEC.tile_size, "--slides-per-cell": 1, "--tiles-per-slide": 1}
    cli("tiles", "phantom", "golden", *map(str, itertools.chain(*knobs.items())))
    cli("tiles", "fetch", "golden", "--workers", "0")
    cli("embed", "--tileset", "golden", "--encoders", "Thumbnail", "--workers", "0")
    done = cli("smoke", "--encoders", "Thumbnail")
    assert "Thumbnail: 9 golden tiles × 768, twice the same, float32 on cpu, lengths " in done.stdout
    golden = read_golden(volume.golden("Thumbnail"))
    assert np.array_equal(golden.vectors, np.load(volume.matrix("golden", "Thumbnail")))
    assert list(golden.tiles) == list(read_manifest(volume.tile_manifest("golden")).column("sample_id"))
    pixels = json.loads(volume.pixels("golden").read_text("utf-8"))
    assert golden.identity["tiles"]["pixels_sha256"] == pixels["pixels_sha256"]
    contract = json.loads(volume.sidecar("golden", "Thumbnail").read_text("utf-8"))["extraction_contract"]
    assert golden.identity["extraction_contract"] == {k: v for k, v in contract.items() if k != "source_tile_size"}


def test_other_vectors_the_second_time_fail(tiles):
    count = itertools.count()
    with pytest.raises(VerdictFailed, match="the same tiles gave other vectors the second time"):
        smoked(tiles, lambda batch: halves(batch) + np.float32(next(count)))


def test_normalised_vectors_must_have_length_one_and_others_may_leave_the_published_range(tiles):
    assert smoked(tiles, halves, norms=(1.0, 1.0)).vectors.shape == (9, 2)
    with pytest.raises(VerdictFailed, match=r"its vectors have other lengths than 1\n.*1 within 1e-05\n.*1\.001"):
        smoked(tiles, lambda batch: halves(batch) * np.float32(1.001), norms=(1.0, 1.0))
    assert smoked(tiles, halves, norms=(5.96, 16.67)).vectors.shape == (9, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_vectors_that_are_no_embedding_fail(tiles, value):
    with pytest.raises(DegenerateEmbedding):
        smoked(tiles, lambda batch: np.full((len(batch), 2), value, np.float32))


def test_an_unpinned_encoder_is_refused_with_the_command_that_pins_it(tiles):
    with pytest.raises(ManifestError, match=r"it is unpinned(.|\n)*make lock-weights ENCODERS=Toy"):
        smoked(tiles, halves, backend="timm", repository="o/r")


def test_one_that_fails_does_not_stop_the_others(cli, volume):
    done = cli("smoke", "--encoders", "Prost40M,Thumbnail", exits=3)
    assert "Prost40M: failed, it is unpinned" in done.stderr
    assert [path.name for path in volume.golden("x").parent.iterdir()] == ["Thumbnail.json"]


# the file


def test_every_float32_is_read_back_as_it_was(tiles, tmp_path):
    rows = np.random.default_rng(0).integers(0, 2**32, (9, 400), dtype=np.uint32).view(np.float32)
    rows = np.where(np.isfinite(rows), rows, np.float32(1e-45))
    golden = replace(smoked(tiles, halves), vectors=rows)
    write_golden(tmp_path / "x.json", golden)
    assert np.array_equal(read_golden(tmp_path / "x.json").vectors.view(np.uint32), rows.view(np.uint32))


# parity


@pytest.fixture(scope="module")
def made(tiles) -> Golden:
    entry = load_catalogue(NOWHERE).encoder("Thumbnail")
    return smoke(entry, WeightsFolder(NOWHERE.weights), "cpu", tiles)


@pytest.fixture
def ours(made: Golden, volume: Volume) -> Golden:
    """On the volume, as `smoke` leaves them."""
    write_golden(volume.golden("Thumbnail"), made)
    return read_golden(volume.golden("Thumbnail"))


@pytest.fixture
def theirs(ours: Golden, tmp_path: Path) -> Callable[..., Path]:
    """A file of somebody else, in which things are different."""

    def write(share: float = 0.0, arithmetic: str = "float32", **identity: object) -> Path:
        """Every vector moved by `share` of its own length, in one coordinate."""
        vectors = ours.vectors.astype(np.float64)
        vectors[:, 7] += share * np.linalg.norm(vectors, axis=1)
        path = tmp_path / "theirs.json"
        device = "cpu" if arithmetic == "float32" else "cuda"
        made = {**ours.made, "arithmetic": arithmetic, "environment": {**ours.made["environment"], "device": device}}
        moved = vectors.astype(np.float32)
        write_golden(path, Golden({**ours.identity, **identity}, made, ours.tiles, moved))
        return path

    return write


@pytest.mark.parametrize(
    ("share", "arithmetic", "verdict"),
    [
        (0.0, "float32", "MATCH"),
        (0.9e-3, "float32", "MATCH"),
        (1.1e-3, "float32", "DRIFT"),
        (1.8e-2, "mixed-float16", "MATCH"),
        (2.2e-2, "mixed-float16", "DRIFT"),
    ],
)
def test_the_verdict_is_the_largest_difference_against_the_tolerance_of_the_coarser_arithmetic(
    cli, theirs, share, arithmetic, verdict
):
    done = cli("parity", theirs(share, arithmetic), exits=1 if verdict == "DRIFT" else 0)
    assert f"Thumbnail: {verdict}, largest difference" in done.stdout
    assert f"ours float32 on cpu, theirs {arithmetic} on " in done.stdout
    assert ("9 of 9 golden vectors are others than in" in done.stderr) == (verdict == "DRIFT")


def test_a_single_other_vector_is_named(cli, ours, theirs, tmp_path):
    vectors = ours.vectors.copy()
    vectors[4] *= np.float32(1.01)
    write_golden(tmp_path / "one.json", replace(ours, vectors=vectors))
    done = cli("parity", tmp_path / "one.json", exits=1)
    assert f"1 of 9 golden vectors are others than in {tmp_path / 'one.json'}" in done.stderr
    assert f"{ours.tiles[4]} 0.0099" in done.stderr, "0.01 / 1.01"


def test_vectors_of_another_checkpoint_are_not_compared_and_both_sides_are_told(cli, theirs):
    commit = "ab" * 20
    done = cli("parity", theirs(checkpoint_revision=commit), exits=3)
    assert "are not of the same thing" in done.stderr
    assert "wanted   checkpoint_revision = None" in done.stderr
    assert f"found    checkpoint_revision = {commit}" in done.stderr


def test_vectors_of_other_pixels_are_not_compared(cli, ours, theirs):
    done = cli("parity", theirs(tiles={**ours.identity["tiles"], "pixels_sha256": "0" * 64}), exits=3)
    assert "tiles.pixels_sha256 = " + "0" * 64 in done.stderr


def test_without_vectors_of_one_s_own_the_command_that_makes_them_is_told(cli, theirs, volume):
    path = theirs()
    volume.golden("Thumbnail").unlink()
    assert "make smoke FAMILY=… ENCODERS=Thumbnail" in cli("parity", path, exits=3).stderr


@pytest.mark.parametrize("encoder", ["../../etc/passwd", "a/b", ""])
def test_a_name_in_their_file_leads_nowhere(cli, theirs, encoder):
    assert "this name cannot be used" in cli("parity", theirs(encoder=encoder), exits=2).stderr


def test_a_file_that_was_changed_is_damaged(cli, theirs):
    path = theirs()
    document = json.loads(path.read_text("utf-8"))
    next(iter(document["vectors"].values()))[0] += 1.0
    path.write_text(json.dumps(document), "utf-8")
    assert "its vectors changed after they were written" in cli("parity", path, exits=5).stderr


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"\xff", b'{"schema": 1, "identity": {}, "made": {}, "vectors": {"a": [1]}}', b"[" * 100_000],
    ids=["empty", "no keys", "a list", "no text", "half", "deep"],
)
def test_what_is_no_such_file_is_told(cli, tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert "these are no golden vectors" in cli("parity", path, exits=3).stderr


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5], 10**400, float("nan"), float("inf"), 1e39])
def test_numbers_that_no_encoder_makes_are_told_before_anything_is_compared(cli, theirs, value):
    path = theirs()
    document = json.loads(path.read_text("utf-8"))
    rows = list(document["vectors"].values())
    rows[3][0] = value
    numbers = value if isinstance(value, float) else 0.5
    with np.errstate(over="ignore"):
        stored = np.array([[numbers if x is value else x for x in row] for row in rows], dtype="<f4")
    document["vectors_sha256"] = hashlib.sha256(stored.tobytes()).hexdigest()
    path.write_text(json.dumps(document), "utf-8")
    done = cli("parity", path, exits=3)
    told = "vectors that no encoder makes" if isinstance(value, float) else "these are no golden vectors"
    assert told in done.stderr
    assert (list(document["vectors"])[3] in done.stderr) == isinstance(value, float)
    assert "Warning" not in done.stderr
    assert done.stdout == ""


def test_a_vector_of_zeros_has_no_direction_to_compare(cli, ours, tmp_path):
    write_golden(tmp_path / "zero.json", replace(ours, vectors=np.where(np.arange(9)[:, None] == 2, 0, ours.vectors)))
    assert f"found    {ours.tiles[2]}\n" in cli("parity", tmp_path / "zero.json", exits=3).stderr


@pytest.mark.parametrize("schema", [True, 1.0, "1", 2])
def test_another_schema_is_told(cli, theirs, schema):
    path = theirs()
    document = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**document, "schema": schema}), "utf-8")
    assert f"another schema\n  wanted   1\n  found    {schema!r}" in cli("parity", path, exits=3).stderr


def test_what_a_file_says_does_not_steer_the_terminal(cli, theirs):
    escape = "\x1b[2J\x1b]0;title\x07"
    path = theirs()
    document = json.loads(path.read_text("utf-8"))
    document["made"]["environment"]["device"] = f"cpu{escape}"
    path.write_text(json.dumps(document), "utf-8")
    said = cli("parity", path).stdout
    assert "theirs float32 on cpu\\x1b[2J\\x1b]0;title\\x07" in said
    assert "\x1b" not in said
    document["identity"]["extra"] = escape
    path.write_text(json.dumps(document), "utf-8")
    said = cli("parity", path, exits=3).stderr
    assert "\x1b" not in said
    assert r"extra = \x1b[2J\x1b]0;title\x07" in said


@pytest.mark.parametrize(("device", "exits"), [("cpu", 3), ("cuda", 0), ("cuda:1", 0)])
def test_float16_is_believed_of_cuda_alone_for_it_is_tolerated_more(cli, theirs, device, exits):
    path = theirs()
    document = json.loads(path.read_text("utf-8"))
    document["made"]["arithmetic"], document["made"]["environment"]["device"] = "mixed-float16", device
    path.write_text(json.dumps(document), "utf-8")
    assert ("these are no golden vectors" in cli("parity", path, exits=exits).stderr) == bool(exits)


def test_a_file_that_is_not_there_and_one_that_matches_are_both_told(cli, theirs, tmp_path):
    done = cli("parity", theirs(), tmp_path / "none.json", exits=3)
    assert "Thumbnail: MATCH" in done.stdout
    assert "none.json: it cannot be read (No such file or directory)" in done.stderr
