"""What cannot be scored is refused by name, and everything else is scored all the same."""

import shutil

import numpy as np
import pytest

from bench import (
    add,
    bring,
    choosing,
    drawn,
    embed_classical,
    every_byte,
    folder,
    metrics,
    quadrant_rows,
    run_json,
    score,
    scored,
    table,
    voting_rows,
)
from builders import cohort_rows
from croma_bundle.durable import lock

CROMA = ("croma_median", "croma_q10", "croma_ltm10", "croma_f0")
AT_K = ("tau", "bio_bacc", "conf_bacc", "ri", "mari", "support", "ss_undefined", "oo_undefined", "mixed_undefined")


# --- CRoMa undefined ---


@pytest.fixture
def with_duplicates(volume):
    """One and Five as they are; Flat has one value for all rows; Twins repeats one row in all others of its label and
    in those of the other label and its own centre, so that its five nearest of both types lie at distance 0."""
    rows = voting_rows()
    add(volume, "voting", rows)
    twins = drawn(rows, 1, 1)
    twins[[i for i, row in enumerate(rows) if row["label"] == "normal" or row["medical_center"] == "east"]] = twins[0]
    flat = np.full((20, 3), 0.5)
    bring(volume, "voting", {"One": choosing(1), "Five": choosing(5), "Flat": flat, "Twins": twins})
    return volume


def test_without_croma_the_error_names_benchmark_encoder_m_how_many_and_why(with_duplicates, cli):
    said = cli("score", exits=3).stderr
    assert "error: voting · Flat: no CRoMa at m = 5" in said
    assert "scope all: 20 of 20 samples have zero margin" in said
    # Twins: normal east rows have five SO (normal west) and five OS (tumour east) at 0; normal west rows have OS in
    # tumour west, which are not twins; tumour east rows have SO in tumour west. So five rows.
    assert "error: voting · Twins: no CRoMa at m = 5" in said
    assert "scope all: 5 of 20 samples have zero margin" in said


def test_without_croma_ri_mari_and_support_are_written_and_the_croma_cells_stay_empty(with_duplicates):
    score(with_duplicates, "voting")
    rows = metrics(with_duplicates, "voting")
    for encoder in ("Flat", "Twins"):
        assert [rows[encoder][name] for name in CROMA] == [""] * 4
        assert all(rows[encoder][name] != "" for name in AT_K)
        assert rows[encoder]["m"] == "5"
    undefined = run_json(with_duplicates, "voting")["resolved"]["croma_undefined"]
    assert set(undefined) == {"Flat", "Twins"}
    assert "5 of 20 samples have zero margin" in undefined["Twins"]


def test_without_croma_no_partial_number_stands_in_any_table(with_duplicates):
    score(with_duplicates, "voting")
    assert {row["encoder"] for row in table(folder(with_duplicates, "voting") / "m_sweep.csv")} == {"One", "Five"}
    for encoder in ("Flat", "Twins"):
        rows = table(folder(with_duplicates, "voting") / f"per_sample/{encoder}.csv.gz")
        assert {row[f"croma_m{m}"] for row in rows for m in range(1, 21)} == {""}


def test_the_other_encoders_are_as_if_the_undefined_ones_had_only_voted(with_duplicates):
    score(with_duplicates, "voting")
    k = run_json(with_duplicates, "voting")["resolved"]["k"]
    beside = metrics(with_duplicates, "voting")
    scored(with_duplicates, "voting", encoders=["One", "Five"], k=k)
    alone = metrics(with_duplicates, "voting")
    for encoder in ("One", "Five"):
        assert {n for n in alone[encoder] if alone[encoder][n] != beside[encoder][n]} == {"k_panel"}


def test_a_cohort_with_too_few_rows_in_its_cells_fails_for_every_encoder_and_still_has_ri(volume):
    add(volume, "small", quadrant_rows())
    x = drawn(quadrant_rows(), 1, 1)
    bring(volume, "small", {"A": x, "B": x + 0.1})
    _, error = score(volume, "small")
    assert error.exit_code == 3
    text = error.paragraph()  # one cause, one error
    assert text.splitlines()[0] == "small · A, B: no CRoMa at m = 5"
    assert "4 of 4 samples lack 5 SO neighbours, 4 of 4 samples lack 5 OS neighbours" in text
    assert text.splitlines()[-1].strip() == "croma-bundle score --benchmark small --m 1   # every unit supports that"
    rows = metrics(volume, "small")
    assert {(row["croma_median"], row["support"] != "") for row in rows.values()} == {("", True)}


