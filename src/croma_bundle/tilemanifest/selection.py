"""Which rows of a tileset a benchmark evaluates."""

from __future__ import annotations

from croma_bundle.errors import TileManifestError, did_you_mean, some
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Benchmark
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.table import read_table


def benchmark_rows(volume: Volume, benchmark: Benchmark, manifest: TileManifest) -> tuple[list[int], list[str] | None]:
    """Row of the manifest of each evaluated row, and its subset (None for the design `all`).

    Raises:
        TileManifestError: a column or value that its declaration names is not in the manifest.
    """
    if benchmark.design == "paired_2x2":
        return _occurrences(volume, benchmark, manifest)
    return _selected(benchmark, manifest), None


def _selected(benchmark: Benchmark, manifest: TileManifest) -> list[int]:
    subject = f"benchmark {benchmark.name}"
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
