"""The rows of a tileset: what identifies a tile, what may be a confounder, and the fingerprint."""

from __future__ import annotations

import hashlib
import json

import pytest

from builders import cohort_rows, write_csv
from croma_bundle.errors import InputError, TileManifestError
from croma_bundle.manifests.models import Phantom, Tileset
from croma_bundle.tilemanifest.manifest import TileManifest, load_manifest, manifest_of_csv, read_manifest

HEADER = "sample_id,image_path,label,group_id,centre\n"


@pytest.fixture
def csv(tmp_path):
    def write(content: str):
        path = tmp_path / "cohort.csv"
        path.write_bytes(content.encode())
        return path

    return write


def made(path, confounder="centre", images=True, paired=False):
    return manifest_of_csv(path, confounder=confounder, images=images, paired=paired)


def refusal(path, **how) -> str:
    with pytest.raises(TileManifestError) as caught:
        made(path, **how)
    assert caught.value.subject == str(path)
    return caught.value.paragraph().removeprefix(f"{path}: ")


def test_rows_keep_their_order_and_columns_come_in_the_contract_s_order_then_the_extras(csv):
    path = csv(
        "scanner,group_id,centre,label,sample_id,image_path,note\nS1,g2,west,t,b,b.png,x\nS2,g1,east,n,a,a.png,\n"
    )
    manifest, occurrences, warnings = made(path)
    assert manifest.columns == ("sample_id", "image_path", "label", "centre", "group_id", "scanner", "note")
    assert manifest.rows == (("b", "b.png", "t", "west", "g2", "S1", "x"), ("a", "a.png", "n", "east", "g1", "S2", ""))
    assert manifest.confounders() == ["centre", "scanner", "note"]
    assert (occurrences, warnings) == ([], [])


def test_ids_that_plain_readers_merge_are_three_tiles(csv):
    manifest, _, _ = made(csv(HEADER + "007,a,1,g,NA\n07,b,01,g,None\n7,c,1.0,g,nan\n"))
    assert manifest.column("sample_id") == ["007", "07", "7"]
    assert manifest.column("label") == ["1", "01", "1.0"]
    assert manifest.column("centre") == ["NA", "None", "nan"]


def test_tumour_with_a_blank_behind_it_is_one_class_with_tumour(csv):
    manifest, _, warnings = made(csv(HEADER + "a,a.png,tumour,g,x\nb,b.png,tumour ,g,x\n"))
    assert set(manifest.column("label")) == {"tumour"}
    assert warnings == []


def test_names_that_differ_only_in_case_stay_apart_and_are_said(csv):
    manifest, _, warnings = made(csv(HEADER + "a,a,Tumour,g,UMC\nb,b,tumour,g,umc\nc,c,normal,G,Umc\n"))
    assert set(manifest.column("label")) == {"Tumour", "tumour", "normal"}
    assert warnings == [
        "label: 'Tumour' and 'tumour' look alike (case, composition or invisible characters) and are kept apart",
        "centre: 'UMC' and 'Umc' and 'umc' look alike (case, composition or invisible characters) and are kept apart",
    ]


def test_blanks_are_refused_in_every_column_that_scoring_needs_with_their_lines(csv):
    said = refusal(csv(HEADER + ",a,t,g,x\nb, ,t,g,x\nc,c,,g,x\nd,d,t,\t,x\ne,e,t,g,\n"))
    assert said.splitlines() == [
        "5 faults",
        "  line 2: sample_id is blank",
        "  line 3: image_path is blank",
        "  line 4: label is blank",
        "  line 5: group_id is blank",
        "  line 6: centre is blank",
    ]


def test_a_sample_that_stands_twice_is_refused_with_the_later_line_also_after_the_trim(csv):
    said = refusal(csv(HEADER + "a,1,t,g,x\nb,2,t,g,x\na ,3,t,g,x\na,4,t,g,x\n"))
    assert said.splitlines() == [
        "2 faults",
        "  line 4: sample_id 'a' stands there a second time",
        "  line 5: sample_id 'a' stands there a second time",
    ]


def test_faults_of_every_kind_come_together(csv):
    said = refusal(csv(HEADER + "a,../x.png,,g,x\na,b.png,t,g,x\n"))
    for part in (
        "line 2: label is blank",
        "line 3: sample_id 'a' stands",
        "line 2: image_path '../x.png' leads outside",
    ):
        assert part in said
    assert said.startswith("3 faults")


@pytest.mark.parametrize("image", ["/etc/passwd", "../x.png", "a/../../x.png", "a/..", ".."])
def test_an_image_path_that_could_leave_the_root_is_refused(csv, image):
    assert refusal(csv(HEADER + f"a,{image},t,g,x\n")) == (
        f"one fault\n  line 2: image_path {image!r} leads outside the root; make it relative to --root"
    )


@pytest.mark.parametrize("image", ["a/b.png", "a..b.png", "..a/b.png", "a b/ü.png", "./a.png", "~/a.png", "a\\b.png"])
def test_any_other_image_path_is_taken_as_it_stands(csv, image):
    assert made(csv(HEADER + f"a,{image},t,g,x\n"))[0].column("image_path") == [image]


