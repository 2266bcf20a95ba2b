"""Scoring again what has not changed: nothing is computed or written, the same is said; any doubt, and it is scored."""

import csv
import dataclasses
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import croma_bundle
from bench import Listener, add, bring, choosing, drawn, folder, run_json, score, scored, voting_rows
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.scoring.record import CODE
from croma_bundle.scoring.run import Request, score_all

ENCODERS = {"Good": (3.0, 0.1), "Bad": (0.2, 2.0), "Ctl": (1.0, 1.0)}


@pytest.fixture
def twice(volume):
    """Two cohorts of three encoders, scored with their cross table, and the surveys gone: what is computed shows."""
    for i, name in enumerate(("one", "two")):
        add(volume, name, voting_rows())
        matrices = {e: drawn(voting_rows(), *strengths, seed=i) for e, strengths in ENCODERS.items()}
        bring(volume, name, matrices, controls=("Ctl",))
    scored(volume, cross=["one", "two"])
    shutil.rmtree(volume.root / "metrics/.surveys")
    return volume


def files(volume):
    """Every file of the metrics with its content and the time it was written."""
    return {
        str(p.relative_to(volume.root)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in (volume.root / "metrics").rglob("*")
        if p.is_file() and p.suffix != ".lock"
    }


def unchanged(listener):
    """What was said of each scored benchmark, and of the cross table: whether it stood."""
    return [event["unchanged"] for event in listener.events if event["event"] in ("scored", "cross")]


def again(volume, *benchmarks, **options):
    """Whether a repeated score of `one` (or of these) found everything as it was."""
    return all(unchanged(scored(volume, *(benchmarks or ("one",)), **options)))


# --- it stands ---


def test_nothing_is_computed_or_written(twice):
    before = files(twice)
    assert unchanged(scored(twice, cross=["one", "two"])) == [True, True, True]
    assert files(twice) == before


def test_the_same_is_said_but_for_the_last_line_of_a_table(twice, cli):
    shutil.rmtree(twice.root / "metrics")
    first, second = (cli("score", "--cross", "one,two").stdout for _ in range(2))
    assert second == first.replace("written to ", "unchanged: ")
    assert second.count("unchanged: ") == 3


def test_events_carry_the_same_rows(twice):
    shutil.rmtree(twice.root / "metrics")
    first, second = (scored(twice, cross=["one", "two"]) for _ in range(2))
    told = [[e for e in said.events if e["event"] in ("scored", "cross")] for said in (first, second)]
    assert [{**e, "unchanged": True} for e in told[0]] == told[1]


def test_what_changes_no_result_is_no_change(twice):
    assert again(twice, threads=1, memory_limit=1 << 30, block=7)


def test_a_warning_of_a_subset_that_is_not_scored_is_given_again(volume):
    tiles = {"t0": ("a", "x"), "t1": ("a", "y"), "t2": ("b", "x"), "t3": ("b", "y"), "t4": ("a", "x"), "t5": ("b", "x")}
    rows = [
        {"sample_id": t, "image_path": f"{t}.png", "label": a, "medical_center": c, "group_id": f"g{t}", "subset": s}
        for s, names in (("whole", ["t0", "t1", "t2", "t3"]), ("broken", ["t4", "t5"]))
        for t in names
        for a, c in [tiles[t]]
    ]
    add(volume, "paired", rows, design="paired_2x2")
    bring(volume, "paired", {"E": drawn(rows, 1, 1)})
    first, second = (scored(volume, "paired", m=1) for _ in range(2))
    assert unchanged(second) == [True]
    warned = [[e for e in said.events if e["event"] == "warning"] for said in (first, second)]
    assert warned[0] == warned[1] != []
    assert "subset broken is not scored" in warned[0][0]["text"]


def test_a_cross_table_of_benchmarks_that_were_scored_before_stands(twice):
    assert unchanged(scored(twice, "one", cross=["one", "two"])) == [True, True]


# --- it does not ---


@pytest.mark.parametrize(
    "options",
    [{"m": 3}, {"seed": 1}, {"k": 5}, {"tau": 0.1}, {"k_max": 9}, {"k_grid": "dense"}, {"encoders": ["Good"]}],
)
def test_other_knobs_are_scored(twice, options):
    assert not again(twice, **options)
    assert again(twice, **options)


def test_another_matrix_is_scored_and_so_is_its_cross_table(twice):
    bring(twice, "one", {"Good": drawn(voting_rows(), 2, 1, seed=9)}, force=True)
    assert unchanged(scored(twice, cross=["one", "two"])) == [False, True, False]


def test_one_more_encoder_is_scored_with_the_others(twice):
    bring(twice, "one", {"New": choosing(3)})
    assert not again(twice)
    assert "New" in run_json(twice, "one")["inputs"]["encoders"]


def test_a_matrix_that_changed_on_disk_is_refused_as_ever(twice):
    path = twice.matrix("one", "Good")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    _, error = score(twice, "one")
    assert error.exit_code == 5
    assert "the matrix does not match its sidecar" in str(error)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def repack(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"slide-normal", b"slide-tumour")))


