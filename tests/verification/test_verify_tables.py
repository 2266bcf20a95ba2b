"""`verify tables`: measured numbers within the tolerance, everything else exactly, and each difference by its place."""

import gzip
import json

import pytest

from croma_bundle.errors import InputError, VerdictFailed
from croma_bundle.progress import Reporter
from croma_bundle.scoring.cross import FIRST
from croma_bundle.scoring.tables import K_SWEEP, M_SWEEP, METRICS, PAIRWISE, PER_SAMPLE
from croma_bundle.verification.tables import compare_folders, compare_tables

HEADER = "benchmark,encoder,k,ri,croma_median,matrix_sha256"
ROW = "phantom,Thumbnail,5,0.5,0.25,aa"


def write(folder, text, name="metrics.csv"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())


@pytest.fixture
def pair(tmp_path):
    """Two folders with one equal table each."""
    for name in ("ours", "reference"):
        write(tmp_path / name, f"{HEADER}\n{ROW}\n")
    return tmp_path / "ours", tmp_path / "reference"


def compare(pair, tolerance=1e-6):
    return compare_folders(*pair, tolerance, Reporter(as_json=True))


def differing(ours, reference, tolerance=1e-6):
    """What differs between two one-row tables, given as column → text."""
    tables = [[list(row), list(row.values())] for row in (ours, reference)]
    return compare_tables(*tables, "t.csv", tolerance).differing


def with_cell(column, value):
    cells = dict(zip(HEADER.split(","), ROW.split(","), strict=True)) | {column: value}
    return f"{HEADER}\n{','.join(cells.values())}\n"


# --- equal ---


def test_equal_tables_are_equal(pair):
    verdict = compare(pair)
    assert (verdict.cells, verdict.largest, verdict.differing) == (5, 0.0, [])  # six columns less the hash


def test_the_command_says_how_much_was_compared(pair, cli):
    write(pair[0], with_cell("ri", "0.50000025"))
    said = cli("verify", "tables", *pair).stdout
    assert said == "equal: one table, 5 cells, numbers within 1e-06 (largest difference 2.5e-07)\n"


def test_another_matrix_hash_is_no_difference(pair):
    write(pair[0], with_cell("matrix_sha256", "bb"))
    compare(pair)


def test_compressed_tables_are_compared_by_content(pair):
    for folder in pair:
        write(folder, "row,ri\n0,\n1,0.5\n", "per_sample/A.csv.gz")
    assert compare(pair).cells == 5 + 4
    write(pair[0], "row,ri\n0,\n1,0.6\n", "per_sample/A.csv.gz")
    with pytest.raises(VerdictFailed, match=r"per_sample/A.csv.gz row 2 \(1, 0.5\), ri: 0.6, wanted 0.5"):
        compare(pair)


@pytest.mark.parametrize("name", ["more.csv", "per_sample/A.csv.gz"])
def test_a_table_that_only_ours_has_is_a_difference(pair, name):
    write(pair[0], "x\n1\n", name)
    with pytest.raises(VerdictFailed, match=f"{name}: only in {pair[0]}"):
        compare(pair)


def test_what_the_references_run_states_and_its_folder_leaves_out_is_no_difference(pair):
    """As `results/phantom`, which is kept small."""
    outputs = {"metrics.csv": "aa", "pairwise.csv": "bb", "per_sample/A.csv": "cc"}
    write(pair[1], json.dumps({"outputs": outputs}), "run.json")
    for name in ("pairwise.csv", "per_sample/A.csv.gz"):
        write(pair[0], "x\n1\n", name)
    assert compare(pair).cells == 5
    write(pair[0], "x\n1\n", "per_sample/B.csv.gz")
    with pytest.raises(VerdictFailed, match=r"one difference[^\n]*\n  per_sample/B.csv.gz: only in"):
        compare(pair)


@pytest.mark.parametrize("content", ["{", "[]", '{"outputs": 1}'])
def test_a_damaged_run_of_the_reference_states_nothing(pair, content):
    write(pair[1], content, "run.json")
    write(pair[0], "x\n1\n", "more.csv")
    with pytest.raises(VerdictFailed, match=r"more.csv: only in"):
        compare(pair)


def test_other_files_of_the_reference_are_not_compared(pair):
    write(pair[1], "{}", "run.json")
    compare(pair)


# --- the tolerance, by thought ---


