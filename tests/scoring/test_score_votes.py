"""Who decides the shared k, and what pinning k, τ and the grid does. The k* of each encoder is by bench.choosing."""

import numpy as np
import pytest

from bench import (
    QUADRANT,
    add,
    bring,
    choosing,
    embed_classical,
    folder,
    metrics,
    quadrant_rows,
    run_json,
    score,
    scored,
    table,
    voting_rows,
)


@pytest.fixture
def voting(volume):
    add(volume, "voting", voting_rows())
    return volume


def decided(volume, benchmark="voting", protocol="median-k"):
    return run_json(volume, benchmark, protocol)["resolved"]


@pytest.fixture
def pictured(volume, tmp_path):
    """The voting rows with (random) tiles, so that classical encoders can be embedded for them."""
    add(volume, "voting", voting_rows(), pictures=tmp_path / "tiles")
    return volume


# --- the shared k ---


@pytest.mark.parametrize("k", [1, 3, 5])
def test_one_encoder_decides_alone_at_its_own_k_star(voting, cli, k):
    bring(voting, "voting", {"Only": choosing(k)})
    said = cli("score").stdout
    assert f"k = {k} (k* of Only, the only voter)" in said
    assert (decided(voting)["k"], decided(voting)["k_panel"]) == (k, ["Only"])
    assert metrics(voting, "voting")["Only"]["k"] == str(k)


@pytest.mark.parametrize(
    ("stars", "k"),
    [((1, 5), 1), ((3, 5), 3), ((1, 3, 5), 3), ((1, 1, 5), 1), ((1, 3, 5, 5), 3), ((1, 1, 3, 5), 1), ((3, 3, 5, 5), 3)],
)
def test_the_shared_k_is_the_lower_median_of_the_voters(voting, stars, k):
    bring(voting, "voting", {f"E{i}": choosing(star) for i, star in enumerate(stars)})
    scored(voting, "voting")
    assert decided(voting)["k_star"] == {f"E{i}": star for i, star in enumerate(stars)}
    assert decided(voting)["k"] == k
    assert decided(voting)["k_panel"] == [f"E{i}" for i in range(len(stars))]
    rows = metrics(voting, "voting").values()
    assert {(row["k"], row["k_panel"]) for row in rows} == {(str(k), str(len(stars)))}


def test_an_imported_control_votes(voting):
    bring(voting, "voting", {"A": choosing(1), "B": choosing(5), "C": choosing(5)}, controls=("B",))
    scored(voting, "voting")
    assert (decided(voting)["k"], decided(voting)["k_panel"]) == (5, ["A", "B", "C"])


def test_classical_controls_are_scored_and_do_not_vote(pictured, cli):
    embed_classical(pictured, "voting", "ColourStatistics", "Thumbnail")
    bring(pictured, "voting", {"Five": choosing(5)})
    cli("score")
    facts = decided(pictured)
    assert (facts["k"], facts["k_panel"]) == (5, ["Five"])
    assert set(facts["k_star"]) == {"ColourStatistics", "Five", "Thumbnail"}
    rows = metrics(pictured, "voting")
    assert {(row["k"], row["k_panel"]) for row in rows.values()} == {("5", "1")}
    assert {name: row["is_control"] for name, row in rows.items()} == {
        "ColourStatistics": "true",
        "Five": "false",
        "Thumbnail": "true",
    }
    embedded = rows["Thumbnail"]
    assert (embedded["external"], embedded["precision"], embedded["device"]) == ("false", "float32", "cpu")
    assert (embedded["batch_size"], embedded["generation"], embedded["exposed"]) == ("64", "classical-1", "false")
    assert embedded["pooling"] == "none"


def test_where_no_voter_is_scored_all_vote_and_the_text_says_so(pictured, cli):
    embed_classical(pictured, "voting", "ColourStatistics", "Thumbnail")
    bring(pictured, "voting", {"Five": choosing(5)})
    said = cli("score", "--encoders", "Thumbnail,ColourStatistics").stdout
    facts = decided(pictured)
    assert facts["k_panel"] == ["ColourStatistics", "Thumbnail"]
    assert facts["k"] == sorted(facts["k_star"].values())[0]
    assert f"k = {facts['k']} (lower median of all 2 k*: no voter is scored)" in said
    assert "(no encoder to rank)" in said


