"""`list` and `status`: what is declared, and what is on the volume."""

from __future__ import annotations

from typing import Any

from croma_bundle.artifacts.pair import complete_pair, embedded, subject_of
from croma_bundle.artifacts.sidecar import is_external, read_sidecar
from croma_bundle.errors import BundleError
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import plain
from croma_bundle.tilemanifest.manifest import read_manifest

Rows = list[dict[str, Any]]


def declared_text(catalogue: Catalogue, what: str) -> tuple[str, Rows]:
    """The declared encoders, tilesets or benchmarks as a table, and in full as JSON rows."""
    entries = {"encoders": catalogue.encoders, "tilesets": catalogue.tilesets, "benchmarks": catalogue.benchmarks}[what]
    columns = {
        "encoders": ("name", "family", "width", "precision", "pinned", "gated", "control", "votes", "licence"),
        "tilesets": ("name", "source", "confounder", "design", "images", "licence"),
        "benchmarks": ("name", "tileset", "confounder", "design", "protocol", "k_grid", "k_max", "cross"),
    }[what]
    rows = [[_word(getattr(entry, column)) for column in columns] for entry in entries.values()]
    declared = {name: str(catalogue.declared[what.removesuffix("s"), name]) for name in entries}
    return _table(columns, rows), [{**plain(entry), "declared": declared[name]} for name, entry in entries.items()]


def status_text(volume: Volume, catalogue: Catalogue) -> tuple[str, Rows]:
    """Per tileset: its tiles, and the state of every encoder declared or embedded for it."""
    lines, rows = [f"volume {volume.root}"], list[dict[str, Any]]()
    for name, entry in catalogue.tilesets.items():
        present = embedded(volume, name)
        lines += ["", f"{name}: {_tiles_word(volume, name, entry.images)}"]
        states = {encoder: _state(volume, name, encoder) for encoder in present}
        for encoder, declared in catalogue.encoders.items():
            if encoder not in states and entry.images and declared.of is None:
                states[encoder] = "unpinned" if not declared.pinned else "gated" if declared.gated else "missing"
        states |= {
            encoder: f"{states[encoder]}, chunks of a run under way" for encoder in _under_way(volume, name, states)
        }
        lines += [f"  {encoder:<24} {state}" for encoder, state in sorted(states.items())]
        rows += [{"tileset": name, "encoder": encoder, "state": state} for encoder, state in sorted(states.items())]
    return "\n".join(lines), rows


def _tiles_word(volume: Volume, tileset: str, images: bool) -> str:
    path = volume.tile_manifest(tileset)
    if not path.exists():
        return f"not on the volume (make tiles TILESET={tileset})"
    try:
        count = len(read_manifest(path))
    except BundleError as fault:
        return f"unusable: {fault.problem}"
    if not images:
        return f"{count:,} rows, no images"
    hashed = volume.pixels(tileset).exists()
    return f"{count:,} tiles" if hashed else f"{count:,} tiles, not complete (make tiles TILESET={tileset})"


def _state(volume: Volume, tileset: str, encoder: str) -> str:
    try:
        complete_pair(volume, tileset, encoder)
        sidecar = read_sidecar(volume.sidecar(tileset, encoder), subject_of(tileset, encoder))
    except BundleError as fault:
        return f"unusable: {fault.problem}"
    rows, width = sidecar["output_shape"]
    return f"{'imported' if is_external(sidecar) else 'embedded'} {rows:,} × {width:,}"


def _under_way(volume: Volume, tileset: str, states: dict[str, str]) -> list[str]:
    return [encoder for encoder in states if any(volume.work(tileset, encoder).glob("chunk-*.json"))]


def _word(value: Any) -> str:
    return {True: "yes", False: "no", None: "–"}[value] if value is None or isinstance(value, bool) else str(value)


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> str:
    widths = [max(len(line[i]) for line in [list(columns), *rows]) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [list(columns), *rows]
    )
