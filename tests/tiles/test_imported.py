"""A declared tileset without images (PCaBiop): its rows are added once, and only if they are what is declared."""

from __future__ import annotations

import numpy as np

from builders import write_csv


def rows(cell: int = 250):
    return [
        {
            "sample_id": f"{provider}-{label}-{i}",
            "label": label,
            "data_provider": provider,
            "group_id": f"{provider}-{label}-{i}",
        }
        for provider in ("radboud", "karolinska")
        for label in ("benign", "cancer")
        for i in range(cell)
    ]


def add(cli, path, **how):
    return cli("tiles", "add", "pcabiop", "--manifest", path, "--confounder", "data_provider", "--no-images", **how)


def test_slide_embeddings_are_imported_for_its_rows(cli, volume, tmp_path):
    done = add(cli, write_csv(tmp_path / "slides.csv", rows()))
    assert "benchmark pcabiop: 1,000 rows of 1,000 groups" in done.stderr
    assert not volume.tileset_declaration("pcabiop").exists()
    np.save(tmp_path / "m.npy", np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32))
    cli("import", "pcabiop", "TITAN", tmp_path / "m.npy", "--provenance", "a test")
    assert "its rows were added before" in add(cli, tmp_path / "slides.csv", exits=3).stderr


def test_other_rows_than_declared_are_refused(cli, volume, tmp_path):
    assert "tiles 996" in add(cli, write_csv(tmp_path / "s.csv", rows(249)), exits=3).stderr
    uneven = rows()
    uneven[0]["label"] = "cancer"
    assert "cell_rows unequal" in add(cli, write_csv(tmp_path / "u.csv", uneven), exits=3).stderr
    assert not volume.tile_manifest("pcabiop").exists()
