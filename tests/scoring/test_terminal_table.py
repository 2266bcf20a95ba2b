"""The table that a person reads: what the headline says, the order, the controls, what is missing, the alignment."""

import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from bench import add, bring, choosing, drawn, embed_classical, metrics, voting_rows
from croma_bundle.layout import Volume


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A volume and its table, with two ranked encoders, one without CRoMa, an imported control and a classical one."""
    place = tmp_path_factory.mktemp("shown")
    volume = Volume(place / "volume")
    volume.root.mkdir()
    rows = voting_rows()
    add(volume, "voting", rows, pictures=place / "tiles")
    matrices = {
        "Aa": drawn(rows, 0.2, 2, seed=1),
        "Zz-long-name": drawn(rows, 3, 0.1, seed=2),
        "Flat": np.ones((20, 3)),
    }
    bring(volume, "voting", {**matrices, "Ctl": drawn(rows, 1, 1)}, controls=("Ctl",))
    embed_classical(volume, "voting", "Thumbnail")
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(volume.root), "score", "--k", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3  # Flat has no CRoMa
    return volume, done.stdout.splitlines()


@pytest.fixture
def said(shown):
    return shown[1]


def test_the_headline_explains_every_number(volume, cli):
    add(volume, "voting", voting_rows())
    bring(volume, "voting", {f"E{i}": choosing(5) for i in range(3)})
    headline = cli("score").stdout.splitlines()[0]
    wanted = "voting · median-k, k = 5 (lower median of 3 voters' k*), m = 5 · confounder medical_center · "
    assert headline == wanted + "20 samples of 19 groups"


def test_thousands_are_grouped(volume, cli):
    rows = [{**row, "sample_id": f"{i}-{row['sample_id']}"} for i in range(60) for row in voting_rows()]
    add(volume, "many", rows)
    bring(volume, "many", {"A": drawn(rows, 1, 1)})
    assert cli("score").stdout.splitlines()[0].endswith("· 1,200 samples of 19 groups")


def test_ranked_encoders_stand_first_sorted_by_croma_and_those_without_it_last(said):
    names = [line.split()[0] for line in said[2:5]]
    assert names == ["Zz-long-name", "Aa", "Flat"]


def test_controls_are_set_apart_below(said):
    assert said[5] == "controls, not ranked"
    assert {said[6].split()[0], said[7].split()[0]} == {"Ctl", "Thumbnail"}


def test_imports_are_marked_external_and_embedded_ones_are_not(said):
    marked = {line.split()[0]: "(external)" in line for line in [*said[2:5], *said[6:8]]}
    assert marked == {"Zz-long-name": True, "Aa": True, "Flat": True, "Ctl": True, "Thumbnail": False}


def test_what_is_undefined_is_an_ellipsis_and_a_note_says_whose_it_is(said):
    flat = said[4].replace("(external)", "").split()
    assert flat[1:5] == ["–", "–", "–", "–"]
    assert "–" not in flat[5:]
    assert "  note: no CRoMa at m = 5: Flat; the errors say why" in said


def test_columns_are_right_aligned_under_their_names_in_ranked_and_control_rows_alike(said):
    header, rows = said[1], [*said[2:5], *said[6:8]]
    assert {len(line) for line in (header, *rows)} == {len(header)}
    assert all(unicodedata.east_asian_width(c) not in "WF" for line in rows for c in line)
    names = [
        "encoder",
        "CRoMa median",
        "95 % interval",
        "LTM10",
        "F(0)",
        "RI",
        "MaRI",
        "tau",
        "support",
        "bio",
        "confounder",
    ]
    ends = [header.index(name) + len(name) for name in names[1:]]
    assert header.split("  ")[1] == "encoder"
    for line in rows:
        assert line.startswith("  ")
        for end in ends:
            assert line[end - 1] != " "  # a value ends where its name ends
            assert line[end : end + 2].strip() == ""


def test_shown_figures_are_the_written_ones_rounded(shown):
    written = metrics(shown[0], "voting")["Aa"]
    figures = shown[1][3].replace("(external)", "").split()
    assert figures == [
        "Aa",
        f"{float(written['croma_median']):+.3f}",
        f"[{float(written['croma_median_lo']):+.3f},",
        f"{float(written['croma_median_hi']):+.3f}]",
        f"{float(written['croma_ltm10']):+.3f}",
        f"{float(written['croma_f0']):.3f}",
        f"{float(written['ri']):.3f}",
        f"{float(written['mari']):.3f}",
        f"{float(written['tau']):#.3g}",
        f"{100 * float(written['support']):.1f}",
        "%",
        f"{float(written['bio_bacc']):.3f}",
        f"{float(written['conf_bacc']):.3f}",
    ]


def test_the_last_line_says_where_the_tables_are(said):
    last = [line for line in said if line][-1]
    assert last.startswith("  written to ")
    assert (Path(last.removeprefix("  written to ")) / "metrics.csv").is_file()