DAMAGE = {
    **{f"{name} changed": (name, flip) for name in ("metrics.csv", "metrics.json", "k_sweep.csv", "pairwise.csv")},
    "run.json cut off": ("run.json", lambda path: path.write_bytes(path.read_bytes()[:-30])),
    "run.json of another kind": ("run.json", lambda path: path.write_text("[]")),
    "samples changed": ("per_sample/Good.csv.gz", repack),
    "samples cut off": ("per_sample/Good.csv.gz", lambda path: path.write_bytes(path.read_bytes()[:-9])),
    "samples with more behind": ("per_sample/Good.csv.gz", lambda path: path.write_bytes(path.read_bytes() + b"x")),
    "samples not packed": ("per_sample/Good.csv.gz", lambda path: path.write_bytes(b"plain")),
    **{f"{name} removed": (name, Path.unlink) for name in ("m_sweep.csv", "run.json", "per_sample/Ctl.csv.gz")},
    "a table too many": ("per_sample/Old.csv.gz", lambda path: path.write_bytes(gzip.compress(b"row\n"))),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_folder_that_is_not_whole_is_scored_again_to_the_same_bytes(twice, damage):
    name, act = DAMAGE[damage]
    before = {path: content for path, (content, _) in files(twice).items()}
    act(folder(twice, "one") / name)
    assert not again(twice)
    shutil.rmtree(twice.root / "metrics/.surveys")
    assert {path: content for path, (content, _) in files(twice).items()} == before


@pytest.mark.parametrize("name", ["cross_benchmark.csv", "cross_benchmark.json"])
@pytest.mark.parametrize("act", [flip, Path.unlink], ids=["changed", "removed"])
def test_a_cross_table_that_is_not_whole_is_made_again(twice, name, act):
    path = twice.root / "metrics/median-k" / name
    content = path.read_bytes()
    act(path)
    assert unchanged(scored(twice, cross=["one", "two"])) == [True, True, False]
    assert path.read_bytes() == content


def test_a_cross_table_in_another_order_is_made_again(twice):
    assert unchanged(scored(twice, "one", cross=["two", "one"])) == [True, False]


def test_a_cross_table_over_damaged_samples_is_refused_as_ever(twice):
    repack(folder(twice, "two") / "per_sample/Good.csv.gz")
    _, error = score(twice, "one", cross=["one", "two"])
    assert (error.exit_code, error.problem) == (5, "it is not the table that its run.json states")


@pytest.mark.parametrize("change", [{"control": True}, {"votes": False}, {"exposed": ("one",)}], ids=str)
def test_what_a_declaration_says_of_an_encoder_is_part_of_it(volume, change):
    add(volume, "one", voting_rows())
    bring(volume, "one", {name: drawn(voting_rows(), 1, 1, seed=len(name)) for name in ("Thumbnail", "Other")})
    plain = load_catalogue(volume)
    before = plain.encoders["Thumbnail"].model_copy(update={"control": False, "votes": True, "exposed": ()})
    said = []
    for entry in (before, before, before.model_copy(update=change)):
        said.append(Listener())
        encoders = {**plain.encoders, "Thumbnail": entry}
        score_all(volume, dataclasses.replace(plain, encoders=encoders), Request(["one"]), said[-1])
    assert [unchanged(listener) for listener in said] == [[False], [True], [False]]


def test_another_commit_is_another_run(twice, cli):
    for commit, end in (("a" * 40, "written to"), ("a" * 40, "unchanged: "), ("b" * 40, "written to")):
        assert end in cli("score", "--benchmark", "one", env={"CROMA_GIT_COMMIT": commit}).stdout


def test_changed_code_of_the_same_version_scores_again(twice, tmp_path):
    """A checkout with changes has the commit and the version of one without."""
    package = Path(croma_bundle.__file__).parent
    copy = tmp_path / "src/croma_bundle"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for pins in (package.parents[1] / "manifests", package / "_manifests"):
        if pins.is_dir():
            shutil.copytree(pins, tmp_path / "manifests", dirs_exist_ok=True)
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(twice.root), "score", "--benchmark", "one"]
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "CROMA_GIT_COMMIT": "c" * 40}

    def said() -> str:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert ["written to" in said(), "unchanged: " in said()] == [True, True]
    tail = copy / "metrics/tail.py"
    tail.write_text(tail.read_text() + "# changed\n")
    assert "written to" in said()


