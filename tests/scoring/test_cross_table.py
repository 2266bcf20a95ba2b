"""The cross-benchmark table: ranks, ties and the frontier by hand, who is in it, and what it refuses to mix."""

import dataclasses
import gzip
import hashlib
import json

import pytest

from bench import Listener, add, bring, choosing, drawn, folder, metrics, score, scored, table, voting_rows
from croma_bundle.errors import ArtifactError, InputError, SeveralErrors
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.scoring.cross import cross_benchmark, write_cross
from croma_bundle.scoring.run import Request, score_all
from croma_bundle.scoring.score import Knobs
from croma_bundle.scoring.terminal import cross_text

COLUMNS = ["encoder", "is_control", "on_frontier", "mean_rank", "croma_rank", "ltm10_rank", "rank_lo", "rank_hi"]

# medians and LTM10 of three encoders and a control in two cohorts
#
#        one: median   LTM10       two: median   LTM10
#   P       .3  (1)   -.1  (2)        .1  (1)    0.  (3)      median ranks 1, 1 → 1      LTM10 ranks 2, 3 → 2.5
#   Q       .2  (2)    .1  (1)        .1  (1)    .2  (1)      2, 1 → 1.5                 1, 1 → 1
#   R       .1  (3)   -.2  (3)        .05 (3)    .1  (2)      3, 3 → 3                   3, 2 → 2.5
#
# P and Q do not dominate each other; Q dominates R. Mean ranks 1.75, 1.25, 2.75.
ONE = {"P": (0.3, -0.1), "Q": (0.2, 0.1), "R": (0.1, -0.2), "Control": (0.9, 0.9)}
TWO = {"P": (0.1, 0.0), "Q": (0.1, 0.2), "R": (0.05, 0.1), "Control": (0.8, 0.7)}


