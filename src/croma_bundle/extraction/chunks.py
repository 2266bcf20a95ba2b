"""The chunks of a run under way: `.work/<Encoder>/`, each chunk whole or absent, so that a resume is exact.

`job.json` says which job the chunks belong to; chunks of any other job are discarded. `chunk-NNNNN.npy` counts only
together with `chunk-NNNNN.json`, which is written after it and holds its SHA-256.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.durable import sweep_temporaries, write_bytes, write_json
from croma_bundle.errors import ArtifactError

Floats = npt.NDArray[np.float32]
TILES_PER_CHUNK = 256


def chunk_rows(batch_size: int) -> int:
    """Rows per chunk: the smallest multiple of the batch size that is at least `TILES_PER_CHUNK`.

    A multiple, so that a resumed run forms the very batches of an uninterrupted one.
    """
    return -(-TILES_PER_CHUNK // batch_size) * batch_size


@dataclass(frozen=True)
class ChunkStore:
    """The chunk files of one job.

    Attributes:
        subject: the job, as errors name it.
        folder: `.work/<Encoder>`.
        identity: the job's contract and chunk size; chunks of another identity do not count.
        rows, step: rows of the matrix and of a chunk (the last one may be shorter).
    """

    subject: str
    folder: Path
    identity: dict[str, Any]
    rows: int
    step: int

    def spans(self) -> list[tuple[int, int]]:
        """(first, end) row of every chunk."""
        return [(first, min(first + self.step, self.rows)) for first in range(0, self.rows, self.step)]

    def open(self) -> bool:
        """Make the folder this job's; returns False where another job's chunks had to be discarded."""
        claim = self.folder / "job.json"
        wanted = json.loads(json.dumps({"identity": self.identity, "rows": self.rows, "step": self.step}))
        kept = True
        if self.folder.exists() and _json(claim) != wanted:
            kept = not any(self.folder.glob("chunk-*.json"))
            shutil.rmtree(self.folder)
        if not claim.exists():
            write_json(claim, wanted)
        sweep_temporaries(self.folder)
        return kept

    def finished(self) -> list[int]:
        """Numbers of the chunks that are whole and unchanged."""
        return [number for number in range(len(self.spans())) if self._content(number) is not None]

    def write(self, number: int, rows: Floats) -> None:
        """Store one chunk durably: first the rows, then the marker with their hash."""
        buffer = io.BytesIO()
        np.save(buffer, rows, allow_pickle=False)
        write_bytes(self._path(number, "npy"), buffer.getvalue())
        write_json(self._path(number, "json"), {"sha256": sha256(buffer.getvalue()).hexdigest()})

    def blocks(self) -> Iterator[Floats]:
        """The rows of all chunks in order.

        Raises:
            ArtifactError: a chunk is gone or changed since it was counted.
        """
        for number in range(len(self.spans())):
            content = self._content(number)
            if content is None:
                found, then = str(self._path(number, "npy")), "Run it again: that chunk is computed anew."
                raise ArtifactError(self.subject, "a chunk changed after it was written", found=found, then=then)
            yield np.load(io.BytesIO(content), allow_pickle=False)

    def discard(self) -> None:
        """Remove the folder, if there is one."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _content(self, number: int) -> bytes | None:
        marker = _json(self._path(number, "json"))
        path = self._path(number, "npy")
        if marker is None or not path.exists():
            return None
        content = path.read_bytes()
        return content if sha256(content).hexdigest() == marker.get("sha256") else None

    def _path(self, number: int, ending: str) -> Path:
        return self.folder / f"chunk-{number:05d}.{ending}"


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
