"""The same bytes whatever the threads, the hash seed, the block size, the directory order or the repetition."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from bench import add, bring, drawn, every_byte, metrics, scored
from builders import cohort_rows
from croma_bundle.layout import Volume

ROWS = cohort_rows(slides=6, tiles=10)  # 240 rows of width 192: enough for BLAS to use its threads
COMMIT = {"CROMA_GIT_COMMIT": "0" * 40}  # recorded in run.json; the checkout's may change while the tests run
ENCODERS = {"Biology": (2, 0.4), "Contested": (1, 1), "Centre": (0.4, 2)}


def matrices(rows):
    x = {name: drawn(rows, *s, seed=i, jitter=1.0, width=192) for i, (name, s) in enumerate(ENCODERS.items())}
    return {name: a.astype(np.float32) for name, a in x.items()}


@pytest.fixture
def large(volume, monkeypatch):
    """Scored once, in this process; the bytes of its metrics folder."""
    monkeypatch.setenv("CROMA_GIT_COMMIT", COMMIT["CROMA_GIT_COMMIT"])
    add(volume, "large", ROWS)
    bring(volume, "large", matrices(ROWS), controls=("Centre",))
    scored(volume, "large", cross=["large"])
    return every_byte(volume.root / "metrics")


def again(volume, large, **options):
    shutil.rmtree(volume.root / "metrics")
    scored(volume, "large", cross=["large"], **options)
    return every_byte(volume.root / "metrics") == large


def test_a_run_has_all_its_files(large):
    kept = [name for name in large if name.startswith(".surveys/")]
    assert len(kept) == len(ENCODERS)
    assert sorted(set(large) - set(kept)) == [
        "median-k/cross_benchmark.csv",
        "median-k/cross_benchmark.json",
        *(
            f"median-k/large/{name}"
            for name in ("k_sweep.csv", "m_sweep.csv", "metrics.csv", "metrics.json", "pairwise.csv")
        ),
        *(f"median-k/large/per_sample/{name}.csv.gz" for name in sorted(ENCODERS)),
        "median-k/large/run.json",
    ]


@pytest.mark.parametrize(("threads", "hash_seed"), [("1", "0"), ("2", "1"), ("2", "random"), ("1", "random")])
def test_threads_and_hash_seed_change_no_byte(volume, large, cli, threads, hash_seed):
    shutil.rmtree(volume.root / "metrics")
    environment = {**COMMIT, "PYTHONHASHSEED": hash_seed}
    cli("score", "--benchmark", "large", "--cross", "large", "--threads", threads, env=environment)
    assert every_byte(volume.root / "metrics") == large


@pytest.mark.parametrize("block", [1, 50, 1 << 40])
def test_the_block_size_changes_no_byte(volume, large, block):
    assert again(volume, large, block=block)


def test_repeating_a_run_over_its_own_output_changes_no_byte(volume, large):
    (volume.metrics("median-k", "large") / "run.json").unlink()  # with it, nothing is scored again
    scored(volume, "large", cross=["large"])
    assert every_byte(volume.root / "metrics") == large


def test_the_order_in_which_encoders_are_named_changes_no_byte(volume, large):
    scored(volume, "large", encoders=["Biology", "Contested"])
    first = every_byte(volume.root / "metrics")
    scored(volume, "large", encoders=["Contested", "Biology"])
    assert every_byte(volume.root / "metrics") == first


def test_the_order_of_the_directory_changes_no_byte(volume, large):
    memory = Path("/dev/shm")  # tmpfs lists the newest entry first; most disks list in an order of their own
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        copies = [Volume(Path(place) / f"copy{i}") for i in range(2)]
        for copy, backwards in zip(copies, (False, True), strict=True):
            shutil.copytree(volume.tilesets, copy.tilesets)
            copy.embeddings("large").mkdir(parents=True)
            for path in sorted(volume.embeddings("large").glob("[!.]*"), reverse=backwards):
                shutil.copy(path, copy.embeddings("large"))
        listings = [[path.name for path in copy.embeddings("large").iterdir()] for copy in copies]
        if listings[0] == listings[1]:
            pytest.skip("this file system lists both copies in one order")
        for copy in copies:
            scored(copy, "large", cross=["large"])
            assert every_byte(copy.root / "metrics") == large


@pytest.mark.parametrize("seed", [1, 2])
def test_permuting_manifest_and_matrices_changes_no_bit_of_a_metric(volume, large, seed):
    order = np.random.default_rng(seed).permutation(len(ROWS))
    add(volume, "permuted", [ROWS[i] for i in order])
    bring(volume, "permuted", {name: x[order] for name, x in matrices(ROWS).items()}, controls=("Centre",))
    scored(volume, "permuted")
    before, after = metrics(volume, "large"), metrics(volume, "permuted")
    assert list(before) == list(after)
    for encoder, row in before.items():
        other = after[encoder]
        assert {n for n in row if row[n] != other[n]} == {"benchmark", "matrix_sha256"}
