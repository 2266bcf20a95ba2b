"""The identity of an embedding: what must be equal for one matrix to stand in for another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CONTRACT_VERSION = 1
"""Version of `extraction_contract`; raised when what an encoder of the same entry computes changes."""

REFERENCE_FIELDS = (
    "checkpoint_revision",
    "extraction_contract",
    "precision",
    "batch_size",
    "output_dtype",
    "output_shape",
    "manifest_fingerprint",
)
"""The seven fields that the public croma pipeline reads (croma 1.0.1, embedding artifacts)."""


@dataclass(frozen=True)
class Contract:
    """Everything that decides the content of a matrix; weights and remote code by their hashes.

    `checkpoint_revision`: 40 hex or None. `output_shape`: (rows, width). `pixels_sha256` None: imported.
    `device`: the kind of device asked for ("cpu", "cuda"), because a matrix of one never stands in for the other.
    """

    checkpoint_revision: str | None
    extraction_contract: Mapping[str, Any]
    precision: str | None
    batch_size: int | None
    output_shape: tuple[int, int]
    manifest_fingerprint: str
    pixels_sha256: str | None
    weights: tuple[Mapping[str, Any], ...] = ()
    remote_code: tuple[Mapping[str, Any], ...] = ()
    device: str = "cpu"
    output_dtype: str = "float32"

    def identity(self) -> dict[str, Any]:
        """The compared part of a sidecar, JSON-ready; weights and code by their hashes alone."""
        return {
            "checkpoint_revision": self.checkpoint_revision,
            "extraction_contract": dict(self.extraction_contract),
            "precision": self.precision,
            "batch_size": self.batch_size,
            "output_dtype": self.output_dtype,
            "output_shape": list(self.output_shape),
            "manifest_fingerprint": self.manifest_fingerprint,
            "pixels_sha256": self.pixels_sha256,
            "weights": _by_hash(self.weights),
            "remote_code": _by_hash(self.remote_code),
            "device": self.device,
        }


def identity_of(sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """The compared part of a stored sidecar, in the form of :meth:`Contract.identity`."""
    stored = {name: sidecar.get(name) for name in (*REFERENCE_FIELDS, "pixels_sha256")}
    stored |= {name: _by_hash(sidecar.get(name, [])) for name in ("weights", "remote_code")}
    stored["device"] = sidecar.get("environment", {}).get("device")
    return stored


def _by_hash(files: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"file": file["file"], "sha256": file["sha256"]} for file in files]


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """(key, wanted, found) of every leaf that differs, keys dotted."""
    rows: list[tuple[str, Any, Any]] = []
    for key in sorted({*wanted, *found}):
        a, b = wanted.get(key), found.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            rows += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            rows.append((prefix + key, a, b))
    return rows
