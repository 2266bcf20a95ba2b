"""The sidecar `<Encoder>.npy.json`: what made the matrix, in what environment, and the matrix's own hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any

from croma_bundle.artifacts.contract import REFERENCE_FIELDS, Contract
from croma_bundle.artifacts.matrix import Spread
from croma_bundle.errors import ArtifactError, some

SCHEMA = 1
"""Raised when a field is added, removed or changes meaning."""

FIELDS: Mapping[str, tuple[type, ...]] = {
    "checkpoint_revision": (str, NoneType),
    "extraction_contract": (dict,),
    "precision": (str, NoneType),
    "batch_size": (int, NoneType),
    "output_dtype": (str,),
    "output_shape": (list,),
    "manifest_fingerprint": (str,),
    "schema": (int,),
    "matrix_sha256": (str,),
    "pixels_sha256": (str, NoneType),
    "weights": (list,),
    "remote_code": (list,),
    "control": (bool,),
    "spread": (dict,),
    "environment": (dict,),
    "bundle": (dict,),
    "replay": (dict,),
    "started": (str,),
    "finished": (str,),
}
"""Every field and what it may hold in JSON; the seven of `REFERENCE_FIELDS` first."""


def make_sidecar(
    contract: Contract,
    *,
    matrix_sha256: str,
    control: bool,
    spread: Spread,
    environment: Mapping[str, Any],
    bundle: Mapping[str, Any],
    replay: Mapping[str, Any],
    started: str,
    finished: str,
) -> dict[str, Any]:
    """The sidecar's content, reference fields first, JSON-ready.

    `started`, `finished`: UTC, ISO 8601. `replay`: the knobs that repeat the run.
    """
    identity = contract.identity()
    return {
        **{name: identity[name] for name in REFERENCE_FIELDS},
        "schema": SCHEMA,
        "matrix_sha256": matrix_sha256,
        "pixels_sha256": contract.pixels_sha256,
        "weights": [dict(weight) for weight in contract.weights],
        "remote_code": [dict(file) for file in contract.remote_code],
        "control": control,
        "spread": asdict(spread),
        "environment": {"device": contract.device, **environment},
        "bundle": dict(bundle),
        "replay": dict(replay),
        "started": started,
        "finished": finished,
    }


def read_sidecar(path: Path, subject: str) -> dict[str, Any]:
    """A sidecar of this schema.

    Raises:
        ArtifactError: unreadable, not JSON, fields missing or of another type, or written by another schema.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        size = path.stat().st_size if path.exists() else 0
        raise ArtifactError(subject, "its sidecar is damaged", found=f"{path} ({size:,} bytes: {error})") from None
    return require_sidecar(stored, str(path), subject)


def require_sidecar(stored: Any, where: str, subject: str) -> dict[str, Any]:
    """`stored` as a whole sidecar of this schema, or `ArtifactError`; `where` names its file."""
    if not isinstance(stored, dict):
        raise ArtifactError(subject, "its sidecar is damaged", wanted="a JSON object", found=where)
    if stored.get("schema") != SCHEMA:
        found = f"schema {stored.get('schema')!r} in {where}"
        detail = "A matrix of the public pipeline has no hashes; bring it in with `croma-bundle import`."
        raise ArtifactError(
            subject, "its sidecar is of another kind", wanted=f"schema {SCHEMA}", found=found, detail=detail
        )
    if missing := [name for name in FIELDS if name not in stored]:
        raise ArtifactError(subject, f"its sidecar lacks {some(missing)}", found=where)
    if wrong := _malformed(stored):
        raise ArtifactError(subject, f"its sidecar is damaged in {some(wrong)}", found=where)
    return stored


def _malformed(stored: Mapping[str, Any]) -> list[str]:
    """Fields that do not hold what they should."""
    wrong = [name for name, kinds in FIELDS.items() if type(stored[name]) not in kinds]
    shape = stored["output_shape"]
    if isinstance(shape, list) and [type(n) for n in shape] != [int, int]:
        wrong.append("output_shape")
    for name in ("weights", "remote_code"):
        files = stored[name]
        if isinstance(files, list) and not all(isinstance(f, dict) and {"file", "sha256"} <= f.keys() for f in files):
            wrong.append(name)
    return wrong


def is_external(sidecar: Mapping[str, Any]) -> bool:
    """True for an imported matrix."""
    return bool(sidecar["extraction_contract"].get("external"))