def test_the_m_sweep_ends_at_the_largest_m_that_every_unit_supports_and_run_json_says_why(volume):
    rows = cohort_rows(slides=3, tiles=2)  # six rows in each cell: m = 7 lacks neighbours of both types everywhere
    add(volume, "six", rows)
    bring(volume, "six", {"A": drawn(rows, 1, 1)})
    scored(volume, "six")
    assert [row["m"] for row in table(folder(volume, "six") / "m_sweep.csv")] == [str(m) for m in range(1, 7)]
    reason = run_json(volume, "six")["resolved"]["m_sweep_ends"]["A"]
    assert reason.startswith("no CRoMa at m = 7: scope all: 24 of 24 samples lack 7 SO neighbours")
    for row in table(folder(volume, "six") / "per_sample/A.csv.gz"):
        assert [bool(row[f"croma_m{m}"]) for m in range(1, 21)] == [True] * 6 + [False] * 14


# --- cohorts that cannot be scored ---


@pytest.mark.parametrize(("column", "told"), [("label", "one label"), ("group_id", "one group")])
def test_a_cohort_without_contrast_is_one_error_whatever_the_number_of_encoders(volume, column, told):
    rows = [{**row, column: "same"} for row in voting_rows()]
    add(volume, "plain", rows)
    bring(volume, "plain", {"A": choosing(1), "B": choosing(3)})
    _, error = score(volume, "plain")
    assert error.exit_code == 3
    assert told in error.paragraph()
    assert error.paragraph().startswith("plain: ")
    assert not folder(volume, "plain").exists()


def test_rows_that_are_all_of_one_group_in_their_scope_are_one_error_whatever_the_number_of_encoders(volume):
    rows = [
        {**row, "sample_id": f"{subset}-{row['sample_id']}", "group_id": f"slide-{subset}", "subset": subset}
        for subset in "AB"
        for row in quadrant_rows()
    ]
    add(volume, "lonely", rows, design="paired_2x2")
    bring(volume, "lonely", {"A": drawn(rows, 1, 1), "B": drawn(rows, 2, 1)})
    _, error = score(volume, "lonely")
    assert (error.exit_code, error.subject) == (3, "benchmark lonely")
    assert error.problem == "no row has a candidate neighbour"


def test_one_benchmark_that_fails_does_not_stop_the_others(volume):
    add(volume, "good", voting_rows())
    add(volume, "bad", [{**row, "label": "same"} for row in voting_rows()])
    for name in ("good", "bad"):
        bring(volume, name, {"One": choosing(1)})
    listener, error = score(volume)
    assert (error.exit_code, error.subject) == (3, "bad")
    folders = [event["folder"] for event in listener.events if event["event"] == "scored"]
    assert folders == [str(volume.metrics("median-k", "good"))]


# --- artifacts that fail a check ---


@pytest.fixture
def five_bad_ones(volume, tmp_path):
    """Good and Also are sound; the five others each fail one check. Returns the volume."""
    rows = voting_rows()
    private = volume.encoder_declarations / "private.toml"
    private.parent.mkdir()
    private.write_text(
        '[Undeclared]\nfamily = "private"\nbackend = "classical"\nmodel = "Thumbnail"\nwidth = 768\npooling = "none"\n'
        'batch_size = 64\ngeneration = "1"\ncontrol = false\nvotes = true\nlicence = "x"\ncitation = "x"\n'
    )
    add(volume, "here", rows, pictures=tmp_path / "here")
    add(volume, "repainted", rows, pictures=tmp_path / "repainted", seed=1)
    add(volume, "reordered", rows[::-1])
    bring(volume, "here", {"Good": choosing(1), "Flipped": choosing(1), "Half": choosing(1)})
    embed_classical(volume, "here", "GaborEnergy", "Undeclared")
    embed_classical(volume, "repainted", "ColourStatistics")
    bring(volume, "reordered", {"Moved": choosing(1)})
    private.unlink()
    for tileset, encoder in (("repainted", "ColourStatistics"), ("reordered", "Moved")):
        for path in (volume.matrix, volume.sidecar):
            shutil.copy(path(tileset, encoder), path("here", encoder))
    flipped = bytearray(volume.matrix("here", "Flipped").read_bytes())
    flipped[-1] ^= 1
    volume.matrix("here", "Flipped").write_bytes(flipped)
    volume.sidecar("here", "Half").unlink()
    return volume


WHY = {
    "ColourStatistics": "it was made of other pixels than the tileset has",
    "Flipped": "the matrix does not match its sidecar",
    "Half": "half an artifact",
    "Moved": "it was made for other rows",
    "Undeclared": "its encoder is not declared here",
}


def test_what_fails_a_check_is_refused_by_name_and_the_others_are_scored(five_bad_ones, cli):
    said = cli("score", "--benchmark", "here", exits=5)
    assert set(metrics(five_bad_ones, "here")) == {"GaborEnergy", "Good"}
    for encoder, why in WHY.items():
        assert said.stderr.count(f"error: here · {encoder}: {why}") == 1
    assert said.stderr.count("error:") == 5
    assert "note: 5 refused, see the errors: here · ColourStatistics, here · Flipped, here · Half" in said.stdout


