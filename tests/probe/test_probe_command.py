"""`croma-bundle probe` as a process: own schedule, tables, resume, determinism, refusals."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import shutil
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
    assert len(first) == 3 + 2 + 2 * 3


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
    (own.probe("own") / "run.json").unlink()
    assert "3 of 4 replicates were run before" in cli("probe", "--iterations", "2", "--threads", "1").stderr
    assert written(own) == first


def stamps(volume: Volume) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in volume.probe("own").rglob("*") if p.suffix in (".csv", ".json")}


def run_json(volume: Volume) -> dict:
    found: dict = json.loads((volume.probe("own") / "run.json").read_text())
    return found


def test_run_json_says_what_was_asked_what_it_came_to_and_what_of(cli, own: Volume) -> None:
    cli("probe", "--iterations", "2", "--seed", "3", "--threads", "1")
    run = run_json(own)
    assert list(run) == ["schema", "replay", "resolved", "versions", "inputs", "outputs"]
    assert run["replay"] == {"command": "probe", "benchmark": "own", "encoders": None, "iterations": 2, "seed": 3}
    assert run["resolved"]["seeds"] == random.Random(3).sample(range(10_000), 2)
    assert run["resolved"]["schedule"]["max_slides"] == 4
    assert (run["resolved"]["id_rows"], run["resolved"]["ood_rows"]) == (4 * 7 * 8, 40)
    assert run["resolved"]["pseudo_slides"] == {
        f"{centre} · {label}": 7 for centre in ("west", "east") for label in ("normal", "tumour")
    }
    assert run["versions"].keys() == {
        "bundle", "source_sha256", "python", "numpy", "scipy", "scikit-learn"
    }  # fmt: skip
    sidecar = json.loads(own.sidecar("own", "Centre").read_text())
    centre = run["inputs"]["encoders"]["Centre"]
    assert (centre["matrix_sha256"], centre["control"]) == (sidecar["matrix_sha256"], True)
    names = {"accuracies/Centre.json", "accuracies/Tissue.json", "curves.csv", "probe.csv"}
    found = {name: hashlib.sha256((own.probe("own") / name).read_bytes()).hexdigest() for name in names}
    assert run["outputs"] == found


def test_a_probe_that_stands_says_so_and_writes_nothing(cli, own: Volume) -> None:
    first = cli("probe", "--iterations", "2", "--threads", "1")
    before = stamps(own)
    subprocess.run(["rm", "-r", str(own.probe("own") / ".units")], check=True)
    again = cli("probe", "--iterations", "2", "--threads", "2")
    where = own.probe("own")
    assert again.stdout == first.stdout.replace(f"written to {where}", f"unchanged: {where}")
    assert "unchanged: " in again.stdout
    assert stamps(own) == {path: stamp for path, stamp in before.items() if "/.units/" not in path}


@pytest.mark.parametrize("change", ["table", "run", "stray", "knob"])
def test_a_probe_that_does_not_stand_is_written_anew(cli, own: Volume, change: str) -> None:
    arguments = ["probe", "--iterations", "2", "--threads", "1"]
    cli(*arguments)
    first, folder = written(own), own.probe("own")
    if change == "table":
        (folder / "accuracies/Tissue.json").write_bytes(b"{}")
    if change == "run":
        (folder / "run.json").unlink()
    if change == "stray":
        (folder / "more.csv").write_text("a\n")
    if change == "knob":
        cli("probe", "--iterations", "1", "--threads", "1")
        assert run_json(own)["replay"]["iterations"] == 1
    assert "unchanged" not in cli(*arguments).stdout
    assert {name: content for name, content in written(own).items() if name != "more.csv"} == first


def test_what_is_undefined_is_told_again(cli, own: Volume, tmp_path: Path, columns: Columns) -> None:
    bring(cli, tmp_path, "Blind", np.ones((len(columns.labels), 3), dtype=np.float32))
    for _ in range(2):
        done = cli("probe", "--iterations", "2", "--threads", "1", exits=3)
        assert "probe own · Blind (id): nIPD is undefined" in done.stderr
        assert "unchanged" not in done.stdout
    assert len(run_json(own)["resolved"]["undefined"]) == 2


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
    assert not (own.probe("own") / "run.json").exists()
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
    assert f"declared [probe] in {volume.tileset_declaration('own')}" in done.stderr
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


# verify run


@pytest.fixture
def theirs(cli, own: Volume, tmp_path: Path) -> Path:
    """Someone else's folder of two replicates, which may be changed."""
    cli("probe", "--iterations", "2", "--threads", "1")
    return Path(shutil.copytree(own.probe("own"), tmp_path / "theirs"))


def test_a_probe_is_verified_by_training_it_again(cli, own: Volume, theirs: Path) -> None:
    before = stamps(own)
    shutil.rmtree(own.probe("own") / ".units")
    done = cli("verify", "run", theirs)
    assert done.stdout == "equal: 4 tables of own · probe swept again, byte for byte\n"
    assert stamps(own) == {path: stamp for path, stamp in before.items() if "/.units/" not in path}


def test_a_tampered_accuracy_is_found_by_its_place(cli, own: Volume, theirs: Path) -> None:
    path = theirs / "accuracies/Centre.json"
    kept = json.loads(path.read_text())
    kept["accuracies"]["ood"][2][1] = 0.987
    path.write_text(json.dumps(kept))
    done = cli("verify", "run", theirs, exits=1)
    assert "accuracies/Centre.json.accuracies.ood[2][1]: 0.987, wanted 0." in done.stderr
    assert "Not the tables that its own run.json states: accuracies/Centre.json." in done.stderr


def test_a_tampered_table_and_another_version_are_told(cli, own: Volume, theirs: Path) -> None:
    text = (theirs / "probe.csv").read_text()
    cell = table(theirs / "probe.csv")[0]["nipd"]
    (theirs / "probe.csv").write_text(text.replace(cell, "0.987"))
    run = json.loads((theirs / "run.json").read_text())
    run["versions"]["scikit-learn"] = "1.0"
    (theirs / "run.json").write_text(json.dumps(run))
    done = cli("verify", "run", theirs, exits=1)
    assert "probe.csv row 1 (own, Centre), nipd: 0.987, wanted" in done.stderr
    assert "scikit-learn 1.0; here croma-bundle" in done.stderr


def test_a_probe_of_another_matrix_cannot_be_verified_here(
    cli, own: Volume, theirs: Path, tmp_path: Path, columns: Columns
) -> None:
    bring(cli, tmp_path, "Tissue", embedding(columns, 10, label=0.6, confounder=0.0, seed=9), "--force")
    done = cli("verify", "run", theirs, exits=5)
    assert "this volume has other inputs than the run was scored from" in done.stderr
    assert "Tissue matrix_sha256: recorded" in done.stderr


def test_a_run_json_of_no_known_command_is_damaged(cli, own: Volume, theirs: Path) -> None:
    run = json.loads((theirs / "run.json").read_text())
    run["replay"]["command"] = "prove"
    (theirs / "run.json").write_text(json.dumps(run))
    assert "it is damaged: it lacks a known replay.command" in cli("verify", "run", theirs, exits=5).stderr
