"""A tileset of the hub: its parquet files and metadata, verified, joined, checked, and its pixels hashed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from croma_bundle.durable import lock, sweep_temporaries, write_bytes
from croma_bundle.errors import ArtifactError, TileManifestError
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Benchmark, Dataset, Tileset, plain
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.expected import check_view, require_size
from croma_bundle.tilemanifest.join import Key, joined, part_suffixes, read_metadata
from croma_bundle.tilemanifest.manifest import TileManifest, load_manifest
from croma_bundle.tilemanifest.pixel_record import read_pixels
from croma_bundle.tilemanifest.table import csv_text
from croma_bundle.tiles.download import fetch_dataset, fetch_metadata
from croma_bundle.tiles.parquet import text_columns
from croma_bundle.tiles.tileset import hash_tiles, tile_paths, write_pixels


def fetch_published(
    volume: Volume, entry: Tileset, benchmarks: Sequence[Benchmark], workers: int, reporter: Reporter
) -> TileManifest:
    """The frozen manifest of a hub tileset whose tiles are now in place.

    `pixels.json` is written last. What is there already is verified by its hash and not fetched again.

    Raises:
        InputError, EnvironmentFault: it cannot be had. TileManifestError, CohortError: it is not what was declared.
        ArtifactError: the one on the volume was made from another declaration.
    """
    subject = f"tileset {entry.name}"
    if volume.pixels(entry.name).exists():
        manifest = load_manifest(volume, entry)
        _require_same_declaration(volume, entry, manifest)
        if all(path.is_file() for path in _source_files(volume, entry)):
            reporter.say(f"{subject}: {len(manifest):,} tiles are there", "done", tileset=entry.name)
            return manifest
    volume.require_writable()
    with lock(volume.tileset_lock(entry.name), subject):
        manifest = _assemble(volume, entry, reporter)
        for benchmark in benchmarks:
            reporter.say(check_view(volume, benchmark, entry, manifest).text(), "view", benchmark=benchmark.name)
        paths = tile_paths(volume, entry, manifest)
        tiles = hash_tiles(subject, paths, volume.tileset(entry.name), workers, reporter)
        write_pixels(volume, entry, manifest, tiles)
    return manifest


def _assemble(volume: Volume, entry: Tileset, reporter: Reporter) -> TileManifest:
    """Fetch, join and write the manifest; the table first, for it is small and may be refused."""
    assert entry.dataset is not None  # noqa: S101 (the model says so)
    assert entry.metadata is not None  # noqa: S101
    subject, folder = f"tileset {entry.name}", volume.tile_source(entry.name)
    table = read_metadata(fetch_metadata(subject, entry.metadata, folder, reporter))
    samples = {s.column: read_metadata(fetch_metadata(subject, s, folder, reporter)) for s in entry.samples or ()}
    _write_notice(volume, entry, reporter)
    files = fetch_dataset(subject, entry.dataset, folder, reporter)
    where = _tiles_by_key(files)
    suffixes = part_suffixes([file.name for file in entry.dataset.files])
    manifest, occurrences = joined(table, where, suffixes, samples, paired=entry.design == "paired_2x2")
    require_size(entry, manifest)
    sweep_temporaries(volume.tileset(entry.name))
    _write_frozen(volume.tile_manifest(entry.name), manifest.text().encode(), subject)
    if occurrences:
        text = csv_text(("sample_id", "subset"), occurrences)
        _write_frozen(volume.occurrences(entry.name), text.encode(), subject)
    return manifest


def _write_frozen(path: Path, content: bytes, subject: str) -> None:
    """Write it, or confirm that it stands there: matrices may have been made from what stands."""
    if path.exists() and path.with_name("pixels.json").exists() and path.read_bytes() != content:
        raise ArtifactError(subject, f"{path.name} on the volume is another one than its sources make")
    write_bytes(path, content)


def _tiles_by_key(files: dict[str, Path]) -> dict[Key, tuple[str, int]]:
    """Parquet file and row of every tile; raises `TileManifestError` where two rows are one tile."""
    where: dict[Key, tuple[str, int]] = {}
    for name, path in files.items():
        slides, patches = text_columns(path, ("slide_id", "patch_id"))
        for row, key in enumerate(zip(slides, patches, strict=True)):
            if where.setdefault(key, (name, row)) != (name, row):
                first = "{}#{}".format(*where[key])
                raise TileManifestError(
                    f"{path}#{row}", f"slide {key[0]!r}, patch {key[1]!r} stands at {first} already"
                )
    return where


def _write_notice(volume: Volume, entry: Tileset, reporter: Reporter) -> None:
    """Licence, citation and source, said once and written beside the data."""
    path = volume.tileset_notice(entry.name)
    dataset: Dataset = entry.dataset  # type: ignore[assignment]
    source = f"https://huggingface.co/datasets/{dataset.repository} at {dataset.revision}"
    text = f"Tileset {entry.name}\nLicence: {entry.licence}\nCite: {entry.citation}\nSource: {source}\n"
    if not path.exists():
        write_bytes(path, text.encode())
        reporter.say(f"tileset {entry.name}: licence {entry.licence}. Cite: {entry.citation}", "licence")


def _require_same_declaration(volume: Volume, entry: Tileset, manifest: TileManifest) -> None:
    found = read_pixels(volume, entry.name, manifest).declaration
    wanted = plain(entry)
    if differs := [key for key in ("dataset", "metadata", "samples", "design") if found.get(key) != wanted[key]]:
        raise ArtifactError(
            f"tileset {entry.name}",
            f"the one on the volume was made from another declaration ({', '.join(differs)})",
            detail=f"Move {volume.tileset(entry.name)} and its embeddings away to make it anew.",
        )


def _source_files(volume: Volume, entry: Tileset) -> list[Path]:
    files = entry.dataset.files if entry.dataset else ()
    return [volume.tile_source(entry.name) / file.name for file in files]