def write_metrics(volume, benchmark, scores, *, controls=("Control",), m=5):
    """A scored folder with these values: (median, LTM10) by encoder, None where CRoMa is undefined.

    Its tables of samples hold four units, each its own group, with the median as margin: every resample is alike.
    """
    where = folder(volume, benchmark)
    (where / "per_sample").mkdir(parents=True)
    outputs = {}
    lines = ["encoder,is_control,croma_median,croma_ltm10"]
    for encoder, values in scores.items():
        median, ltm10 = values if values else ("", "")
        lines.append(f"{encoder},{str(encoder in controls).lower()},{median},{ltm10}")
        samples = f"group_id,subset,croma_m{m}\n{''.join(f'slide{i},,{median}' + chr(10) for i in range(4))}".encode()
        (where / f"per_sample/{encoder}.csv.gz").write_bytes(gzip.compress(samples))
        outputs[f"per_sample/{encoder}.csv"] = hashlib.sha256(samples).hexdigest()
    content = ("\n".join(lines) + "\n").encode()
    (where / "metrics.csv").write_bytes(content)
    outputs["metrics.csv"] = hashlib.sha256(content).hexdigest()
    inputs = {"tileset": benchmark, "encoders": {}}
    for path in (volume.tile_manifest(benchmark), *(volume.sidecar(benchmark, encoder) for encoder in scores)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"stands for {path.name}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.name == "manifest.csv":
            inputs["manifest_sha256"] = digest
        else:
            inputs["encoders"][path.name.removesuffix(".npy.json")] = {"sidecar_sha256": digest}
    (where / "run.json").write_text(json.dumps({"replay": {"m": m}, "inputs": inputs, "outputs": outputs}))


def crossed(volume, *benchmarks):
    cross = cross_benchmark(volume, "median-k", benchmarks)
    write_cross(volume, "median-k", cross)
    rows = table(volume.root / "metrics/median-k/cross_benchmark.csv")
    return cross, {row["encoder"]: row for row in rows}


@pytest.fixture
def two(volume):
    write_metrics(volume, "one", ONE)
    write_metrics(volume, "two", TWO)
    return volume


def test_the_columns_are_the_contracts(two):
    _, rows = crossed(two, "one", "two")
    by_benchmark = [f"{name}_croma_{what}" for name in ("one", "two") for what in ("median", "ltm10")]
    assert list(rows["P"]) == COLUMNS + by_benchmark


def test_ranks_and_frontier_are_as_worked_by_hand(two):
    _, rows = crossed(two, "one", "two")
    assert [name for name in rows if name != "Control"] == ["Q", "P", "R"]  # best mean rank first
    found = {
        n: tuple(float(r[c]) for c in ("mean_rank", "croma_rank", "ltm10_rank"))
        for n, r in rows.items()
        if r["mean_rank"]
    }
    assert found == {"P": (1.75, 1, 2.5), "Q": (1.25, 1.5, 1), "R": (2.75, 3, 2.5)}
    assert {n: rows[n]["on_frontier"] for n in "PQR"} == {"P": "true", "Q": "true", "R": "false"}


def test_the_values_of_each_benchmark_stand_under_its_name(two):
    _, rows = crossed(two, "two", "one")
    for benchmark, scores in (("one", ONE), ("two", TWO)):
        for encoder, values in scores.items():
            cells = [float(rows[encoder][f"{benchmark}_croma_{what}"]) for what in ("median", "ltm10")]
            assert tuple(cells) == values


def test_a_control_stands_below_without_a_rank_however_good(two):
    _, rows = crossed(two, "one", "two")
    assert list(rows)[-1] == "Control"
    control = rows["Control"]
    assert control["is_control"] == "true"
    assert [control[name] for name in COLUMNS[2:]] == [""] * 6
    assert {rows[name]["is_control"] for name in "PQR"} == {"false"}


def test_equal_values_share_the_better_rank_and_equal_means_are_shown_as_ties(volume):
    # A is first by the median and second by LTM10, B the other way round; C is last: 1.5, 1.5, 3
    write_metrics(volume, "one", {"C": (0.1, -0.3), "B": (0.2, 0.1), "A": (0.3, 0.0)})
    cross, rows = crossed(volume, "one")
    assert {n: r["mean_rank"] for n, r in rows.items()} == {"A": "1.5", "B": "1.5", "C": "3.0"}
    lines = cross_text(cross, "median-k", ["one"]).splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["*", "A", "=1.50", "[1.00,", "1.00]", "1.00", "2.00"],
        ["*", "B", "=1.50", "[2.00,", "2.00]", "2.00", "1.00"],
        ["C", "3.00", "[3.00,", "3.00]", "3.00", "3.00"],
    ]


def test_ranks_are_taken_on_unrounded_values(volume):
    write_metrics(volume, "one", {"A": (0.30000000000000004, 0), "B": (0.3, 0)})
    _, rows = crossed(volume, "one")
    assert (rows["A"]["croma_rank"], rows["B"]["croma_rank"]) == ("1.0", "2.0")
    assert (rows["A"]["ltm10_rank"], rows["B"]["ltm10_rank"]) == ("1.0", "1.0")


def test_encoders_that_a_benchmark_lacks_are_left_out_by_name_and_reason_and_move_no_rank(volume):
    # X would be first everywhere, but is not in `two`; U has no CRoMa in `one`; Z is a control that `one` lacks
    write_metrics(volume, "one", {**ONE, "X": (0.99, 0.99), "U": None})
    write_metrics(volume, "two", {**TWO, "U": (0.5, 0.5), "Z": (0, 0)}, controls=("Control", "Z"))
    cross, rows = crossed(volume, "one", "two")
    assert set(rows) == {"P", "Q", "R", "Control"}
    assert float(rows["Q"]["mean_rank"]) == 1.25
    assert cross.left_out == {"U": "no CRoMa on one", "X": "not scored on two", "Z": "not scored on one"}
    text = cross_text(cross, "median-k", ["one", "two"])
    for line in ("left out: U (no CRoMa on one)", "left out: X (not scored on two)", "left out: Z (not scored on one)"):
        assert line in text.splitlines()