def test_limiting_the_encoders_limits_the_panel_and_says_so(voting, cli):
    bring(voting, "voting", {"One": choosing(1), "Three": choosing(3), "Five": choosing(5)})
    said = cli("score")
    assert "k = 3 (lower median of 3 voters' k*)" in said.stdout
    assert "limits" not in said.stderr
    said = cli("score", "--encoders", "Five,One")
    assert "voting: --encoders limits what is scored, and the panel that decides k" in said.stderr
    assert "k = 1 (lower median of 2 voters' k*)" in said.stdout
    assert set(metrics(voting, "voting")) == {"One", "Five"}
    assert run_json(voting, "voting")["replay"]["encoders"] == ["Five", "One"]


def test_an_encoder_without_croma_still_votes(voting):
    bring(voting, "voting", {"One": choosing(1), "Flat": np.ones((20, 3)), "Five": choosing(5)})
    score(voting, "voting")
    assert decided(voting)["k_panel"] == ["Five", "Flat", "One"]


# --- protocol k-star ---


def test_k_star_puts_each_encoder_at_its_own_k_and_shows_it(voting, cli):
    bring(voting, "voting", {"One": choosing(1), "Three": choosing(3), "Five": choosing(5)})
    said = cli("score", "--protocol", "k-star").stdout
    assert "voting · k-star, each encoder at its own k*, m = 5 ·" in said
    shown = {line.split()[0]: line.split()[2] for line in said.splitlines() if "(external)" in line}
    assert shown == {"One": "1", "Three": "3", "Five": "5"}
    rows = metrics(voting, "voting", "k-star")
    assert {name: row["k"] for name, row in rows.items()} == {"One": "1", "Three": "3", "Five": "5"}
    assert {(row["k_panel"], row["protocol"]) for row in rows.values()} == {("", "k-star")}
    selected = [row for row in table(folder(voting, "voting", "k-star") / "k_sweep.csv") if row["selected"] == "true"]
    assert {row["encoder"]: row["k"] for row in selected} == {"One": "1", "Three": "3", "Five": "5"}
    assert (decided(voting, protocol="k-star")["k"], decided(voting, protocol="k-star")["k_panel"]) == (None, [])


def test_the_protocols_stand_beside_each_other(voting):
    bring(voting, "voting", {"One": choosing(1), "Five": choosing(5)})
    scored(voting, "voting")
    scored(voting, "voting", protocol="k-star")
    assert metrics(voting, "voting")["Five"]["k"] == "1"
    assert metrics(voting, "voting", "k-star")["Five"]["k"] == "5"


# --- pins ---


@pytest.mark.parametrize("k", [3, 4, 12])  # on the sparse grid, off it, and off it beyond its last usable k (11)
def test_a_pinned_k_is_everyones_and_the_text_says_so(voting, cli, k):
    bring(voting, "voting", {"One": choosing(1), "Five": choosing(5)})
    said = cli("score", "--k", k).stdout
    assert f"k = {k} (pinned by --k)" in said
    rows = metrics(voting, "voting")
    assert {(row["k"], row["k_panel"]) for row in rows.values()} == {(str(k), "")}
    swept = [row for row in table(folder(voting, "voting") / "k_sweep.csv") if row["encoder"] == "One"]
    assert [int(row["k"]) for row in swept] == sorted({1, 3, 5, 7, 9, 11, k})
    assert [int(row["k"]) for row in swept if row["selected"] == "true"] == [k]
    assert decided(voting)["k_star"] == {"One": 1, "Five": 5}


