"""The published cohorts: the real metadata tables, joined with a stand-in for the parquet, give the real counts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from croma_bundle.errors import CohortError, InputError, TileManifestError
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.manifests.models import Benchmark
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.expected import check_view, require_size
from croma_bundle.tilemanifest.join import joined, keys_of, part_suffixes, read_metadata
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tiles.download import fetch_metadata

NOWHERE = Volume(Path("no-volume"))
CATALOGUE = load_catalogue(NOWHERE, locked=False)
ROWS = {"camelyon": (22_402, 20_400), "tcga-4x4": (8_160, 5_760), "tolkach-esca": (16_300, 9_000)}
"""Tiles of the cohort, rows of the benchmark: PathoROB's tables, and the published runs over them."""


def manifest_of(shared: Path, name: str) -> TileManifest:
    entry, folder = CATALOGUE.tileset(name), shared / "data/pathorob"
    table = read_metadata(folder / entry.metadata.file)
    files = [file.name for file in entry.dataset.files]
    where = {key: (files[i % len(files)], i) for i, key in enumerate(keys_of(table))}
    samples = {s.column: read_metadata(folder / s.file) for s in entry.samples or ()}
    return joined(table, where, part_suffixes(files), samples, paired=False)[0]


@pytest.mark.parametrize("name", ROWS)
def test_the_pinned_tables_are_the_real_ones(shared, name):
    entry = CATALOGUE.tileset(name)
    for table in (entry.metadata, *(entry.samples or ())):
        content = (shared / "data/pathorob" / table.file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == table.sha256


@pytest.mark.parametrize("name", ROWS)
def test_the_real_tables_give_the_published_cohorts(shared, name):
    entry, benchmark = CATALOGUE.tileset(name), CATALOGUE.benchmark(name)
    manifest = manifest_of(shared, name)
    require_size(entry, manifest)
    check = check_view(NOWHERE, benchmark, entry, manifest)
    assert (len(manifest), check.rows) == ROWS[name]
    assert check.largest_m >= 5
    assert (benchmark.cross, benchmark.published) == ("pathorob", name)


def test_the_sample_of_tolkach_esca_straddles_the_split(shared):
    manifest = manifest_of(shared, "tolkach-esca")
    pairs = list(zip(manifest.column("subset"), manifest.column("reduced"), strict=True))
    assert {subset: pairs.count((subset, "yes")) for subset in ("ID", "OOD")} == {"ID": 6_000, "OOD": 3_000}


def test_sample_ids_end_in_their_part_where_there_are_several():
    names = [f"data/train-{i:05d}-of-00003.parquet" for i in range(3)]
    assert part_suffixes(names)[names[0]] == "__data_train-00000-of-00003"
    assert part_suffixes(names[:1]) == {names[0]: ""}


def test_tcga_2x2_waits_for_its_hash(tmp_path):
    entry = CATALOGUE.tileset("tcga-2x2")
    with pytest.raises(InputError, match="make lock-tilesets"):
        fetch_metadata("tileset tcga-2x2", entry.metadata, tmp_path, Reporter())


def view(rows: int, expected: dict[str, int]):
    """2 × 2 cells of `rows` rows, one group in each."""
    cells = [(label, value) for label in "ab" for value in "xy"]
    body = [(f"{a}{b}{i}", "p", a, b, f"{a}{b}") for a, b in cells for i in range(rows)]
    manifest = TileManifest(("sample_id", "image_path", "label", "medical_center", "group_id"), tuple(body))
    benchmark = Benchmark.model_validate({"name": "v", "tileset": "camelyon", "expected": expected})
    return check_view(NOWHERE, benchmark, CATALOGUE.tileset("camelyon"), manifest)


def test_a_view_of_other_counts_is_refused_with_both_sides():
    assert view(5, {"rows": 20, "groups": 4, "cells": 4, "cell_rows": 5}).largest_m == 5
    with pytest.raises(TileManifestError, match=r"(?s)wanted   rows 24, cell_rows 6\n  found    rows 20, cell_rows 5"):
        view(5, {"rows": 24, "labels": 2, "confounders": 2, "cell_rows": 6})


def test_too_few_typed_candidates_are_refused_before_anything_is_embedded():
    with pytest.raises(CohortError, match="4 at the least"):
        view(4, {"rows": 16})
