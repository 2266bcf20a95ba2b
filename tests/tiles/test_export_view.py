"""The evaluation CSV for the public pipeline: its columns, and what that pipeline would read differently."""

from __future__ import annotations

import csv

import pytest

from builders import folder_cohort, write_csv
from croma_bundle.layout import Volume
from croma_bundle.progress import Reporter
from croma_bundle.tiles.export_view import MISSING_LIKE, export_view


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as handle:
        return list(csv.reader(handle))


def warnings_for(tmp_path, capsys, values, column="label"):
    header = ["sample_id", "label", "centre", "group_id"]
    plain = [(f"s{i}", "tumour", "east", f"g{i}") for i in range(len(values))]
    place = header.index(column)
    rows = [(*row[:place], value, *row[place + 1 :]) for row, value in zip(plain, values, strict=True)]
    volume, images = Volume(tmp_path / "volume"), [f"{row[0]}.png" for row in plain]
    export_view(volume, header, rows, images, tmp_path / "view.csv", Reporter())
    return capsys.readouterr().err.splitlines()


def test_the_columns_are_those_of_the_public_pipeline_and_the_rows_those_of_the_benchmark(cli, tmp_path):
    cohort = folder_cohort(tmp_path / "tiles", slides=1, tiles=1)
    cli("tiles", "add", "mine", "--manifest", cohort.csv, "--workers", 0)
    said = cli("tiles", "export-view", "mine", "--output", tmp_path / "new folder" / "view.csv")
    assert said.stdout == f"mine: 4 rows in {tmp_path / 'new folder' / 'view.csv'}\n"
    assert said.stderr == ""
    header, *rows = rows_of(tmp_path / "new folder" / "view.csv")
    assert header == ["sample_id", "image_path", "label", "medical_center", "group_id"]
    assert rows == [list(row.values()) for row in cohort.rows]


def test_a_paired_view_has_every_occurrence_with_its_subset(cli, tmp_path):
    cohort = folder_cohort(tmp_path / "tiles", slides=1, tiles=1)
    rows = [{**row, "subset": subset} for subset in ("s1", "s2") for row in cohort.rows]
    path = write_csv(tmp_path / "tiles" / "paired.csv", rows)
    cli("tiles", "add", "mine", "--manifest", path, "--design", "paired_2x2", "--workers", 0)
    cli("tiles", "export-view", "mine", "--output", tmp_path / "view.csv")
    header, *got = rows_of(tmp_path / "view.csv")
    assert header == ["sample_id", "image_path", "label", "medical_center", "group_id", "subset"]
    assert got == [list(row.values()) for row in rows]


def test_a_mistyped_benchmark_is_refused_and_nothing_is_written(cli, tmp_path):
    said = cli("tiles", "export-view", "phantm", "--output", tmp_path / "view.csv", exits=3)
    assert "did you mean 'phantom'?" in said.stderr
    assert not (tmp_path / "view.csv").exists()


def test_ordinary_names_give_no_warning(tmp_path, capsys):
    assert warnings_for(tmp_path, capsys, ["tumour", "normal", "7a", "1-2"]) == []


@pytest.mark.parametrize("values", [["007", "7"], ["1e5", "2"], [".5e3", "-1."], ["inf", "+3"], ["7", "NA"]])
def test_a_column_of_number_like_names_is_warned_about_by_name(tmp_path, capsys, values):
    said = warnings_for(tmp_path, capsys, values, column="group_id")
    assert said[0] == "warning: group_id: all values look like numbers, and the public pipeline reads them as such"


def test_a_column_of_truth_values_is_warned_about(tmp_path, capsys):
    said = warnings_for(tmp_path, capsys, ["true", "false"])
    assert said == ["warning: label: all values look like truth values, and the public pipeline reads them as such"]


def test_names_that_pandas_takes_for_missing_are_warned_about_together(tmp_path, capsys):
    said = warnings_for(tmp_path, capsys, ["None", "tumour", "NA"], column="centre")
    assert said == ["warning: centre: the public pipeline takes 'NA', 'None' for missing"]


CANDIDATES = [
    "tumour", "007", "7", "1.5", "1.", ".5", ".5e3", "1e5", "1E-5", "+3", "-3", "inf", "-inf", "Infinity", "nan", "NaN",
    "NA", "None", "null", "NULL", "N/A", "n/a", "<NA>", "#N/A", "-nan", "na", "none", "true", "TRUE", "True", "false",
    "False", "FALSE", "tRUE", "yes", "0x1F", "1_000", "1,5", "1e", "e5", "--1", "2020-01-01", "12:30", "½", "٣", "1 2",
]  # fmt: skip


@pytest.mark.parametrize("value", CANDIDATES)
def test_a_warning_comes_exactly_where_pandas_reads_another_text(tmp_path, capsys, value):
    pandas = pytest.importorskip("pandas")
    said = warnings_for(tmp_path, capsys, [value])
    read = pandas.read_csv(tmp_path / "view.csv")["label"]
    changed = (
        pandas.api.types.is_numeric_dtype(read.dtype) or pandas.api.types.is_bool_dtype(read.dtype) or read.isna()[0]
    )
    assert bool(said) == bool(changed), (value, read.dtype, said)


def test_the_texts_taken_for_missing_are_those_of_pandas():
    parsers = pytest.importorskip("pandas._libs.parsers")
    assert parsers.STR_NA_VALUES == MISSING_LIKE
