"""`probe`: the confounder-biased sweep of every embedded tileset that has a schedule, and its tables."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from croma_bundle.artifacts.pair import embedded
from croma_bundle.durable import json_bytes, lock, remove, sweep_temporaries, write_bytes, write_json
from croma_bundle.errors import BundleError, EnvironmentFault, InputError, raise_all
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Benchmark
from croma_bundle.probe.arrange import arrangements, replicate_seeds
from croma_bundle.progress import Reporter
from croma_bundle.scoring.memory import half_of_free
from croma_bundle.scoring.probe_cohort import ProbeCohort, probe_cohort, schedule_of
from croma_bundle.scoring.probe_record import inputs_of, planned, resolved, stands
from croma_bundle.scoring.probe_tables import CURVES, PROBE, Rows, Swept, record, reduced
from croma_bundle.scoring.probe_units import Accuracies, Unit, identity, kept, run_unit
from croma_bundle.scoring.record import ORDER
from croma_bundle.scoring.roster import Member, frozen_pixels, load_roster
from croma_bundle.scoring.tables import as_records
from croma_bundle.tilemanifest.manifest import load_manifest
from croma_bundle.tilemanifest.table import csv_text

Spread = Callable[[Callable[[Any], Any], Iterable[Any], int], Iterator[Any]]
"""Computes a function of every item in so many processes (0: here), results in the order of the items."""
BASE = 300 * 2**20
"""Bytes of a worker before it has any rows: Python, numpy, scipy, scikit-learn."""


@dataclass(frozen=True)
class Sweep:
    """What to sweep; None means all that can be. `processes`: None is one per core, as memory allows."""

    benchmarks: Sequence[str] | None = None
    encoders: Sequence[str] | None = None
    iterations: int = 20
    seed: int = 1000
    processes: int | None = None

    def replay(self, benchmark: str) -> dict[str, Any]:
        """What decides the accuracies of one benchmark."""
        encoders = sorted(self.encoders) if self.encoders is not None else None
        return {"benchmark": benchmark, "encoders": encoders, "iterations": self.iterations, "seed": self.seed}


def probe_all(volume: Volume, catalogue: Catalogue, sweep: Sweep, spread: Spread, reporter: Reporter) -> None:
    """Sweep, write and show every asked benchmark; one failing does not stop the others.

    Raises:
        BundleError, SeveralErrors: everything that failed, after all the rest was swept.
    """
    if importlib.util.find_spec("sklearn") is None:
        wanted = "scikit-learn, as in the scoring image and the venv of make"
        raise EnvironmentFault("probe", "the probe is scikit-learn's, which is not installed", wanted=wanted)
    benchmarks = _asked(volume, catalogue, sweep)
    volume.require_writable()
    faults: list[BundleError] = []
    for benchmark in benchmarks:
        try:
            with lock(volume.probe_lock(benchmark.name), f"probe {benchmark.name}"):
                faults += _probe_one(volume, catalogue, benchmark, sweep, spread, reporter)
        except BundleError as fault:
            faults.append(fault)
    raise_all(faults)


def _asked(volume: Volume, catalogue: Catalogue, sweep: Sweep) -> list[Benchmark]:
    if sweep.benchmarks is not None:
        return [catalogue.benchmark(name) for name in sweep.benchmarks]
    scheduled = [b for b in catalogue.benchmarks.values() if schedule_of(catalogue.tileset(b.tileset))]
    found = [b for b in scheduled if embedded(volume, b.tileset)]
    if not found:
        raise InputError(
            f"volume {volume.root}",
            "no tileset that has a probe schedule has embeddings",
            wanted=f"embeddings of {', '.join(b.tileset for b in scheduled) or 'a tileset that declares [probe]'}",
            then="croma-bundle status",
        )
    return found


def _probe_one(
    volume: Volume, catalogue: Catalogue, benchmark: Benchmark, sweep: Sweep, spread: Spread, reporter: Reporter
) -> list[BundleError]:
    tileset = catalogue.tileset(benchmark.tileset)
    manifest = load_manifest(volume, tileset)
    cohort = probe_cohort(benchmark, tileset, manifest, str(catalogue.declared["tileset", tileset.name]))
    if not embedded(volume, tileset.name):
        raise InputError(f"probe {benchmark.name}", f"nothing is embedded for its tileset {tileset.name}")
    pixels = frozen_pixels(volume, tileset, manifest)
    fingerprint = manifest.fingerprint(tileset.confounder)
    members, refused = load_roster(
        volume,
        catalogue,
        tileset.name,
        fingerprint=fingerprint,
        pixels_sha256=pixels,
        wanted=sweep.encoders,
        threads=sweep.processes,
    )
    if not members:
        raise_all(refused)
    seeds = replicate_seeds(sweep.seed, sweep.iterations)
    inputs = inputs_of(volume, tileset.name, cohort, fingerprint, pixels, members)
    plan = planned(sweep.replay(benchmark.name), inputs)
    if not refused and stands(volume.probe(benchmark.name), plan):
        _show(volume, cohort, _again(volume, cohort, members), reporter, unchanged=True)
        return []
    units = _units(volume, tileset.name, cohort, members, seeds)
    found = _swept(units, _processes(cohort, members, sweep.processes), spread, reporter, benchmark.name)
    swept = [_matrices(member, [found[member.name, r] for r in range(len(seeds))]) for member in members]
    undefined = _write(volume, cohort, swept, plan, seeds, refused)
    _show(volume, cohort, swept, reporter)
    return [*refused, *undefined]


def _units(
    volume: Volume, tileset: str, cohort: ProbeCohort, members: Sequence[Member], seeds: Sequence[int]
) -> list[Unit]:
    """Every replicate of every encoder, encoders in turn."""
    orders = arrangements(cohort.schedule, cohort.cells, seeds, f"probe {cohort.benchmark}")
    rows = cohort.sha256()
    return [
        Unit(
            member.name,
            r,
            volume.matrix(tileset, member.name),
            volume.probe_unit(cohort.benchmark, member.name, r),
            identity(member.sidecar["matrix_sha256"], rows, seeds[: r + 1]),
            cohort.schedule,
            cohort.cells,
            order,
        )
        for member in members
        for r, order in enumerate(orders)
    ]


def _swept(
    units: Sequence[Unit], processes: int, spread: Spread, reporter: Reporter, name: str
) -> dict[tuple[str, int], Accuracies]:
    """The accuracies of every unit: those kept, and the rest run now."""
    found = {(u.encoder, u.replicate): a for u in units if (a := kept(u)) is not None}
    rest = [u for u in units if (u.encoder, u.replicate) not in found]
    if found:
        reporter.say(f"probe {name}: {len(found):,} of {len(units):,} replicates were run before")
    for folder in {u.path.parent for u in rest}:
        sweep_temporaries(folder)
    work = spread(run_unit, rest, min(processes, len(rest)))
    for encoder, replicate, accuracies in reporter.track(work, len(units), f"probe {name}", len(found)):
        found[encoder, replicate] = accuracies
    return found


def _processes(cohort: ProbeCohort, members: Sequence[Member], asked: int | None) -> int:
    """Worker processes: as asked, or one per core while half of the free memory holds their rows."""
    if asked is not None:
        return asked if asked > 1 else 0
    schedule, cells = cohort.schedule, cohort.cells
    train = max(sum(schedule.train_rows(s, c) for c in schedule.cells) for s in range(len(schedule.steps)))
    rows = 3 * train + len(cells.ood_rows) + sum(slides.size for slides in cells.slides) // 4
    need = BASE + 8 * rows * max(member.matrix.shape[1] for member in members)
    fit = max(1, half_of_free() // need)
    count = min(len(os.sched_getaffinity(0)), fit)
    return count if count > 1 else 0


def _matrices(member: Member, of: Sequence[Accuracies]) -> Swept:
    """An encoder's replicates as matrices (splits, replicates)."""
    return Swept(member, {regime: np.array([a[regime] for a in of]).T for regime in of[0]})


