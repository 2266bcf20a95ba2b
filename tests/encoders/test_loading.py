"""From a declaration to an encoder that computes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from croma_bundle.encoders.loading import Loaded, load
from croma_bundle.errors import ManifestError
from croma_bundle.layout import Volume, WeightsFolder
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.manifests.models import Encoder
from embedded import entry_of

CLASSICAL = {"ColourStatistics": 72, "Thumbnail": 768, "HaematoxylinTexture": 46, "GaborEnergy": 48}


def loaded_here(entry: Encoder) -> Loaded:
    return load(entry, WeightsFolder(Path("no-weights-are-needed")), "cpu")


def declared(tmp_path):
    return load_catalogue(Volume(tmp_path)).encoders


def test_every_packaged_classical_encoder_is_known_here_by_its_width(tmp_path):
    found = {name: entry.width for name, entry in declared(tmp_path).items() if entry.backend == "classical"}
    assert found == CLASSICAL


@pytest.mark.parametrize("name", CLASSICAL)
def test_a_loaded_encoder_turns_a_batch_of_tiles_into_rows_of_its_declared_width(tmp_path, name: str):
    loaded = loaded_here(declared(tmp_path)[name])
    tiles = np.random.default_rng(4).integers(0, 256, (3, 48, 40, 3), dtype=np.uint8)
    prepared = [loaded.prepare(tile) for tile in tiles]
    vectors = loaded.embed(np.stack(prepared))
    assert vectors.shape == (3, CLASSICAL[name])
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    assert len({row.tobytes() for row in vectors}) == 3, "three tiles, three vectors"
    alone = loaded.embed(np.stack([loaded.prepare(tiles[2])]))
    assert np.array_equal(alone[0], vectors[2]), "a vector depends on its tile alone"


@pytest.mark.parametrize("name", CLASSICAL)
def test_preparation_crosses_to_worker_processes_and_its_numbers_to_json(tmp_path, name: str):
    loaded = loaded_here(declared(tmp_path)[name])
    tile = np.random.default_rng(5).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    there = pickle.loads(pickle.dumps(loaded.prepare))
    assert np.array_equal(there(tile), loaded.prepare(tile))
    assert loaded.preprocessing, "the preparation in numbers is part of the contract"
    assert json.loads(json.dumps(dict(loaded.preprocessing))) == dict(loaded.preprocessing)
    assert loaded.weights == ()


def test_a_descriptor_that_does_not_exist_is_refused_and_the_existing_ones_listed():
    with pytest.raises(ManifestError, match=r"encoder Mine: there is no descriptor 'Sift'(.|\n)*wanted") as refused:
        loaded_here(entry_of("Mine", model="Sift"))
    assert [name for name in CLASSICAL if name not in str(refused.value.wanted)] == []


@pytest.mark.parametrize("width", [1, 71, 73, 768])
def test_a_declared_width_that_the_descriptor_has_not_is_refused_before_any_tile(width: int):
    with pytest.raises(ManifestError, match=rf"its width is wrong\n  wanted   72\n  found    width = {width} "):
        loaded_here(entry_of("Mine", model="ColourStatistics", width=width))


def test_a_second_name_of_a_descriptor_is_the_same_function(tmp_path):
    tile = np.random.default_rng(6).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    first, second = declared(tmp_path)["Thumbnail"], entry_of("Mine", model="Thumbnail", width=768)
    assert np.array_equal(loaded_here(first).prepare(tile), loaded_here(second).prepare(tile))
