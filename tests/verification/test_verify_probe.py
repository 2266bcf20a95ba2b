"""`verify published` on written sweeps: published cells of Camelyon and Tolkach-ESCA, bands, reasons, exit codes."""

from __future__ import annotations

import csv
import json
from decimal import Decimal

import pytest

from croma_bundle.layout import Volume
from croma_bundle.scoring.probe_tables import PROBE
from croma_bundle.tilemanifest.table import csv_text
from croma_bundle.verification.panel import load_panel

SHA = "a" * 64
NEW = "croma-1.0.1"


def figure(cohort: str, encoder: str, metric: str) -> Decimal:
    return load_panel().cohort(NEW, cohort)[encoder][metric]


def write_sweep(
    volume: Volume,
    cohort: str,
    encoder: str,
    *,
    off: str = "0",
    iterations: int = 20,
    seed: int = 1000,
    precision: str = "float32",
    external: bool = False,
    matrix: str = SHA,
) -> None:
    """A sweep whose figures are the published ones, its in-domain nIPD off by `off`."""
    rows = []
    for regime in ("id", "ood"):
        area = figure(cohort, encoder, f"nipd_{regime}") + (Decimal(off) if regime == "id" else 0)
        baseline = figure(cohort, encoder, f"probe_baseline_{regime}")
        facts = ["-0.1", str(area), str(baseline), "0.5", "-0.2", "8", str(iterations), SHA]
        rows.append([cohort, encoder, "false", str(external).lower(), regime, *facts])
    folder = volume.probe(cohort)
    (folder / "accuracies").mkdir(parents=True)
    (folder / "probe.csv").write_text(csv_text(PROBE, rows), encoding="utf-8")
    volume.probe_accuracies(cohort, encoder).write_text(json.dumps({"seed": seed}))
    volume.embeddings(cohort).mkdir(parents=True)
    contract = {"external": True} if external else {"generation": NEW}
    environment = {"device": "cpu"}
    sidecar = {"extraction_contract": contract, "precision": precision, "environment": environment}
    volume.sidecar(cohort, encoder).write_text(json.dumps({**sidecar, "matrix_sha256": matrix}))


def verdicts(volume: Volume, cohort: str) -> dict[str, tuple[str, str]]:
    with (volume.probe_verdicts(cohort) / "verdicts.csv").open(newline="", encoding="utf-8") as handle:
        return {row["metric"]: (row["verdict"], row["reason"]) for row in csv.DictReader(handle)}


@pytest.mark.parametrize(
    ("off", "wanted", "exits"),
    [
        ("0.002", "MATCH", 0),
        ("-0.002", "MATCH", 0),
        ("0.00200001", "WITHIN", 0),
        ("0.005", "WITHIN", 0),
        ("0.00500001", "DRIFT", 1),
    ],
)
def test_bands(cli, volume: Volume, off: str, wanted: str, exits: int) -> None:
    write_sweep(volume, "camelyon", "UNI", off=off)
    done = cli("verify", "published", exits=exits)
    found = verdicts(volume, "camelyon")
    assert found.pop("nipd_id") == (wanted, "")
    assert found == dict.fromkeys(("nipd_ood", "probe_baseline_id", "probe_baseline_ood"), ("MATCH", ""))
    assert ("1 figures drift" in done.stderr) == (exits == 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"iterations": 4}, "4 replicates of seed 1000, published 20 of seed 1000"),
        ({"seed": 7}, "20 replicates of seed 7, published 20 of seed 1000"),
        ({"precision": "mixed-float16"}, "mixed-float16, where float32 was published"),
        ({"external": True}, "external: imported, so nothing here proves how it was extracted"),
        ({"matrix": "b" * 64}, "its matrix is not here any more"),
    ],
)
def test_what_is_not_compared(cli, volume: Volume, change: dict, reason: str) -> None:
    write_sweep(volume, "camelyon", "UNI", off="0.1", **change)
    cli("verify", "published")
    assert set(verdicts(volume, "camelyon").values()) == {("NOT COMPARED", reason)}


def test_tolkach_comes_with_the_note_on_its_order(cli, volume: Volume) -> None:
    write_sweep(volume, "tolkach-esca", "UNI", off="0.1")
    done = cli("verify", "published", exits=1)
    assert "in the order of a Python set" in done.stdout
    assert "in the order of a Python set" in done.stderr


def test_nothing_scored_and_nothing_swept_is_an_error_still(cli, volume: Volume) -> None:
    assert "there is nothing to compare" in cli("verify", "published", exits=3).stderr
