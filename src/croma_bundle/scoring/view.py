"""A benchmark as rows of its tileset: which rows are scored, under which confounder, in which scopes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import TileManifestError, did_you_mean, some
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Benchmark
from croma_bundle.metrics.cohort import Cohort
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.table import read_table


@dataclass(frozen=True)
class View:
    """The rows that a benchmark evaluates.

    Attributes:
        rows: (n,) int64, row of the tileset (and of every matrix) of each evaluated row.
        sample_ids, labels, confounders, groups: n texts each; subsets too, or None for the design `all`.
    """

    benchmark: Benchmark
    confounder: str
    rows: npt.NDArray[np.int64]
    sample_ids: list[str]
    labels: list[str]
    confounders: list[str]
    groups: list[str]
    subsets: list[str] | None

    def cohort(self) -> Cohort:
        """Codes and scopes for the metrics; raises `CohortError` where it cannot be scored."""
        design, name = self.benchmark.design, self.benchmark.name
        return Cohort.from_columns(self.labels, self.confounders, self.groups, self.subsets, design, name)

    def sha256(self) -> str:
        """The identity of the evaluated rows."""
        columns = (self.sample_ids, self.labels, self.confounders, self.groups, self.subsets)
        content = json.dumps([self.rows.tolist(), *columns], separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    def csv_rows(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """Header and rows of `tiles export-view`, less the image paths."""
        header = ["sample_id", "label", self.confounder, "group_id"]
        columns = [self.sample_ids, self.labels, self.confounders, self.groups]
        if self.subsets is not None:
            header, columns = [*header, "subset"], [*columns, self.subsets]
        return header, list(zip(*columns, strict=True))


def build_view(volume: Volume, benchmark: Benchmark, manifest: TileManifest, confounder: str) -> View:
    """Select the benchmark's rows.

    Raises:
        TileManifestError: a column or value that its declaration names is not in the manifest.
    """
    subject = f"benchmark {benchmark.name}"
    values = manifest.require_column(confounder, subject)
    if benchmark.design == "paired_2x2":
        index, subsets = _occurrences(volume, benchmark, manifest)
    else:
        index, subsets = _selected(benchmark, manifest, subject), None
    columns = (manifest.column("sample_id"), manifest.column("label"), values, manifest.column("group_id"))
    samples, labels, confounders, groups = ([column[i] for i in index] for column in columns)
    return View(benchmark, confounder, np.array(index, dtype=np.int64), samples, labels, confounders, groups, subsets)


def _selected(benchmark: Benchmark, manifest: TileManifest, subject: str) -> list[int]:
    keep = [True] * len(manifest)
    for column, wanted in benchmark.rows.items():
        if column not in manifest.columns:
            near = did_you_mean(column, manifest.columns)
            raise TileManifestError(subject, f"its rows are chosen by a column {column!r} that is not there{near}")
        present = manifest.column(column)
        if absent := sorted(set(wanted) - set(present)):
            raise TileManifestError(subject, f"no row has {some(absent)} in {column}")
        keep = [k and value in wanted for k, value in zip(keep, present, strict=True)]
    return [i for i, k in enumerate(keep) if k]


def _occurrences(volume: Volume, benchmark: Benchmark, manifest: TileManifest) -> tuple[list[int], list[str]]:
    path = volume.occurrences(benchmark.tileset)
    table = read_table(path, ("sample_id", "subset"))
    row_of = {sample: i for i, sample in enumerate(manifest.column("sample_id"))}
    samples = table.column("sample_id")
    if unknown := [sample for sample in samples if sample not in row_of]:
        raise TileManifestError(str(path), f"sample ids that the manifest has not: {some(unknown)}")
    return [row_of[sample] for sample in samples], table.column("subset")