def test_a_mistyped_confounder_is_told_the_nearest_column(csv):
    assert "column 'center' is missing; did you mean 'centre'?" in refusal(
        csv(HEADER + "a,a,t,g,x\n"), confounder="center"
    )


@pytest.mark.parametrize("column", ["sample_id", "image_path", "label", "group_id"])
def test_what_identifies_a_tile_cannot_be_its_confounder(csv, column):
    said = refusal(csv(HEADER + "a,a,t,g,x\n"), confounder=column)
    assert said == f"{column!r} identifies a tile and cannot be its confounder"


# Without images


def test_without_images_the_sample_id_stands_in_for_a_missing_image_path(csv):
    manifest, _, _ = made(csv("sample_id,label,group_id,centre\n7,t,g,x\n"), images=False)
    assert manifest.columns == ("sample_id", "image_path", "label", "centre", "group_id")
    assert manifest.rows == (("7", "7", "t", "x", "g"),)


def test_with_images_a_missing_image_path_is_refused(csv):
    assert "column 'image_path' is missing" in refusal(csv("sample_id,label,group_id,centre\n7,t,g,x\n"))


def test_without_images_a_blank_image_path_is_refused_too_because_the_frozen_manifest_must_be_readable(csv):
    assert refusal(csv(HEADER + "a,,t,g,x\n"), images=False) == "one fault\n  line 2: image_path is blank"


# The paired design

PAIRED = "sample_id,image_path,label,group_id,centre,subset\n"


def test_a_paired_tile_is_kept_once_in_order_of_first_appearance_with_all_its_occurrences(csv):
    path = csv(PAIRED + "c,c,t,g,x,s1\na,a,n,g,y,s1\nc,c,t,g,x,s2\nb,b,n,h,x,s2\na,a,n,g,y,s2\n")
    manifest, occurrences, _ = made(path, paired=True)
    assert manifest.columns == ("sample_id", "image_path", "label", "centre", "group_id")
    assert manifest.column("sample_id") == ["c", "a", "b"]
    assert occurrences == [("c", "s1"), ("a", "s1"), ("c", "s2"), ("b", "s2"), ("a", "s2")]


def test_rows_of_one_tile_that_contradict_each_other_are_refused_with_line_and_column(csv):
    said = refusal(csv(PAIRED + "a,a,t,g,x,s1\na,a,n,g,x,s2\na,a,t,g,y,s3\n"), paired=True)
    assert said.splitlines() == [
        "2 faults",
        "  line 3: label of 'a' differs from its earlier row",
        "  line 4: centre of 'a' differs from its earlier row",
    ]


def test_a_tile_that_stands_twice_in_one_subset_is_refused(csv):
    said = refusal(csv(PAIRED + "a,a,t,g,x,s1\nb,b,t,g,x,s1\na,a,t,g,x,s1\n"), paired=True)
    assert said == "one fault\n  line 4: sample_id 'a' stands twice in subset 's1'"


def test_the_paired_design_needs_its_subset_everywhere(csv):
    assert "column 'subset' is missing" in refusal(csv(HEADER + "a,a,t,g,x\n"), paired=True)
    assert refusal(csv(PAIRED + "a,a,t,g,x,\n"), paired=True) == "one fault\n  line 2: subset is blank"


def test_the_subset_of_the_paired_design_cannot_be_the_confounder(csv):
    said = refusal(csv(PAIRED + "a,a,t,g,x,s1\n"), confounder="subset", paired=True)
    assert said == "'subset' differs between the rows of one tile and cannot be its confounder"


def test_in_the_design_all_a_subset_column_is_an_extra_like_any_other(csv):
    assert made(csv(PAIRED + "a,a,t,g,x,s1\n"))[0].confounders() == ["centre", "subset"]


# The frozen manifest


def test_a_manifest_is_read_back_from_its_text_as_it_was(csv, tmp_path):
    manifest, _, _ = made(csv(HEADER + '007,"a, b.png","say ""t""",g,NA\n7,ü.png,t,g,None\n'))
    (tmp_path / "manifest.csv").write_text(manifest.text(), encoding="utf-8")
    assert read_manifest(tmp_path / "manifest.csv") == manifest


def test_a_frozen_manifest_with_a_blank_or_a_double_is_refused(csv):
    with pytest.raises(TileManifestError, match="line 2: label is blank"):
        read_manifest(csv(HEADER + "a,a,,g,x\n"))
    with pytest.raises(TileManifestError, match="line 3: sample_id 'a' stands there a second time"):
        read_manifest(csv(HEADER + "a,a,t,g,x\na,b,t,g,x\n"))


