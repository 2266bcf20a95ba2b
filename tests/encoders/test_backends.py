"""Every backend on tiny checkpoints: fetched by the real client, embedded offline, equal to what the libraries give."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the families' suite needs torch")
pytest.importorskip("transformers", reason="the families' suite needs transformers")

from hub_process import Bundle
from PIL import Image
from tiny_checkpoints import OF_TIMM, TINY, Tiny, publish, sha256

from croma_bundle.layout import Volume
from embedded import add_cohort
from loopback_hub import LoopbackHub

pytestmark = pytest.mark.encoders

HERE = tuple(name for name in TINY if name not in OF_TIMM or find_spec("timm"))


@dataclass(frozen=True)
class Embedded:
    """A cohort that every tiny encoder has embedded; `asked` is what the hub was asked while they did."""

    volume: Volume
    pictures: list[Image.Image]
    tiny: dict[str, Tiny]
    commits: dict[str, str]
    asked: int
    kept: set[str]

    def matrix(self, name: str) -> np.ndarray:
        matrix: np.ndarray = np.load(self.volume.matrix("cohort", name))
        return matrix

    def sidecar(self, name: str) -> dict:
        sidecar: dict = json.loads(self.volume.sidecar("cohort", name).read_text())
        return sidecar


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Embedded:
    folder = tmp_path_factory.mktemp("backends")
    volume = Volume(folder / "volume")
    cohort = add_cohort(volume, folder / "tiles", size=40, slides=1, tiles=2)
    tiny = {name: TINY[name]() for name in HERE}
    with LoopbackHub() as hub:
        commits = {name: publish(hub, volume, one) for name, one in tiny.items()}
        bundle = Bundle(volume, hub, folder / "home")
        chosen = ("--encoders", ",".join(HERE), "--weights", folder / "cache")
        bundle.run("weights", *chosen)
        before, had = len(hub.requests), _files(folder / "cache")
        bundle.run("embed", *chosen, "--tileset", "cohort", "--workers", "0", "--device", "cpu")
        asked = len(hub.requests) - before
    assert _files(folder / "cache") == had, "embedding writes nothing beside the weights"
    pictures = [Image.open(cohort.root / row["image_path"]) for row in cohort.rows]
    return Embedded(volume, pictures, tiny, commits, asked, _files(folder / "home"))


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")} if folder.exists() else set()


@pytest.mark.parametrize("name", HERE)
def test_the_matrix_is_what_the_libraries_compute_without_us(embedded: Embedded, name: str):
    expected = np.stack([embedded.tiny[name].expected(picture) for picture in embedded.pictures])
    found = embedded.matrix(name)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 2e-5
    assert np.abs(expected[0] - expected[1]).max() > 1e-3, "two tiles, two vectors"


def test_embedding_asks_the_hub_nothing_and_keeps_nothing_in_the_home_folder(embedded: Embedded):
    assert embedded.asked == 0
    assert [name for name in embedded.kept if name.endswith(".py")] == []


@pytest.mark.parametrize("name", HERE)
def test_the_sidecar_says_what_was_loaded_and_what_was_run(embedded: Embedded, name: str):
    tiny, sidecar = embedded.tiny[name], embedded.sidecar(name)
    code = [file for file in tiny.files if file.endswith(".py")]
    assert sidecar["checkpoint_revision"] == embedded.commits[name]
    assert sidecar["remote_code"] == [{"file": file, "sha256": sha256(tiny.files[file])} for file in code]
    loaded = [(row["file"], row["sha256"], row["bytes"]) for row in sidecar["weights"]]
    assert loaded == [(f, sha256(c), len(c)) for f, c in tiny.files.items() if f not in code]
    pickles = {row["sha256_source"] for row in sidecar["weights"] if row["file"].endswith((".bin", ".pth"))}
    assert pickles <= {"manifest"}
    stated = sidecar["extraction_contract"]
    assert (stated["backend"], stated["pooling"]) == (tiny.stated["backend"], tiny.stated["pooling"])
    assert stated["preprocessing"]["interpolation"] == tiny.stated["recipe"]["interpolation"]
    assert (sidecar["precision"], sidecar["environment"]["device"]) == ("float32", "cpu")


def test_vectors_of_the_native_encode_have_length_one(embedded: Embedded):
    assert np.linalg.norm(embedded.matrix("TinyUnit"), axis=1) == pytest.approx(1, abs=1e-6)
