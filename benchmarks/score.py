"""Times the scorer beside the public croma package and beside the matrix product that it cannot do without.

    make bench                               # the three cohort geometries; croma on all of them takes about 15 minutes
    .venv-test/bin/python benchmarks/score.py tcga --no-croma
    .venv-test/bin/python benchmarks/score.py --growth     # how time grows with rows and width
    .venv-test/bin/python benchmarks/score.py --large      # 200,000 × 2,560 under --memory-limit 4G; takes long

Everything is measured in one run on one machine, each part in a process of its own, on synthetic embeddings with class,
centre and slide effects and a decaying spectrum. Score and croma are whole processes, from start to exit: the score
reads and hashes the matrix, computes both accuracies and RI, MaRI, support over the k grid, CRoMa at m = 1…20,
intervals, per-sample values, and writes the tables; croma computes its RI, MaRI and CRoMa and writes nothing. The
calls are what both compute, of a matrix and its rows in memory: from there to croma's three results, and to the text of
every table (checked and written elsewhere). The pass is the search for neighbours alone, with both accuracies; it and
the half product, the least of three runs each, taken in turn. The score and its calls are the median of three runs,
croma is one. Ratios, not seconds, carry over to other machines.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import statistics
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
LARGE = (2, 2, 1000, 50, 2560)
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
    x = np.empty((len(cell) * tiles, width), dtype=np.float32)
    for i, centre in enumerate(middle):
        z = centre + rng.normal(size=(tiles, RANK)) * scale
        x[i * tiles : (i + 1) * tiles] = z @ basis.T + 0.02 * rng.normal(size=(tiles, width)) + 0.3
    rows = [key for key in cell for _ in range(tiles)]
    return x, [f"l{a}" for a, _, _ in rows], [f"c{b}" for _, b, _ in rows], [f"{a}-{b}-{s}" for a, b, s in rows]


def compile_package() -> None:
    """To bytecode, as an installer does with croma: a checkout may not be allowed to by the environment."""
    import croma_bundle

    compileall.compile_dir(Path(croma_bundle.__file__).parent, quiet=1)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def bundle(folder: Path, *arguments: str) -> list[str]:
    """A command line of croma-bundle on the folder's volume."""
    return [sys.executable, "-m", "croma_bundle", "--volume", str(folder / "volume"), *arguments]


def prepare(shape: tuple[int, int, int, int, int], folder: Path) -> None:
    import csv

    import numpy as np

    x, labels, centres, slides = make(shape)
    np.save(folder / "x.npy", x)
    del x
    with (folder / "c.csv").open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["sample_id", "image_path", "label", "medical_center", "group_id"])
        writer.writerows(
            [f"t{i}", f"t{i}.png", *row] for i, row in enumerate(zip(labels, centres, slides, strict=True))
        )
    add = ["tiles", "add", "bench", "--manifest", str(folder / "c.csv"), "--no-images"]
    bring = ["import", "bench", "Synthetic", str(folder / "x.npy"), "--provenance", "benchmarks/score.py"]
    for arguments in (add, bring):
        subprocess.run(bundle(folder, *arguments), check=True, capture_output=True)


def survey_alone(folder: Path) -> tuple[float, float]:
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
    alone, floor = (min(times) for times in zip(*turns, strict=True))
    return alone, floor


def calls_alone(folder: Path) -> float:
    """The score of a checked matrix in memory, up to the text of every table."""
    import dataclasses

    import numpy as np

    from croma_bundle.layout import Volume
    from croma_bundle.manifests.catalogue import load_catalogue
    from croma_bundle.progress import Reporter
    from croma_bundle.scoring.roster import load_roster
    from croma_bundle.scoring.score import Knobs, score_benchmark
    from croma_bundle.scoring.tables import metrics_rows, per_sample_text, places
    from croma_bundle.scoring.view import build_view
    from croma_bundle.scoring.write import tables
    from croma_bundle.tilemanifest.manifest import load_manifest

    volume = Volume(folder / "volume")
    catalogue = load_catalogue(volume)
    benchmark, tileset = catalogue.benchmark("bench"), catalogue.tileset("bench")
    manifest, confounder = load_manifest(volume, tileset), str(tileset.confounder)
    prints = {"fingerprint": manifest.fingerprint(confounder), "pixels_sha256": None}
    members, _ = load_roster(volume, catalogue, "bench", **prints, wanted=None)
    members = [dataclasses.replace(member, matrix=np.array(member.matrix)) for member in members]
    view = build_view(volume, benchmark, manifest, confounder)

    def score() -> None:
        scored = score_benchmark(view, members, benchmark.protocol, Knobs(), Reporter())
        list(tables(scored, metrics_rows(scored)))
        for encoder in scored.encoders:
            list(per_sample_text(encoder, places(scored)))

    return statistics.median(timed(score) for _ in range(TURNS))


