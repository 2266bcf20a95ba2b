"""Intervals, pairwise.csv and rank intervals as written, against a recomputation from the tables of samples alone."""

import fcntl
import gzip
import math
import os
import pty
import struct
import subprocess
import sys
import termios

import numpy as np
import pytest

from bench import add, bring, drawn, every_byte, folder, metrics, run_json, score, scored, table
from builders import cohort_rows
from croma_bundle.errors import ArtifactError
from croma_bundle.metrics.ranking import resolvable
from croma_bundle.scoring.cross import cross_benchmark

ROWS = cohort_rows(slides=4, tiles=3)
ENCODERS = {"Zeta": (2, 0.4), "Alpha": (2, 0.45), "Middle": (1, 1), "Ctl": (0.4, 2)}
PAIRWISE = ["benchmark", "a", "b", "win_rate_median", "win_rate_ltm10", "resolvable_median", "resolvable_ltm10"]
INTERVALS = [f"croma_{what}_{end}" for what in ("median", "ltm10", "f0") for end in ("lo", "hi")]


def matrices(rows, seed=0):
    return {name: drawn(rows, *strengths, seed=seed + i) for i, (name, strengths) in enumerate(ENCODERS.items())}


@pytest.fixture
def plain(volume):
    """Four encoders, one of them a control, on 48 rows of 16 slides."""
    add(volume, "plain", ROWS)
    bring(volume, "plain", matrices(ROWS), controls=("Ctl",))
    scored(volume, "plain")
    return volume


def paired_rows():
    """Two complete subsets that share slides, and an incomplete one with slides of its own."""
    complete = [
        {**row, "subset": subset} for subset in ("s1", "s2") for row in ROWS if row["sample_id"][-1] != subset[1]
    ]
    lost = [
        {**row, "subset": "s3", "group_id": f"a-{row['group_id']}", "sample_id": f"a-{row['sample_id']}"}
        for row in ROWS
        if row["label"] == "normal"
    ]
    return complete + lost


@pytest.fixture
def paired(volume):
    rows = paired_rows()
    add(volume, "paired", rows, design="paired_2x2")
    tiles = list({row["sample_id"]: row for row in rows}.values())
    bring(volume, "paired", matrices(tiles), controls=("Ctl",))
    scored(volume, "paired")
    return volume


def recomputed(volume, benchmark, encoder, *, m=5, seed=0):
    """(2000, 3) median, LTM10 and F0 of each replicate, by repeating the rows of the encoder's table of samples."""
    rows = table(folder(volume, benchmark) / f"per_sample/{encoder}.csv.gz")
    names = sorted({row["group_id"] for row in rows})
    of_group = [[row for row in rows if row["group_id"] == name] for name in names]
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(2000):
        pool = [row for i in rng.integers(0, len(names), len(names)) for row in of_group[i]]
        values = np.array([float(row[f"croma_m{m}"]) for row in pool])
        subset = np.array([row["subset"] for row in pool])
        low = values[values <= np.percentile(values, 10)]
        median = np.median([np.median(values[subset == s]) for s in np.unique(subset)])
        found.append((median, math.fsum(low) / len(low), np.mean(values <= 0)))
    return np.array(found)


# --- metrics.csv ---


@pytest.mark.parametrize("design", ["plain", "paired"])
def test_the_intervals_are_those_of_repeating_the_written_samples(design, request):
    volume = request.getfixturevalue(design)
    for encoder, row in metrics(volume, design).items():
        wanted = np.percentile(recomputed(volume, design, encoder), [2.5, 97.5], axis=0).T.ravel()
        assert [row[name] for name in INTERVALS] == [repr(float(value)) for value in wanted], encoder


def test_the_point_value_lies_in_its_interval(plain):
    for row in metrics(plain, "plain").values():
        for what in ("median", "ltm10", "f0"):
            lo, point, hi = (float(row[f"croma_{what}{end}"]) for end in ("_lo", "", "_hi"))
            assert lo <= point <= hi


def test_where_there_is_no_croma_there_is_no_interval_and_no_pair(volume):
    add(volume, "plain", ROWS)
    bring(volume, "plain", {**matrices(ROWS), "Flat": np.ones((len(ROWS), 3))}, controls=("Ctl",))
    _, error = score(volume, "plain")
    assert "no CRoMa" in str(error)
    rows = metrics(volume, "plain")
    assert {rows["Flat"][name] for name in INTERVALS} == {""}
    assert all(rows[e][name] for e in ENCODERS for name in INTERVALS)
    pairs = table(folder(volume, "plain") / "pairwise.csv")
    assert "Flat" not in {row[side] for row in pairs for side in "ab"}


