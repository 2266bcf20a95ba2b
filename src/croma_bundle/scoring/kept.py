"""A run that stands: where the planned run is the one that was written, and whole, nothing is scored again.

Never one that refused an encoder or left CRoMa undefined: its errors are part of what it says.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from croma_bundle.durable import sha256_file
from croma_bundle.scoring.record import PLANNED
from croma_bundle.scoring.roster import READERS

READ_BYTES = 1 << 18
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What a `run.json` that is missing, damaged or of another kind raises."""
Run = dict[str, Any]


def standing(folder: Path, plan: Mapping[str, Any]) -> tuple[Run, list[dict[str, Any]]] | None:
    """The run in `folder` and the rows of its table of metrics, where it is the planned one and whole."""
    try:
        run = json.loads((folder / "run.json").read_bytes())
        if any(run[part] != plan[part] for part in PLANNED):
            return None
        if run["resolved"]["refused"] or run["resolved"]["croma_undefined"] or not intact(folder, run["outputs"]):
            return None
        return run, json.loads((folder / "metrics.json").read_bytes())["rows"]
    except UNREADABLE:
        return None


def standing_samples(folder: Path, plan: Mapping[str, Any], points: Mapping[str, tuple[int, float]]) -> dict[str, str]:
    """SHA-256 of the tables of samples that stand already, by name: of this matrix, these rows and knobs, at this
    operating point (k and τ by encoder). One more encoder in a panel leaves most of them so."""
    try:
        run = json.loads((folder / "run.json").read_bytes())
        if _but_encoders(run) != _but_encoders(plan):
            return {}
        k, k_star, tau = (run["resolved"][what] for what in ("k", "k_star", "tau"))
        was, now = run["inputs"]["encoders"], plan["inputs"]["encoders"]
        same = [n for n in points if was.get(n) == now[n] and (k or k_star[n], tau[n]) == points[n]]
        stated = {f"per_sample/{n}.csv": run["outputs"][f"per_sample/{n}.csv"] for n in same}
    except UNREADABLE:
        return {}
    return {name: stated[name] for name, whole in _as_stated(folder, stated) if whole}


def intact(folder: Path, outputs: Mapping[str, str]) -> bool:
    """Whether the folder holds these tables as they were written, and no others."""
    if _tables_of(folder) != {_file_of(name) for name in outputs if name.endswith(".csv")}:
        return False
    return all(whole for _, whole in _as_stated(folder, outputs))


def _but_encoders(run: Mapping[str, Any]) -> list[Any]:
    """What a run has in common with one of more encoders."""
    parts = ({**run["replay"], "encoders": None}, {**run["inputs"], "encoders": None})
    return [run["schema"], run["versions"], *parts]


def _as_stated(folder: Path, outputs: Mapping[str, str]) -> list[tuple[str, bool]]:
    """Each table, and whether it has the stated hash."""
    with ThreadPoolExecutor(min(READERS, len(os.sched_getaffinity(0)))) as pool:
        found = pool.map(lambda name: _sha256(folder / _file_of(name)), outputs)
        return [(name, sha256 == outputs[name]) for name, sha256 in zip(outputs, found, strict=True)]


def _file_of(name: str) -> str:
    return f"{name}.gz" if name.startswith("per_sample/") else name


def _tables_of(folder: Path) -> set[str]:
    found = (p for pattern in ("*.csv", "per_sample/*.csv.gz") for p in folder.glob(pattern))
    return {p.relative_to(folder).as_posix() for p in found}


def _sha256(path: Path) -> str | None:
    """SHA-256 of a table, of one that is packed before that; None where it is missing or damaged."""
    try:
        if path.suffix != ".gz":
            return sha256_file(path)
        digest = hashlib.sha256()
        for block in _unpacked(path):
            digest.update(block)
        return digest.hexdigest()
    except (OSError, zlib.error, EOFError):
        return None


def _unpacked(path: Path) -> Iterator[bytes]:
    """The content of a `.gz` of one member, block by block; raises `EOFError` where it is cut off or goes on."""
    unpacker = zlib.decompressobj(wbits=31)
    with path.open("rb") as handle:
        while block := handle.read(READ_BYTES):
            yield unpacker.decompress(block)
    if not unpacker.eof or unpacker.unused_data:
        raise EOFError(path)
