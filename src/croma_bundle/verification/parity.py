"""`parity`: somebody else's golden vectors against those of this machine, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.artifacts.contract import differences
from croma_bundle.artifacts.golden import Golden, read_golden
from croma_bundle.errors import BundleError, InputError, VerdictFailed, raise_all, visible
from croma_bundle.layout import Volume, checked_name
from croma_bundle.progress import Reporter

TOLERANCES = {"float32": 1e-3, "mixed-float16": 2e-2}
"""How far two vectors of a tile may lie apart, as a share of the length of theirs; the coarser arithmetic decides.

A factor in TF32 (convolutions on CUDA) or float16 is off by 2^-11 = 4.9e-4 of itself at most. In float32 only the first
layer has such factors; in mixed float16 every layer has them, some tens in a row.
"""

LONGEST = 200
"""Characters that are shown of a value in somebody else's file."""
Shares = npt.NDArray[np.float64]


def verify_parity(volume: Volume, files: Sequence[Path], reporter: Reporter) -> None:
    """A line for every file.

    Raises:
        VerdictFailed: vectors that lie further apart than tolerated. InputError: what cannot be compared.
        ArtifactError: a damaged file. Several are told together.
    """
    faults = list[BundleError]()
    for path in files:
        try:
            _compare(volume, path, reporter)
        except BundleError as fault:
            faults.append(fault)
    raise_all(faults)


def _compare(volume: Volume, path: Path, reporter: Reporter) -> None:
    theirs = read_golden(path)
    ours = read_golden(_own(volume, theirs.encoder))
    _require_comparable(ours, theirs, path)
    shares = apart(ours, theirs)
    worst, tolerance = int(shares.argmax()), tolerance_of(ours, theirs)
    verdict = "MATCH" if shares[worst] <= tolerance else "DRIFT"
    facts = f"largest difference {shares[worst]:.2g} of the vector's length ({ours.tiles[worst]}), "
    facts += f"tolerated {tolerance:g}; ours {_how(ours)}, theirs {_how(theirs)}"
    fields: dict[str, Any] = {"largest": float(shares[worst]), "tolerance": tolerance, "file": str(path)}
    reporter.result(f"{ours.encoder}: {verdict}, {facts}", "parity", encoder=ours.encoder, verdict=verdict, **fields)
    if verdict != "MATCH":
        beyond = [f"{name} {share:.2g}" for name, share in zip(ours.tiles, shares, strict=True) if share > tolerance]
        raise VerdictFailed(
            f"encoder {ours.encoder}",
            f"{len(beyond)} of {len(shares)} golden vectors are others than in {path}",
            wanted=f"at most {tolerance:g} of the vector's length",
            found=", ".join(beyond),
        )


def apart(ours: Golden, theirs: Golden) -> Shares:
    """|ours - theirs| / |theirs| of every tile."""
    a, b = (golden.vectors.astype(np.float64) for golden in (ours, theirs))
    shares: Shares = np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)
    return shares


def tolerance_of(ours: Golden, theirs: Golden) -> float:
    return max(TOLERANCES[golden.made["arithmetic"]] for golden in (ours, theirs))


def _own(volume: Volume, encoder: str) -> Path:
    path = volume.golden(checked_name("encoder", encoder))
    if not path.exists():
        raise InputError(
            f"encoder {encoder}",
            "there are no golden vectors of this machine to compare with",
            wanted=str(path),
            then=f"make smoke FAMILY=… ENCODERS={encoder}",
        )
    return path


def _require_comparable(ours: Golden, theirs: Golden, path: Path) -> None:
    """Raise where they are not of the same checkpoint, recipe and tiles, with every difference."""
    rows = differences(dict(ours.identity), dict(theirs.identity))
    if ours.tiles != theirs.tiles or ours.vectors.shape != theirs.vectors.shape:
        rows.append(("vectors", ours.vectors.shape, theirs.vectors.shape))
    if rows:
        raise InputError(
            f"encoder {ours.encoder}",
            f"its golden vectors and those of {path} are not of the same thing",
            wanted=", ".join(f"{key} = {_told(a)}" for key, a, _ in rows),
            found=", ".join(f"{key} = {_told(b)}" for key, _, b in rows),
        )


def _how(golden: Golden) -> str:
    return f"{golden.made['arithmetic']} on {_told(golden.made['environment']['device'])}"


def _told(value: Any) -> str:
    """Of somebody else's file: in one line, and no longer than can be read."""
    text = " ".join(visible(str(value)).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