# --- the seed ---


def test_the_seed_is_a_knob_that_is_recorded_and_moves_intervals_alone(plain, cli):
    before = every_byte(folder(plain, "plain"))
    zero = metrics(plain, "plain")
    assert run_json(plain, "plain")["replay"]["seed"] == 0
    cli("score", "--benchmark", "plain", "--seed", "7")
    assert run_json(plain, "plain")["replay"]["seed"] == 7
    seven = metrics(plain, "plain")
    moved = {name for encoder in zero for name in zero[encoder] if zero[encoder][name] != seven[encoder][name]}
    assert moved
    assert moved <= set(INTERVALS)
    wanted = np.percentile(recomputed(plain, "plain", "Middle", seed=7)[:, 0], [2.5, 97.5])
    assert [float(seven["Middle"][f"croma_median_{end}"]) for end in ("lo", "hi")] == wanted.tolist()
    after = every_byte(folder(plain, "plain"))
    different = {name for name in before if before[name] != after[name]}
    assert different <= {"metrics.csv", "metrics.json", "pairwise.csv", "run.json"}


def test_a_negative_seed_is_a_usage_error(volume, cli):
    assert "--seed" in cli("score", "--seed", "-1", exits=2).stderr


# --- pairwise.csv ---


def test_pairs_are_of_ranked_encoders_in_name_order_with_their_shared_replicates(plain):
    rows = table(folder(plain, "plain") / "pairwise.csv")
    assert list(rows[0]) == PAIRWISE
    assert [(row["a"], row["b"]) for row in rows] == [("Alpha", "Middle"), ("Alpha", "Zeta"), ("Middle", "Zeta")]
    replicates = {e: recomputed(plain, "plain", e) for e in ENCODERS}
    points = metrics(plain, "plain")
    for row in rows:
        a, b = row["a"], row["b"]
        assert row["benchmark"] == "plain"
        for i, what in enumerate(("median", "ltm10")):
            assert float(row[f"win_rate_{what}"]) == np.mean(replicates[a][:, i] > replicates[b][:, i])
            apart = resolvable(*(float(points[e][f"croma_{what}"]) for e in (a, b)))
            assert row[f"resolvable_{what}"] == str(apart).lower()


def test_one_ranked_encoder_makes_no_pair_and_an_older_table_of_pairs_is_removed(plain):
    assert "pairwise.csv" in run_json(plain, "plain")["outputs"]
    scored(plain, "plain", encoders=["Zeta", "Ctl"])
    assert not (folder(plain, "plain") / "pairwise.csv").exists()
    assert "pairwise.csv" not in run_json(plain, "plain")["outputs"]


# --- cross_benchmark.csv ---


@pytest.fixture
def crossed(plain):
    """`plain` and a second cohort, which has a design, groups and an encoder of its own, under one cross table."""
    rows = paired_rows()
    add(plain, "paired", rows, design="paired_2x2")
    tiles = list({row["sample_id"]: row for row in rows}.values())
    bring(plain, "paired", {**matrices(tiles, seed=20), "Extra": drawn(tiles, 1, 1, seed=9)}, controls=("Ctl",))
    scored(plain, "paired", cross=["plain", "paired"])
    return plain


def cross_rows(volume):
    return {row["encoder"]: row for row in table(volume.root / "metrics/median-k/cross_benchmark.csv")}


def mean_ranks(volume, seeds):
    """Mean rank of each ranked encoder in each replicate, counted one by one."""
    ranked = [e for e in sorted(ENCODERS) if e != "Ctl"]
    total = {e: np.zeros(2000) for e in ranked}
    for benchmark, seed in seeds.items():
        replicates = {e: recomputed(volume, benchmark, e, seed=seed) for e in ranked}
        for e in ranked:
            for what in (0, 1):
                beaten_by = [replicates[other][:, what] > replicates[e][:, what] for other in ranked]
                total[e] += 1 + np.sum(beaten_by, axis=0)
    return {e: ranks / (2 * len(seeds)) for e, ranks in total.items()}


def test_rank_intervals_resample_every_cohort_once_for_all_encoders(crossed):
    rows = cross_rows(crossed)
    for encoder, ranks in mean_ranks(crossed, {"plain": 0, "paired": 0}).items():
        found = [float(rows[encoder][name]) for name in ("rank_lo", "rank_hi")]
        assert found == pytest.approx(np.percentile(ranks, [2.5, 97.5]).tolist(), abs=1e-12)
        assert found[0] <= float(rows[encoder]["mean_rank"]) <= found[1]
    assert (rows["Ctl"]["rank_lo"], rows["Ctl"]["rank_hi"]) == ("", "")
    assert "Extra" not in rows
    assert any(row["rank_lo"] != row["rank_hi"] for row in rows.values())