@pytest.mark.parametrize(
    ("ours", "wanted", "tolerance", "equal"),
    [
        ("0.5", "0.75", 0.25, True),  # the edge itself, exact in binary
        ("0.75", "0.5", 0.25, True),  # in either direction
        ("0.5", "0.7500000000000001", 0.25, False),  # one unit in the last place beyond
        ("0.5", "0.5000000000000001", 0.0, False),
        ("0.5", "0.5", 0.0, True),
        ("0.50", "0.5", 0.0, True),  # another way to write the same number
        ("-0.25", "0.25", 0.5, True),
        ("-0.25", "0.25", 0.499, False),
        ("0.0", "-0.0", 0.0, True),
        ("1e-7", "0.0", 1e-6, True),
        ("1e-5", "0.0", 1e-6, False),
    ],
)
def test_a_measured_number_may_differ_by_the_tolerance_and_no_more(ours, wanted, tolerance, equal):
    assert (differing({"ri": ours}, {"ri": wanted}, tolerance) == []) is equal


MEASURED = (
    "tau bio_bacc conf_bacc ri mari delta support ss_undefined oo_undefined mixed_undefined croma_median croma_q10 "
)
MEASURED += (
    "croma_ltm10 croma_f0 croma_median_lo croma_f0_hi croma_m1 croma_m20 mean_rank croma_rank ltm10_rank rank_lo "
)
MEASURED += "camelyon_croma_median tcga-4x4_croma_ltm10 rank_hi croma_f0_lo win_rate_median win_rate_ltm10"


@pytest.mark.parametrize("column", MEASURED.split())
def test_measured_columns_have_the_tolerance(column):
    assert differing({column: "0.1"}, {column: "0.1000001"}) == []


@pytest.mark.parametrize(
    ("column", "ours", "wanted"),
    [
        ("k", "5", "5.0000001"),
        ("m", "5", "6"),
        ("k_panel", "27", "26"),
        ("n_units", "1000000", "1000001"),
        ("row", "1", "2"),
        ("batch_size", "32", "64"),
        ("alpha", "0.1", "0.1000001"),
        ("sample_id", "007", "7"),
        ("label", "1", "1.0"),
        ("group_id", "1e3", "1000"),
        ("subset", "1", "1.0"),
        ("encoder", "7", "07"),
        ("confounder", "nan", "NaN"),
        ("is_control", "true", "false"),
        ("undefined", "", "ss"),
        ("checkpoint_revision", "1" * 40, "1" * 39 + "2"),  # equal as floats
        ("a_column_of_the_future", "0.1", "0.1000001"),
    ],
)
def test_names_counts_and_choices_must_be_equal_to_the_letter(column, ours, wanted):
    assert differing({column: ours}, {column: wanted}, tolerance=1.0) == [
        f"t.csv row 1 ({wanted}), {column}: {ours or 'empty'}, wanted {wanted or 'empty'}"
    ]


EXACT = (
    "benchmark encoder is_control external protocol k k_panel m alpha n_units design unit confounder "
    "checkpoint_revision generation pooling precision batch_size device exposed matrix_sha256 selected row "
    "sample_id subset group_id label undefined a b resolvable_median resolvable_ltm10 on_frontier"
)


@pytest.mark.parametrize("header", [METRICS, K_SWEEP, M_SWEEP, PER_SAMPLE, PAIRWISE, FIRST], ids=lambda h: h[-1])
def test_every_column_of_our_tables_is_either_measured_or_exact(header):
    """No number of ours is held to the last bit because nobody thought of it."""
    measured = {column for column in header if differing({column: "0.1"}, {column: "0.1000001"}) == []}
    assert measured == set(header) - set(EXACT.split()) | ({"matrix_sha256"} & set(header))  # that one is not compared


# --- empty and not a number ---


@pytest.mark.parametrize(
    ("ours", "wanted"),
    [
        ("", "0.5"),
        ("0.5", ""),
        ("nan", "0.5"),
        ("0.5", "nan"),
        ("", "nan"),
        ("inf", "0.5"),
        ("0.5", "inf"),
        ("x", "0.5"),
    ],
)
def test_what_is_empty_or_no_number_is_within_no_tolerance(ours, wanted):
    (told,) = differing({"ri": ours}, {"ri": wanted}, tolerance=1e9)
    assert told == f"t.csv row 1 ({wanted}), ri: {ours or 'empty'}, wanted {wanted or 'empty'}"


@pytest.mark.parametrize("value", ["", "nan", "inf"])
def test_the_same_absence_on_both_sides_is_equal(value):
    assert differing({"ri": value}, {"ri": value}) == []


# --- differences ---


