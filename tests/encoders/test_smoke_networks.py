"""`smoke` on networks with checkpoints: fetched by the real client, run offline, equal to what the libraries give."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest

pytest.importorskip("torch", reason="the families' suite needs torch")
pytest.importorskip("transformers", reason="the families' suite needs transformers")

from hub_process import Bundle
from PIL import Image
from tiny_checkpoints import OF_TIMM, TINY, Tiny, publish, sha256

from croma_bundle.artifacts.golden import read_golden
from croma_bundle.extraction.golden_tiles import golden_tiles
from croma_bundle.layout import Volume
from loopback_hub import LoopbackHub

pytestmark = pytest.mark.encoders

HERE = tuple(name for name in ("TinyDino", "TinyUnit", "TinyTimm") if name not in OF_TIMM or find_spec("timm"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    folder = tmp_path_factory.mktemp("smoke")
    with LoopbackHub() as hub:
        yield Bundle(Volume(folder / "volume"), hub, folder / "home")


@pytest.fixture(scope="module")
def tiny(bundle: Bundle) -> dict[str, Tiny]:
    """Fetched and smoked; TinyUnit says that it is normalised."""
    made = {name: TINY[name]() for name in HERE}
    made["TinyUnit"] = made["TinyUnit"].saying(norms=[1.0, 1.0])
    for one in made.values():
        publish(bundle.hub, bundle.volume, one)
    bundle.run("weights", "--encoders", ",".join(HERE))
    before = len(bundle.hub.requests)
    bundle.run("smoke", "--encoders", ",".join(HERE), "--device", "cpu")
    assert len(bundle.hub.requests) == before, "offline"
    return made


@pytest.mark.parametrize("name", HERE)
def test_the_golden_vectors_are_what_the_libraries_compute_without_us(bundle, tiny, name):
    golden = read_golden(bundle.volume.golden(name))
    pictures = [Image.fromarray(pixels) for pixels in golden_tiles().pixels]
    expected = np.stack([tiny[name].expected(picture) for picture in pictures])
    assert np.abs(golden.vectors - expected).max() < 2e-5
    weights = {row["file"]: row["sha256"] for row in golden.identity["weights"]}
    code = {row["file"]: row["sha256"] for row in golden.identity["remote_code"]}
    assert {**weights, **code} == {file: sha256(content) for file, content in tiny[name].files.items()}


def test_they_match_themselves_and_not_those_of_other_weights(bundle, tiny, tmp_path):
    path = tmp_path / "TinyDino.json"
    path.write_bytes(bundle.volume.golden("TinyDino").read_bytes())
    assert "TinyDino: MATCH" in bundle.run("parity", path).stdout
    other = tiny["TinyDino"]
    publish(bundle.hub, bundle.volume, other.holding({name: 1.5 * tensor for name, tensor in other.state.items()}))
    bundle.run("weights", "--encoders", "TinyDino")
    bundle.run("smoke", "--encoders", "TinyDino", "--device", "cpu")
    said = bundle.run("parity", path, exits=3).stderr
    assert "checkpoint_revision = " in said
    assert "weights = " in said


def test_a_network_whose_vectors_are_not_normalised_as_its_entry_says_fails(bundle, tiny):
    publish(bundle.hub, bundle.volume, tiny["TinyDino"].saying(norms=[1.0, 1.0]))
    bundle.run("weights", "--encoders", "TinyDino")
    said = bundle.run("smoke", "--encoders", "TinyDino", "--device", "cpu", exits=1).stderr
    assert "encoder TinyDino: its vectors have other lengths than 1" in said