def croma(folder: Path) -> float:
    """The public package: RI and MaRI over the sparse grid, CRoMa at m = 1…20, as its pipeline computes them; the
    seconds of these calls."""
    import warnings

    import numpy as np
    import pandas as pd
    from croma import RI, CRoMa, MaRI

    warnings.simplefilter("ignore")
    x = np.load(folder / "x.npy")
    manifest = pd.read_csv(folder / "c.csv")
    design = {"confounder_column": "medical_center", "evaluation_design": "all"}
    grid = [1, 3, 5, 7, 9, *range(11, 100, 10)]
    began = time.perf_counter()
    for metric in (RI, MaRI):
        metric.compute(x, manifest, k_candidates=grid, **design)
    CRoMa.compute(x, manifest, m=list(range(1, 21)), **design)
    return time.perf_counter() - began


def part(name: str, folder: Path) -> list[str]:
    """The command line of a part of this script."""
    return [sys.executable, __file__, "--part", name, "--folder", str(folder)]


def measure(command: list[str], **environment: str) -> tuple[float, float, str]:
    """(seconds, peak MB, standard output) of a process."""
    with tempfile.TemporaryFile("w+") as said:
        began = time.perf_counter()
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if process.returncode:
            raise SystemExit(said.read())
        return seconds, usage.ru_maxrss / 1024, said.read()


ONE_BLAS_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
SCORE = ("score", "--benchmark", "bench")
HEAD = ["rows × width", "score", "peak", "calls", "pass", "half product", "pass / half product"]
BESIDE = ["croma", "peak", "its calls", "croma / score", "calls / calls"]


def score_anew(folder: Path) -> tuple[float, float]:
    """(seconds, peak MB) of a score of which nothing stands yet."""
    shutil.rmtree(folder / "volume/metrics", ignore_errors=True)
    return measure(bundle(folder, *SCORE))[:2]


def line(shape: tuple[int, int, int, int, int], folder: Path) -> tuple[list[str], float, float]:
    """The cells under HEAD, and the seconds of a score and of its calls."""
    prepare(shape, folder)
    alone, floor = map(float, measure(part("pass", folder), **ONE_BLAS_THREAD)[2].split())
    seconds, peak = map(statistics.median, zip(*[score_anew(folder) for _ in range(TURNS)], strict=True))
    calls = float(measure(part("calls", folder), **ONE_BLAS_THREAD)[2].split()[-1])
    rows = shape[0] * shape[1] * shape[2] * shape[3]
    cells = [f"{rows:,} × {shape[4]:,}", f"{seconds:.2f} s", f"{peak:,.0f} MB"]
    cells += [f"{calls:.2f} s", f"{alone:.2f} s", f"{floor:.2f} s", f"{alone / floor:.2f}"]
    return cells, seconds, calls


def compare(names: list[str], *, with_croma: bool) -> None:
    table = [["cohort", *HEAD, *(BESIDE if with_croma else [])]]
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            cells, seconds, calls = line(GEOMETRIES[name], Path(folder))
            if with_croma:
                theirs, their_peak, said = measure(part("croma", Path(folder)))
                their_calls = float(said.split()[-1])
                cells += [f"{theirs:.1f} s", f"{their_peak:,.0f} MB", f"{their_calls:.1f} s"]
                cells += [f"{theirs / seconds:.0f}×", f"{their_calls / calls:.0f}×"]
        table.append([name, *cells])
    show(table)


def growth() -> None:
    table = [HEAD]
    for rows, width in GROWTH:
        with tempfile.TemporaryDirectory() as folder:
            table.append(line((2, 2, rows // 200, 50, width), Path(folder))[0])
    show(table)


def large() -> None:
    """What a score of LARGE takes where 4 GB are allowed; mapped pages of the matrix are in the peak."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(LARGE, folder)
        seconds, peak, said = measure(bundle(folder, *SCORE, "--memory-limit", "4G"))
    print(said)
    print(f"{seconds:,.0f} s, peak {peak:,.0f} MB of memory and mapped pages of the matrix")


def show(table: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohorts", nargs="*", choices=[*GEOMETRIES, []], help="default: all")
    parser.add_argument("--no-croma", action="store_true", help="leave out the public package")
    parser.add_argument("--growth", action="store_true", help="how time grows with rows and width")
    parser.add_argument("--large", action="store_true", help="200,000 × 2,560 under --memory-limit 4G")
    parser.add_argument("--part", choices=["pass", "calls", "croma"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    compile_package()
    if asked.part == "pass":
        print(*survey_alone(asked.folder))
    elif asked.part == "calls":
        print(calls_alone(asked.folder))
    elif asked.part == "croma":
        print(croma(asked.folder))
    elif asked.large:
        large()
    elif asked.growth:
        growth()
    else:
        compare(asked.cohorts or list(GEOMETRIES), with_croma=not asked.no_croma)


if __name__ == "__main__":
    main()