def test_an_encoder_that_is_a_control_in_one_benchmark_is_ranked_in_none(volume):
    write_metrics(volume, "one", {**ONE, "Odd": (0.99, 0.99)}, controls=("Control", "Odd"))
    write_metrics(volume, "two", {**TWO, "Odd": (0.99, 0.99)})
    cross, rows = crossed(volume, "one", "two")
    assert (rows["Odd"]["is_control"], rows["Odd"]["mean_rank"]) == ("true", "")
    assert float(rows["Q"]["mean_rank"]) == 1.25
    assert cross.left_out == {}


def test_where_no_encoder_is_in_every_benchmark_the_table_says_so(volume):
    write_metrics(volume, "one", {"A": (0.1, 0.1)})
    write_metrics(volume, "two", {"B": (0.1, 0.1)})
    cross, rows = crossed(volume, "one", "two")
    assert rows == {}
    assert "(no encoder to rank)" in cross_text(cross, "median-k", ["one", "two"])


# --- what it refuses ---


def test_benchmarks_that_are_not_scored_are_all_told_with_their_commands(volume):
    write_metrics(volume, "one", ONE)
    with pytest.raises(SeveralErrors) as caught:
        cross_benchmark(volume, "k-star", ["two", "three"])
    assert caught.value.exit_code == 3
    for name in ("two", "three"):
        assert f"{name} is not scored" in str(caught.value)
        assert f"croma-bundle score --protocol k-star --benchmark {name}" in str(caught.value)


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_run_whose_matrix_was_replaced_since_is_refused_with_the_command(two, change):
    path = two.sidecar("two", "P")
    path.write_text("another") if change == "replaced" else path.unlink()
    with pytest.raises(ArtifactError, match="two was scored from what is no longer there") as caught:
        cross_benchmark(two, "median-k", ["one", "two"])
    assert "changed since: P" in str(caught.value)
    assert "croma-bundle score --protocol median-k --benchmark two" in str(caught.value)


def test_a_run_whose_rows_changed_since_is_refused(two):
    two.tile_manifest("one").write_text("other rows")
    with pytest.raises(ArtifactError, match="changed since: the tileset's manifest"):
        cross_benchmark(two, "median-k", ["one", "two"])


def test_a_folder_without_run_json_is_not_scored(two):
    (folder(two, "two") / "run.json").unlink()  # as a killed run leaves it
    with pytest.raises(InputError, match="two is not scored"):
        cross_benchmark(two, "median-k", ["one", "two"])


def test_a_table_that_changed_after_its_run_is_refused(two):
    path = folder(two, "one") / "metrics.csv"
    path.write_bytes(path.read_bytes().replace(b"0.3", b"0.4"))
    with pytest.raises(ArtifactError, match=r"metrics/median-k/one/metrics.csv: it is not the table that its run.json"):
        cross_benchmark(two, "median-k", ["one", "two"])


def test_benchmarks_scored_at_different_m_are_not_ranked_together(volume):
    write_metrics(volume, "one", ONE)
    write_metrics(volume, "two", TWO, m=3)
    with pytest.raises(InputError, match="scored at different m") as caught:
        cross_benchmark(volume, "median-k", ["one", "two"])
    assert "one at m = 5, two at m = 3" in str(caught.value)
    assert "croma-bundle score --protocol median-k --benchmark one,two --m 5" in str(caught.value)


# --- through `score` ---


@pytest.fixture
def cohorts(volume):
    for i, name in enumerate(("first", "second", "third")):
        add(volume, name, voting_rows())
        bring(volume, name, {e: drawn(voting_rows(), b, 1, seed=i) for e, b in (("Good", 3), ("Bad", 0.3))})
    return volume


def test_cross_is_written_over_the_asked_benchmarks_from_their_metrics(cohorts, cli):
    said = cli("score", "--cross", "first,third").stdout
    assert "over first, third · median-k · * Pareto frontier" in said
    rows = {row["encoder"]: row for row in table(cohorts.root / "metrics/median-k/cross_benchmark.csv")}
    assert list(rows["Good"])[8:] == [f"{b}_croma_{w}" for b in ("first", "third") for w in ("median", "ltm10")]
    for benchmark in ("first", "third"):
        for encoder, row in metrics(cohorts, benchmark).items():
            for what in ("croma_median", "croma_ltm10"):
                assert rows[encoder][f"{benchmark}_{what}"] == row[what]
    assert rows["Good"]["mean_rank"] == "1.0"


