"""`results/published/panel.csv` and `PROVENANCE.json`: complete, consistent, and at hand when installed."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import pytest

from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.metrics.operating_k import k_grid
from croma_bundle.scoring.tables import METRICS
from croma_bundle.verification.panel import COLUMNS, figures_path, load_panel, provenance_path

ROOT = Path(__file__).resolve().parents[2]
NEW, OLD = "croma-1.0.1", "croma-0.3.0"
TILE_COHORTS = ("camelyon", "tcga-4x4", "tolkach-esca")
SIX = {"DINOv2-B", "GPFM", "H-optimus-0", "H-optimus-1", "Prov-GigaPath", "mSTAR"}
SCORED = {"bio_bacc", "conf_bacc", "ri", "mari", "support", "croma_median", "croma_ltm10", "croma_f0"}
DOWNSTREAM = {"nipd_id", "nipd_ood", "probe_baseline_id", "probe_baseline_ood"}


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


FIGURES = read(ROOT / "results/published/panel.csv")
PROVENANCE = json.loads((ROOT / "results/PROVENANCE.json").read_text(encoding="utf-8"))


def test_the_checkout_s_files_are_the_ones_that_are_read() -> None:
    assert figures_path() == ROOT / "results/published/panel.csv"
    assert provenance_path() == ROOT / "results/PROVENANCE.json"


def test_every_fact_of_the_collection_is_carried_over_as_given(shared: Path) -> None:
    source = shared / "data/published_figures.csv"
    if not source.exists():
        pytest.skip(f"{source} does not exist")

    def facts(rows: list[dict[str, str]]) -> Counter[tuple[str, ...]]:
        return Counter(tuple(row[column] for column in COLUMNS) for row in rows)

    assert facts(FIGURES) == facts(read(source))


def test_rows_are_sorted_unique_and_end_in_plain_newlines() -> None:
    keys = [(r["generation"], r["cohort"], r["encoder"], r["metric"]) for r in FIGURES]
    assert keys == sorted(set(keys))
    content = figures_path().read_bytes()
    assert content.startswith(",".join(COLUMNS).encode() + b"\n")
    assert content.endswith(b"\n")
    assert b"\r" not in content


def test_metrics_are_named_as_our_columns() -> None:
    assert {row["metric"] for row in FIGURES} == SCORED | DOWNSTREAM
    assert set(METRICS) >= SCORED


def members(generation: str, cohort: str) -> set[str]:
    return {row["encoder"] for row in FIGURES if (row["generation"], row["cohort"]) == (generation, cohort)}


def test_27_and_26_encoders_in_every_tile_cohort_and_5_in_pcabiop() -> None:
    counts = {
        (generation, cohort): len(members(generation, cohort))
        for generation, facts in PROVENANCE["generations"].items()
        for cohort in facts["cohorts"]
    }
    wanted = {(NEW, cohort): 27 for cohort in TILE_COHORTS} | {(OLD, cohort): 26 for cohort in TILE_COHORTS}
    assert counts == {**wanted, (NEW, "pcabiop"): 5}
    assert set(counts) == {(row["generation"], row["cohort"]) for row in FIGURES}
    for generation, facts in PROVENANCE["generations"].items():
        for cohort, of in facts["cohorts"].items():
            assert of["encoders"] == counts[generation, cohort]
    assert [PROVENANCE["generations"][g]["panel_size"] for g in (NEW, OLD)] == [27, 26]
    assert members(NEW, "camelyon") - members(OLD, "camelyon") == {"Mettle"}


def test_every_encoder_of_a_cohort_has_the_same_metrics() -> None:
    found = defaultdict(set)
    for row in FIGURES:
        found[row["generation"], row["cohort"], row["encoder"]].add(row["metric"])
    for (generation, *_), metrics in found.items():
        assert metrics == (SCORED | DOWNSTREAM if generation == NEW else SCORED - {"conf_bacc"})


def test_k_is_that_of_the_cohort_and_on_its_grid() -> None:
    shared_k = {
        generation: {c: PROVENANCE["generations"][generation]["cohorts"][c]["k"] for c in TILE_COHORTS}
        for generation in (NEW, OLD)
    }
    assert shared_k == {
        NEW: {"camelyon": 11, "tcga-4x4": 81, "tolkach-esca": 71},
        OLD: {"camelyon": 11, "tcga-4x4": 71, "tolkach-esca": 61},
    }
    for facts in PROVENANCE["generations"].values():
        for cohort in TILE_COHORTS:
            of = facts["cohorts"][cohort]
            assert of["k"] in k_grid(of["k_grid"], of["k_max"])
    pcabiop = PROVENANCE["generations"][NEW]["cohorts"]["pcabiop"]
    assert pcabiop["protocol"] == "k-star"
    assert pcabiop["k"] == {"MOOZY": 9, "PRISM": 3, "PRISM2": 7, "Prov-GigaPath": 13, "TITAN": 9}
    assert set(pcabiop["k"]) == members(NEW, "pcabiop")
    moved = PROVENANCE["generations"][NEW]["changes"]["k"]
    assert moved == {cohort: [shared_k[OLD][cohort], shared_k[NEW][cohort]] for cohort in TILE_COHORTS}


def test_exactly_the_six_changed_recipes_changed_their_croma() -> None:
    value = {(r["generation"], r["cohort"], r["encoder"], r["metric"]): r["value"] for r in FIGURES}
    for cohort in TILE_COHORTS:
        for metric in ("croma_median", "croma_ltm10"):
            changed = {
                encoder
                for encoder in members(OLD, cohort)
                if value[OLD, cohort, encoder, metric] != value[NEW, cohort, encoder, metric]
            }
            assert changed == SIX
    assert set(PROVENANCE["generations"][NEW]["changes"]["recipes"]) == SIX


@pytest.mark.parametrize("metric", ["croma_f0", "support", "bio_bacc"])
def test_shares_are_whole_counts_of_the_units_that_provenance_states(metric: str) -> None:
    """Six digits of a share of n units leave n / 2,000,000 of a unit to rounding."""
    for row in FIGURES:
        if row["metric"] == metric:
            units = PROVENANCE["generations"][row["generation"]]["cohorts"][row["cohort"]]["units"]
            count = Decimal(row["value"]) * units
            assert abs(count - round(count)) <= Decimal(units) / 2_000_000 + Decimal("1e-9"), row


def test_ranges_are_those_of_the_metrics() -> None:
    for row in FIGURES:
        value = float(row["value"])
        if row["metric"] in ("croma_median", "croma_ltm10"):
            assert -1 <= value <= 1
        elif row["metric"] in SCORED:
            assert 0 <= value <= 1


def test_sources_agree_with_provenance() -> None:
    for row in FIGURES:
        facts = PROVENANCE["generations"][row["generation"]]
        source = facts["source"]
        assert row["source"] == f"sdist of {source['sdist']} {source['version']}, exported {facts['exported']}"
    known = PROVENANCE["generations"][NEW]["source"]["sha256"]
    assert known == "5162b9f9f3cad4b5febf6c689b975137bb36f79484d9295267e801c7cdef7951"
    assert PROVENANCE["generations"][OLD]["source"]["sha256"] is None, "nobody recorded it"


def test_controls_and_float16_encoders_are_in_the_panel() -> None:
    panel = load_panel()
    for name, generation in panel.generations.items():
        assert generation.controls == {"DINOv2-B"}
        assert generation.mixed_float16 < members(name, "camelyon")
        assert len(generation.mixed_float16) == 7
    assert panel.target == NEW


def test_a_recipe_is_the_same_in_both_generations_unless_it_is_one_of_the_six() -> None:
    panel = load_panel()
    same = {e for e in members(OLD, "camelyon") if panel.same_recipe(e, OLD, NEW) and panel.same_recipe(e, NEW, OLD)}
    assert members(OLD, "camelyon") - same == SIX
    assert panel.same_recipe("GPFM", OLD, OLD)
    assert not panel.same_recipe("UNI", "classical-1", NEW)
    assert not panel.same_recipe("UNI", "", NEW)


def test_what_a_benchmark_says_to_reproduce_is_published() -> None:
    cohorts = set(PROVENANCE["generations"][NEW]["cohorts"])
    declared = load_catalogue(Volume(ROOT / "no-volume"), ROOT / "manifests").benchmarks.values()
    assert {b.published for b in declared} - {None} <= cohorts


def test_an_image_is_given_both_files_to_build_its_wheel() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {"!results/published", "!results/PROVENANCE.json"} <= set(ignored)
    dockerfile = (ROOT / "images/Dockerfile").read_text(encoding="utf-8")
    copied = dockerfile.index("COPY results results")
    assert copied < dockerfile.index("hatchling build")
    assert not re.search(r"^!results/?$", "\n".join(ignored), re.M), "the phantom's tables have no place in an image"