def test_a_difference_is_told_with_file_row_column_and_both_values(pair, cli):
    write(pair[0], with_cell("croma_median", "0.26"))
    said = cli("verify", "tables", *pair, exits=1)
    assert said.stdout == ""
    assert f"error: {pair[0]} against {pair[1]}: one difference (numbers may differ by 1e-06)" in said.stderr
    assert "metrics.csv row 1 (phantom, Thumbnail), croma_median: 0.26, wanted 0.25" in said.stderr
    cli("verify", "tables", *pair, "--tolerance", "0.02")


def test_all_differences_are_counted_and_the_first_ten_shown(pair):
    for folder, value in zip(pair, ("0.1", "0.2"), strict=True):
        write(folder, "encoder,ri\n" + "".join(f"E{i},{value}\n" for i in range(14)))
    with pytest.raises(VerdictFailed) as caught:
        compare(pair)
    text = caught.value.paragraph()
    assert "14 differences" in text
    assert text.count("metrics.csv row") == 10
    assert text.endswith("and 4 more")


def test_a_missing_table_is_a_difference_and_the_rest_is_still_compared(pair):
    write(pair[1], "x\n1\n", "k_sweep.csv")
    write(pair[0], with_cell("k", "7"))
    with pytest.raises(VerdictFailed) as caught:
        compare(pair)
    assert f"k_sweep.csv: missing in {pair[0]}" in caught.value.paragraph()
    assert "k: 7, wanted 5" in caught.value.paragraph()


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("benchmark,encoder,k,ri,croma_median", "other columns, lacks matrix_sha256"),
        (HEADER + ",extra", "other columns, has extra too many"),
        ("benchmark,encoder,k,ri,croma,matrix_sha256", "other columns, lacks croma_median and has croma too many"),
        ("encoder,benchmark,k,ri,croma_median,matrix_sha256", "other columns, in another order"),
    ],
)
def test_other_columns_are_told_by_name(pair, header, told):
    write(pair[0], f"{header}\n{','.join('1' for _ in header.split(','))}\n")
    with pytest.raises(VerdictFailed, match=f"metrics.csv: {told}"):
        compare(pair)


def test_another_number_of_rows_is_a_difference(pair):
    write(pair[0], f"{HEADER}\n{ROW}\n{ROW}\n")
    with pytest.raises(VerdictFailed, match=r"metrics.csv: 2 rows, wanted 1"):
        compare(pair)


def test_rows_in_another_order_are_a_difference(pair):
    rows = ["a,1", "b,2"]
    for folder, order in zip(pair, (rows, rows[::-1]), strict=True):
        write(folder, "encoder,k\n" + "\n".join(order) + "\n")
    with pytest.raises(VerdictFailed, match="4 differences"):
        compare(pair)


def test_json_says_the_verdict(pair, cli):
    import subprocess
    import sys

    command = [sys.executable, "-m", "croma_bundle", "--json", "verify", "tables", *map(str, pair)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    event = {"event": "verdict", "equal": True, "tables": 1, "cells": 5, "largest": 0.0}
    assert json.loads(done.stdout) == event


# --- what cannot be compared ---


def test_a_reference_without_tables_or_a_folder_that_is_not_there_is_no_verdict(pair, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there is no table to compare with"):
        compare((pair[0], tmp_path / "empty"))
    for absent in ((tmp_path / "none", pair[1]), (pair[0], tmp_path / "none")):
        with pytest.raises(InputError, match=r"none: there is no such folder of tables") as caught:
            compare(absent)
        assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("metrics.csv", b"a,b\n1\n", "row 1 has not the 2 values of its header"),
        ("metrics.csv", b"", "this table is empty"),
        ("metrics.csv", b"a\n\xff\n", "this table cannot be read"),
        ("metrics.csv", b'a\n"half\n', "this table cannot be read"),
        ("x.csv.gz", b"not gzip", "this table cannot be read"),
        ("x.csv.gz", gzip.compress(b"a\n1\n" * 100, mtime=0)[:-12], "this table cannot be read"),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_a_damaged_table_is_told_by_name_on_either_side(pair, name, content, told, side):
    for folder in pair:
        write(folder, "a,b\n1,2\n", name)
    (pair[side] / name).write_bytes(content)
    with pytest.raises(InputError, match=told) as caught:
        compare(pair)
    assert caught.value.subject == str(pair[side] / name)


@pytest.mark.parametrize("tolerance", ["-1", "x", "nan", "inf"])
def test_a_tolerance_that_is_no_distance_is_a_usage_error(pair, cli, tolerance):
    cli("verify", "tables", *pair, "--tolerance", tolerance, exits=2)
