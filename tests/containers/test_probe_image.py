"""The probe service, offline on a read-only root: the tables of the host, byte for byte."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_checkout import Checkout, host_cli

from builders import COLUMNS, write_csv
from probe.probe_cohorts import SMALL, columns_of, embedding

pytestmark = pytest.mark.containers

ITERATIONS = ("--iterations", "2")
TABLE = f"""
[probe]
confounders = {json.dumps(SMALL.confounders)}
labels = {json.dumps(SMALL.labels)}
steps = {json.dumps(SMALL.steps)}
max_slides = {SMALL.max_slides}
rows_per_slide = {SMALL.rows_per_slide}
"""


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    """A volume that every uid may write to: one tileset with a schedule of its own, one imported encoder."""
    volume = tmp_path / "volume"
    volume.mkdir()
    columns = columns_of(SMALL, slides=7, ood=20)
    of_rows = zip(columns.labels, columns.confounders, columns.groups, columns.split, strict=True)
    rows = [
        dict(zip((*COLUMNS, "apd_split"), (f"t{i}", f"t{i}.png", *row), strict=True)) for i, row in enumerate(of_rows)
    ]
    host_cli(volume, "tiles", "add", "own", "--manifest", str(write_csv(tmp_path / "own.csv", rows)), "--no-images")
    with (volume / "tilesets/own/tileset.toml").open("a", encoding="utf-8") as handle:
        handle.write(TABLE)
    np.save(tmp_path / "x.npy", embedding(columns, 10, label=0.3, confounder=0.4))
    host_cli(volume, "import", "own", "Mine", str(tmp_path / "x.npy"), "--provenance", "a test")
    for each in (volume, *volume.rglob("*")):
        each.chmod(0o777 if each.is_dir() else 0o666)
    return volume


def written(volume: Path) -> tuple[bytes, bytes, dict[str, Any], dict[str, Any]]:
    """Both tables, the accuracies, and run.json."""
    folder = volume / "probe/own"
    texts = [(folder / name).read_bytes() for name in ("probe.csv", "curves.csv")]
    records = [json.loads((folder / name).read_bytes()) for name in ("accuracies/Mine.json", "run.json")]
    return texts[0], texts[1], records[0], records[1]


def test_the_service_gives_the_host_s_tables_and_says_when_they_stand(
    built: Checkout, cohort: Path, tmp_path: Path
) -> None:
    ours = shutil.copytree(cohort, tmp_path / "ours")
    host_cli(ours, "probe", *ITERATIONS)
    done = built.compose("probe", *ITERATIONS, volume=cohort)
    assert "written to " in done.stdout
    here, there = written(ours), written(cohort)
    same = all(there[3]["versions"][name] == version(name) for name in ("numpy", "scipy", "scikit-learn"))
    assert same, "the image's lock and the tests' name the same"
    assert there[:2] == here[:2]
    assert there[2]["accuracies"] == here[2]["accuracies"]
    assert there[3]["inputs"] == here[3]["inputs"]
    assert {path.stat().st_uid for path in (cohort / "probe").rglob("*")} == {12345}

    again = built.compose("probe", *ITERATIONS, volume=cohort)
    assert "unchanged: " in again.stdout
    verified = built.compose("verify", "run", "/volume/probe/own", volume=cohort)
    assert "equal: 3 tables of own · probe swept again, byte for byte" in verified.stdout


def test_make_probe_gives_files_to_the_caller(built: Checkout, cohort: Path) -> None:
    built.run("make", "probe", "RUNTIME=docker", "BENCHMARK=own", "ITERATIONS=1", "THREADS=1", CROMA_VOLUME=cohort)
    made = (cohort / "probe/own/probe.csv").stat()
    assert (made.st_uid, made.st_gid) == (cohort.stat().st_uid, cohort.stat().st_gid)
