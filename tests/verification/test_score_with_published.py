"""`score --with-published`: each encoder's place beside the published ones, shown and never written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from imported_cohort import NAME, mini_volume, score_mini
from scored_folders import COHORT, NEW, toy_panel

import croma_bundle.verification.beside as beside
from croma_bundle.cli import main
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue, load_catalogue
from croma_bundle.manifests.models import Benchmark
from croma_bundle.verification.beside import beside_text, places_among

PANEL = toy_panel()
TOY = Benchmark(name="toy", tileset="toy", published=COHORT)
MEDIANS = {"Alpha": 0.3, "Beta": 0.29, "Gamma": 0.2, "Half": 0.1, "Omega": 0.0}


def ours(encoder: str, median: float | None, **changed: object) -> dict[str, object]:
    facts = {"croma_ltm10": -0.5, "croma_f0": 0.5, "ri": 0.5, "mari": 0.5, "support": 0.5, "k": 11, "m": 5}
    row = {"encoder": encoder, "croma_median": median, "n_units": 100, "is_control": False, "external": False}
    return {**row, **facts, **changed}


@pytest.mark.parametrize(
    ("encoder", "median", "place"),
    [
        ("Mine", 0.31, 1),
        ("Mine", 0.3, 1),  # equal to the best: it shares the place
        ("Mine", 0.2999, 2),
        ("Mine", 0.1, 4),
        ("Mine", -0.5, 6),
        ("Alpha", 0.295, 1),  # its own published row does not stand above it
        ("Alpha", 0.28, 2),
        ("Gamma@old-1", 0.15, 3),
        ("Gamma@mine", 0.15, 4),
    ],
)
def test_a_place_is_among_the_others_that_are_published(encoder: str, median: float, place: int) -> None:
    assert places_among([ours(encoder, median)], MEDIANS, PANEL) == {encoder: place}


def test_controls_and_undefined_encoders_have_no_place() -> None:
    rows = [ours("Mine", 0.5, is_control=True), ours("Other", None)]
    assert places_among(rows, MEDIANS, PANEL) == {}


def test_the_table_has_published_rows_marked_and_ours_among_them() -> None:
    rows = [ours("Mine", 0.25, external=True), ours("Control", 0.9, is_control=True), ours("Lost", None)]
    text, places = beside_text(rows, TOY, PANEL)
    lines = text.splitlines()
    assert lines[0].startswith("toy · yours (→) beside toy as published in new-1 (6 encoders, k = 11, m = 5, exported")
    names = [line.strip(" ") for line in lines[2:] if line.startswith(("  ", "\x1b"))]
    starts = [name.replace("\x1b[1m", "").split("  0")[0].split("  +")[0].split()[:2] for name in names[:9]]
    assert starts == [
        ["1", "Alpha"],
        ["2", "Beta"],
        ["→", "3"],
        ["3", "Gamma"],
        ["4", "Half"],
        ["5", "Omega"],
        ["–", "Lost"],
        ["Control", "(yours)"],
        ["Natural", f"({NEW})"],
    ]
    assert lines[lines.index("controls, not ranked") - 1].replace("\x1b[1m", "").split()[1] == "Lost"
    assert "Mine (yours, external)" in text
    assert places == {"Mine": 3}


def test_what_keeps_a_row_from_being_comparable_is_noted() -> None:
    plain = beside_text([ours("Mine", 0.25)], TOY, PANEL)[0]
    assert plain.count("note:") == 1
    other = beside_text([ours("Mine", 0.25, k=21, m=3, n_units=1000)], TOY, PANEL)[0]
    assert "note: other rows: 1,000 units here, published 100" in other
    assert "note: other m: CRoMa is at m = 3 here, published at 5" in other
    assert "--k 11 scores yours at the published one" in other


@pytest.fixture
def reproducing(tmp_path: Path, volume: Volume, monkeypatch: pytest.MonkeyPatch) -> Volume:
    """The mini cohort, whose benchmark says that it reproduces the toy one."""
    mini_volume(volume, tmp_path)

    def declared(of: Volume) -> Catalogue:
        found = load_catalogue(of)
        benchmark = found.benchmark(NAME).model_copy(update={"published": COHORT})
        return Catalogue(found.encoders, found.tilesets, {**found.benchmarks, NAME: benchmark}, found.declared)

    monkeypatch.setattr("croma_bundle.cli.load_catalogue", declared)
    monkeypatch.setattr(beside, "load_panel", lambda: PANEL)
    return volume


def score(volume: Volume, *options: str, as_json: bool = False) -> None:
    flags = ["--json"] if as_json else []
    with pytest.raises(SystemExit) as caught:
        main(["--volume", str(volume.root), *flags, "score", "--benchmark", NAME, "--m", "3", *options])
    assert caught.value.code == 0


def test_places_are_shown_after_the_table_and_written_nowhere(reproducing: Volume, capsys) -> None:
    score(reproducing, "--with-published")
    out = capsys.readouterr().out
    assert out.index("written to") < out.index("mini · yours (→) beside toy as published in new-1")
    assert "Tissue (yours, external)" in out
    assert f"Alpha ({NEW})" in out
    folder = reproducing.metrics("median-k", NAME)
    assert all("Alpha" not in path.read_text() for path in folder.glob("*.csv"))
    assert "Alpha" not in (folder / "run.json").read_text()


def test_without_the_option_or_under_another_confounder_nothing_is_shown(reproducing: Volume, capsys) -> None:
    score(reproducing)
    score(reproducing, "--with-published", "--confounder", "scanner")
    assert "as published in" not in capsys.readouterr().out


def test_a_benchmark_that_reproduces_nothing_shows_nothing(tmp_path: Path, volume: Volume, capsys) -> None:
    mini_volume(volume, tmp_path)
    score(volume, "--with-published")
    assert "as published in" not in capsys.readouterr().out


def test_json_has_an_event_of_its_own(reproducing: Volume, capsys) -> None:
    score(reproducing, "--with-published", as_json=True)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (event,) = [e for e in events if e["event"] == "published"]
    assert (event["cohort"], event["generation"]) == (COHORT, NEW)
    assert set(event["places"]) == {"Tissue", "Mixed"}, "the control has none"


def test_it_changes_no_table(reproducing: Volume, capsys) -> None:
    score(reproducing, "--with-published")
    shown = {p.name: p.read_bytes() for p in reproducing.metrics("median-k", NAME).glob("*.csv")}
    score_mini(reproducing, m=3)
    assert {p.name: p.read_bytes() for p in reproducing.metrics("median-k", NAME).glob("*.csv")} == shown
