"""Times the scorer beside the public croma package and beside the matrix product that it cannot do without.

    make bench                               # the three cohort geometries; croma on all of them takes about 15 minutes
    .venv-test/bin/python benchmarks/score.py tcga --no-croma
    .venv-test/bin/python benchmarks/score.py --growth     # how time grows with rows and width

Everything is measured in one run on one machine, each part in a process of its own, on synthetic embeddings with class,
centre and slide effects and a decaying spectrum. The score is the whole command: it reads and hashes the matrix,
computes both accuracies and RI, MaRI, support over the k grid, CRoMa at m = 1…20, per-sample values, and writes the
tables. The pass is the search for neighbours alone, with both accuracies, of a matrix in memory; it and the half
product, the least of three runs each, taken in turn. Ratios, not seconds, carry over to other machines.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GEOMETRIES = {  # labels, centres, slides per cell, tiles per slide, width
    "tcga": (4, 4, 12, 30, 1536),
    "tolkach": (6, 3, 5, 100, 1536),
    "camelyon": (2, 2, 17, 300, 1536),
}
GROWTH = [(5_000, 1024), (10_000, 1024), (20_000, 1024), (40_000, 1024), (80_000, 1024), (20_000, 512), (20_000, 2560)]
RANK = 40
TURNS = 3


def make(shape: tuple[int, int, int, int, int], seed: int = 0) -> tuple[Any, list[str], list[str], list[str]]:
    """(x float32, labels, centres, slides) of a cohort; texts."""
    import numpy as np

    labels, centres, slides, tiles, width = shape
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(width, RANK)))[0]
    scale = 1 / np.sqrt(np.arange(1, RANK + 1))
    cell = [(a, b, s) for a in range(labels) for b in range(centres) for s in range(slides)]
    effect = {key: rng.normal(size=RANK) * scale for key in [*range(100), *(f"c{i}" for i in range(100)), *cell]}
    middle = np.stack([effect[a] + effect[f"c{b}"] + 0.5 * effect[a, b, s] for a, b, s in cell])
    z = np.repeat(middle, tiles, axis=0)
    z += rng.normal(size=z.shape) * scale
    x = (z @ basis.T + 0.02 * rng.normal(size=(len(z), width)) + 0.3).astype(np.float32)
    rows = [key for key in cell for _ in range(tiles)]
    return x, [f"l{a}" for a, _, _ in rows], [f"c{b}" for _, b, _ in rows], [f"{a}-{b}-{s}" for a, b, s in rows]


def ours(folder: Path) -> list[float]:
    """The whole command `score`, tables and all, over an imported matrix."""
    return [timed(lambda: run(["score", "--benchmark", "bench"], folder))]


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def run(arguments: list[str], folder: Path) -> None:
    from croma_bundle.cli import main

    try:
        main(["--volume", str(folder / "volume"), *arguments])
    except SystemExit as done:
        if done.code:
            raise


def prepare(shape: tuple[int, int, int, int, int], folder: Path) -> None:
    import csv

    import numpy as np

    x, labels, centres, slides = make(shape)
    np.save(folder / "x.npy", x)
    with (folder / "c.csv").open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["sample_id", "image_path", "label", "medical_center", "group_id"])
        writer.writerows(
            [f"t{i}", f"t{i}.png", *row] for i, row in enumerate(zip(labels, centres, slides, strict=True))
        )
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(folder / "volume")]
    add = ["tiles", "add", "bench", "--manifest", str(folder / "c.csv"), "--no-images"]
    bring = ["import", "bench", "Synthetic", str(folder / "x.npy"), "--provenance", "benchmarks/score.py"]
    for arguments in (add, bring):
        subprocess.run([*command, *arguments], check=True, capture_output=True)


def survey_alone(folder: Path) -> list[float]:
    """The pass, and its floor: every block pair i ≤ j of the float32 product, on as many threads, nothing kept."""
    import csv
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    from croma_bundle.metrics.cohort import Cohort
    from croma_bundle.metrics.operating_k import k_grid
    from croma_bundle.metrics.survey import survey

    x = np.load(folder / "x.npy")
    with (folder / "c.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    cohort = Cohort.from_columns(*([row[name] for row in rows] for name in ("label", "medical_center", "group_id")))

    def walk(i: int) -> None:
        for j in range(i, len(x), 1024):
            x[i : i + 1024] @ x[j : j + 1024].T

    def half_product() -> None:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(walk, range(0, len(x), 1024)))

    parts = (lambda: survey(x, cohort, grid=k_grid("sparse", 100)), half_product)
    turns = [[timed(part) for part in parts] for _ in range(TURNS)]
    return [min(times) for times in zip(*turns, strict=True)]


def croma(folder: Path) -> list[float]:
    """The public package: RI and MaRI over the sparse grid, CRoMa at m = 1…20, as its pipeline computes them."""
    import warnings

    import numpy as np
    import pandas as pd
    from croma import RI, CRoMa, MaRI

    warnings.simplefilter("ignore")
    x = np.load(folder / "x.npy")
    manifest = pd.read_csv(folder / "c.csv")
    design = {"confounder_column": "medical_center", "evaluation_design": "all"}
    grid = [1, 3, 5, 7, 9, *range(11, 100, 10)]

    def compute() -> None:
        for metric in (RI, MaRI):
            metric.compute(x, manifest, k_candidates=grid, **design)
        CRoMa.compute(x, manifest, m=list(range(1, 21)), **design)

    return [timed(compute)]


PARTS = {"ours": ours, "pass": survey_alone, "croma": croma}


def measure(part: str, folder: Path) -> tuple[list[float], float]:
    """(seconds, peak MB) of a part in a process of its own; the imports of the part are left out of the seconds."""
    command = [sys.executable, __file__, "--part", part, "--folder", str(folder)]
    threads = {} if part == "croma" else dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    done = subprocess.run(command, env={**os.environ, **threads}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    *seconds, peak = map(float, done.stderr.strip().splitlines()[-1].split())
    return seconds, peak


HEAD = ["rows × width", "score", "peak", "pass", "half product", "pass / half product"]


def line(shape: tuple[int, int, int, int, int], folder: Path) -> tuple[list[str], float]:
    """The cells under HEAD, and the seconds of a score."""
    prepare(shape, folder)
    (alone, floor), _ = measure("pass", folder)
    (seconds,), peak = measure("ours", folder)
    rows = shape[0] * shape[1] * shape[2] * shape[3]
    cells = [f"{rows:,} × {shape[4]:,}", f"{seconds:.2f} s", f"{peak:,.0f} MB", f"{alone:.2f} s", f"{floor:.2f} s"]
    return [*cells, f"{alone / floor:.2f}"], seconds


def compare(names: list[str], *, with_croma: bool) -> None:
    table = [["cohort", *HEAD, *(["croma", "peak", "croma / score"] if with_croma else [])]]
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            cells, seconds = line(GEOMETRIES[name], Path(folder))
            if with_croma:
                (theirs,), their_peak = measure("croma", Path(folder))
                cells += [f"{theirs:.1f} s", f"{their_peak:,.0f} MB", f"{theirs / seconds:.0f}×"]
        table.append([name, *cells])
    show(table)


def growth() -> None:
    table = [HEAD]
    for rows, width in GROWTH:
        with tempfile.TemporaryDirectory() as folder:
            table.append(line((2, 2, rows // 200, 50, width), Path(folder))[0])
    show(table)


def show(table: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohorts", nargs="*", choices=[*GEOMETRIES, []], help="default: all")
    parser.add_argument("--no-croma", action="store_true", help="leave out the public package")
    parser.add_argument("--growth", action="store_true", help="how time grows with rows and width")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        seconds = PARTS[asked.part](asked.folder)
        print(*seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)
    elif asked.growth:
        growth()
    else:
        compare(asked.cohorts or list(GEOMETRIES), with_croma=not asked.no_croma)


if __name__ == "__main__":
    main()
