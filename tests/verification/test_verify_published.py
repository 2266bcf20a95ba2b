"""`verify published`: a verdict per cell by the stated bands, every reason not to compare, pairs, and the exit code."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from scored_folders import COHORT, FIGURES, NEW, OLD, catalogue, row, toy_panel, write_scored

import croma_bundle.verification.published_run as published_run
from croma_bundle.cli import main
from croma_bundle.errors import ArtifactError, InputError, VerdictFailed
from croma_bundle.layout import Volume
from croma_bundle.progress import Reporter
from croma_bundle.verification.published import (
    CLOSE,
    DRIFT,
    MATCH,
    MATCHES,
    NOT_COMPARED,
    REVERSED,
    SAME,
    WITHIN,
    judge,
    orderings,
    published_name,
    verdict_of,
)
from croma_bundle.verification.published_run import Question, verify_published
from croma_bundle.verification.published_text import verdict_text
from croma_bundle.verification.scored import Scored, read_scored

PANEL = toy_panel()
K_METRICS = {"ri", "mari", "support", "bio_bacc", "conf_bacc"}
CROMA = {"croma_median", "croma_ltm10", "croma_f0"}


@pytest.fixture(autouse=True)
def _toy_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_run, "load_panel", lambda: PANEL)


def scored(volume: Volume, rows: list[dict[str, str]], **run: object) -> Scored:
    return read_scored(write_scored(volume, rows, **run), "toy", "")  # type: ignore[arg-type]


def judged(volume: Volume, encoder_row: dict[str, str], generation: str | None = None, **run: object):
    """metric → (verdict, reason) of a single encoder."""
    cells = judge(scored(volume, [encoder_row], **run), PANEL, COHORT, generation)
    assert [cell.metric for cell in cells] == list(MATCHES)
    return {cell.metric: (cell.verdict, cell.reason) for cell in cells}


def reasons(found, metrics: set[str]) -> set[str]:
    """The reasons of the cells of `metrics`, after asserting that these and only these are not compared."""
    assert {metric for metric, (verdict, _) in found.items() if verdict == NOT_COMPARED} == metrics
    return {found[metric][1] for metric in metrics}


# --- bands, at their edges ---

EDGES = [
    *((metric, "0.0005", MATCH) for metric in ("croma_median", "croma_ltm10")),
    *((metric, "0.00050000000000000001", WITHIN) for metric in ("croma_median", "croma_ltm10")),
    *((metric, "0.002", MATCH) for metric in ("croma_f0", "ri", "mari", "support", "bio_bacc", "conf_bacc")),
    *((metric, "0.00200000000000000001", WITHIN) for metric in ("croma_f0", "ri", "mari", "support", "bio_bacc")),
    *((metric, "0", MATCH) for metric in MATCHES),
    *((metric, "0.005", WITHIN) for metric in MATCHES),
    *((metric, "0.00500000000000000001", DRIFT) for metric in MATCHES),
]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("metric", "size", "wanted"), EDGES)
def test_a_band_ends_where_it_is_said_to(metric: str, size: str, wanted: str, sign: int) -> None:
    assert verdict_of(metric, sign * Decimal(size)) == wanted


@pytest.mark.parametrize(
    ("metric", "ours", "wanted"),
    [
        ("croma_median", "0.3005", MATCH),  # 0.3005 − 0.3 is above 0.0005 in binary
        ("croma_median", "0.2995", MATCH),
        ("croma_median", "0.300500000001", WITHIN),
        ("croma_median", "0.305", WITHIN),
        ("croma_median", "0.305000000001", DRIFT),
        ("croma_ltm10", "-0.1005", MATCH),
        ("croma_ltm10", "-0.1005000001", WITHIN),
        ("croma_f0", "0.202", MATCH),
        ("ri", "0.798", MATCH),
        ("ri", "0.7979999", WITHIN),
        ("mari", "0.815", WITHIN),
        ("mari", "0.8149999", DRIFT),
        ("support", "0.6", MATCH),
        ("croma_f0", "1e-07", DRIFT),
    ],
)
def test_figures_are_compared_as_written(volume: Volume, metric: str, ours: str, wanted: str) -> None:
    found = judged(volume, row("Alpha", PANEL, **{metric: ours}))
    assert found.pop(metric) == (wanted, "")
    assert set(found.values()) == {(MATCH, "")}


# --- what cannot be compared, and why ---


def test_an_imported_encoder_is_external_even_under_a_published_name(volume: Volume) -> None:
    found = judged(volume, row("Alpha", PANEL, external="true", generation="", precision="", device="external"))
    (reason,) = reasons(found, set(MATCHES))
    assert reason.startswith("external: imported")


@pytest.mark.parametrize("encoder", ["Mine", "Alpha@mine"])
def test_an_encoder_or_recipe_that_nobody_published_has_no_figure(volume: Volume, encoder: str) -> None:
    assert reasons(judged(volume, row(encoder, PANEL)), set(MATCHES)) == {f"no published figure in {NEW}"}


def test_a_metric_that_a_generation_does_not_publish_has_no_figure(volume: Volume) -> None:
    found = judged(volume, row("Alpha", PANEL, k="7"), OLD, at=7)
    assert reasons(found, {"conf_bacc"}) == {f"no published figure in {OLD}"}


@pytest.mark.parametrize(("generation", "word"), [("mine-1", "mine-1"), ("", "none"), (OLD, None)])
def test_another_generation_is_not_compared_unless_it_is_published(volume, generation, word) -> None:
    found = judged(volume, row("Gamma", PANEL, generation=generation, k="7", croma_median="0.24", conf_bacc=""), at=7)
    if word is None:  # it says that it is of the old generation, and is compared with that
        assert reasons(found, {"conf_bacc"}) == {f"no published figure in {OLD}"}
        assert found["croma_median"] == (MATCH, "")
    else:
        wanted = f"other generation: it was embedded as {word}, published as {NEW}"
        assert reasons(found, set(MATCHES)) == {wanted}


def test_a_changed_recipe_is_not_compared_with_the_other_generation_an_unchanged_one_is(tmp_path: Path) -> None:
    gamma = judged(Volume(tmp_path / "a"), row("Gamma", PANEL), OLD)
    assert reasons(gamma, set(MATCHES)) == {
        f"other generation: it was embedded as {NEW}, published as {OLD}",
        f"no published figure in {OLD}",
    }
    alpha = judged(Volume(tmp_path / "b"), row("Alpha", PANEL, k="7"), OLD, at=7)
    assert reasons(alpha, {"conf_bacc"}) == {f"no published figure in {OLD}"}


def test_a_recipe_named_for_its_generation_is_that_generation_s_encoder(volume: Volume) -> None:
    assert published_name(f"Gamma@{OLD}", PANEL) == "Gamma"
    assert published_name("Gamma@mine", PANEL) == "Gamma@mine"
    found = judged(volume, row(f"Gamma@{OLD}", PANEL))
    assert {found[metric] for metric in CROMA} == {(MATCH, "")}
    assert found["ri"] == (NOT_COMPARED, "other k: 11, published 7")


@pytest.mark.parametrize(
    ("encoder", "precision", "device", "reason"),
    [
        ("Half", "float32", "cpu", "float32 on cpu, where float16 on CUDA was published"),
        ("Half", "mixed-float16", "cpu", "mixed-float16 on cpu, where float16 on CUDA was published"),
        ("Half", "float32", "cuda", "float32 on cuda, where float16 on CUDA was published"),
        ("Half", "mixed-float16", "cuda", None),
        ("Half", "mixed-float16", "cuda:1", None),
        ("Alpha", "float32", "cpu", None),
        ("Alpha", "float32", "cuda", None),
        ("Alpha", "mixed-float16", "cuda", "mixed-float16, where float32 was published"),
    ],
)
def test_float16_on_cuda_is_compared_only_with_itself(volume, encoder, precision, device, reason) -> None:
    found = judged(volume, row(encoder, PANEL, precision=precision, device=device))
    assert reasons(found, set(MATCHES) if reason else set()) == ({reason} if reason else set())


def test_other_rows_are_not_compared(volume: Volume) -> None:
    found = judged(volume, row("Alpha", PANEL, n_units="1000"))
    assert reasons(found, set(MATCHES)) == {"other rows: 1,000 units, published 100"}


def test_at_another_m_only_croma_is_not_compared(volume: Volume) -> None:
    assert reasons(judged(volume, row("Alpha", PANEL, m="3"), m=3), CROMA) == {"other m: 3, published 5"}


def test_with_a_pinned_tau_only_mari_is_not_compared(volume: Volume) -> None:
    (reason,) = reasons(judged(volume, row("Alpha", PANEL), tau=0.125), {"mari"})
    assert reason == "other τ: 0.125 pinned, published at each encoder's own median distance"


@pytest.mark.parametrize(
    ("protocol", "pinned", "panel", "reason"),
    [
        ("median-k", 21, [], "other k: 21 pinned, published 11"),
        ("k-star", None, [], "other k: 21 by k-star, published 11 by median-k"),
        ("median-k", None, ["Alpha", "Mine"], "incomplete panel: 1 of the 6 published encoders decided k = 21"),
        ("median-k", None, list(PANEL.cohort(NEW, COHORT)), "other k: 21, published 11"),
    ],
)
def test_at_another_k_all_but_croma_is_not_compared(volume, protocol, pinned, panel, reason) -> None:
    alpha = row("Alpha", PANEL, k="21", protocol=protocol)
    (found,) = reasons(judged(volume, alpha, protocol=protocol, at=21, panel=panel, k=pinned), K_METRICS)
    assert found.startswith(reason)


@pytest.mark.parametrize("panel", [["Alpha"], [], list(PANEL.cohort(NEW, COHORT))])
def test_at_the_published_k_everything_is_compared_whoever_decided_it(volume: Volume, panel: list[str]) -> None:
    assert set(judged(volume, row("Alpha", PANEL), panel=panel).values()) == {(MATCH, "")}


def test_a_metric_without_a_value_here_is_not_compared(volume: Volume) -> None:
    alpha = row("Alpha", PANEL, croma_median="", croma_ltm10="", croma_f0="")
    assert reasons(judged(volume, alpha), CROMA) == {"no value here: run.json says why"}


# --- pairs ---


def pairs_of(volume: Volume, rows: list[dict[str, str]], metric: str = "croma_median"):
    run = scored(volume, rows)
    found = orderings(run, judge(run, PANEL, COHORT), PANEL)
    return {(pair.higher, pair.lower): pair.verdict for pair in found if pair.metric == metric}


def test_pairs_are_those_the_published_figures_tell_apart_controls_left_out(volume: Volume) -> None:
    """Alpha .3, Beta .29, Gamma .2, Natural .25 (a control). 0.01 is more than max(0.005, 0.02 · 0.3)."""
    names = ("Alpha", "Beta", "Gamma", "Natural")
    assert pairs_of(volume, [row(name, PANEL) for name in names]) == {
        ("Alpha", "Beta"): SAME,
        ("Alpha", "Gamma"): SAME,
        ("Beta", "Gamma"): SAME,
    }


def test_figures_that_are_equal_or_too_close_make_no_pair(volume: Volume) -> None:
    assert pairs_of(volume, [row(name, PANEL) for name in ("Alpha", "Beta", "Gamma")], "ri") == {}


@pytest.mark.parametrize(
    ("alpha", "beta", "wanted"),
    [
        ("0.2951", "0.295", SAME),
        ("0.295", "0.295", CLOSE),
        ("0.2949", "0.295", CLOSE),
        ("0.284", "0.29", REVERSED),  # 0.006 > max(0.005, 0.02 · 0.29)
        ("0.2845", "0.29", CLOSE),
    ],
)
def test_a_pair_is_reversed_only_where_ours_tell_it_apart_too(volume, alpha, beta, wanted) -> None:
    rows = [row("Alpha", PANEL, croma_median=alpha), row("Beta", PANEL, croma_median=beta)]
    assert pairs_of(volume, rows) == {("Alpha", "Beta"): wanted}


def test_what_is_not_compared_is_in_no_pair(volume: Volume) -> None:
    rows = [row("Alpha", PANEL), row("Beta", PANEL, external="true"), row("Gamma", PANEL, is_control="true")]
    assert pairs_of(volume, rows) == {}


def test_an_encoder_and_its_other_recipe_are_no_pair_nor_two_generations(volume: Volume) -> None:
    rows = [row("Alpha", PANEL), row("Gamma", PANEL), row(f"Gamma@{OLD}", PANEL)]
    assert pairs_of(volume, rows) == {("Alpha", "Gamma"): SAME}


# --- what is told and written ---


def verified(volume: Volume, capsys: pytest.CaptureFixture[str], question: Question | None = None) -> str:
    verify_published(volume, catalogue(), question or Question(), Reporter())
    return capsys.readouterr().out


def test_the_table_says_what_was_compared_and_what_was_not(volume: Volume, capsys) -> None:
    rows = [row("Alpha", PANEL, k="21"), row("Beta", PANEL, k="21", croma_f0="0.204"), row("Natural", PANEL, k="21")]
    write_scored(volume, rows, panel=["Alpha", "Beta", "Natural"], at=21, rule="lower median of 3 voters' k*")
    out = verified(volume, capsys)
    lines = out.splitlines()
    assert lines[0] == (
        "toy · median-k, k = 21 (lower median of 3 voters' k*), m = 5 · against toy of new-1 (6 encoders, k = 11)"
    )
    table = {line.split()[0]: line.split()[1:] for line in lines[2:6] if line.startswith("  ")}
    assert table["Alpha"][:4] == [NEW, "0.00000", "0.00000", "0.00000"]
    assert table["Beta"][:5] == [NEW, "0.00000", "0.00000", "+0.00400", "~"]
    assert lines[4] == "controls, not ranked"
    assert "  8 MATCH · 1 WITHIN · 0 DRIFT · 15 NOT COMPARED" in lines
    assert (
        "  not compared: RI, MaRI, support, bio, confounder of Alpha, Beta, Natural: incomplete panel: 3 of the 6 "
        "published encoders decided k = 21, published 11"
    ) in lines
    assert "  resolvable pairs in the published order: CRoMa median 1 of 1" in lines
    assert "  not scored here: 3 of the 6 of new-1: Gamma, Half, Omega" in lines
    assert "croma-bundle score --benchmark toy --k 11" in out
    assert "\x1b" not in out, "no colour where there is no terminal"


def test_verdicts_are_written_as_csv_and_json(volume: Volume, capsys) -> None:
    write_scored(volume, [row("Alpha", PANEL, ri="0.803"), row("Beta", PANEL, external="true")])
    verified(volume, capsys)
    folder = volume.root / "verify/published/median-k/toy"
    with (folder / "verdicts.csv").open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 2 * len(MATCHES)
    (ri,) = [r for r in rows if (r["encoder"], r["metric"]) == ("Alpha", "ri")]
    assert ri == {
        **{"benchmark": "toy", "cohort": "toy", "encoder": "Alpha", "generation": NEW, "metric": "ri"},
        **{"ours": "0.803", "published": "0.800000", "difference": "0.003000", "verdict": WITHIN, "reason": ""},
    }
    (other,) = [r for r in rows if (r["encoder"], r["metric"]) == ("Beta", "ri")]
    assert (other["difference"], other["verdict"]) == ("", NOT_COMPARED)
    stored = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    assert stored["counts"] == {MATCH: 7, WITHIN: 1, DRIFT: 0, NOT_COMPARED: 8}
    assert [cell["verdict"] for cell in stored["cells"]] == [r["verdict"] for r in rows]


def test_a_drift_is_red_named_with_both_figures_and_fails(volume: Volume, capsys) -> None:
    write_scored(volume, [row("Alpha", PANEL, croma_median="0.324"), row("Beta", PANEL)])
    with pytest.raises(VerdictFailed) as caught:
        verified(volume, capsys)
    assert caught.value.exit_code == 1
    text = caught.value.paragraph()
    assert text.startswith("toy against the published toy: 1 of 16 compared figures drift\n")
    assert "found    Alpha croma_median: 0.324, published 0.300000 in new-1 (+0.0240)" in text
    assert "DRIFT  Alpha croma_median: 0.324, published 0.300000" in capsys.readouterr().out
    assert (volume.root / "verify/published/median-k/toy/verdicts.csv").exists(), (
        "the verdicts are written all the same"
    )
    run = read_scored(volume.metrics("median-k", COHORT), "toy", "")
    cells = judge(run, PANEL, COHORT)
    coloured = verdict_text(run, cells, orderings(run, cells, PANEL), PANEL, COHORT)
    assert "\x1b[31m+0.02400 !\x1b[0m" in coloured
    assert "\x1b[31m  DRIFT  Alpha croma_median" in coloured


def test_more_drifts_than_ten_are_counted(volume: Volume, capsys) -> None:
    wrong = dict.fromkeys(FIGURES, "0.5")
    write_scored(volume, [row("Alpha", PANEL, **wrong), row("Beta", PANEL, **wrong)])
    with pytest.raises(VerdictFailed) as caught:
        verified(volume, capsys)
    assert "16 of 16 compared figures drift" in caught.value.paragraph()
    assert "and 6 more" in caught.value.paragraph()


def test_a_generation_asked_for_must_be_published(volume: Volume, capsys) -> None:
    with pytest.raises(InputError, match="did you mean 'old-1'"):
        verified(volume, capsys, Question(generation="old1"))


# --- what there is to compare ---


def test_nothing_scored_is_an_error_and_on_demand_a_sentence(volume: Volume, capsys) -> None:
    with pytest.raises(InputError, match="there is nothing to compare") as caught:
        verified(volume, capsys)
    assert "make embed FAMILY=… TILESET=camelyon" in caught.value.paragraph()  # nothing is embedded either
    verify_published(volume, catalogue(), Question(if_scored=True), Reporter())
    assert "there is nothing to compare (toy)" in capsys.readouterr().err
    assert not (volume.root / "verify").exists()


def test_a_benchmark_that_reproduces_nothing_or_something_unpublished_is_refused_by_name(volume: Volume) -> None:
    for published, told in ((None, "it reproduces no published cohort"), ("toi", "did you mean 'toy'")):
        with pytest.raises(InputError, match=told):
            verify_published(volume, catalogue(published), Question(["toy"]), Reporter())


def test_a_benchmark_asked_for_must_be_scored_under_the_protocol(volume: Volume, capsys) -> None:
    write_scored(volume, [row("Alpha", PANEL)])
    with pytest.raises(InputError, match="it is not scored under k-star") as caught:
        verified(volume, capsys, Question([COHORT], protocol="k-star"))
    assert "croma-bundle score --protocol k-star --benchmark toy" in caught.value.paragraph()


def test_a_table_that_is_not_its_run_s_is_refused(volume: Volume, capsys) -> None:
    path = write_scored(volume, [row("Alpha", PANEL)]) / "metrics.csv"
    path.write_text(path.read_text().replace("0.300000", "0.310000"))
    with pytest.raises(ArtifactError, match="not the table that its run"):
        verified(volume, capsys)


@pytest.mark.parametrize(
    ("content", "told"),
    [("{", "it is damaged"), ("[]", "another schema"), ('{"schema": 0}', "another schema"), ('{"schema": 1}', "lacks")],
)
def test_a_damaged_run_json_is_refused(volume: Volume, capsys, content: str, told: str) -> None:
    (write_scored(volume, [row("Alpha", PANEL)]) / "run.json").write_text(content)
    with pytest.raises(ArtifactError, match=told):
        verified(volume, capsys)


# --- the command line ---


def test_the_command_exits_1_on_a_drift(volume: Volume, monkeypatch, capsys) -> None:
    monkeypatch.setattr("croma_bundle.cli.load_catalogue", lambda volume: catalogue())
    write_scored(volume, [row("Alpha", PANEL, croma_median="0.324")])
    with pytest.raises(SystemExit) as caught:
        main(["--volume", str(volume.root), "verify", "published", "--benchmark", COHORT, "--protocol", "median-k"])
    assert caught.value.code == 1
    assert "error: toy against the published toy: 1 of 8 compared figures drift" in capsys.readouterr().err


def test_json_says_every_verdict(volume: Volume, monkeypatch, capsys) -> None:
    monkeypatch.setattr("croma_bundle.cli.load_catalogue", lambda volume: catalogue())
    write_scored(volume, [row("Alpha", PANEL)])
    with pytest.raises(SystemExit) as caught:
        main(["--volume", str(volume.root), "--json", "verify", "published"])
    assert caught.value.code == 0
    (event,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (event["event"], event["counts"][MATCH]) == ("verdicts", 8)


def test_a_volume_without_scores_exits_3_and_passes_in_make_verify(cli) -> None:
    assert "there is nothing to compare" in cli("verify", "published", exits=3).stderr
    assert "there is nothing to compare" in cli("verify", "published", "--if-scored").stderr


def test_it_reads_no_deep_learning_image_or_hub_library() -> None:
    code = "import sys, croma_bundle.verification.published_run, croma_bundle.verification.rerun; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "PIL", "skimage", "sklearn", "scipy", "pandas"} & set(loaded)