def test_run_json_names_whom_the_panel_lacks(five_bad_ones):
    score(five_bad_ones, "here")
    run = run_json(five_bad_ones, "here")
    assert [text.splitlines()[0] for text in run["resolved"]["refused"]] == [
        f"here · {encoder}: {why}" for encoder, why in WHY.items()
    ]
    assert run["resolved"]["k_panel"] == ["Good"]
    assert set(run["inputs"]["encoders"]) == {"GaborEnergy", "Good"}


def test_the_exit_code_is_the_highest_of_what_failed(five_bad_ones):
    _, error = score(five_bad_ones, "here", encoders=["Good", "Undeclared", "Nowhere"])
    assert error.exit_code == 3
    _, error = score(five_bad_ones, "here", encoders=["Good", "Undeclared", "Half"])
    assert error.exit_code == 5


def test_where_all_are_refused_nothing_is_written_and_an_older_run_stays_whole(five_bad_ones):
    score(five_bad_ones, "here", encoders=["Good"])
    before = every_byte(folder(five_bad_ones, "here"))
    _, error = score(five_bad_ones, "here", encoders=["Half", "Flipped"])
    assert [fault.subject for fault in error.errors] == ["here · Flipped", "here · Half"]
    assert every_byte(folder(five_bad_ones, "here")) == before


def test_an_encoder_that_is_not_embedded_gets_a_suggestion_and_the_rest_is_scored(volume, cli):
    add(volume, "voting", voting_rows())
    bring(volume, "voting", {"One": choosing(1), "Three": choosing(3)})
    said = cli("score", "--encoders", "One,three", exits=3).stderr
    assert "error: voting · three: it is not embedded; did you mean 'Three'?" in said
    assert set(metrics(volume, "voting")) == {"One"}


def test_rows_that_were_exchanged_under_the_matrices_are_refused(volume):
    add(volume, "voting", voting_rows())
    bring(volume, "voting", {"One": choosing(1)})
    path = volume.tile_manifest("voting")
    header, first, second, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([header, second, first, *rest]))
    _, error = score(volume, "voting")
    assert (error.exit_code, error.problem) == (5, "its manifest.csv changed after it was added")


def test_non_finite_and_all_zero_rows_cannot_get_in(volume):
    add(volume, "voting", voting_rows())
    for bad in (np.nan, np.inf, 0.0):
        x = choosing(1)
        x[3] = bad
        with pytest.raises(Exception, match=r"voting · Bad: it has unusable rows[\s\S]*1 row: 3"):
            bring(volume, "voting", {"Bad": x})


# --- nothing to score ---


def test_an_empty_volume_says_what_to_type(cli):
    said = cli("score", exits=3).stderr
    assert "no declared tileset has embeddings, so there is nothing to score" in said
    assert "make embed FAMILY=classical TILESET=phantom" in said


def test_a_benchmark_without_its_tileset_says_how_to_get_it(cli):
    assert "make tiles TILESET=phantom" in cli("score", "--benchmark", "phantom", exits=3).stderr


def test_a_benchmark_without_embeddings_says_how_to_make_them(volume, cli, tmp_path):
    add(volume, "bare", voting_rows())
    add(volume, "tiled", voting_rows(), pictures=tmp_path / "tiles")
    said = cli("score", "--benchmark", "bare,tiled", exits=3).stderr
    assert "benchmark bare: nothing is embedded for its tileset bare" in said
    assert 'croma-bundle import bare ENCODER matrix.npy --provenance "…"' in said
    assert "make embed FAMILY=classical TILESET=tiled" in said


def test_misspelt_benchmarks_are_all_told_with_suggestions_before_anything_is_scored(volume, cli):
    add(volume, "voting", voting_rows())
    bring(volume, "voting", {"One": choosing(1)})
    said = cli("score", "--benchmark", "voting,votin,Phantm", "--cross", "voting,vooting", exits=3).stderr
    assert "error: benchmark 'votin': it is not declared; did you mean 'voting'?" in said
    assert "error: benchmark 'Phantm': it is not declared; did you mean 'phantom'?" in said
    assert "error: benchmark 'vooting': it is not declared; did you mean 'voting'?" in said
    assert not (volume.root / "metrics").exists()


def test_a_protocol_that_another_run_is_scoring_is_refused_and_says_who(volume, cli):
    add(volume, "voting", voting_rows())
    bring(volume, "voting", {"One": choosing(1)})
    with lock(volume.score_lock("median-k"), "a test"):
        said = cli("score", exits=4).stderr
        assert "score median-k: another run is at work on it" in said
        assert "uid " in said
        scored(volume, "voting", protocol="k-star")  # another folder, another lock
    cli("score")
