"""`list` and `status`: what is declared, and the state of everything on the volume."""

import json
import subprocess
import sys

import pytest

from bench import add, bring, drawn, embed_classical
from builders import cohort_rows
from croma_bundle.inventory import declared_text, status_text
from croma_bundle.manifests.catalogue import load_catalogue


@pytest.fixture
def stocked(volume, tmp_path):
    """`plain` without images and with two imports; `tiled` with tiles, one embedded encoder and one import."""
    rows = cohort_rows()
    x = drawn(rows, 1, 1, width=4)
    add(volume, "plain", rows)
    add(volume, "tiled", rows, pictures=tmp_path / "tiles")
    bring(volume, "plain", {"Mine": x, "Broken": x})
    bring(volume, "tiled", {"Mine": x})
    embed_classical(volume, "tiled", "Thumbnail")
    volume.sidecar("plain", "Broken").unlink()
    return volume


def states(volume):
    _, rows = status_text(volume, load_catalogue(volume))
    return {(row["tileset"], row["encoder"]): row["state"] for row in rows}


# --- status ---


def test_every_encoder_of_every_tileset_has_its_state(stocked):
    found = states(stocked)
    assert found["plain", "Mine"] == "imported 24 × 4"
    assert found["plain", "Broken"] == "unusable: half an artifact"
    assert found["tiled", "Thumbnail"] == "embedded 24 × 768"
    assert found["tiled", "Mine"] == "imported 24 × 4"
    assert found["tiled", "ColourStatistics"] == "missing"
    assert found["phantom", "ColourStatistics"] == "missing"
    assert ("plain", "ColourStatistics") not in found  # it has no images to embed


def test_status_reads_as_one_block_per_tileset(stocked, cli):
    blocks = {block.splitlines()[0]: block.splitlines()[1:] for block in cli("status").stdout.split("\n\n")}
    published = [name for name in blocks if name.startswith(("camelyon", "tcga", "tolkach", "pcabiop", "hgsc"))]
    assert len(published) == 6
    assert [name for name in blocks if name not in published] == [
        f"volume {stocked.root}",
        "phantom: not on the volume (make tiles TILESET=phantom)",
        "plain: 24 rows, no images",
        "tiled: 24 tiles",
    ]
    assert [line.split() for line in blocks["plain: 24 rows, no images"]] == [
        ["Broken", "unusable:", "half", "an", "artifact"],
        ["Mine", "imported", "24", "×", "4"],
    ]


def test_a_damaged_sidecar_is_unusable(stocked):
    stocked.sidecar("tiled", "Thumbnail").write_text("{")
    assert states(stocked)["tiled", "Thumbnail"] == "unusable: its sidecar is damaged"


def test_a_damaged_manifest_makes_its_tileset_unusable_and_no_other(stocked):
    stocked.tile_manifest("tiled").write_text("sample_id\n")
    text, _ = status_text(stocked, load_catalogue(stocked))
    assert any(line.startswith("tiled: unusable: ") for line in text.splitlines())
    assert "plain: 24 rows, no images" in text


def test_tiles_whose_pixels_were_never_hashed_are_not_complete(stocked):
    stocked.pixels("tiled").unlink()
    text, _ = status_text(stocked, load_catalogue(stocked))
    assert "tiled: 24 tiles, not complete (make tiles TILESET=tiled)" in text.splitlines()


def test_unpinned_and_gated_encoders_are_told_apart_from_missing_ones(stocked):
    entry = 'family = "private"\nbackend = "classical"\nmodel = "Thumbnail"\nwidth = 768\npooling = "none"\n'
    entry += 'batch_size = 1\ngeneration = "1"\ncontrol = false\nvotes = true\nlicence = "x"\ncitation = "x"\n'
    stocked.encoder_declarations.mkdir()
    revision = "0123456789" * 4
    (stocked.encoder_declarations / "private.toml").write_text(
        f'[Floating]\n{entry}repository = "a/b"\n\n[Gated]\n{entry}repository = "a/c"\nrevision = "{revision}"\n'
        "gated = true\n"
    )
    found = states(stocked)
    assert (found["tiled", "Floating"], found["tiled", "Gated"]) == ("unpinned", "gated")


def test_an_empty_volume_has_a_status(volume, cli):
    said = cli("status").stdout
    assert said.startswith(f"volume {volume.root}\n")
    assert "phantom: not on the volume (make tiles TILESET=phantom)" in said


# --- list ---


@pytest.mark.parametrize(
    ("what", "columns"),
    [
        ("encoders", ["name", "family", "width", "precision", "pinned", "gated", "control", "votes", "licence"]),
        ("tilesets", ["name", "source", "confounder", "design", "images", "licence"]),
        ("benchmarks", ["name", "tileset", "confounder", "design", "protocol", "k_grid", "k_max", "cross"]),
    ],
)
def test_list_is_a_table_with_a_row_for_each_declaration(stocked, cli, what, columns):
    lines = cli("list", what).stdout.splitlines()
    assert lines[0].split() == columns
    declared = list(getattr(load_catalogue(stocked), what))
    known = {"encoders": {"Thumbnail", "Virchow2"}}.get(what, {"phantom", "plain", "tiled"})
    assert [line.split()[0] for line in lines[1:]] == declared
    assert known <= set(declared)
    starts = [lines[0].index(name) for name in columns]
    assert all(line[start - 1] == " " and line[start] != " " for line in lines[1:] for start in starts[1:])


def test_listed_benchmarks_say_how_they_are_scored(stocked, cli):
    rows = {line.split()[0]: line.split()[1:] for line in cli("list", "benchmarks").stdout.splitlines()}
    assert rows["phantom"] == ["phantom", "medical_center", "all", "median-k", "sparse", "100", "–"]
    assert rows["plain"] == ["plain", "medical_center", "all", "median-k", "sparse", "100", "–"]


def test_json_has_every_field_and_the_file_that_declares_it(stocked):
    _, rows = declared_text(load_catalogue(stocked), "tilesets")
    by_name = {row["name"]: row for row in rows}
    assert by_name["tiled"]["declared"] == str(stocked.tileset_declaration("tiled"))
    assert by_name["tiled"]["source"] == "folder"
    assert by_name["plain"]["images"] is False
    assert by_name["phantom"]["declared"].endswith("phantom.toml")
    assert by_name["phantom"]["phantom"]["seed"] == 0


@pytest.mark.parametrize("arguments", [["status"], ["list", "encoders"], ["list", "tilesets"], ["list", "benchmarks"]])
def test_json_is_one_object_with_rows(stocked, arguments):
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(stocked.root), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    event = json.loads(line)
    assert event["event"] == arguments[-1]
    assert len(event["rows"]) >= 3
