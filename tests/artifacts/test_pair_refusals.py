"""Half a pair, damage and mix-ups: every one is refused, with its reason, by everything that reads artifacts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from croma_bundle.artifacts.pair import verify_pair
from croma_bundle.artifacts.sidecar import read_sidecar
from croma_bundle.errors import ArtifactError, BundleError
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.scoring.roster import load_roster
from embedded import add_cohort, declare_encoder, embed_here, sha256

NAME, TWIN = "ColourStatistics", "Twin"
ROWS, WIDTH = 24, 72
HEADER = 128  # np.save aligns the data of so small a header to 128 bytes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Volume:
    """A volume with two good artifacts of equal width (Twin is a recipe of its own)."""
    root = tmp_path_factory.mktemp("pairs")
    volume = Volume(root / "volume")
    add_cohort(volume, root / "tiles", size=32)
    declare_encoder(volume, TWIN)
    for encoder in (NAME, TWIN):
        embed_here(volume, encoder)
    return volume


@pytest.fixture
def pairs(whole: Volume, tmp_path: Path) -> Volume:
    """A copy to damage."""
    shutil.copytree(whole.root, tmp_path / "copy")
    return Volume(tmp_path / "copy")


def matrix_of(volume: Volume, encoder: str = NAME) -> np.ndarray:
    return np.load(volume.matrix("cohort", encoder), allow_pickle=False)


def edit(volume: Volume, **fields: object) -> None:
    """Overwrite fields of the sidecar."""
    path = volume.sidecar("cohort", NAME)
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def put(volume: Volume, content: bytes) -> None:
    """Replace the matrix file and state its hash, so that only its content can tell."""
    volume.matrix("cohort", NAME).write_bytes(content)
    edit(volume, matrix_sha256=sha256(content))


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def with_row(volume: Volume, row: int, value: float) -> np.ndarray:
    matrix = matrix_of(volume)
    matrix[row] = value
    return matrix


def zipped(volume: Volume) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, matrix_of(volume))
    return buffer.getvalue()


DAMAGE: dict[str, tuple[Callable[[Volume], object], str]] = {
    "lone matrix": (
        lambda v: v.sidecar("cohort", NAME).unlink(),
        r"half an artifact\n.*wanted.*\n.*ColourStatistics\.npy without ColourStatistics\.npy\.json",
    ),
    "lone sidecar": (
        lambda v: v.matrix("cohort", NAME).unlink(),
        r"half an artifact\n.*wanted.*\n.*ColourStatistics\.npy\.json without ColourStatistics\.npy",
    ),
    "empty matrix": (
        lambda v: v.matrix("cohort", NAME).write_bytes(b""),
        r"the matrix does not match its sidecar(.|\n)*\(0 bytes\)",
    ),
    "empty sidecar": (
        lambda v: v.sidecar("cohort", NAME).write_bytes(b""),
        r"its sidecar is damaged(.|\n)*\(0 bytes",
    ),
    "two empty members": (
        lambda v: [v.matrix("cohort", NAME).write_bytes(b""), v.sidecar("cohort", NAME).write_bytes(b"")],
        r"its sidecar is damaged",
    ),
    "truncated matrix": (
        lambda v: os.truncate(v.matrix("cohort", NAME), HEADER + 10 * WIDTH * 4),
        r"the matrix does not match its sidecar(.|\n)*\(3,008 bytes\)",
    ),
    "truncated matrix of the stated hash": (
        lambda v: put(v, npy(matrix_of(v))[: HEADER + 10 * WIDTH * 4]),
        r"its matrix is damaged or is not a \.npy file",
    ),
    "bytes after the matrix": (
        lambda v: put(v, npy(matrix_of(v)) + b"\0"),
        r"7,041 bytes, 7,040 by its header",
    ),
    "old sidecar with a new matrix": (
        lambda v: v.matrix("cohort", NAME).write_bytes(npy(matrix_of(v) * 2)),
        r"the matrix does not match its sidecar\n.*wanted.*matrix_sha256.*\n.*found",
    ),
    "sidecars of two encoders of equal width swapped": (
        lambda v: swap(v.sidecar("cohort", NAME), v.sidecar("cohort", TWIN)),
        r"the sidecar is of another encoder\n.*wanted +ColourStatistics\n.*found +'Twin'",
    ),
    "a whole pair under another name": (
        lambda v: [
            shutil.copy(v.matrix("cohort", TWIN), v.matrix("cohort", NAME)),
            shutil.copy(v.sidecar("cohort", TWIN), v.sidecar("cohort", NAME)),
        ],
        r"the sidecar is of another encoder",
    ),
    "matrices of two encoders of equal width swapped": (
        lambda v: put(v, npy(matrix_of(v)[::-1])) or edit(v, matrix_sha256="0" * 64),
        r"the matrix does not match its sidecar",
    ),
    "sidecar not JSON": (lambda v: v.sidecar("cohort", NAME).write_text("{'schema': 1"), r"its sidecar is damaged"),
    "sidecar not text": (lambda v: v.sidecar("cohort", NAME).write_bytes(b"\xff\xfe"), r"its sidecar is damaged"),
    "sidecar a list": (lambda v: v.sidecar("cohort", NAME).write_text("[]"), r"its sidecar is damaged"),
    "sidecar of the next schema": (lambda v: edit(v, schema=2), r"of another kind\n.*wanted +schema 1\n.*schema 2"),
    "flipped byte in the matrix": (
        lambda v: flip(v.matrix("cohort", NAME), HEADER + 1000),
        r"the matrix does not match its sidecar",
    ),
    "flipped byte in the header": (lambda v: flip(v.matrix("cohort", NAME), 60), r"the matrix does not match"),
    "Fortran order": (lambda v: put(v, npy(np.asfortranarray(matrix_of(v)))), r"another layout(.|\n)*C order"),
    "float64": (lambda v: put(v, npy(matrix_of(v).astype(np.float64))), r"another layout(.|\n)*found +float64"),
    "float16": (lambda v: put(v, npy(matrix_of(v).astype(np.float16))), r"another layout(.|\n)*found +float16"),
    "big-endian": (lambda v: put(v, npy(matrix_of(v).astype(">f4"))), r"another layout(.|\n)*found +>f4"),
    "three axes": (lambda v: put(v, npy(matrix_of(v)[None])), r"another layout(.|\n)*\(1, 24, 72\)"),
    "other shape": (lambda v: put(v, npy(matrix_of(v)[:-1])), r"its shape is not the stated one(.|\n)*\(23, 72\)"),
    "objects": (
        lambda v: put(v, npy(np.array([[1, "a"]], dtype=object))),
        r"its matrix is damaged or is not a \.npy file(.|\n)*object",
    ),
    "an archive": (lambda v: put(v, zipped(v)), r"an \.npz archive"),
    "a broken archive": (lambda v: put(v, b"PK\x03\x04 and no more"), r"an \.npz archive"),
    "NaN": (lambda v: put(v, npy(with_row(v, 5, np.nan))), r"NaN or infinity in 1 row: 5"),
    "infinity": (lambda v: put(v, npy(with_row(v, 23, -np.inf))), r"NaN or infinity in 1 row: 23"),
    "zeros": (lambda v: put(v, npy(with_row(v, 0, 0.0))), r"only zeros in 1 row: 0"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_damage_is_refused_by_name_with_its_reason(whole: Volume, pairs: Volume, damage: str):
    act, reason = DAMAGE[damage]
    act(pairs)
    with pytest.raises(BundleError, match=reason) as refused:
        verify_pair(pairs, "cohort", NAME)
    assert refused.value.subject == f"cohort · {NAME}"
    good = read_sidecar(whole.sidecar("cohort", NAME), "the good one")
    members, faults = load_roster(
        pairs,
        load_catalogue(pairs),
        "cohort",
        fingerprint=good["manifest_fingerprint"],
        pixels_sha256=good["pixels_sha256"],
        wanted=None,
    )
    assert NAME not in [member.name for member in members]
    assert f"cohort · {NAME}" in [fault.subject for fault in faults]


@pytest.mark.parametrize("damage", DAMAGE)
def test_embed_does_not_skip_over_a_damaged_artifact(pairs: Volume, damage: str):
    DAMAGE[damage][0](pairs)
    both = (pairs.matrix("cohort", NAME), pairs.sidecar("cohort", NAME))
    before = {p: p.read_bytes() for p in both if p.exists()}
    with pytest.raises(BundleError):
        embed_here(pairs, NAME)
    assert {p: p.read_bytes() for p in both if p.exists()} == before, "a refusal must not touch what stands there"
    outcome, _ = embed_here(pairs, NAME, force=True)
    assert outcome == "embedded"
    verify_pair(pairs, "cohort", NAME)


def test_the_undamaged_pairs_are_accepted(pairs: Volume):
    for encoder in (NAME, TWIN):
        sidecar, matrix = verify_pair(pairs, "cohort", encoder)
        assert matrix.shape == (ROWS, WIDTH)
        assert sidecar["matrix_sha256"] == sha256(pairs.matrix("cohort", encoder).read_bytes())
    assert embed_here(pairs, NAME)[0] == "there"


FIELDS = [
    *("checkpoint_revision", "extraction_contract", "precision", "batch_size", "output_dtype", "output_shape"),
    *("manifest_fingerprint", "matrix_sha256", "pixels_sha256", "weights", "remote_code", "control", "spread"),
    *("environment", "bundle", "replay", "started", "finished"),
]


@pytest.mark.parametrize("field", FIELDS)
def test_a_sidecar_that_lacks_a_field_is_refused_and_the_field_named(pairs: Volume, field: str):
    path = pairs.sidecar("cohort", NAME)
    stored = json.loads(path.read_text())
    del stored[field]
    path.write_text(json.dumps(stored))
    with pytest.raises(ArtifactError, match=f"its sidecar lacks {field}"):
        verify_pair(pairs, "cohort", NAME)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [7.5, "x", [1], None, {}], ids=["number", "text", "list", "null", "object"])
def test_a_field_of_another_type_is_refused_or_makes_no_difference_but_never_a_traceback(
    pairs: Volume, field: str, value: object
):
    """Text where text belongs may pass `verify` (it cannot know the right date), everything else may not."""
    edit(pairs, **{field: value})
    texts = ("started", "finished", "precision", "output_dtype", "checkpoint_revision", "pixels_sha256")
    harmless = {
        "x": (*texts, "manifest_fingerprint"),
        None: ("checkpoint_revision", "precision", "batch_size", "pixels_sha256"),
    }
    passes = field in harmless.get(value, ()) if not isinstance(value, list | dict) else False
    passes |= value == {} and field in ("spread", "environment", "bundle", "replay")
    with contextlib.nullcontext() if passes else pytest.raises(ArtifactError):
        verify_pair(pairs, "cohort", NAME)


def test_no_byte_of_the_header_can_raise_anything_but_a_refusal(pairs: Volume):
    good = npy(matrix_of(pairs))
    refused = 0
    for offset in range(HEADER):
        for mask in (0x01, 0x80):
            changed = bytearray(good)
            changed[offset] ^= mask
            put(pairs, bytes(changed))
            try:
                _, matrix = verify_pair(pairs, "cohort", NAME)
            except BundleError:
                refused += 1
            else:
                assert matrix.shape == (ROWS, WIDTH)
    assert refused > HEADER, "most flips of a header must be noticed"


class Bomb:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("form", ["object array", "bare pickle"])
def test_a_malicious_pickle_is_never_run(pairs: Volume, tmp_path: Path, form: str):
    target = tmp_path / "owned"
    if form == "bare pickle":
        content = pickle.dumps(Bomb(target))
    else:
        array = np.empty((ROWS, WIDTH), dtype=object)
        array[:] = Bomb(target)
        content = npy(array)
    put(pairs, content)
    with pytest.raises(ArtifactError):
        verify_pair(pairs, "cohort", NAME)
    with pytest.raises(ArtifactError):
        embed_here(pairs, NAME)
    assert not target.exists()
    (tmp_path / "proof.npy").write_bytes(content)
    np.load(tmp_path / "proof.npy", allow_pickle=True)
    assert target.exists(), "the pickle of this test must be a live one"
