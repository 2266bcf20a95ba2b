"""What a sidecar holds, to the field, and what it must never hold."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import numpy as np
import pytest

from croma_bundle.artifacts.sidecar import SCHEMA
from embedded import add_cohort, declare_encoder

REFERENCE = {
    *("checkpoint_revision", "extraction_contract", "precision", "batch_size"),
    *("output_dtype", "output_shape", "manifest_fingerprint"),
}
BY_SCHEMA = {
    1: {
        "": REFERENCE
        | {"schema", "matrix_sha256", "pixels_sha256", "weights", "remote_code", "control", "spread"}
        | {"environment", "bundle", "replay", "started", "finished"},
        "extraction_contract": {
            *("version", "encoder", "family", "backend", "model", "generation"),
            *("preprocessing", "pooling", "source_tile_size"),
        },
        "spread": {"cosine_min", "cosine_mean", "cosine_max", "equal_rows", "constant_columns"},
        "environment": {
            *("device", "image", "image_digest", "python", "platform", "libc", "cpu", "packages", "libjpeg"),
        },
        "bundle": {"version", "git_commit"},
        "replay": {"command", "tileset", "encoder", "device"},
    }
}
"""The fields of every schema. A change of the fields needs a new number here and in `sidecar.SCHEMA`."""

SECRET = "hf_not_for_anyones_eyes"


@pytest.fixture
def published(cli, volume, tmp_path: Path) -> dict:
    """A sidecar written by the real command line, in an environment full of what must stay private."""
    add_cohort(volume, tmp_path / "tiles", size=32)
    home = tmp_path / "home-of-zaphod"
    home.mkdir()
    env = {
        "HF_TOKEN": SECRET,
        "HUGGING_FACE_HUB_TOKEN": SECRET,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "HOME": str(home),
        "USER": "zaphod",
        "LOGNAME": "zaphod",
        "CROMA_IMAGE": "registry.example/croma-shared:1",
    }
    cli("embed", "--tileset", "cohort", "--encoders", "Thumbnail", "--workers", "1", env=env)
    return json.loads(volume.sidecar("cohort", "Thumbnail").read_text())


def test_a_sidecar_has_exactly_the_fields_of_its_schema(published: dict):
    for key, fields in BY_SCHEMA[SCHEMA].items():
        assert set(published[key] if key else published) == fields, f"the fields of {key or 'the sidecar'} changed"
    assert published["schema"] == SCHEMA


def test_the_reference_fields_have_the_types_that_the_public_pipeline_compares(published: dict):
    assert list(published)[:7] == [
        *("checkpoint_revision", "extraction_contract", "precision", "batch_size"),
        *("output_dtype", "output_shape", "manifest_fingerprint"),
    ]
    assert published["checkpoint_revision"] is None, "an encoder without a hub checkpoint has no revision"
    assert published["precision"] == "float32"
    assert published["batch_size"] == 64
    assert published["output_dtype"] == "float32"
    assert published["output_shape"] == [24, 768]
    assert re.fullmatch("[0-9a-f]{64}", published["manifest_fingerprint"])
    assert re.fullmatch("[0-9a-f]{64}", published["pixels_sha256"])
    assert published["extraction_contract"]["source_tile_size"] == ["32x32"]
    assert published["extraction_contract"]["encoder"] == "Thumbnail"


def test_the_facts_beside_the_identity_are_what_they_say(published: dict, volume):
    matrix = np.load(volume.matrix("cohort", "Thumbnail")).astype(np.float64)
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[np.triu_indices(24, 1)]
    spread = published["spread"]
    assert spread["cosine_min"] == pytest.approx(cosines.min(), abs=1e-12)
    assert spread["cosine_mean"] == pytest.approx(cosines.mean(), abs=1e-12)
    assert spread["cosine_max"] == pytest.approx(cosines.max(), abs=1e-12)
    assert (spread["equal_rows"], spread["constant_columns"]) == (0, 0)
    assert published["environment"]["image"] == "registry.example/croma-shared:1"
    assert published["environment"]["packages"]["numpy"] == np.__version__
    assert published["environment"]["libjpeg"]
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    assert re.fullmatch(stamp, published["started"])
    assert published["started"] <= published["finished"]


def test_nothing_private_is_written(published: dict, volume):
    text = json.dumps(published)
    private = [
        "zaphod",
        str(volume.root),
        str(volume.root.parent),
        str(Path.home()) + "/",
    ]
    assert [word for word in private if word in text] == []
    words = set(re.findall(r"[^\s\"/:,]+", text))
    assert socket.gethostname() not in words, "no host name"
    holders = [p for p in volume.root.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    assert holders == [], "a token was written to the volume"


def test_nothing_private_is_left_by_a_run_that_fails(cli, volume, tmp_path: Path):
    cohort = add_cohort(volume, tmp_path / "tiles", size=32)
    first = tmp_path / "tiles" / cohort.rows[0]["image_path"]
    first.write_bytes(first.read_bytes()[:-30])
    done = cli("embed", "--tileset", "cohort", "--encoders", "Thumbnail", env={"HF_TOKEN": SECRET}, exits=3)
    assert SECRET not in done.stdout + done.stderr
    assert [p for p in volume.root.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()] == []


def test_the_commit_is_that_of_the_image_where_there_is_no_checkout(cli, volume, tmp_path: Path):
    add_cohort(volume, tmp_path / "tiles", size=32)
    declare_encoder(volume, "Mine")
    commit = "0123456789abcdef0123456789abcdef01234567"
    cli("embed", "--tileset", "cohort", "--encoders", "Mine", "--workers", "0", env={"CROMA_GIT_COMMIT": commit})
    assert json.loads(volume.sidecar("cohort", "Mine").read_text())["bundle"]["git_commit"] == commit
