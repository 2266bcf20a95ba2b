"""CSV tables as text: what plain readers merge, drop or guess is kept, or refused with its line."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from croma_bundle.errors import TileManifestError
from croma_bundle.tilemanifest.table import csv_text, read_table

HEADER = "sample_id,label\n"


@pytest.fixture
def table(tmp_path):
    def read(content: str | bytes, required=("sample_id", "label")):
        path = tmp_path / "my cohört.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_table(path, required)

    return read


@pytest.fixture
def refused(table, tmp_path):
    """The paragraph that a file is refused with, less its name."""

    def read(content: str | bytes, required=("sample_id", "label")) -> str:
        with pytest.raises(TileManifestError) as caught:
            table(content, required)
        said = caught.value.paragraph()
        assert said.startswith(f"{tmp_path / 'my cohört.csv'}: ")
        return said.removeprefix(f"{tmp_path / 'my cohört.csv'}: ")

    return read


def test_numbers_stay_the_texts_they_are(table):
    assert table(HEADER + "007,1\n07,1.0\n7,01\n").rows == (("007", "1"), ("07", "1.0"), ("7", "01"))


@pytest.mark.parametrize("name", ["NA", "N/A", "None", "null", "NULL", "nan", "NaN", "#N/A", "<NA>", "True", "1e5"])
def test_a_name_that_plain_readers_take_for_missing_is_a_name(table, name):
    assert table(HEADER + f"a,{name}\n").rows == (("a", name),)


def test_white_space_around_values_and_column_names_is_trimmed_and_inside_is_kept(table):
    got = table(" sample_id ,\tlabel\n  a b , tumour \n")
    assert (got.header, got.rows) == (("sample_id", "label"), (("a b", "tumour"),))


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfsample_id,label\na,b\n",
        b"sample_id,label\r\na,b\r\n",
        b"\xef\xbb\xbfsample_id,label\r\na,b",
        b"sample_id,label\na,b",
        b"\"sample_id\",\"label\"\n\"a\",\"b\"\n",
        b"sample_id,label\n\n\na,b\n\n",
        b"sample_id,label\ra,b\r",
    ],
    ids=["BOM", "CRLF", "BOM, CRLF, no last newline", "no last newline", "quoted", "empty lines", "CR"],
)  # fmt: skip
def test_files_of_other_programs_give_the_same_table(table, content):
    got = table(content)
    assert (got.header, got.rows) == (("sample_id", "label"), (("a", "b"),))


def test_quoted_commas_and_quotes_belong_to_the_value(table):
    assert table(HEADER + '"a,1","the ""big"" one"\n').rows == (("a,1", 'the "big" one'),)


def test_each_row_knows_its_line_in_the_file(table):
    assert table(HEADER + "a,x\n\nb,y\n").lines == (2, 4)


@pytest.mark.parametrize(("mark", "word"), [(";", "semicolon"), ("\t", "tab"), ("|", "bar")])
def test_another_delimiter_is_asked_about_before_any_column_is_called_missing(refused, mark, word):
    said = refused(f"sample_id{mark}label\na{mark}b\n")
    assert said.startswith(f"delimiter? It looks {word}-separated\n  wanted   commas\n")
    assert "missing" not in said


def test_a_missing_column_is_named_with_its_likely_misspelling(refused):
    assert refused("sampleid,label\na,b\n").splitlines() == [
        "column 'sample_id' is missing; did you mean 'sampleid'?",
        "  wanted   sample_id,label",
        "  found    sampleid,label",
    ]


def test_all_faults_of_a_header_come_at_once(refused):
    said = refused("label,label,,x\n1,2,3,4\n").splitlines()[0]
    assert said == "column 'sample_id' is missing; column 'label' stands twice in the header; column 3 has no name"


def test_names_that_are_one_after_the_trim_are_duplicates(refused):
    assert refused("sample_id,label,label \na,b,c\n").startswith("column 'label' stands twice in the header")


def test_a_newline_inside_a_column_name_is_refused(refused):
    assert "a newline inside the column name 'cen\\ntre'" in refused('sample_id,label,"cen\ntre"\na,b,c\n')


def test_ragged_rows_are_refused_by_line_all_of_them(refused):
    assert refused(HEADER + "a,x\nb\nc,y\nd,z,1\n").splitlines() == [
        "2 faults",
        "  line 3: 1 values under 2 column names",
        "  line 5: 3 values under 2 column names",
    ]


def test_after_eight_faults_the_rest_is_counted(refused):
    lines = refused(HEADER + "x\n" * 11).splitlines()
    assert lines[0] == "11 faults"
    assert len(lines) == 1 + 8 + 1
    assert lines[-1] == "  and 3 more"


@pytest.mark.parametrize("value", ['"b\nc"', '"b\r\nc"', '"b\rc"', '"b\n"'])
def test_a_newline_inside_a_value_is_refused_with_column_and_line(refused, value):
    said = refused(HEADER + f"a,x\nb,{value}\n")
    assert "a newline inside label" in said
    assert "line 4" in said


def test_a_nul_character_is_refused_with_its_line(refused):
    assert refused(HEADER + "a,x\nb,\0y\n") == "line 3: a NUL character"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"sample_id,label\na,x\nb,t\xfcmor\n", 3),
        ("sample_id,label\na,x\n".encode("utf-16"), 1),
        (b"sample_id,label\na,\xed\xa0\x80\n", 2),
    ],
    ids=["latin-1", "UTF-16", "surrogate"],
)
def test_what_is_not_utf8_is_refused_with_its_line(refused, content, line):
    assert refused(content) == f"line {line}: this is not UTF-8\n  wanted   UTF-8 text"


@pytest.mark.parametrize(
    ("content", "line"),
    [(HEADER + 'a,"x\n', 2), (HEADER + 'a,x\nb,"y"z\n', 3)],
    ids=["never closed", "text after quote"],
)
def test_broken_quotes_are_refused_with_their_line(refused, content, line):
    assert refused(content).startswith(f"line {line}: this is not CSV (")


def test_a_quote_left_open_over_a_huge_file_is_told_as_broken_csv(refused):
    assert "this is not CSV (" in refused(HEADER + '"' + "a,b\n" * 50_000)


def test_an_empty_file_and_a_lonely_header_are_refused(refused):
    assert refused("").splitlines()[-1] == "  found    an empty file"
    assert refused(HEADER) == "it has a header and no rows"
    assert refused(HEADER + "\n\n") == "it has a header and no rows"


@pytest.mark.parametrize("kind", ["absent", "folder"])
def test_what_cannot_be_read_is_said_with_the_reason(tmp_path, kind):
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    reason = {"absent": "No such file or directory", "folder": "Is a directory"}[kind]
    with pytest.raises(TileManifestError) as caught:
        read_table(path, ())
    assert caught.value.paragraph() == f"{path}: it cannot be read ({reason})"


# Writing

CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), min_size=1).map(str.strip)
ROWS = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(CELL.filter(bool), min_size=width, max_size=width), min_size=1, max_size=5)
)


@settings(deadline=None, derandomize=True, database=None, max_examples=200)
@given(ROWS)
def test_what_we_write_is_read_back_as_it_was_by_us_and_by_the_standard_reader(tmp_path_factory, rows):
    header = [f"c{i}" for i in range(len(rows[0]))]
    text = csv_text(header, rows)
    assert list(csv.reader(io.StringIO(text, newline=""))) == [header, *rows]
    path = tmp_path_factory.getbasetemp() / "round_trip.csv"
    path.write_bytes(text.encode())
    got = read_table(path, header)
    assert [list(row) for row in got.rows] == rows


def test_tables_are_written_with_newlines_full_precision_and_empty_for_nothing():
    rows = [(0.1 + 0.2, 1 / 3, 5, True, False, None, float("nan"), "NA", "a,b")]
    assert csv_text("abcdefghi", rows) == (
        "a,b,c,d,e,f,g,h,i\n" + '0.30000000000000004,0.3333333333333333,5,true,false,,,NA,"a,b"\n'
    )


def test_a_float_of_numpy_is_written_as_python_writes_it():
    np = pytest.importorskip("numpy")
    assert csv_text("ab", [(np.float64(0.1), np.float64("nan"))]) == "a,b\n0.1,\n"
