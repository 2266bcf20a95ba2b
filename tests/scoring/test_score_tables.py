"""The files of a scored benchmark: columns, values worked by hand, form, and that they are of one run."""

import csv
import gzip
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis.extra.numpy import array_shapes, arrays
from hypothesis.strategies import floats

from bench import (
    QUADRANT,
    add,
    bring,
    choosing,
    drawn,
    every_byte,
    folder,
    metrics,
    quadrant_rows,
    run_json,
    scored,
    table,
    voting_rows,
)
from builders import cohort_rows
from croma_bundle.scoring.tables import cells

CONTRACT = {
    "metrics.csv": "benchmark,encoder,is_control,external,protocol,k,k_panel,tau,bio_bacc,conf_bacc,ri,mari,delta,"
    "support,ss_undefined,oo_undefined,mixed_undefined,croma_median,croma_q10,croma_ltm10,croma_f0,croma_median_lo,"
    "croma_median_hi,croma_ltm10_lo,croma_ltm10_hi,croma_f0_lo,croma_f0_hi,m,alpha,n_units,design,unit,confounder,"
    "checkpoint_revision,generation,pooling,precision,batch_size,device,exposed,matrix_sha256",
    "k_sweep.csv": "benchmark,encoder,confounder,k,bio_bacc,conf_bacc,ri,mari,support,selected",
    "m_sweep.csv": "benchmark,encoder,confounder,m,croma_median,croma_q10,croma_ltm10,croma_f0",
    "per_sample/Q.csv.gz": "row,sample_id,subset,group_id,label,confounder,ri,mari,undefined,"
    "croma_m1,croma_m2,croma_m3,croma_m4,croma_m5,croma_m6,croma_m7,croma_m8,croma_m9,croma_m10,croma_m11,croma_m12,"
    "croma_m13,croma_m14,croma_m15,croma_m16,croma_m17,croma_m18,croma_m19,croma_m20",
}
TEXT = "benchmark encoder protocol design unit confounder checkpoint_revision generation pooling precision device"
TEXT += " a b matrix_sha256 sample_id subset group_id label undefined"


@pytest.fixture
def quadrant(volume):
    """The four hand-worked rows, scored at m = 1."""
    add(volume, "quadrant", quadrant_rows())
    bring(volume, "quadrant", {"Q": QUADRANT})
    scored(volume, "quadrant", m=1)
    return volume


@pytest.fixture
def trio(volume):
    """Three encoders, one of them a control, on 36 rows of nothing tied."""
    rows = cohort_rows(slides=3, tiles=3)
    add(volume, "trio", rows)
    matrices = {"Biology": (2, 0.4), "Contested": (1, 1), "Centre": (0.4, 2)}
    x = {name: drawn(rows, *strengths, seed=i) for i, (name, strengths) in enumerate(matrices.items())}
    bring(volume, "trio", x, controls=("Centre",))
    scored(volume, "trio")
    return volume


# --- columns and form ---


@pytest.mark.parametrize("name", list(CONTRACT))
def test_the_columns_are_the_contracts_in_its_order(quadrant, name):
    content = (folder(quadrant, "quadrant") / name).read_bytes()
    text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
    assert text.split("\n", 1)[0] == CONTRACT[name]


def test_the_folder_holds_exactly_the_contracts_files(quadrant):
    assert set(every_byte(folder(quadrant, "quadrant"))) == {*CONTRACT, "metrics.json", "run.json"}


def test_tables_end_lines_with_a_newline_alone_and_have_no_index(trio):
    for name, content in every_byte(folder(trio, "trio")).items():
        content = gzip.decompress(content) if name.endswith(".gz") else content
        assert b"\r" not in content
        assert content.endswith(b"\n")
        if ".csv" in name:
            assert not content.startswith((b",", b"\xef\xbb\xbf"))


def test_every_number_is_written_by_repr_and_so_round_trips(trio):
    seen = 0
    for path in folder(trio, "trio").rglob("*.csv*"):
        for row in table(path):
            for column, text in row.items():
                if column in TEXT.split() or text in ("", "true", "false"):
                    continue
                assert text in (repr(float(text)), repr(int(float(text)))), (path.name, column, text)
                seen += 1
    assert seen > 36 * 3 * 10  # at least ten margins of every sample of every encoder


