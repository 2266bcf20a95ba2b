"""The demo's steps on a small phantom: tiles → embeddings → scores, all through the command line."""

import csv

import pytest

SMALL = ("--slides-per-cell", "2", "--tiles-per-slide", "3")
CLASSICAL = ["ColourStatistics", "GaborEnergy", "HaematoxylinTexture", "Thumbnail"]


def metrics(volume, benchmark):
    with (volume.root / "metrics/median-k" / benchmark / "metrics.csv").open(newline="") as handle:
        return {row["encoder"]: row for row in csv.DictReader(handle)}


def phantom(cli, name, *options):
    cli("tiles", "phantom", name, *SMALL, *options)
    cli("tiles", "fetch", name, "--workers", "0")


@pytest.fixture
def small(cli):
    phantom(cli, "small", "--tile-size", "64")


def embed(cli, name, *options):
    return cli("embed", "--family", "classical", "--tileset", name, "--workers", "0", *options).stdout.splitlines()


def test_the_phantom_runs_end_to_end_and_a_second_run_skips_what_is_there(volume, cli, small):
    # 3 tissues × 3 centres × 2 slides × 3 tiles
    assert [line.split(", ")[0] for line in embed(cli, "small")] == [
        f"small · {name}: embedded" for name in ("ColourStatistics", "Thumbnail", "HaematoxylinTexture", "GaborEnergy")
    ]
    said = cli("score", "--benchmark", "small", "--protocol", "median-k").stdout.splitlines()
    assert said[0].startswith("small · median-k, k = ")
    assert said[0].endswith("(lower median of all 4 k*: no voter is scored), m = 5 · confounder medical_center · "
                            "54 samples of 18 groups")  # fmt: skip
    assert said[2:4] == ["  (no encoder to rank)", "controls, not ranked"]
    assert sorted(line.split()[0] for line in said[4:8]) == CLASSICAL
    assert "…" not in "".join(said)
    rows = metrics(volume, "small")
    assert sorted(rows) == CLASSICAL
    assert {(row["is_control"], row["external"], row["device"], row["n_units"]) for row in rows.values()} == {
        ("true", "false", "cpu", "54")
    }
    before = {path: path.read_bytes() for path in volume.embeddings("small").glob("*.npy*")}
    assert all(": up to date, skipped" in line for line in embed(cli, "small"))
    assert before == {path: path.read_bytes() for path in volume.embeddings("small").glob("*.npy*")}
    assert "54 tiles are there" in cli("tiles", "fetch", "small").stderr
    tables = volume.root / "metrics/median-k/small"
    kept = {path.name: path.read_bytes() for path in tables.glob("*.*")}
    cli("score", "--benchmark", "small", "--protocol", "median-k")
    assert kept == {path.name: path.read_bytes() for path in tables.glob("*.*")}
    assert "(largest difference 0)" in cli("verify", "tables", tables, tables).stdout
    assert len(cli("verify", "artifacts").stdout.splitlines()) == 4


def test_the_stronger_the_centres_the_lower_the_margin_of_colours(volume, cli):
    strengths = ("0", "1", "2")
    for strength in strengths:
        phantom(cli, f"s{strength}", "--tile-size", "32", "--tiles-per-slide", "2", "--centre-strength", strength)
        embed(cli, f"s{strength}", "--encoders", "ColourStatistics")
    cli("score")
    medians = [float(metrics(volume, f"s{strength}")["ColourStatistics"]["croma_median"]) for strength in strengths]
    assert medians[0] > medians[1] > medians[2]
    assert medians[0] > 0 > medians[2]  # tissue decides where centres are identical, the centre where they are not