def test_another_confounder_is_asked_for_by_column_and_refused_where_it_is_blank(csv):
    manifest, _, _ = made(csv("sample_id,image_path,label,group_id,centre,scanner\na,a,t,g,x,S\nb,b,t,g,x,\n"))
    assert manifest.require_column("centre", "benchmark b") == ["x", "x"]
    with pytest.raises(TileManifestError, match="benchmark b: confounder 'scanner' is blank in row 2"):
        manifest.require_column("scanner", "benchmark b")
    with pytest.raises(TileManifestError, match="there is no confounder column 'scaner'; did you mean 'scanner'"):
        manifest.require_column("scaner", "benchmark b")
    with pytest.raises(TileManifestError, match="there is no confounder column 'label'"):
        manifest.require_column("label", "benchmark b")


@pytest.mark.parametrize("source", ["folder", "phantom"])
def test_a_tileset_that_is_declared_but_not_there_is_told_the_command_that_makes_it(volume, source):
    how = {"root": "/t"} if source == "folder" else {"phantom": Phantom()}
    with pytest.raises(InputError) as caught:
        load_manifest(volume, Tileset(name="mine", source=source, confounder="c", **how))
    said = caught.value
    assert (said.subject, said.problem) == ("tileset mine", "it is not on the volume yet")
    assert said.wanted == str(volume.tile_manifest("mine"))
    assert said.then.startswith({"folder": "croma-bundle tiles add", "phantom": "make tiles TILESET=mine"}[source])


# The fingerprint, from the contract's own words:
# SHA-256 of json.dumps({"columns": [...], "confounder_column": "confounder", "rows": [[...], ...]}, sort_keys=True,
# separators=(",", ":")), columns in the order sample_id, label, confounder, group_id, image_path.


def test_the_fingerprint_of_one_row_is_the_hash_of_a_string_written_by_hand():
    manifest = TileManifest(
        ("sample_id", "image_path", "label", "medical_center", "group_id", "scanner"),
        (("007", "a/b.png", "tumour", "NA", "slide-1", "S"),),
    )
    text = (
        '{"columns":["sample_id","label","confounder","group_id","image_path"],"confounder_column":"confounder",'
        '"rows":[["007","tumour","NA","slide-1","a/b.png"]]}'
    )
    assert manifest.fingerprint("medical_center") == hashlib.sha256(text.encode("ascii")).hexdigest()


def fingerprint_of(path, confounder) -> str:
    """The definition applied to a CSV file by the standard library alone."""
    import csv as standard

    with path.open(newline="", encoding="utf-8-sig") as handle:
        rows = [{k.strip(): v.strip() for k, v in row.items()} for row in standard.DictReader(handle)]
    columns = ["sample_id", "label", "confounder", "group_id", "image_path"]
    payload = {
        "columns": columns,
        "confounder_column": "confounder",
        "rows": [[row[confounder if name == "confounder" else name] for name in columns] for row in rows],
    }
    return hashlib.sha256(json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def test_the_fingerprint_of_a_cohort_is_that_of_the_definition(tmp_path):
    rows = cohort_rows()
    rows[3]["label"] = " tümör ✓ "
    rows[5]["medical_center"] = "None"
    path = write_csv(tmp_path / "cohort.csv", rows)
    manifest, _, _ = made(path, confounder="medical_center")
    assert manifest.fingerprint("medical_center") == fingerprint_of(path, "medical_center")


BASE = HEADER + "007,a.png,t,g1,east\nb,b.png,n,g2,west\n"


@pytest.mark.parametrize(
    "changed",
    [
        BASE.replace("007", "7"),
        BASE.replace("a.png", "c.png"),
        BASE.replace(",t,", ",T,"),
        BASE.replace("g1", "g2"),
        BASE.replace("east", "west"),
        HEADER + "b,b.png,n,g2,west\n007,a.png,t,g1,east\n",
        HEADER + "007,a.png,t,g1,east\n",
    ],
    ids=["id", "image", "label", "group", "confounder", "order", "a row less"],
)
def test_the_fingerprint_changes_with_every_value_and_with_the_order(csv, changed):
    before = made(csv(BASE))[0].fingerprint("centre")
    assert made(csv(changed))[0].fingerprint("centre") != before


@pytest.mark.parametrize(
    "same",
    [
        "﻿" + BASE,
        BASE.replace("\n", "\r\n"),
        BASE.replace("east", " east "),
        "extra,sample_id,image_path,label,group_id,centre\n1,007,a.png,t,g1,east\n2,b,b.png,n,g2,west\n",
        "centre,group_id,label,image_path,sample_id\neast,g1,t,a.png,007\nwest,g2,n,b.png,b\n",
    ],
    ids=["BOM", "CRLF", "white space", "an extra column", "order of columns"],
)
def test_the_fingerprint_does_not_depend_on_how_the_file_was_written(csv, same):
    before = made(csv(BASE))[0].fingerprint("centre")
    assert made(csv(same))[0].fingerprint("centre") == before


def test_the_public_manifest_has_five_columns_and_the_primary_confounder_under_its_public_name(csv):
    manifest, _, _ = made(csv(BASE))
    assert manifest.public_text("centre") == (
        "sample_id,image_path,label,confounder,group_id\n007,a.png,t,east,g1\nb,b.png,n,west,g2\n"
    )
