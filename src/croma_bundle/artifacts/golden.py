"""Golden vectors: what an encoder made of a few generated tiles, and how, in one file for others to compare with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.artifacts.matrix import Floats
from croma_bundle.durable import write_bytes
from croma_bundle.errors import ArtifactError, InputError, some

SCHEMA = 1
ARITHMETICS = ("float32", "mixed-float16")


@dataclass(frozen=True)
class Golden:
    """Golden vectors, (tiles, width) float32.

    Attributes:
        identity: what must be equal for two to be compared: encoder, checkpoint, recipe, pooling, tiles.
        made: how they were computed: arithmetic, device, environment, bundle, when.
        tiles: names of the rows.
    """

    identity: Mapping[str, Any]
    made: Mapping[str, Any]
    tiles: tuple[str, ...]
    vectors: Floats

    @property
    def encoder(self) -> str:
        return str(self.identity["encoder"])


def write_golden(path: Path, golden: Golden) -> None:
    """One JSON document; numbers as the shortest decimals that read back as the same float32."""
    rows = {name: [float(str(x)) for x in row] for name, row in zip(golden.tiles, golden.vectors, strict=True)}
    facts = {"schema": SCHEMA, "identity": golden.identity, "made": golden.made}
    document = {**facts, "vectors_sha256": _sha256(golden.vectors), "vectors": rows}
    write_bytes(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())


def read_golden(path: Path) -> Golden:
    """A file of `write_golden`, this one's or somebody else's.

    Raises:
        InputError: it is not there, not such a file, or a vector is not finite, or zero. ArtifactError: its vectors are
            not those that were written.
    """
    try:
        document = json.loads(path.read_bytes())
        rows = [[_number(value) for value in row] for row in document["vectors"].values()]
        with np.errstate(over="ignore"):
            vectors = np.array(rows, dtype=np.float32)
        golden = Golden(document["identity"], document["made"], tuple(document["vectors"]), vectors)
        stated, schema = document["vectors_sha256"], document["schema"]
        golden.identity["encoder"], ARITHMETICS.index(golden.made["arithmetic"]), golden.made["environment"]["device"]
        on_cuda = golden.made["environment"]["device"].startswith("cuda")
        if vectors.ndim != 2 or not vectors.size or (golden.made["arithmetic"] != "float32" and not on_cuda):
            raise ValueError  # float16 is CUDA's alone, and tolerated more
    except OSError as error:
        raise InputError(str(path), f"it cannot be read ({error.strerror})", wanted="a file of `make smoke`") from None
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(str(path), "these are no golden vectors", wanted="a file of `make smoke`") from None
    if type(schema) is not int or schema != SCHEMA:
        raise InputError(str(path), "another schema", wanted=str(SCHEMA), found=repr(schema))
    found = _sha256(vectors)
    if found != stated:
        raise ArtifactError(str(path), "its vectors changed after they were written", wanted=str(stated), found=found)
    named = zip(golden.tiles, vectors, strict=True)
    if unusable := [name for name, row in named if not (np.isfinite(row).all() and row.any())]:
        wanted = "finite numbers, not all 0"
        raise InputError(str(path), "vectors that no encoder makes", wanted=wanted, found=some(unusable))
    return golden


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return float(value)


def _sha256(vectors: npt.NDArray[np.float32]) -> str:
    return hashlib.sha256(np.ascontiguousarray(vectors, dtype="<f4").tobytes()).hexdigest()