@given(
    arrays(np.float64, array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6), elements=floats(allow_nan=True))
)
@example(np.array([[0.0, -0.0], [1e-4, 9.999999999999999e-5], [1e16, 9999999999999998.0], [0.1 + 0.2, np.nan]]))
def test_cells_of_numbers_are_those_of_repr_and_nan_is_empty(numbers):
    wanted = [",".join("" if math.isnan(value) else repr(value) for value in row) for row in numbers.tolist()]
    assert cells(numbers) == wanted


def test_gzip_carries_no_time_and_no_name(quadrant):
    header = (folder(quadrant, "quadrant") / "per_sample/Q.csv.gz").read_bytes()[:10]
    assert header[:4] == b"\x1f\x8b\x08\x00"  # deflate, no flags: no name, no comment
    assert header[4:8] == bytes(4)  # mtime 0


# --- values, by hand (see bench.QUADRANT) ---


def test_the_quadrant_is_scored_as_worked_by_hand(quadrant):
    row = metrics(quadrant, "quadrant")["Q"]
    # k = 1 and 3 are below the 4 rows. Labels at k=1: two of four rows are right; at k=3: none. So k* = 1.
    wanted = {"benchmark": "quadrant", "encoder": "Q", "protocol": "median-k", "k": "1", "k_panel": "1", "m": "1"}
    wanted |= {"is_control": "false", "external": "true", "n_units": "4", "design": "all", "unit": "sample"}
    wanted |= {"confounder": "medical_center", "device": "external", "alpha": "0.1"}
    assert {name: row[name] for name in wanted} == wanted
    numbers = {"bio_bacc": 0.5, "conf_bacc": 0, "ri": 1, "mari": 1, "delta": 0, "support": 0.5, "tau": 0.5}
    numbers |= {"ss_undefined": 0, "oo_undefined": 0.5, "mixed_undefined": 0}
    numbers |= dict.fromkeys(["croma_median", "croma_q10", "croma_ltm10"], 1 / 3) | {"croma_f0": 0}
    assert {name: float(row[name]) for name in numbers} == pytest.approx(numbers, abs=1e-6)  # float32 rows
    assert row["matrix_sha256"] == hashlib.sha256((quadrant.matrix("quadrant", "Q")).read_bytes()).hexdigest()


def test_what_does_not_exist_is_empty(quadrant):
    row = metrics(quadrant, "quadrant")["Q"]
    absent = {name for name, value in row.items() if value == ""}
    assert absent == {
        *("checkpoint_revision", "generation", "pooling", "precision", "batch_size"),  # an import has none of these
        "exposed",
    }


def test_the_k_sweep_is_worked_by_hand(quadrant):
    # k = 3: every row sees one SO at 0.5 and one OS at 1; no label and no confounder value is voted right.
    rows = table(folder(quadrant, "quadrant") / "k_sweep.csv")
    assert [(row["k"], row["selected"]) for row in rows] == [("1", "true"), ("3", "false")]
    weight = math.exp(-0.5 / 0.5), math.exp(-1 / 0.5)
    wanted = {"bio_bacc": 0, "conf_bacc": 0, "ri": 0.5, "mari": weight[0] / sum(weight), "support": 1}
    assert {name: float(rows[1][name]) for name in wanted} == pytest.approx(wanted, abs=1e-6)


def test_per_sample_rows_stand_in_manifest_order_with_their_own_values(quadrant):
    rows = table(folder(quadrant, "quadrant") / "per_sample/Q.csv.gz")
    manifest = quadrant_rows()
    assert [row["row"] for row in rows] == ["0", "1", "2", "3"]
    for row, tile in zip(rows, manifest, strict=True):
        assert row["sample_id"] == tile["sample_id"]
        assert (row["label"], row["confounder"], row["group_id"]) == (
            tile["label"],
            tile["medical_center"],
            tile["group_id"],
        )
        assert row["subset"] == ""
        assert float(row["croma_m1"]) == pytest.approx(1 / 3, abs=1e-6)
    assert [row["ri"] for row in rows] == ["1.0", "", "", "1.0"]  # the middle two see an OO at k = 1
    assert [row["mari"] for row in rows] == ["1.0", "", "", "1.0"]
    assert [row["undefined"] for row in rows] == ["", "oo", "oo", ""]


def test_margins_beyond_the_supported_m_are_empty_and_run_json_says_why(quadrant):
    for row in table(folder(quadrant, "quadrant") / "per_sample/Q.csv.gz"):
        assert [row[f"croma_m{m}"] for m in range(2, 21)] == [""] * 19
    assert [row["m"] for row in table(folder(quadrant, "quadrant") / "m_sweep.csv")] == ["1"]
    reason = run_json(quadrant, "quadrant")["resolved"]["m_sweep_ends"]["Q"]
    assert "no CRoMa at m = 2" in reason
    assert "4 of 4 samples lack 2 SO neighbours" in reason


