"""`tiles add`: a user's own cohort from any CSV and its image files; no pixel is copied."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from croma_bundle.durable import lock, sweep_temporaries, write_bytes
from croma_bundle.errors import InputError, TileManifestError, UsageError
from croma_bundle.layout import Volume, checked_name
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Design, Tileset
from croma_bundle.manifests.toml_text import toml_text
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.expected import check_view, require_size
from croma_bundle.tilemanifest.manifest import TileManifest, manifest_of_csv
from croma_bundle.tilemanifest.table import csv_text
from croma_bundle.tiles.naming import refuse_taken
from croma_bundle.tiles.report import findings, montage
from croma_bundle.tiles.tileset import hash_tiles, tile_paths, write_pixels


def add_folder(
    volume: Volume,
    catalogue: Catalogue,
    name: str,
    csv: Path,
    *,
    root: Path | None,
    confounder: str,
    design: Design,
    images: bool,
    workers: int,
    reporter: Reporter,
) -> tuple[Tileset, TileManifest]:
    """Declare the cohort of `csv` as tileset and benchmark `name`.

    Writes `manifest.csv`, `occurrences.csv` (paired_2x2), `report.png` and `pixels.json` (unless `images` is False)
    and, last, `tileset.toml`, which is what makes the tileset exist. `root` defaults to the folder of the CSV. A name
    that the packaged manifests declare as imported gets its rows, checked against what is expected, no declaration.

    Raises:
        UsageError, InputError, PixelError, SeveralErrors: nothing is declared then.
    """
    if name in catalogue.tilesets and catalogue.tilesets[name].source == "imported":
        entry = catalogue.tilesets[name]
        return entry, _fill_imported(volume, catalogue, entry, csv, confounder, reporter)
    refuse_taken(catalogue, checked_name("tileset", name))
    if root is not None and not images:
        raise UsageError("tiles add", "--root names the folder of the images, and --no-images says that there are none")
    manifest, occurrences, warnings = manifest_of_csv(
        csv, confounder=confounder, images=images, paired=design == "paired_2x2"
    )
    manifest.require_column(confounder, str(csv))
    for warning in warnings:
        reporter.warn(warning)
    folder = (root or csv.parent).resolve()
    _check_root(folder, images)
    entry = Tileset(
        name=name,
        source="folder",
        confounder=confounder,
        design=design,
        root=str(folder) if images else None,
        images=images,
    )
    volume.require_writable()
    with lock(volume.tileset_lock(name), f"tileset {name}"):
        if volume.tileset_declaration(name).exists():
            raise InputError(f"tileset {name}", "it was added in the meantime", then="croma-bundle list tilesets")
        _clear(volume, name)
        frozen = {"manifest": manifest.text().encode()}
        write_bytes(volume.tile_manifest(name), frozen["manifest"])
        if occurrences:
            frozen["occurrences"] = csv_text(("sample_id", "subset"), occurrences).encode()
            write_bytes(volume.occurrences(name), frozen["occurrences"])
        if images:
            paths = tile_paths(volume, entry, manifest)
            tiles = hash_tiles(f"tileset {name}", paths, volume.tileset(name), workers, reporter)
            for finding in findings(manifest, confounder, tiles):
                reporter.say(f"tileset {name}: {finding}", "finding")
            write_bytes(volume.tileset_report(name), montage(manifest, confounder, paths, volume.tileset(name)))
            reporter.say(f"tileset {name}: to look at: {volume.shown(volume.tileset_report(name))}", "finding")
            write_pixels(volume, entry, manifest, tiles)
        declaration = {key: value for key, value in entry.model_dump().items() if key != "name"}
        declaration |= {f"{what}_sha256": sha256(content).hexdigest() for what, content in frozen.items()}
        comment = f"Written by `croma-bundle tiles add {name}`; the rows are in manifest.csv and stay as they are."
        write_bytes(volume.tileset_declaration(name), toml_text(declaration, comment).encode())
    return entry, manifest


def _fill_imported(
    volume: Volume, catalogue: Catalogue, entry: Tileset, csv: Path, confounder: str, reporter: Reporter
) -> TileManifest:
    """Write the rows of a declared tileset whose matrices are imported.

    Raises:
        UsageError: another confounder than is declared. InputError: it has rows already.
        TileManifestError, CohortError: the rows are not what is declared.
    """
    subject = f"tileset {entry.name}"
    if confounder != entry.confounder:
        raise UsageError(
            subject, "its confounder is declared", wanted=f"--confounder {entry.confounder}", found=confounder
        )
    manifest, _, warnings = manifest_of_csv(csv, confounder=confounder, images=False, paired=False)
    for warning in warnings:
        reporter.warn(warning)
    require_size(entry, manifest)
    for benchmark in catalogue.benchmarks.values():
        if benchmark.tileset == entry.name:
            reporter.say(check_view(volume, benchmark, entry, manifest).text(), "view", benchmark=benchmark.name)
    volume.require_writable()
    with lock(volume.tileset_lock(entry.name), subject):
        if volume.tile_manifest(entry.name).exists():
            raise InputError(subject, "its rows were added before and stay as they are", then="croma-bundle status")
        write_bytes(volume.tile_manifest(entry.name), manifest.text().encode())
    return manifest


def _clear(volume: Volume, name: str) -> None:
    """Remove what an add that was cut off, perhaps one of another design, left of this name."""
    sweep_temporaries(volume.tileset(name))
    for path in (volume.pixels(name), volume.occurrences(name), volume.tileset_report(name)):
        path.unlink(missing_ok=True)


def _check_root(folder: Path, images: bool) -> None:
    if images and not folder.is_dir():
        raise InputError(f"--root {folder}", "there is no such folder", wanted="the folder that image_path starts from")
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise TileManifestError(f"--root {str(folder)!r}", "the path is not UTF-8 and cannot be declared") from None