def test_the_code_that_is_hashed_is_all_that_scoring_imports():
    names = "{name.split('.')[1] for name in sys.modules if name.startswith('croma_bundle.')}"
    command = [sys.executable, "-c", f"import sys, croma_bundle.scoring.run; print(*{names})"]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert set(imported) == set(CODE)
    package = Path(croma_bundle.__file__).parent
    assert not [p for room in CODE for p in package.glob(f"{room}/*/*.py")], "code in a folder that is not hashed"


# --- errors are told again ---


def test_an_encoder_without_croma_is_told_every_time_with_its_exit_code(volume, cli):
    add(volume, "one", voting_rows())
    bring(volume, "one", {"Good": choosing(3)})
    first, second = (cli("score", "--m", "9", "--memory-limit", "4G", exits=3) for _ in range(2))
    assert first.stderr == second.stderr
    assert "error: " in second.stderr
    assert "unchanged" not in second.stdout


def test_a_refused_encoder_is_told_every_time_with_its_exit_code(twice, cli):
    twice.sidecar("one", "Bad").unlink()
    first, second = (cli("score", "--benchmark", "one", "--memory-limit", "4G", exits=5) for _ in range(2))
    assert first.stderr == second.stderr
    assert "half an artifact" in second.stderr
    assert "unchanged" not in second.stdout


# --- the table of samples, written some rows at a time ---


def test_samples_are_written_as_the_csv_module_writes_them(volume):
    odd = ['a,"b"', "c", " d ,", "'e'", "f\tg", "ü;"]
    rows = [
        {**row, "sample_id": f"{odd[i % 6]}{i}", "group_id": f'{row["group_id"]}"'}
        for i, row in enumerate(voting_rows())
    ]
    add(volume, "odd", rows)
    bring(volume, "odd", {"E": drawn(rows, 1, 1)})
    scored(volume, "odd")
    content = gzip.decompress((folder(volume, "odd") / "per_sample/E.csv.gz").read_bytes()).decode()
    header, *cells = csv.reader(io.StringIO(content, newline=""))
    assert [row[1] for row in cells] == [row["sample_id"].strip() for row in rows]
    again = io.StringIO()
    csv.writer(again, lineterminator="\n").writerows([header, *cells])
    assert again.getvalue() == content
    numbers = [cell for row in cells for cell in (*row[6:8], *row[9:])]
    assert all(cell == "" or cell == repr(float(cell)) for cell in numbers)
    assert any(cell == "" for cell in numbers)
    assert any(cell != "" for cell in numbers)