def test_per_sample_values_follow_the_sample_not_the_position(volume):
    # Encoder Five of the voting cohort: the probe (row 9) sees two OS or OO strays first, at 1° and 2°.
    add(volume, "voting", voting_rows())
    bring(volume, "voting", {"Five": choosing(5)})
    scored(volume, "voting", k=3)
    rows = table(folder(volume, "voting") / "per_sample/Five.csv.gz")
    probe, stray = rows[9], rows[18]
    assert (probe["sample_id"], probe["confounder"]) == ("normal-9", "west")
    # its three nearest: strays 18 and 19 (tumour, east: OO), then normal-8 (east: SO)
    assert (probe["ri"], probe["undefined"]) == ("1.0", "")
    # stray 18 (tumour, east): the probe (normal, west: OO), normal-8 (east: OS), normal-7 (west: OO)
    assert (stray["sample_id"], stray["ri"]) == ("tumour-8", "0.0")


def test_values_equal_the_public_package(trio):
    croma = pytest.importorskip("croma", reason="the oracle is a test-time extra")
    pd = pytest.importorskip("pandas")
    rows = cohort_rows(slides=3, tiles=3)
    frame = pd.DataFrame(rows)
    for encoder, row in metrics(trio, "trio").items():
        x = np.load(trio.matrix("trio", encoder)).astype(np.float64)
        given = {"features": x, "manifest": frame, "confounder_column": "medical_center", "evaluation_design": "all"}
        margin = croma.CRoMa.compute(**given, m=5)
        assert float(row["croma_median"]) == pytest.approx(margin.value, abs=2e-6)
        assert float(row["croma_q10"]) == pytest.approx(margin.q_alpha, abs=2e-6)
        assert float(row["croma_ltm10"]) == pytest.approx(margin.ltm_alpha, abs=2e-6)
        assert float(row["croma_f0"]) == margin.f0
        swept = {r["k"]: r for r in table(folder(trio, "trio") / "k_sweep.csv") if r["encoder"] == encoder}
        for k in (1, 9, 21):
            ri = croma.RI.compute(**given, k_candidates=[k])
            assert float(swept[str(k)]["ri"]) == pytest.approx(ri.value, abs=1e-9), (encoder, k)
            assert float(swept[str(k)]["support"]) == pytest.approx(ri.support, abs=1e-9), (encoder, k)


# --- metrics.json ---


def test_metrics_json_carries_the_same_values_typed(trio):
    stored = json.loads((folder(trio, "trio") / "metrics.json").read_text())
    assert ",".join(stored["columns"]) == CONTRACT["metrics.csv"]
    rows = table(folder(trio, "trio") / "metrics.csv")
    assert len(stored["rows"]) == len(rows) == 3
    for typed, text in zip(stored["rows"], rows, strict=True):
        assert list(typed) == list(text)
        assert {name: as_text(value) for name, value in typed.items()} == text
    assert {type(typed[name]) for typed in stored["rows"] for name in ("is_control", "external")} == {bool}
    assert {type(typed[name]) for typed in stored["rows"] for name in ("k", "m", "n_units")} == {int}


def as_text(value):
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


# --- run.json ---


def test_run_json_states_the_hash_of_every_output_and_input(trio):
    run = run_json(trio, "trio")
    outputs = {}
    for name, content in every_byte(folder(trio, "trio")).items():
        plain = gzip.decompress(content) if name.endswith(".gz") else content
        outputs[name.removesuffix(".gz")] = hashlib.sha256(plain).hexdigest()
    del outputs["run.json"]
    assert run["outputs"] == outputs
    manifest = trio.tile_manifest("trio").read_bytes()
    assert run["inputs"]["manifest_sha256"] == hashlib.sha256(manifest).hexdigest()
    assert run["inputs"]["manifest_fingerprint"] == public_fingerprint(trio.embedding_manifest("trio"))
    assert run["inputs"]["pixels_sha256"] is None
    assert set(run["inputs"]["encoders"]) == {"Biology", "Centre", "Contested"}
    for encoder, hashes in run["inputs"]["encoders"].items():
        for key, path in (("matrix_sha256", trio.matrix), ("sidecar_sha256", trio.sidecar)):
            assert hashes[key] == hashlib.sha256(path("trio", encoder).read_bytes()).hexdigest()


