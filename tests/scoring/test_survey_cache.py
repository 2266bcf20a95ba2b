"""Kept surveys and the memory limit: they change how long a score takes and how much memory, never a byte of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from builders import cohort_rows, write_csv
from croma_bundle.errors import EnvironmentFault, UsageError
from croma_bundle.metrics.neighbours import typed_neighbours
from croma_bundle.scoring import memory
from croma_bundle.scoring.memory import half_of_free, parse_size, plan


@pytest.fixture
def cohort(cli, tmp_path: Path):
    """A tileset `c` of 48 rows without images, and a function that imports a random encoder into it."""
    rows = cohort_rows(slides=4, tiles=3)
    cli("tiles", "add", "c", "--manifest", write_csv(tmp_path / "c.csv", rows), "--no-images")

    def add(name: str, seed: int, *options: str) -> None:
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(seed).normal(size=(len(rows), 8)).astype(np.float32))
        cli("import", "c", name, tmp_path / f"{name}.npy", "--provenance", "random", *options)

    return add


def tables(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def surveys(volume) -> dict[str, int]:
    """Kept survey → when it was written, in nanoseconds."""
    folder = volume.root / "metrics" / ".surveys"
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*.npz")}


def test_a_second_score_reads_the_kept_surveys_and_gives_the_same_bytes(cli, volume, cohort):
    cohort("A", 1)
    cli("score")
    before, kept = tables(volume.metrics("median-k", "c")), surveys(volume)
    assert len(kept) == 1
    shutil.rmtree(volume.protocol("median-k"))
    cli("score")
    assert tables(volume.metrics("median-k", "c")) == before
    assert surveys(volume) == kept


def test_adding_an_encoder_surveys_only_it(cli, volume, cohort):
    cohort("A", 1)
    cli("score")
    kept = surveys(volume)
    cohort("B", 2)
    cli("score")
    assert surveys(volume).items() > kept.items()
    assert len(surveys(volume)) == 2
    warm = tables(volume.metrics("median-k", "c"))
    shutil.rmtree(volume.root / "metrics")
    cli("score")
    assert tables(volume.metrics("median-k", "c")) == warm


def test_a_replaced_matrix_is_surveyed_anew_and_the_old_survey_goes(cli, volume, cohort):
    cohort("A", 1)
    cli("score")
    (old,) = surveys(volume)
    cohort("A", 2, "--force")
    cli("score")
    (new,) = surveys(volume)
    assert new != old
    again = tables(volume.metrics("median-k", "c"))
    shutil.rmtree(volume.root / "metrics")
    cli("score")
    assert tables(volume.metrics("median-k", "c")) == again


@pytest.mark.parametrize("options", [("--k-max", "5"), ("--k", "4"), ("--k-grid", "dense"), ("--confounder", "slide")])
def test_another_grid_pinned_k_or_confounder_is_another_survey(cli, volume, tmp_path, options):
    rows = [{**row, "slide": f"s{i % 3}"} for i, row in enumerate(cohort_rows(slides=4, tiles=3))]
    cli("tiles", "add", "c", "--manifest", write_csv(tmp_path / "c.csv", rows), "--no-images")
    np.save(tmp_path / "A.npy", np.random.default_rng(1).normal(size=(len(rows), 8)).astype(np.float32))
    cli("import", "c", "A", tmp_path / "A.npy", "--provenance", "random")
    cli("score")
    cli("score", *options)
    assert len(surveys(volume)) == 2


@pytest.mark.parametrize("damage", [b"", b"not a zip", None])
def test_a_damaged_survey_is_computed_again(cli, volume, cohort, damage):
    cohort("A", 1)
    cli("score")
    before = tables(volume.metrics("median-k", "c"))
    (path,) = (volume.root / "metrics" / ".surveys").rglob("*.npz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content) if damage is None else damage)
    shutil.rmtree(volume.protocol("median-k"))
    cli("score")
    assert tables(volume.metrics("median-k", "c")) == before


@pytest.mark.parametrize(
    ("text", "wanted"), [("4G", 4 * 2**30), ("500M", 500 * 2**20), ("1.5g", 3 * 2**29), ("2GiB", 2**31), ("1024", 1024)]
)
def test_sizes_are_binary(text, wanted):
    assert parse_size(text) == wanted


@pytest.mark.parametrize("text", ["", "much", "-1G", "0", "4X", "4 5G"])
def test_what_is_no_size_is_a_usage_error(text):
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)


def test_half_of_free_memory_is_less_than_half_of_all():
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < half_of_free() <= int(total.split()[1]) * 1024 // 2


def test_less_memory_gives_up_the_held_copy_then_the_large_blocks_then_the_threads_then_refuses():
    size = {"rows": 200_000, "width": 2560, "itemsize": 4, "k": 91, "m": 20}
    ways = [plan(limit, "b", **size, threads=2) for limit in (2**40, 4 * 2**30)]
    assert [way.hold for way in ways] == [True, False]
    assert all(way.needed <= limit for way, limit in zip(ways, (2**40, 4 * 2**30), strict=True))
    smallest = memory.needed(memory.SMALL_BLOCK, False, 1, **size)
    assert plan(smallest, "b", **size, threads=2).threads == 1
    with pytest.raises(EnvironmentFault, match=r"at least 3\.\d GB for 200,000 rows × 2,560"):
        plan(smallest - 1, "b", **size, threads=2)


def test_the_limit_changes_no_byte_and_the_estimate_is_said_first(cli, volume, cohort):
    cohort("A", 1)
    free = cli("score")
    assert free.stderr.startswith("benchmark c: about 0.1 GB of ")
    before = tables(volume.metrics("median-k", "c"))
    shutil.rmtree(volume.root / "metrics")
    cli("score", "--memory-limit", "200M", "--threads", "1")
    assert tables(volume.metrics("median-k", "c")) == before
    shutil.rmtree(volume.root / "metrics")
    cli("score", "--memory-limit", "1M", exits=4)
    assert json.loads(before["run.json"])["replay"].keys() & {"threads", "memory_limit"} == set()


def test_the_peak_stays_below_the_estimate():
    import tracemalloc

    n, width = 6000, 200
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, width)).astype(np.float32)
    labels, confounders, groups = (rng.integers(0, size, n) for size in (2, 2, 100))
    for block, hold in ((1024, True), (256, False)):
        tracemalloc.start()
        try:
            typed_neighbours(
                x, labels, confounders, groups, k=91, m=20, cuts=(1, 11, 91), block=block, hold=hold, threads=2
            )
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        allowed = memory.needed(block, hold, 2, rows=n, width=width, itemsize=4, k=91, m=20) - memory.BASE
        assert peak < allowed - n * width * 4  # x itself was there before
