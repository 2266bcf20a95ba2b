"""`run.json`: the knobs, what they resolved to, versions, and the hashes of every input and table."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import croma_bundle
from croma_bundle.artifacts.environment import bundle_version, versions
from croma_bundle.durable import json_bytes, sha256_file
from croma_bundle.errors import BundleError
from croma_bundle.layout import Volume
from croma_bundle.metrics import kernel
from croma_bundle.scoring.roster import Member
from croma_bundle.scoring.score import BenchmarkScore, Knobs
from croma_bundle.scoring.view import View

RUN_SCHEMA = 1
PLANNED = ("schema", "replay", "versions", "inputs")
"""The parts that are known before anything is scored; where they are equal, so are the tables."""
CODE = ("artifacts", "durable", "errors", "layout", "manifests", "metrics", "progress", "scoring", "tilemanifest")
"""The modules and packages of ours that scoring imports."""
ORDER = ("schema", "replay", "resolved", "versions", "inputs", "outputs")


def planned(
    view: View, protocol: str, knobs: Knobs, limited_to: Sequence[str] | None, inputs: dict[str, Any]
) -> dict[str, Any]:
    """The parts of `run.json` that decide all others."""
    declared = view.benchmark
    replay = {
        "command": "score",
        "benchmark": declared.name,
        "protocol": protocol,
        "confounder": view.confounder,
        "encoders": sorted(limited_to) if limited_to is not None else None,
        "k_grid": knobs.k_grid or declared.k_grid,
        "k_max": knobs.k_max or declared.k_max,
        "k": knobs.k,
        "tau": knobs.tau,
        "m": knobs.m,
        "seed": knobs.seed,
    }
    return planned_parts(replay, made_with(), inputs)


def planned_parts(replay: Mapping[str, Any], versions: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The PLANNED parts of any `run.json`, as they are read back."""
    parts = {"schema": RUN_SCHEMA, "replay": replay, "versions": versions, "inputs": inputs}
    as_written: dict[str, Any] = json.loads(json_bytes(parts))
    return as_written


def made_with() -> dict[str, Any]:
    """Versions that may move a number; `source_sha256` also tells a checkout with changes from its commit."""
    made = {"bundle": bundle_version(), "source_sha256": source_sha256(CODE), "python": platform.python_version()}
    return {**made, **versions(["numpy"]), "kernel": kernel.name()}


def inputs_of(
    volume: Volume, view: View, fingerprint: str, pixels: str | None, members: Sequence[Member]
) -> dict[str, Any]:
    """What is scored: the rows, and of each encoder its matrix and what its declaration says of it."""
    tileset = view.benchmark.tileset
    encoders = {m.name: {**matrix_facts(m), "votes": m.votes, "exposed": m.exposed(tileset)} for m in members}
    return {
        **tileset_facts(volume, tileset, fingerprint),
        "view_sha256": view.sha256(),
        "pixels_sha256": pixels,
        "encoders": encoders,
    }


def tileset_facts(volume: Volume, tileset: str, fingerprint: str) -> dict[str, Any]:
    """Which tileset, and its manifest by hash."""
    manifest = sha256_file(volume.tile_manifest(tileset))
    return {"tileset": tileset, "manifest_sha256": manifest, "manifest_fingerprint": fingerprint}


def matrix_facts(member: Member) -> dict[str, Any]:
    """An encoder's matrix and sidecar by hash, and whether it is a control."""
    return {
        "matrix_sha256": member.sidecar["matrix_sha256"],
        "sidecar_sha256": member.sidecar_sha256,
        "control": member.is_control,
    }


def resolved(score: BenchmarkScore, refused: Sequence[BundleError]) -> dict[str, Any]:
    """What the knobs came to, and what could not be scored."""
    view, cohort = score.view, score.cohort
    cells = Counter(zip(view.labels, view.confounders, strict=True))
    return {
        "k": score.k,
        "k_rule": score.panel_rule,
        "k_panel": list(score.panel),
        "k_star": {e.member.name: e.survey.k_star for e in score.encoders},
        "usable_k": list(score.encoders[0].survey.usable_k),
        "tau": {e.member.name: e.point.tau for e in score.encoders},
        "tau_notes": {e.member.name: e.point.tau_note for e in score.encoders if e.point.tau_note},
        "rows_with_fewer_than_k_candidates": {e.member.name: e.point.capped_rows for e in score.encoders},
        "m_sweep_ends": {e.member.name: e.m_end for e in score.encoders if e.m_end},
        "croma_undefined": {e.member.name: str(e.fault) for e in score.encoders if e.fault},
        "refused": [fault.paragraph() for fault in (*refused, *score.refused)],
        "design": cohort.design,
        "unit": cohort.unit,
        "n_rows": cohort.n_rows,
        "n_units": cohort.n_units,
        "n_groups": len(cohort.group_names),
        "scopes": [scope.name for scope in cohort.scopes],
        "incomplete_subsets": dict(cohort.incomplete),
        "cells": [{"label": a, "confounder": b, "rows": n} for (a, b), n in sorted(cells.items())],
    }


@functools.cache
def source_sha256(rooms: tuple[str, ...]) -> str:
    """SHA-256 over these modules and packages of ours, by name and content."""
    root = Path(croma_bundle.__file__).parent
    files = [
        p for room in rooms for pattern in (f"{room}.py", f"{room}/*.py", f"{room}/*.c") for p in root.glob(pattern)
    ]
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
