"""A benchmark as rows of its tileset: which rows are scored, under which confounder, in which scopes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Benchmark
from croma_bundle.metrics.cohort import Cohort
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.selection import benchmark_rows


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
    values = manifest.require_column(confounder, f"benchmark {benchmark.name}")
    index, subsets = benchmark_rows(volume, benchmark, manifest)
    columns = (manifest.column("sample_id"), manifest.column("label"), values, manifest.column("group_id"))
    samples, labels, confounders, groups = ([column[i] for i in index] for column in columns)
    return View(benchmark, confounder, np.array(index, dtype=np.int64), samples, labels, confounders, groups, subsets)
