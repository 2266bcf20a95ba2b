"""Other confounder columns, and the paired 2×2 design, from the manifest to the tables."""

import csv

import numpy as np
import pytest

from bench import QUADRANT, add, bring, choosing, drawn, folder, metrics, run_json, score, scored, table, voting_rows
from builders import cohort_rows, write_csv

SCANNERS = ["Aperio AT2", "007", "NA"]


@pytest.fixture
def scanned(volume):
    """The voting rows with a scanner column (three values in turn) and one that is blank in rows 3 and 5 (from 1)."""
    rows = [{**row, "scanner": SCANNERS[i % 3], "stain": "he"} for i, row in enumerate(voting_rows())]
    for i in (2, 4):
        rows[i]["stain"] = ""
    add(volume, "voting", rows)
    bring(volume, "voting", {"One": choosing(1)})
    return volume


def test_several_confounders_are_scored_each_to_its_own_folder(scanned, cli):
    said = cli("score", "--confounder", "medical_center,scanner", "--m", "2").stdout
    assert {path.name for path in (scanned.root / "metrics/median-k").iterdir() if path.is_dir()} == {
        "voting",
        "voting@scanner",
    }
    assert "· confounder medical_center ·" in said
    assert "· confounder scanner ·" in said
    for name, confounder in (("voting", "medical_center"), ("voting@scanner", "scanner")):
        assert run_json(scanned, name)["replay"]["confounder"] == confounder
        for file in ("metrics.csv", "k_sweep.csv", "m_sweep.csv"):
            rows = table(folder(scanned, name) / file)
            assert {(row["benchmark"], row["confounder"]) for row in rows} == {("voting", confounder)}


def test_confounder_values_are_text_as_they_stand(scanned):
    scored(scanned, "voting", confounders=["scanner"], m=2)
    rows = table(folder(scanned, "voting@scanner") / "per_sample/One.csv.gz")
    assert [row["confounder"] for row in rows] == [SCANNERS[i % 3] for i in range(20)]
    assert {cell["confounder"] for cell in run_json(scanned, "voting@scanner")["resolved"]["cells"]} == set(SCANNERS)
    assert not folder(scanned, "voting").exists()


def test_another_confounder_changes_what_is_an_impostor_and_not_the_biology(scanned):
    scored(scanned, "voting", confounders=["medical_center", "scanner"], k=3, m=2)
    centre, scanner = (metrics(scanned, name)["One"] for name in ("voting", "voting@scanner"))
    assert centre["bio_bacc"] == scanner["bio_bacc"]
    assert centre["croma_median"] != scanner["croma_median"]
    assert centre["matrix_sha256"] == scanner["matrix_sha256"]


def test_an_unknown_confounder_gets_a_suggestion_and_the_known_one_is_scored(scanned, cli):
    said = cli("score", "--confounder", "Scaner,medical_center", exits=3).stderr
    assert "benchmark voting: there is no confounder column 'Scaner'; did you mean 'scanner'?" in said
    assert "one of medical_center, scanner, stain" in said
    assert folder(scanned, "voting").exists()


@pytest.mark.parametrize("column", ["sample_id", "label", "group_id", "image_path"])
def test_what_identifies_a_tile_is_no_confounder(scanned, column):
    _, error = score(scanned, "voting", confounders=[column])
    assert error.exit_code == 3
    assert f"there is no confounder column '{column}'" in error.problem


def test_blank_values_of_a_confounder_are_refused_with_their_rows(scanned):
    _, error = score(scanned, "voting", confounders=["stain"])
    assert (error.exit_code, error.problem) == (3, "confounder 'stain' is blank in row 3, 5")


def test_a_column_with_a_slash_has_one_folder_of_its_own(volume):
    rows = [{**row, "a/b": row["medical_center"]} for row in voting_rows()]
    add(volume, "voting", rows)
    bring(volume, "voting", {"One": choosing(1)})
    scored(volume, "voting", confounders=["medical_center", "a/b"])
    assert sorted(path.name for path in folder(volume, "voting").parent.iterdir() if path.is_dir()) == [
        "voting",
        "voting@a%2Fb",
    ]
    assert run_json(volume, "voting@a%2Fb")["replay"]["confounder"] == "a/b"
    plain, other = (metrics(volume, name)["One"] for name in ("voting", "voting@a%2Fb"))
    assert other == {**plain, "confounder": "a/b"}  # the same values under another name


# --- paired 2×2 ---
#
# Subset A is the quadrant (bench.QUADRANT), its four rows each a slide of its own. Subset B is the same points with
# label and centre exchanged, so that SO and OS change places: +1/3 becomes −1/3. The tile at 0° is in both subsets, and
# "broken" has one centre only. By hand, at k = 1: A's outer rows see an SO and its inner ones an OO; B's outer rows see
# an OS and its inner ones an OO.

# The points of the tiles (QUADRANT rows), in the order of first appearance; the scopes are scored in sorted order.
ANGLE = {"c": 0, "d": 3, "a0": 0, "b1": 1, "b2": 2, "b3": 3, "a1": 1, "a2": 2, "a3": 3}