def public_fingerprint(path):
    """As contracts.md states it."""
    columns = ["sample_id", "label", "confounder", "group_id", "image_path"]
    rows = [[row[name].strip() for name in columns] for row in csv.DictReader(path.read_text().splitlines())]
    stated = {"columns": columns, "confounder_column": "confounder", "rows": rows}
    return hashlib.sha256(json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def test_run_json_has_the_knobs_to_repeat_the_run_and_the_facts_it_resolved(volume):
    add(volume, "voting", voting_rows())
    bring(volume, "voting", {"One": choosing(1), "Five": choosing(5), "Control": choosing(3)}, controls=("Control",))
    scored(volume, "voting", encoders=["One", "Five"], m=3, k_grid="dense", k_max=9, tau=0.3)
    run = run_json(volume, "voting")
    assert run["replay"] == {
        "command": "score",
        "benchmark": "voting",
        "protocol": "median-k",
        "confounder": "medical_center",
        "encoders": ["Five", "One"],
        "k_grid": "dense",
        "k_max": 9,
        "k": None,
        "tau": 0.3,
        "m": 3,
        "seed": 0,
    }
    resolved = run["resolved"]
    # dense: at k = 4 the probe sees two strays and two normals, a tie that "normal" wins: it is the first class
    assert resolved["k_star"] == {"One": 1, "Five": 4}
    assert (resolved["k"], resolved["k_panel"]) == (1, ["Five", "One"])
    assert resolved["usable_k"] == list(range(1, 10))
    assert resolved["tau"] == {"One": 0.3, "Five": 0.3}
    assert (resolved["n_rows"], resolved["n_units"], resolved["n_groups"]) == (20, 20, 19)
    assert sum(cell["rows"] for cell in resolved["cells"]) == 20
    assert {cell["rows"] for cell in resolved["cells"]} == {5}
    assert {"bundle", "python", "numpy"} <= set(run["versions"])


# --- one folder is one run ---


def test_tables_of_encoders_that_the_run_did_not_score_are_removed(trio):
    samples = folder(trio, "trio") / "per_sample"
    assert {path.name for path in samples.iterdir()} == {f"{e}.csv.gz" for e in ("Biology", "Centre", "Contested")}
    scored(trio, "trio", encoders=["Biology"])
    assert {path.name for path in samples.iterdir()} == {"Biology.csv.gz"}
    assert set(metrics(trio, "trio")) == {"Biology"}


def test_a_killed_writers_temporaries_are_swept(trio):
    leftovers = [
        folder(trio, "trio") / ".metrics.csv.0a1b2c3d.tmp",
        folder(trio, "trio") / "per_sample/.X.csv.gz.9.tmp",
    ]
    for leftover in leftovers:
        leftover.write_bytes(b"half")
    (folder(trio, "trio") / "run.json").unlink()  # gone before the first table is written
    scored(trio, "trio")
    assert not any(leftover.exists() for leftover in leftovers)


def stands_for_one_run(where):
    """run.json, if there, is of the tables beside it."""
    if not (where / "run.json").exists():
        return
    stated = json.loads((where / "run.json").read_text())["outputs"]
    found = every_byte(where)
    plain = {n.removesuffix(".gz"): gzip.decompress(c) if n.endswith(".gz") else c for n, c in found.items()}
    assert {n: hashlib.sha256(c).hexdigest() for n, c in plain.items() if n != "run.json"} == stated


def test_a_run_killed_while_it_writes_leaves_no_run_json_beside_tables_of_another_run(volume):
    rows = voting_rows()
    add(volume, "voting", rows)
    bring(volume, "voting", {f"E{i:02}": drawn(rows, 1, 1, seed=i) for i in range(24)})
    scored(volume, "voting")
    where = folder(volume, "voting")
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(volume.root), "score", "--k"]
    cut = 0
    for k in ("3", "5"):
        run = subprocess.Popen([*command, k], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while (where / "run.json").exists() and run.poll() is None:
            assert time.monotonic() < deadline
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        cut += not (where / "run.json").exists()
        stands_for_one_run(where)
        scored(volume, "voting", k=int(k))
        assert run_json(volume, "voting")["replay"]["k"] == int(k)
        stands_for_one_run(where)
    assert cut, "no kill fell between run.json's removal and its renewal"