def test_a_pinned_k_changes_what_depends_on_it_as_worked_by_hand(volume):
    add(volume, "quadrant", quadrant_rows())
    bring(volume, "quadrant", {"Q": QUADRANT})
    scored(volume, "quadrant", m=1, k=2)
    row = metrics(volume, "quadrant")["Q"]
    # SO of all four rows, OS of the outer two (see bench.QUADRANT)
    assert float(row["ri"]) == 4 / 6
    assert (row["support"], row["oo_undefined"]) == ("1.0", "0.0")
    weight = np.exp(-1), np.exp(-2)  # τ is the median of 0.5 four times and 1 twice: 0.5
    assert float(row["mari"]) == pytest.approx(4 * weight[0] / (4 * weight[0] + 2 * weight[1]), abs=1e-6)
    assert float(row["delta"]) == float(row["mari"]) - float(row["ri"])


def test_a_k_beyond_every_row_uses_the_neighbours_there_are_and_says_how_many_rows(voting, cli):
    bring(voting, "voting", {"One": choosing(1)})
    said = cli("score", "--k", 19).stdout  # 19 candidates; 18 for the two that share a slide
    assert "note: up to 2 rows have fewer than k candidates; fewer neighbours are used for them" in said
    assert decided(voting)["rows_with_fewer_than_k_candidates"] == {"One": 2}


def test_a_pinned_tau_is_everyones_and_encoders_it_does_not_suit_are_named(volume, cli):
    add(volume, "quadrant", quadrant_rows())
    bring(volume, "quadrant", {"Wide": QUADRANT, "Narrow": np.column_stack([QUADRANT, np.full(4, 10.0)])})
    said = cli("score", "--tau", "0.4", "--m", "1").stdout
    # Wide: the median typed distance is 0.5, and 0.4 lies within [0.125, 2]. Narrow: its cone makes distances tiny.
    assert {row["tau"] for row in metrics(volume, "quadrant").values()} == {"0.4"}
    notes = decided(volume, "quadrant")["tau_notes"]
    assert list(notes) == ["Narrow"]
    assert "off-scale" in notes["Narrow"]
    assert "note: Narrow: τ = 0.4 is off-scale" in said
    assert "Wide: τ" not in said


@pytest.mark.parametrize("tau", ["0", "-1", "nan", "inf", "-inf"])
def test_a_tau_that_is_no_number_above_zero_is_a_usage_error_before_any_work(voting, cli, tau):
    bring(voting, "voting", {"One": choosing(1)})
    said = cli("score", "--tau", tau, exits=2)
    assert said.stderr.count("error:") == 1
    assert not (voting.root / "metrics").exists()


# --- the grid ---


def swept(volume):
    return [int(row["k"]) for row in table(folder(volume, "voting") / "k_sweep.csv")]


def test_the_dense_grid_is_every_k_below_the_rows(voting):
    bring(voting, "voting", {"Three": choosing(3)})
    scored(voting, "voting", k_grid="dense")
    assert swept(voting) == list(range(1, 20))


@pytest.mark.parametrize(("k_max", "ks"), [(7, [1, 3, 5, 7]), (11, [1, 3, 5, 7, 9]), (12, [1, 3, 5, 7, 9, 11])])
def test_k_max_ends_the_grid_its_tail_exclusively(voting, k_max, ks):
    bring(voting, "voting", {"Three": choosing(3)})
    scored(voting, "voting", k_max=k_max)
    assert swept(voting) == ks


def test_k_max_limits_what_can_be_chosen(voting):
    bring(voting, "voting", {"Five": choosing(5)})
    scored(voting, "voting", k_max=3)
    # below 5 the probe is wrong at 1 and at 3: both equal, so the smaller
    assert decided(voting)["k"] == 1


def test_m_moves_croma_alone(voting):
    bring(voting, "voting", {"One": choosing(1)})
    scored(voting, "voting", m=5)
    five = metrics(voting, "voting")["One"]
    scored(voting, "voting", m=2)
    two = metrics(voting, "voting")["One"]
    assert all(name == "m" or name.startswith("croma_") for name in five if five[name] != two[name])
    sweep = {row["m"]: row for row in table(folder(voting, "voting") / "m_sweep.csv")}
    assert sweep["2"]["croma_median"] == two["croma_median"]
    assert sweep["5"]["croma_median"] == five["croma_median"] != two["croma_median"]