def paired_rows():
    tiles = {
        "a0": ("normal", "east"),
        "a1": ("normal", "west"),
        "a2": ("tumour", "east"),
        "a3": ("tumour", "west"),
        "b1": ("tumour", "east"),
        "b2": ("normal", "west"),
        "b3": ("tumour", "west"),
        "c": ("normal", "east"),
        "d": ("tumour", "east"),
    }
    subsets = {"broken": ["c", "d", "a0"], "B": ["a0", "b1", "b2", "b3"], "A": ["a0", "a1", "a2", "a3"]}
    return [
        {
            "sample_id": tile,
            "label": tiles[tile][0],
            "medical_center": tiles[tile][1],
            "group_id": f"slide-{tile}",
            "subset": subset,
        }
        for subset, members in subsets.items()
        for tile in members
    ]


@pytest.fixture
def paired(volume, cli):
    """Declared and imported through the command line; the tileset holds each of the nine tiles once."""
    csv_path = write_csv(volume.root.parent / "paired.csv", paired_rows())
    cli("tiles", "add", "paired", "--manifest", csv_path, "--no-images", "--design", "paired_2x2")
    with volume.tile_manifest("paired").open(newline="") as handle:
        order = [row["sample_id"] for row in csv.DictReader(handle)]
    assert order == list(ANGLE)
    np.save(volume.root.parent / "x.npy", QUADRANT[list(ANGLE.values())])
    cli("import", "paired", "Q", volume.root.parent / "x.npy", "--provenance", "a test")
    return volume


def test_paired_occurrences_are_scored_as_worked_by_hand(paired, cli):
    said = cli("score", "--m", "1")
    assert "8 occurrences of" in said.stdout
    row = metrics(paired, "paired")["Q"]
    assert (row["design"], row["unit"], row["n_units"], row["k"]) == ("paired_2x2", "occurrence", "8", "1")
    numbers = {"ri": 2 / 4, "support": 4 / 8, "oo_undefined": 4 / 8, "ss_undefined": 0, "mixed_undefined": 0}
    # labels at k = 1: half of A's rows right, none of B's (its confounder is A's label); the mean over the two
    numbers |= {"bio_bacc": 0.25, "conf_bacc": 0.25}
    numbers |= {"croma_median": 0, "croma_q10": -1 / 3, "croma_ltm10": -1 / 3, "croma_f0": 4 / 8}
    assert {name: float(row[name]) for name in numbers} == pytest.approx(numbers, abs=1e-6)


def test_paired_samples_name_their_subset_and_the_row_of_their_tile(paired, cli):
    cli("score", "--m", "1")
    rows = table(folder(paired, "paired") / "per_sample/Q.csv.gz")
    order = list(ANGLE)
    assert [(row["subset"], row["sample_id"]) for row in rows] == [
        *(("A", tile) for tile in ("a0", "a1", "a2", "a3")),
        *(("B", tile) for tile in ("a0", "b1", "b2", "b3")),
    ]
    assert [int(row["row"]) for row in rows] == [order.index(row["sample_id"]) for row in rows]
    margins = [float(row["croma_m1"]) for row in rows]
    assert margins == pytest.approx([1 / 3] * 4 + [-1 / 3] * 4, abs=1e-6)
    assert [row["ri"] for row in rows] == ["1.0", "", "", "1.0", "0.0", "", "", "0.0"]


def test_an_incomplete_subset_is_named_in_a_warning_the_table_and_run_json(paired, cli):
    said = cli("score", "--m", "1")
    reason = "1 confounder value (east), not 2"
    assert f"warning: paired: subset broken is not scored: {reason}" in said.stderr
    assert f"note: subset broken is not scored: {reason}" in said.stdout
    resolved = run_json(paired, "paired")["resolved"]
    assert resolved["incomplete_subsets"] == {"broken": reason}
    assert resolved["scopes"] == ["A", "B"]
    assert (resolved["n_units"], resolved["n_rows"]) == (8, 11)


def test_subsets_of_one_design_are_scored_like_cohorts_of_their_own(volume):
    """With one subset the paired design is the plain one, but for names."""
    rows = cohort_rows(slides=3, tiles=3)
    x = drawn(rows, 1, 1)
    add(volume, "plain", rows)
    add(volume, "pairs", [{**row, "subset": "only"} for row in rows], design="paired_2x2")
    for name in ("plain", "pairs"):
        bring(volume, name, {"A": x})
        scored(volume, name)
    plain, pairs = metrics(volume, "plain")["A"], metrics(volume, "pairs")["A"]
    assert {n for n in plain if plain[n] != pairs[n]} == {"benchmark", "design", "unit"}


def test_no_complete_subset_is_an_error_that_names_them(volume):
    rows = [{**row, "subset": row["medical_center"]} for row in voting_rows()]
    add(volume, "voting", rows, design="paired_2x2")
    bring(volume, "voting", {"One": choosing(1)})
    _, error = score(volume, "voting")
    assert error.exit_code == 3
    assert "no subset is a complete 2×2" in error.problem
    assert "east has 1 confounder value (east), not 2" in error.problem
