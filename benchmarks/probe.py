"""Times the probe sweep beside the public croma package, and compares every accuracy.

    make bench-probe ARGS="--replicates 20"
    .venv-test/bin/python benchmarks/probe.py --replicates 2

Camelyon geometry (20,400 in-domain rows, 2,002 out-of-domain, 1,536 columns; 8 splits, 15 values of C), synthetic rows
with class, centre and slide effects and a decaying spectrum. Ours is the whole command `probe`, tables and all, with
one process per core; the public package runs in one process with the BLAS threads it takes. Both sweep the same
replicates on one machine, one after the other. `--slide` sets the size of the slide effect: the larger, the further
the validation rows are from a perfect accuracy, at which a search for C ends early. Ratios, not seconds, carry over to
other machines.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WIDTH, RANK, SLIDES, ROWS, OOD = 1536, 40, 17, 300, 2002
CENTRES, LABELS = ("RUMC", "UMCU"), ("normal", "tumor")
COLUMNS = ["sample_id", "image_path", "label", "medical_center", "group_id", "apd_split"]


def make(slide_effect: float, seed: int = 3) -> tuple[Any, list[list[str]]]:
    """(x float32, rows under COLUMNS)."""
    import numpy as np

    rng = np.random.default_rng(seed)
    rows = [
        [label, centre, f"{label}-{centre}-{s}", "ID"]
        for label in LABELS
        for centre in CENTRES
        for s in range(SLIDES)
        for _ in range(ROWS)
    ]
    rows += [[LABELS[i % 2], "CWZ", f"CWZ-{i % 29}", "OOD"] for i in range(OOD)]
    scale = 1 / np.sqrt(np.arange(1, RANK + 1))
    z = rng.normal(size=(len(rows), RANK)) * scale
    for column, size in ((0, 1.0), (1, 1.0), (2, slide_effect)):
        effects = {key: rng.normal(size=RANK) * scale for key in sorted({row[column] for row in rows})}
        z += size * np.stack([effects[row[column]] for row in rows])
    basis = np.linalg.qr(rng.normal(size=(WIDTH, RANK)))[0]
    x = z @ basis.T + 0.02 * rng.normal(size=(len(rows), WIDTH)) + 0.3
    return x.astype(np.float32), [[f"t{i}", f"t{i}.png", *row] for i, row in enumerate(rows)]


def prepare(folder: Path, slide_effect: float) -> None:
    import csv

    import numpy as np

    from croma_bundle.probe.schedules import CAMELYON

    x, rows = make(slide_effect)
    np.save(folder / "x.npy", x)
    with (folder / "c.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([COLUMNS, *rows])
    command(folder, "tiles", "add", "bench", "--manifest", str(folder / "c.csv"), "--no-images")
    command(folder, "import", "bench", "Synthetic", str(folder / "x.npy"), "--provenance", "benchmarks/probe.py")
    keys = {"confounders": CAMELYON.confounders, "labels": CAMELYON.labels, "steps": CAMELYON.steps}
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    with (folder / "volume/tilesets/bench/tileset.toml").open("a") as handle:
        handle.write("\n".join(["", "[probe]", *lines, "max_slides = 14", f"rows_per_slide = {ROWS}", ""]))


def command(folder: Path, *arguments: str) -> None:
    whole = [sys.executable, "-m", "croma_bundle", "--volume", str(folder / "volume"), *arguments]
    subprocess.run(whole, check=True, capture_output=True)


def ours(folder: Path, replicates: int) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    arguments = ["--volume", str(folder / "volume"), "probe", "--benchmark", "bench", "--iterations", str(replicates)]
    whole = [sys.executable, "-m", "croma_bundle", *arguments]
    subprocess.run(whole, check=True, stdout=subprocess.DEVNULL)  # its progress goes to stderr
    seconds = time.perf_counter() - began
    written = json.loads((folder / "volume/probe/bench/accuracies/Synthetic.json").read_text())
    return seconds, written["accuracies"]


def croma(folder: Path, replicates: int) -> tuple[float, dict[str, Any]]:
    """The public package in a process of its own; its imports are left out of the seconds."""
    arguments = [sys.executable, __file__, "--croma", str(folder), "--replicates", str(replicates)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as running:
        said = watched(running)
    found = json.loads(said.splitlines()[-1])
    return found["seconds"], found["accuracies"]


def watched(running: subprocess.Popen[str]) -> str:
    """What a process prints by its end; a line every half minute says that it is at work."""
    began = time.perf_counter()
    while True:
        try:
            said, _ = running.communicate(timeout=30)
            break
        except subprocess.TimeoutExpired:
            print(f"croma   {time.perf_counter() - began:8.0f} s so far", file=sys.stderr, flush=True)
    if running.returncode:
        raise SystemExit(f"croma ended with {running.returncode}")
    return said


def croma_here(folder: Path, replicates: int) -> None:
    import csv
    import warnings

    import numpy as np
    from croma.downstream.probe import pathorob_schedule, probe_sweep_over_test_sets

    warnings.simplefilter("ignore")
    x = np.load(folder / "x.npy")
    with (folder / "c.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    label = np.array([LABELS.index(row["label"]) for row in rows])
    inside = np.array([row["apd_split"] == "ID" for row in rows])
    centre = np.array([CENTRES.index(row["medical_center"]) for row in rows if row["apd_split"] == "ID"])
    began = time.perf_counter()
    found = probe_sweep_over_test_sets(
        x[inside],
        centre,
        label[inside],
        schedule=pathorob_schedule("camelyon", rows_per_slide=ROWS),
        test_sets={"ood": (x[~inside], label[~inside])},
        rows_per_slide=ROWS,
        iterations=replicates,
    )
    seconds = time.perf_counter() - began
    accuracies = {"id": found["in_domain"].tolist(), "ood": found["ood"].tolist()}
    print(json.dumps({"seconds": seconds, "accuracies": accuracies}))


def compare(replicates: int, slide_effect: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, slide_effect)
        start = _cpu()
        our_seconds, found = ours(folder, replicates)
        middle = _cpu()
        our_cpu = middle - start
        print(f"probe   {our_seconds:8.1f} s, {our_cpu:8.1f} s of CPU, {replicates} replicates", flush=True)
        their_seconds, wanted = croma(folder, replicates)
        their_cpu = _cpu() - middle
    print(f"croma   {their_seconds:8.1f} s, {their_cpu:8.1f} s of CPU")
    print(f"ratio   {their_seconds / our_seconds:8.2f}    {their_cpu / our_cpu:8.2f}")
    pairs = [
        (a, b)
        for regime in ("id", "ood")
        for ours_of, theirs_of in zip(found[regime], wanted[regime], strict=True)
        for a, b in zip(ours_of, theirs_of, strict=True)
    ]
    same = sum(a == b for a, b in pairs)
    worst = max(abs(a - b) for a, b in pairs)
    print(f"accuracies equal: {same} of {len(pairs)}, largest difference {worst:.3g}")
    print(f"accuracies identical: {'yes' if same == len(pairs) else 'no'}")
    print("baseline, most confounded (mean):", *(f"{r} {_mean(found[r][0])} {_mean(found[r][-1])}" for r in found))


def _cpu() -> float:
    """CPU seconds of all processes that have ended, which other work on the machine moves less than time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=20)
    parser.add_argument("--slide", type=float, default=0.5, help="size of the slide effect")
    parser.add_argument("--croma", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.croma:
        croma_here(asked.croma, asked.replicates)
    else:
        compare(asked.replicates, asked.slide)


if __name__ == "__main__":
    main()