def _again(volume: Volume, cohort: ProbeCohort, members: Sequence[Member]) -> list[Swept]:
    """What was swept before, as it was written."""
    found = []
    for member in members:
        kept = json.loads(volume.probe_accuracies(cohort.benchmark, member.name).read_bytes())["accuracies"]
        found.append(Swept(member, {regime: np.array(matrix) for regime, matrix in kept.items() if matrix}))
    return found


def _write(
    volume: Volume,
    cohort: ProbeCohort,
    swept: Sequence[Swept],
    plan: Mapping[str, Any],
    seeds: Sequence[int],
    refused: Sequence[BundleError],
) -> list[BundleError]:
    """The tables of one benchmark, as one run: `run.json` is removed first and written last. Returns what is
    undefined."""
    folder = volume.probe(cohort.benchmark)
    for name in ("run.json", "probe.csv"):
        remove(folder / name)
    rows: Rows = []
    curves: Rows = []
    undefined: list[BundleError] = []
    tables: dict[str, bytes] = {}
    for of in swept:
        tables[f"accuracies/{of.member.name}.json"] = json_bytes(record(cohort, of, plan["replay"]["seed"], seeds))
        more, points, faults = reduced(cohort, of)
        rows, curves, undefined = rows + more, curves + points, undefined + faults
    tables |= {"curves.csv": csv_text(CURVES, curves).encode(), "probe.csv": csv_text(PROBE, rows).encode()}
    for stale in (folder / "accuracies").glob("*.json"):
        if f"accuracies/{stale.name}" not in tables:
            remove(stale)
    for name, content in tables.items():
        write_bytes(folder / name, content)
    outputs = {name: hashlib.sha256(tables[name]).hexdigest() for name in sorted(tables)}
    parts = {**plan, "resolved": resolved(cohort, seeds, undefined, refused), "outputs": outputs}
    write_json(folder / "run.json", {part: parts[part] for part in ORDER})
    return undefined


def _show(
    volume: Volume, cohort: ProbeCohort, swept: Sequence[Swept], reporter: Reporter, *, unchanged: bool = False
) -> None:
    rows = [row for of in swept for row in reduced(cohort, of)[0]]
    where = volume.shown(volume.probe(cohort.benchmark))
    note = "nIPD near 0 is little net change, not no degradation: read curves.csv beside it"
    text = f"{_text(rows)}\n  {note}\n  {'unchanged:' if unchanged else 'written to'} {where}\n"
    reporter.result(text, "probed", folder=where, unchanged=unchanged, rows=as_records(PROBE, rows))


def _text(rows: Rows) -> str:
    """The table for the terminal, encoders in the order of `probe.csv`."""
    lines = [f"{rows[0][0]}", f"  {'encoder':<28} {'regime':<6} {'nIPD':>9} {'APD':>9} {'baseline':>9} {'g(V=1)':>9}"]
    for _, encoder, control, external, regime, drop, area, baseline, _, last, *_ in rows:
        cells = " ".join(f"{'' if x is None else format(x, '.4f'):>9}" for x in (area, drop, baseline, last))
        notes = "".join(f"  {name}" for name, holds in (("control", control), ("external", external)) if holds)
        lines.append(f"  {encoder:<28} {regime:<6} {cells}{notes}")
    return "\n".join(lines)
