"""`lock-tilesets`: an unknown hash is resolved once, of a table that is what was declared, and never overrules."""

from __future__ import annotations

import tomllib

import pytest
from parquet_sets import csv_bytes, declare, metadata_rows, sha256

from croma_bundle.errors import ManifestError
from croma_bundle.manifests.models import Tileset
from croma_bundle.manifests.tilesets_lock import LockedTileset, read_tilesets_lock, with_locked_metadata

FILE = {"name": "data/a.parquet", "sha256": "0" * 64, "bytes": 1}
DATASET = {"repository": "owner/tiles", "revision": "1" * 40, "files": [FILE]}


@pytest.fixture
def content(server, tmp_path):
    server.files["/set.csv"] = csv_bytes(tmp_path, metadata_rows())
    return server.files["/set.csv"]


def declared(volume, server, **table):
    metadata = {"url": server.url("/set.csv")}
    base = {"source": "hub", "confounder": "medical_center", "dataset": DATASET, "metadata": metadata}
    declare(volume, "set", {**base, **table})


def test_it_is_hashed_once_counted_and_written(cli, volume, server, content, tmp_path):
    declared(volume, server, expected={"rows": 62})
    # tcga-2x2 is open too and cannot be reached here: its fault is told, the other is written all the same
    done = cli(
        "lock-tilesets", "--output", tmp_path / "tilesets.lock.toml", exits=4, env={"HTTPS_PROXY": "http://127.0.0.1:9"}
    )
    assert f"set: set.csv, 62 rows, sha256 {sha256(content)}" in done.stdout
    assert "tcga_2x2.csv" in done.stderr
    locked = tomllib.loads((tmp_path / "tilesets.lock.toml").read_text())
    assert locked["set"].pop("resolved")[:2] == "20"
    assert locked == {"set": {"url": server.url("/set.csv"), "sha256": sha256(content), "rows": 62}}
    assert read_tilesets_lock(tmp_path)["set"].sha256 == sha256(content)


def test_a_table_of_other_rows_than_declared_is_not_locked(cli, volume, server, content, tmp_path):
    declared(volume, server, expected={"rows": 61})
    done = cli(
        "lock-tilesets", "--output", tmp_path / "tilesets.lock.toml", exits=4, env={"HTTPS_PROXY": "http://127.0.0.1:9"}
    )
    assert "61 tiles" in done.stderr
    assert "62 tiles" in done.stderr
    assert not (tmp_path / "tilesets.lock.toml").exists()


def entry(pin: str | None) -> Tileset:
    table = {"url": "https://example.org/set.csv", "sha256": pin}
    files = ({**FILE},)
    return Tileset.model_validate(
        {"name": "set", "source": "hub", "confounder": "c", "dataset": {**DATASET, "files": files}, "metadata": table}
    )


def locked(url: str = "https://example.org/set.csv") -> LockedTileset:
    return LockedTileset(name="set", url=url, sha256="a" * 64, rows=1, resolved="2026-01-01T00:00:00Z")


def test_a_lock_fills_a_null():
    assert with_locked_metadata(entry(None), locked()).metadata.sha256 == "a" * 64
    assert with_locked_metadata(entry("a" * 64), locked()).metadata.sha256 == "a" * 64


@pytest.mark.parametrize(
    ("own", "lock"), [(entry("b" * 64), locked()), (entry(None), locked("https://example.org/x.csv"))]
)
def test_a_lock_never_overrules(own, lock):
    with pytest.raises(ManifestError, match=r"its metadata is not that of tilesets\.lock\.toml"):
        with_locked_metadata(own, lock)
