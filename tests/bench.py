"""Cohorts of known geometry put on a volume and scored, in this process; and readers of what was written."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from builders import COLUMNS, cohort_rows, write_csv
from croma_bundle.artifacts.external import import_matrix
from croma_bundle.artifacts.frozen_manifest import freeze_manifest
from croma_bundle.errors import BundleError
from croma_bundle.extraction.run import embed_all
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.progress import Reporter
from croma_bundle.scoring.run import Request, score_all
from croma_bundle.scoring.score import Knobs
from croma_bundle.tilemanifest.manifest import load_manifest
from croma_bundle.tiles.folder import add_folder

CONFOUNDER = "medical_center"


class Listener(Reporter):
    """Keeps the events instead of printing them."""

    def __init__(self):
        super().__init__(as_json=True)
        self.events = []

    def _emit(self, event, **fields):
        self.events.append({"event": event, **fields})

    def texts(self):
        return [event["text"] for event in self.events if "text" in event]


def add(volume, name, rows, *, confounder=CONFOUNDER, design="all", pictures=None, seed=0):
    """Declare `rows` as tileset and benchmark `name`; with random 32-pixel tiles in the folder `pictures`, or none."""
    path = write_csv((pictures or volume.root.parent) / f"{name}.csv", rows)
    if pictures:
        generator = np.random.default_rng(seed)
        for row in rows:
            Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(pictures / row["image_path"])
    add_folder(
        volume,
        load_catalogue(volume),
        name,
        path,
        root=None,
        confounder=confounder,
        design=design,
        images=pictures is not None,
        workers=0,
        reporter=Listener(),
    )


def embed_classical(volume, tileset, *encoders):
    """Embed with declared encoders of the backend `classical`, in this process."""
    embed_all(
        volume,
        load_catalogue(volume),
        tileset=tileset,
        family=None,
        encoders=encoders,
        device="cpu",
        path_map=None,
        workers=0,
        force=False,
        reporter=Listener(),
    )


def bring(volume, name, matrices, *, controls=(), force=False):
    """Import matrices (encoder → array, rows in manifest order)."""
    entry = load_catalogue(volume).tileset(name)
    manifest = load_manifest(volume, entry)
    freeze_manifest(volume, name, manifest.public_text(entry.confounder))
    for encoder, x in matrices.items():
        source = volume.root.parent / "given.npy"
        np.save(source, x)
        import_matrix(
            volume,
            name,
            encoder,
            source,
            provenance="a test",
            control=encoder in controls,
            rows=len(manifest),
            fingerprint=manifest.fingerprint(entry.confounder),
            force=force,
        )


def score(volume, *benchmarks, encoders=None, confounders=None, cross=None, **knobs):
    """Score; returns the listener and the error, or None."""
    listener = Listener()
    request = Request(list(benchmarks) or None, encoders, confounders, cross, Knobs(**knobs))
    try:
        score_all(volume, load_catalogue(volume), request, listener)
    except BundleError as error:
        return listener, error
    return listener, None


def scored(volume, *benchmarks, **options):
    """Score without a fault."""
    listener, error = score(volume, *benchmarks, **options)
    assert error is None, error
    return listener


# --- reading what was written, with nothing of the package ---


def table(path: Path):
    """A table as dicts of text."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def metrics(volume, benchmark, protocol="median-k"):
    """metrics.csv by encoder."""
    return {row["encoder"]: row for row in table(folder(volume, benchmark, protocol) / "metrics.csv")}


def folder(volume, benchmark, protocol="median-k"):
    return volume.root / "metrics" / protocol / benchmark


def run_json(volume, benchmark, protocol="median-k"):
    return json.loads((folder(volume, benchmark, protocol) / "run.json").read_text())


def every_byte(root: Path):
    """All files below a folder, locks aside."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


# --- geometries ---


def on_circle(degrees):
    radians = np.deg2rad(np.asarray(degrees, dtype=np.float64))
    return np.column_stack([np.cos(radians), np.sin(radians)])


def quadrant_rows():
    """Four rows, each its own slide: normal/east, normal/west, tumour/east, tumour/west."""
    return cohort_rows(slides=1, tiles=1)


QUADRANT = on_circle([0, 60, 90, 150])
"""Cosine distance is 1 − cos of the angle: 30° 0.134, 60° 0.5, 90° 1, 150° 1.866. So, of the quadrant's rows:

    row            nearest first
    normal east    normal west SO 0.5      tumour east OS 1       tumour west OO 1.866
    normal west    tumour east OO 0.134    normal east SO 0.5     tumour west OS 1
    tumour east    normal west OO 0.134    tumour west SO 0.5     normal east OS 1
    tumour west    tumour east SO 0.5      normal west OS 1       normal east OO 1.866
"""


def voting_rows():
    """20 rows in cells of five: normal 0–9 and tumour 10–19, each row its own slide but the last two, which share one,
    so that they are never each other's candidates; both are of the east."""
    centres = {"normal": "east west " * 5, "tumour": "east west east west east west west west east east"}
    rows = []
    for label, places in centres.items():
        for i, centre in enumerate(places.split()):
            slide = f"slide-{label}-{8 if label == 'tumour' and i == 9 else i}"
            rows.append(dict(zip(COLUMNS, (f"{label}-{i}", f"{label}-{i}.png", label, centre, slide), strict=True)))
    return rows


def choosing(k):
    """A matrix of `voting_rows` whose k* is 1, 3 or 5.

    Normal rows lie at −20° … −12°, the last of them (the probe) at 0°; tumour rows at 90° … 97°. Of the two tumour rows
    that share a slide, none (1), one (3) or both (5) stray beside the probe, to 1° and 2°; the others stay with their
    kind. A stray is never right. The probe sees its strays first and then normal rows: with one stray it is wrong at
    k = 1 and right from 3 on, with two it is wrong at 1 and 3 (two of three) and right from 5 on (two of five). All
    others are right at every k of the grid, which ends at 11.
    """
    strays = {1: [98, 99], 3: [1, 99], 5: [1, 2]}[k]
    return on_circle([*range(-20, -11), 0, *range(90, 98), *strays])


def drawn(rows, biology, centre, *, seed=0, jitter=0.4, width=8):
    """Label moves a row along one axis, centre along another, jitter along all: nothing ties."""
    generator = np.random.default_rng(seed)
    x = jitter * generator.standard_normal((len(rows), width))
    x[:, 0] += 2
    for axis, column, strength in ((1, "label", biology), (2, CONFOUNDER, centre)):
        values = sorted({row[column] for row in rows})
        x[:, axis] += [strength * (2 * values.index(row[column]) / (len(values) - 1) - 1) for row in rows]
    return x