def test_own_cohorts_make_no_cross_table_unless_asked(cohorts):
    scored(cohorts)
    assert not (cohorts.root / "metrics/median-k/cross_benchmark.csv").exists()


def test_cross_over_a_benchmark_that_is_not_scored_is_an_error_with_the_command_after_the_rest(cohorts, cli):
    said = cli("score", "--benchmark", "first", "--cross", "first,second", exits=3)
    assert "second is not scored" in said.stderr
    assert "croma-bundle score --protocol median-k --benchmark second" in said.stderr
    assert folder(cohorts, "first").exists()


def test_cross_uses_what_earlier_runs_scored(cohorts):
    scored(cohorts, "second")
    scored(cohorts, "first", cross=["first", "second"])
    assert (cohorts.root / "metrics/median-k/cross_benchmark.csv").exists()


def test_an_asked_cross_table_is_made_also_where_only_another_confounder_was_scored(volume):
    add(volume, "first", [{**row, "scanner": "ab"[i % 3 == 0]} for i, row in enumerate(voting_rows())])
    bring(volume, "first", {"One": choosing(1)})
    scored(volume, "first")
    scored(volume, "first", confounders=["scanner"], m=2, cross=["first"])
    rows = table(volume.root / "metrics/median-k/cross_benchmark.csv")
    assert rows[0]["first_croma_median"] == metrics(volume, "first")["One"]["croma_median"]


def test_an_encoder_scored_on_one_of_two_is_left_out_aloud(cohorts, cli):
    bring(cohorts, "first", {"Extra": choosing(1)})
    said = cli("score", "--cross", "first,second").stdout
    assert "left out: Extra (not scored on second)" in said.splitlines()


def test_a_declared_set_waits_for_its_last_member(cohorts):
    plain = load_catalogue(cohorts)
    of_set = {
        n: b.model_copy(update={"cross": "pair"} if n in ("first", "second") else {})
        for n, b in plain.benchmarks.items()
    }
    catalogue = dataclasses.replace(plain, benchmarks=of_set)
    path = cohorts.root / "metrics/median-k/cross_benchmark.csv"
    listener = Listener()
    score_all(cohorts, catalogue, Request(["first"]), listener)
    assert "cross-benchmark table: waits for second (median-k)" in listener.texts()
    assert not path.exists()
    score_all(cohorts, catalogue, Request(["third", "second"]), Listener())
    assert list(table(path)[0])[8:] == [f"{b}_croma_{w}" for b in ("first", "second") for w in ("median", "ltm10")]


def test_json_carries_the_cross_table_and_who_was_left_out(cohorts):
    bring(cohorts, "first", {"Extra": choosing(1)})
    listener, _ = score(cohorts, cross=["first", "second"])
    (event,) = [event for event in listener.events if event["event"] == "cross"]
    assert event["left_out"] == {"Extra": "not scored on second"}
    assert [row["encoder"] for row in event["rows"]] == ["Good", "Bad"]


def test_scoring_another_confounder_alone_leaves_a_declared_set_alone(volume):
    add(volume, "first", [{**row, "scanner": "ab"[i % 3 == 0]} for i, row in enumerate(voting_rows())])
    bring(volume, "first", {"One": choosing(1)})
    plain = load_catalogue(volume)
    member = plain.benchmarks["first"].model_copy(update={"cross": "alone"})
    catalogue = dataclasses.replace(plain, benchmarks={**plain.benchmarks, "first": member})
    listener = Listener()
    score_all(volume, catalogue, Request(["first"], confounders=["scanner"], knobs=Knobs(m=2)), listener)
    assert [event["event"] for event in listener.events if event["event"] in ("scored", "cross")] == ["scored"]
    assert not any("waits" in text for text in listener.texts())