def test_each_cohort_is_resampled_with_the_seed_of_its_own_run(crossed):
    scored(crossed, "plain", seed=5, cross=["plain", "paired"])
    rows = cross_rows(crossed)
    for encoder, ranks in mean_ranks(crossed, {"plain": 5, "paired": 0}).items():
        found = [float(rows[encoder][name]) for name in ("rank_lo", "rank_hi")]
        assert found == pytest.approx(np.percentile(ranks, [2.5, 97.5]).tolist(), abs=1e-12)


@pytest.mark.parametrize("damage", ["changed", "cut off", "missing"])
def test_a_table_of_samples_that_is_not_its_runs_is_refused(crossed, damage):
    path = folder(crossed, "plain") / "per_sample/Middle.csv.gz"
    if damage == "changed":
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"0.1", b"0.2")))
    elif damage == "cut off":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.unlink()
    with pytest.raises(ArtifactError, match=r"Middle.csv.gz: it is not the table that its run.json states") as caught:
        cross_benchmark(crossed, "median-k", ["plain", "paired"])
    assert "croma-bundle score --protocol median-k --benchmark plain" in str(caught.value)


def test_names_with_commas_and_quotes_keep_their_columns_apart(volume):
    rows = [{**row, "group_id": f'{row["group_id"]}, "b"', "sample_id": f'x,{row["sample_id"]}"'} for row in ROWS]
    add(volume, "odd", rows)
    bring(volume, "odd", matrices(ROWS), controls=("Ctl",))
    add(volume, "plain", ROWS)
    bring(volume, "plain", matrices(ROWS), controls=("Ctl",))
    intervals = []
    for name in ("odd", "plain"):
        scored(volume, name, cross=[name])
        intervals.append({e: (row["rank_lo"], row["rank_hi"]) for e, row in cross_rows(volume).items()})
    assert intervals[0] == intervals[1]


# --- the terminal ---


def said(volume, columns=None):
    """What `score` prints: into a pipe, or to a terminal of so many columns."""
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(volume.root), "score", "--benchmark", "plain"]
    environment = {**os.environ, "COLUMNS": "10"}
    if columns is None:
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    reading, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    run = subprocess.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL, env=environment)
    os.close(terminal)
    text = b""
    try:
        while block := os.read(reading, 1 << 16):
            text += block
    except OSError:  # how a terminal says that its writer is gone
        pass
    os.close(reading)
    assert run.wait() == 0
    return text.decode().replace("\r\n", "\n")


def test_the_interval_stands_beside_the_median_in_a_pipe_and_where_the_terminal_is_wide(plain):
    row = metrics(plain, "plain")["Zeta"]
    lo, point, hi = (f"{float(row[f'croma_median{end}']):+.3f}" for end in ("_lo", "", "_hi"))
    for text in (said(plain), said(plain, 140)):
        (line,) = [line for line in text.splitlines() if line.startswith("  Zeta")]
        assert f"{point}  [{lo}, {hi}]" in line


def test_a_narrow_terminal_has_the_table_without_the_interval(plain):
    text = said(plain, 110)
    assert "95 % interval" not in text
    assert max(len(line) for line in text.splitlines() if line.startswith("  Zeta")) <= 110
    assert f"{float(metrics(plain, 'plain')['Zeta']['croma_median']):+.3f}" in text


def test_one_line_counts_the_pairs_that_the_median_does_not_tell_apart_and_names_three(volume):
    add(volume, "plain", ROWS)
    x = drawn(ROWS, 2, 0.4, seed=1)
    bring(volume, "plain", {f"Twin{i}": x * 2**i for i in range(4)} | {"Other": drawn(ROWS, 1, 1)})
    # four scales of one embedding have one median: 6 of the 10 pairs
    line = "  note: 6 of 10 ranked pairs not resolvable on the CRoMa median: "
    assert f"{line}Twin0 ~ Twin1, Twin0 ~ Twin2, Twin0 ~ Twin3 and 3 more" in said(volume).splitlines()


def test_a_single_ranked_encoder_has_no_line_of_pairs(volume):
    add(volume, "plain", ROWS)
    bring(volume, "plain", {"One": drawn(ROWS, 1, 1), "Ctl": drawn(ROWS, 1, 1, seed=2)}, controls=("Ctl",))
    assert "resolvable" not in said(volume)
