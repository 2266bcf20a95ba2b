"""`croma-bundle probe` as a process: own schedule, tables, resume, determinism, refusals."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from builders import COLUMNS, write_csv
from croma_bundle.layout import Volume
from croma_bundle.probe.schedules import Schedule
from probe.probe_cohorts import SMALL, Columns, columns_of, embedding

TABLE = """
[probe]
confounders = ["west", "east"]
labels = ["normal", "tumour"]
steps = [[[2, 2], [2, 2]], [[1, 3], [3, 1]], [[0, 4], [4, 0]]]
max_slides = 4
rows_per_slide = 8
"""


def add(cli, volume: Volume, folder: Path, columns: Columns, table: str = TABLE) -> None:
    """Tileset `own` of these rows, without images, with a schedule of its own."""
    rows = [
        dict(zip((*COLUMNS, "apd_split"), (f"t{i}", f"t{i}.png", label, centre, group, split), strict=True))
        for i, (split, centre, label, group) in enumerate(
            zip(columns.split, columns.confounders, columns.labels, columns.groups, strict=True)
        )
    ]
    cli("tiles", "add", "own", "--manifest", write_csv(folder / "own.csv", rows), "--no-images")
    with volume.tileset_declaration("own").open("a", encoding="utf-8") as handle:
        handle.write(table)


def bring(cli, folder: Path, encoder: str, x: np.ndarray, *more: str) -> None:
    np.save(folder / f"{encoder}.npy", x)
    cli("import", "own", encoder, folder / f"{encoder}.npy", "--provenance", "a test", *more)


@pytest.fixture
def columns() -> Columns:
    return columns_of(SMALL, slides=7, ood=20)


@pytest.fixture
def own(cli, volume: Volume, tmp_path: Path, columns: Columns) -> Volume:
    add(cli, volume, tmp_path, columns)
    bring(cli, tmp_path, "Tissue", embedding(columns, 10, label=0.6, confounder=0.0))
    bring(cli, tmp_path, "Centre", embedding(columns, 10, label=0.4, confounder=0.8), "--control")
    return volume


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def written(volume: Volume) -> dict[str, bytes]:
    folder = volume.probe("own")
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.suffix in (".csv", ".json")
    }


def test_tables(cli, own: Volume) -> None:
    cli("probe", "--iterations", "4", "--threads", "1")
    rows = table(own.probe("own") / "probe.csv")
    assert ",".join(rows[0]) == (
        "benchmark,encoder,is_control,external,regime,apd,nipd,baseline,chance,change_at_max_v,n_splits,iterations,"
        "matrix_sha256"
    )
    key = [(r["encoder"], r["regime"], r["is_control"], r["external"]) for r in rows]
    assert key == [
        *[("Centre", "id", "true", "true"), ("Centre", "ood", "true", "true")],
        *[("Tissue", "id", "false", "true"), ("Tissue", "ood", "false", "true")],
    ]
    kept = json.loads(own.probe_accuracies("own", "Centre").read_text())
    matrix = np.array(kept["accuracies"]["id"])
    assert matrix.shape == (3, 4)
    mean = matrix.mean(axis=1)
    g = (mean - mean[0]) / (mean[0] - 0.5)
    assert float(rows[0]["nipd"]) == pytest.approx(0.5 * (g[1] / 2) + 0.5 * (g[1] + g[2]) / 2, abs=1e-12)
    assert float(rows[0]["apd"]) == pytest.approx((matrix[1:] / matrix[0]).mean(axis=0).mean() - 1, abs=1e-12)
    assert float(rows[0]["baseline"]) == pytest.approx(mean[0], abs=1e-12)
    assert float(rows[0]["change_at_max_v"]) == pytest.approx(g[2], abs=1e-12)
    assert float(rows[0]["nipd"]) < float(rows[2]["nipd"]), "the centre's encoder loses more"
    assert kept["seeds"] == random.Random(1000).sample(range(10_000), 4)
    assert kept["cramers_v"] == pytest.approx([0, 0.5, 1])
    assert kept["versions"].keys() >= {"scikit-learn", "numpy"}
    assert kept["matrix_sha256"] == rows[0]["matrix_sha256"]
    curves = table(own.probe("own") / "curves.csv")
    assert len(curves) == 2 * 2 * 3
    assert [float(c["degradation"]) for c in curves[:3]] == pytest.approx(g)
    assert float(curves[0]["spread"]) == pytest.approx(matrix[0].std(ddof=1))


def test_processes_and_hash_seed_change_no_byte(cli, own: Volume) -> None:
    cli("probe", "--iterations", "3", "--threads", "1", env={"PYTHONHASHSEED": "1"})
    first = written(own)
    subprocess.run(["rm", "-r", str(own.probe("own"))], check=True)
    cli("probe", "--iterations", "3", "--threads", "2", env={"PYTHONHASHSEED": "2"})
    assert written(own) == first
    assert len(first) == 2 + 2 + 2 * 3


def test_what_was_run_is_not_run_again(cli, own: Volume) -> None:
    cli("probe", "--iterations", "2", "--threads", "1")
    units = {r: own.probe_unit("own", "Tissue", r) for r in range(3)}
    before = {r: units[r].stat().st_mtime_ns for r in (0, 1)}
    done = cli("probe", "--iterations", "3", "--threads", "1")
    assert "4 of 6 replicates were run before" in done.stderr
    assert {r: units[r].stat().st_mtime_ns for r in (0, 1)} == before
    assert units[2].exists()


def test_another_matrix_or_schedule_is_run_again(cli, own: Volume, tmp_path: Path, columns: Columns) -> None:
    cli("probe", "--iterations", "2", "--threads", "1")
    bring(cli, tmp_path, "Tissue", embedding(columns, 10, label=0.6, confounder=0.0, seed=9), "--force")
    assert "2 of 4 replicates were run before" in cli("probe", "--iterations", "2", "--threads", "1").stderr
    assert "run before" not in cli("probe", "--iterations", "2", "--seed", "5", "--threads", "1").stderr
    declaration = own.tileset_declaration("own")
    declaration.write_text(declaration.read_text().replace("[[1, 3], [3, 1]], ", ""))
    assert "run before" not in cli("probe", "--iterations", "2", "--seed", "5", "--threads", "1").stderr


def test_a_damaged_unit_is_run_again(cli, own: Volume) -> None:
    cli("probe", "--iterations", "2", "--threads", "1")
    first = written(own)
    own.probe_unit("own", "Tissue", 1).write_bytes(b'{"identity": "')
    assert "3 of 4 replicates were run before" in cli("probe", "--iterations", "2", "--threads", "1").stderr
    assert written(own) == first


def test_kill_minus_nine_then_resume_gives_the_uninterrupted_tables(cli, own: Volume) -> None:
    arguments = ["probe", "--iterations", "12", "--threads", "2"]
    cli(*arguments)
    whole = written(own)
    subprocess.run(["rm", "-r", str(own.probe("own"))], check=True)
    running = subprocess.Popen(
        [sys.executable, "-m", "croma_bundle", "--volume", str(own.root), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    late = time.monotonic() + 120
    while not own.probe_unit("own", "Centre", 2).exists():
        assert running.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < late
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert not (own.probe("own") / "probe.csv").exists()
    assert "replicates were run before" in cli(*arguments).stderr
    assert written(own) == whole


def test_a_baseline_at_chance_leaves_the_cells_empty_and_the_others_whole(
    cli, own: Volume, tmp_path: Path, columns: Columns
) -> None:
    """Every row alike: a probe says one label, half of them are right, which is chance."""
    bring(cli, tmp_path, "Blind", np.ones((len(columns.labels), 3), dtype=np.float32))
    done = cli("probe", "--iterations", "2", "--threads", "1", exits=3)
    assert "probe own · Blind (id): nIPD is undefined" in done.stderr
    rows = {(r["encoder"], r["regime"]): r for r in table(own.probe("own") / "probe.csv")}
    blind = rows["Blind", "id"]
    assert (blind["nipd"], blind["change_at_max_v"]) == ("", "")
    assert (float(blind["apd"]), float(blind["baseline"])) == (0, 0.5)
    assert rows["Tissue", "id"]["nipd"] != ""


def test_what_does_not_fit_is_said_by_cell_before_anything_is_trained(cli, volume: Volume, tmp_path: Path) -> None:
    columns = columns_of(SMALL, slides=5)
    add(cli, volume, tmp_path, columns)
    bring(cli, tmp_path, "Tissue", embedding(columns, 10, label=0.5, confounder=0.05))
    done = cli("probe", "--benchmark", "own", exits=3)
    assert "west · normal: 5 pseudo-slides of 8 rows, wanted at least 6" in done.stderr
    assert not volume.probe("own").exists() or not list(volume.probe("own").glob("*.csv"))


def test_a_split_column_that_says_more(cli, volume: Volume, tmp_path: Path, columns: Columns) -> None:
    columns.split[3] = "train"
    add(cli, volume, tmp_path, columns)
    done = cli("probe", "--benchmark", "own", exits=3)
    assert "column apd_split says more than ID and OOD" in done.stderr
    assert "'train' of 1 rows" in done.stderr


def test_no_schedule_no_embedding_no_such_benchmark(cli, volume: Volume, tmp_path: Path, columns: Columns) -> None:
    add(cli, volume, tmp_path, columns, table="")
    bring(cli, tmp_path, "Tissue", embedding(columns, 10, label=0.5, confounder=0.05))
    assert "tileset own has no schedule" in cli("probe", "--benchmark", "own", exits=3).stderr
    assert "no tileset that has a probe schedule has embeddings" in cli("probe", exits=3).stderr
    assert (
        "benchmark 'owm': it is not declared; did you mean 'own'?" in cli("probe", "--benchmark", "owm", exits=3).stderr
    )


def test_a_declared_schedule_is_strict(cli, volume: Volume, tmp_path: Path, columns: Columns) -> None:
    add(cli, volume, tmp_path, columns, TABLE.replace("max_slides", "max_slide"))
    assert "unknown key; did you mean 'max_slides'?" in cli("probe", exits=3).stderr


def test_a_slide_level_schedule_without_out_of_domain_rows(cli, volume: Volume, tmp_path: Path) -> None:
    schedule = Schedule(SMALL.confounders, SMALL.labels, (((10, 10), (10, 10)), ((0, 20), (20, 0))), 20, 1, 0.1)
    columns = columns_of(schedule, slides=30)
    table_text = """
[probe]
confounders = ["west", "east"]
labels = ["normal", "tumour"]
steps = [[[10, 10], [10, 10]], [[0, 20], [20, 0]]]
max_slides = 20
rows_per_slide = 1
validation_fraction = 0.1
"""
    add(cli, volume, tmp_path, columns, table_text)
    bring(cli, tmp_path, "Slides", embedding(columns, 6, label=0.8, confounder=0.3))
    cli("probe", "--iterations", "2", "--threads", "1")
    assert [row["regime"] for row in table(volume.probe("own") / "probe.csv")] == ["id"]
    assert json.loads(volume.probe_accuracies("own", "Slides").read_text())["accuracies"]["ood"] is None