def test_packed_tables_say_nothing_of_when_or_where(twice):
    for path in (folder(twice, "one") / "per_sample").iterdir():
        header = path.read_bytes()[:10]
        assert header[3:8] == b"\0\0\0\0\0", "no name, no comment, and the time 0 (RFC 1952)"


def test_the_record_of_a_cross_table_names_the_runs_behind_it(twice):
    record = json.loads((twice.root / "metrics/median-k/cross_benchmark.json").read_text())
    runs = {n: hashlib.sha256((folder(twice, n) / "run.json").read_bytes()).hexdigest() for n in ("one", "two")}
    table = (twice.root / "metrics/median-k/cross_benchmark.csv").read_bytes()
    assert record["runs"] == runs
    assert record["outputs"] == {"cross_benchmark.csv": hashlib.sha256(table).hexdigest()}
    assert next(csv.reader(io.StringIO(table.decode()))) == record["columns"]
    assert [row["encoder"] for row in record["rows"]] == ["Good", "Bad", "Ctl"]


# --- one more encoder ---


def samples(volume, name="one"):
    return {p.name: p.stat().st_mtime_ns for p in (folder(volume, name) / "per_sample").iterdir()}


def fresh(volume, *names):
    """The bytes of a benchmark scored where nothing stood before."""
    shutil.rmtree(volume.root / "metrics")
    scored(volume, *names)
    return {path: content for path, (content, _) in files(volume).items() if ".surveys" not in path}


def test_one_more_encoder_leaves_the_others_tables_of_samples_where_k_stays(twice):
    before = samples(twice)
    bring(twice, "one", {"New": drawn(voting_rows(), 1, 1, seed=8)}, controls=("New",))
    k = run_json(twice, "one")["resolved"]["k"]
    scored(twice, "one")
    assert run_json(twice, "one")["resolved"]["k"] == k
    after = samples(twice)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"New.csv.gz"}
    shutil.rmtree(twice.root / "metrics/median-k/two")
    found = {p: content for p, (content, _) in files(twice).items() if "/one/" in p and ".surveys" not in p}
    assert found == fresh(twice, "one")


@pytest.mark.parametrize("move", ["k", "tau", "matrix"])
def test_a_table_of_samples_at_another_operating_point_is_written_anew(volume, move):
    add(volume, "one", voting_rows())
    bring(volume, "one", {"A": choosing(1), "B": choosing(1)})
    scored(volume, "one", tau=0.5)
    before = samples(volume)
    if move == "k":  # three of five voters choose 5
        bring(volume, "one", {name: choosing(5) for name in ("C", "D", "E")})
    if move == "matrix":
        bring(volume, "one", {"A": choosing(5), "C": choosing(1)}, force=True)
    scored(volume, "one", tau=0.25 if move == "tau" else 0.5)
    after = samples(volume)
    assert {name for name in before if after[name] == before[name]} == ({"B.csv.gz"} if move == "matrix" else set())
    found = {p: content for p, (content, _) in files(volume).items() if ".surveys" not in p}
    shutil.rmtree(volume.root / "metrics")
    scored(volume, "one", tau=0.25 if move == "tau" else 0.5)
    assert found == {p: content for p, (content, _) in files(volume).items() if ".surveys" not in p}


def test_a_damaged_table_of_samples_is_written_anew_with_one_more_encoder(twice):
    before = samples(twice)
    repack(folder(twice, "one") / "per_sample/Good.csv.gz")
    bring(twice, "one", {"New": drawn(voting_rows(), 1, 1, seed=8)}, controls=("New",))
    scored(twice, "one")
    after = samples(twice)
    assert {name for name in before if after[name] != before[name]} == {"Good.csv.gz"}
    assert again(twice)
