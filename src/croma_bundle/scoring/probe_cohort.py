"""Which rows of a tileset a probe trains and tests on: never those of the benchmark's view."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass

from croma_bundle.durable import json_bytes
from croma_bundle.errors import CohortError, InputError, did_you_mean, some
from croma_bundle.manifests.models import Benchmark, Tileset
from croma_bundle.probe.cells import Cells, cut
from croma_bundle.probe.schedules import SCHEDULES, Schedule
from croma_bundle.tilemanifest.manifest import TileManifest

ID, OOD = "ID", "OOD"
SPLIT_COLUMNS = ("apd_split", "subset")
"""Where a manifest says ID or OOD, unless the schedule names another column."""


@dataclass(frozen=True)
class ProbeCohort:
    """A benchmark's cells under its schedule."""

    benchmark: str
    schedule: Schedule
    cells: Cells

    def sha256(self) -> str:
        """The identity of schedule, rows and cases."""
        cells = self.cells
        rows = [slides.tolist() for slides in cells.slides]
        content = [asdict(self.schedule), rows, cells.cases, cells.ood_rows.tolist(), cells.ood_labels.tolist()]
        return hashlib.sha256(json_bytes(content)).hexdigest()


def schedule_of(tileset: Tileset) -> Schedule | None:
    """The schedule that a tileset declares, else the published one of its name."""
    own = tileset.probe
    if own is None:
        return SCHEDULES.get(tileset.name)
    return Schedule(
        own.confounders,
        own.labels,
        own.steps,
        own.max_slides,
        own.rows_per_slide,
        own.validation_fraction,
        own.by_case,
    )


def probe_cohort(benchmark: Benchmark, tileset: Tileset, manifest: TileManifest, declared: str) -> ProbeCohort:
    """Cut the tileset's rows by its schedule.

    Args:
        declared: the file that declares the tileset.

    Raises:
        InputError, CohortError: there is no schedule, or what does not fit it, by cell.
    """
    subject = f"probe {benchmark.name}"
    schedule = schedule_of(tileset)
    if schedule is None:
        known = f"a table [probe] in its declaration, or one of {', '.join(SCHEDULES)}"
        raise InputError(subject, f"tileset {tileset.name} has no schedule", wanted=known, declared=declared)
    confounders = manifest.require_column(benchmark.confounder or tileset.confounder, subject)
    labels, groups = manifest.column("label"), manifest.column("group_id")
    split = _split(tileset, manifest, subject)
    rows = [i for i, value in enumerate(split) if value == ID]
    ood = [(i, labels[i]) for i, value in enumerate(split) if value == OOD]
    names, classes, cases = ([column[i] for i in rows] for column in (confounders, labels, groups))
    stands = f"[probe] in {declared}" if tileset.probe else f"the published schedule of {tileset.name}"
    return ProbeCohort(
        benchmark.name, schedule, cut(schedule, rows, names, classes, cases, ood, subject, declared=stands)
    )


def _split(tileset: Tileset, manifest: TileManifest, subject: str) -> list[str]:
    """ID or OOD of every row; all are ID where no column says so."""
    own = tileset.probe.split if tileset.probe else None
    if own and own not in manifest.columns:
        near = did_you_mean(own, manifest.columns)
        raise InputError(subject, f"there is no column {own!r} that says ID or OOD{near}")
    column = own or next((name for name in SPLIT_COLUMNS if name in manifest.columns), None)
    if column is None:
        return [ID] * len(manifest)
    values = manifest.column(column)
    if strange := Counter(value for value in values if value not in (ID, OOD)):
        found = some([f"{value!r} of {n:,} rows" for value, n in sorted(strange.items())])
        raise CohortError(subject, f"its column {column} says more than ID and OOD", found=found)
    return values
