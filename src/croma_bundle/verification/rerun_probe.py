"""`verify run` of a probe's folder: every replicate trained again, on a scratch volume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from croma_bundle.errors import BundleError
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.progress import Reporter
from croma_bundle.scoring.probe import Sweep, probe_all
from croma_bundle.tiles.workers import ordered_map

REPLAYED = ("benchmark", "iterations", "seed")


def probe_again(run: Mapping[str, Any], catalogue: Catalogue, scratch: Volume, reporter: Reporter) -> Path:
    """The folder of the repeated sweep; raises what `probe` raises, unless it is that a reduction is undefined."""
    replay, recorded = run["replay"], sorted(run["inputs"]["encoders"])
    again = scratch.probe(replay["benchmark"])
    sweep = Sweep([replay["benchmark"]], recorded, replay["iterations"], replay["seed"])
    try:
        probe_all(scratch, catalogue, sweep, ordered_map, reporter)
    except BundleError:
        # What is undefined here was undefined there: that is compared.
        if not (again / "run.json").exists():
            raise
    return again
