"""Embedding matrices on disk: plain `.npy`, float32, C order, streamed in row blocks so that any size fits."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import ArtifactError, DegenerateEmbedding, some

Floats = npt.NDArray[np.float32]
BLOCK_BYTES = 64 << 20
_PARSING = threading.Lock()
"""numpy parses a header with `ast`; in two threads of CPython 3.11 at once that was seen to end in a SystemError."""
READ_BYTES = 1 << 20
"""Read at once where a file is hashed and checked: it stays in a core's cache in between."""


@dataclass(frozen=True)
class Spread:
    """How far a matrix is from collapsed.

    `cosine_min`, `cosine_mean`, `cosine_max`: over the pairs of at most 512 evenly spaced rows. `equal_rows`: rows
    equal to an earlier row, over all rows. `constant_columns`: columns with one value.
    """

    cosine_min: float
    cosine_mean: float
    cosine_max: float
    equal_rows: int
    constant_columns: int

    @property
    def collapsed(self) -> bool:
        return self.cosine_min > 0.9999


def open_matrix(path: Path, subject: str) -> Floats:
    """Map a published matrix read-only, never unpickling.

    Raises:
        ArtifactError: not a plain two-dimensional float32 C-order `.npy` of the size that its header states.
    """
    try:
        matrix = map_npy(path)
    except NotPlainNpy as error:
        raise ArtifactError(subject, "its matrix is damaged or is not a .npy file", found=f"{path} ({error})") from None
    if matrix.ndim != 2 or matrix.dtype != np.float32 or not matrix.flags.c_contiguous:
        found = f"{matrix.dtype} {matrix.shape} {path}"
        raise ArtifactError(
            subject, "its matrix has another layout", wanted="float32, (rows, width), C order", found=found
        )
    return matrix


class NotPlainNpy(Exception):
    """A file that is not one whole `.npy` array of plain numbers; the text says why."""


def map_npy(path: Path) -> npt.NDArray[Any]:
    """Map a `.npy` read-only, never unpickling.

    Raises:
        NotPlainNpy: absent, unreadable, an archive, of objects, or not exactly as long as its header states.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            if handle.read(2) == b"PK":
                raise NotPlainNpy(f"{size:,} bytes: an .npz archive, not one .npy matrix")
        with _PARSING:
            matrix = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise NotPlainNpy(error.strerror or str(error)) from None
    except (ValueError, EOFError, OverflowError, SyntaxError, TypeError, TokenError) as error:
        raise NotPlainNpy(f"{size:,} bytes: {error}") from None
    stated = matrix.offset + matrix.nbytes
    if size != stated:
        raise NotPlainNpy(f"{size:,} bytes, {stated:,} by its header")
    return matrix


def write_matrix(handle: IO[bytes], shape: tuple[int, int], blocks: Iterable[Floats]) -> str:
    """Write a `.npy` from row blocks and return the SHA-256 of the file.

    Raises:
        ValueError: the blocks do not add up to `shape`.
    """
    digest, rows = hashlib.sha256(), 0
    header = _Tee(handle, digest)
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    for block in blocks:
        content = np.ascontiguousarray(block, dtype="<f4")
        if content.shape[1:] != shape[1:]:
            raise ValueError(f"a block of width {content.shape[1:]} in a matrix of {shape}")
        header.write(content.tobytes())
        rows += len(content)
    if rows != shape[0]:
        raise ValueError(f"{rows} rows written of {shape[0]}")
    return digest.hexdigest()


def row_blocks(matrix: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """(first row, block) over a matrix, each block at most `BLOCK_BYTES`."""
    step = max(1, BLOCK_BYTES // max(1, matrix.itemsize * matrix.shape[1]))
    for start in range(0, len(matrix), step):
        yield start, np.asarray(matrix[start : start + step])


@dataclass
class UnusableRows:
    """Rows of a matrix that hold NaN or infinity, and rows of only zeros, gathered block by block."""

    bad: list[int] = field(default_factory=list)
    zero: list[int] = field(default_factory=list)

    def note(self, block: npt.NDArray[Any], first: int) -> None:
        """Look at a block; `first` is the manifest row of `block[0]`."""
        self.bad += (first + np.flatnonzero(~np.isfinite(block).all(axis=1))).tolist()
        maybe = np.flatnonzero((block[:, :1] == 0).all(axis=1))
        self.zero += (first + maybe[~(block[maybe] != 0).any(axis=1)]).tolist()

    def refuse(self, subject: str) -> None:
        """Raise `DegenerateEmbedding` naming the rows, where there are any."""
        kinds = (("NaN or infinity", self.bad), ("only zeros", self.zero))
        found = [f"{what} in {len(r):,} row{'s' if len(r) > 1 else ''}: {some(r)}" for what, r in kinds if r]
        if found:
            detail = "Rows count from 0 in manifest order."
            raise DegenerateEmbedding(subject, "it has unusable rows", found="; ".join(found), detail=detail)


def require_usable_rows(matrix: Floats, subject: str, first: int = 0) -> None:
    """Raise `DegenerateEmbedding` naming the rows that hold NaN, infinity, or only zeros.

    `first` is the manifest row of `matrix[0]`.
    """
    rows = UnusableRows()
    for start, block in row_blocks(matrix):
        rows.note(block, first + start)
    rows.refuse(subject)


def hash_and_check(path: Path, shape: tuple[int, int]) -> tuple[str, UnusableRows]:
    """The SHA-256 of a file and the unusable rows of the float32 matrix that ends it, in one reading."""
    digest, rows, first, width = hashlib.sha256(), UnusableRows(), 0, shape[1] * 4
    buffer = np.empty((max(1, READ_BYTES // width), shape[1]), dtype="<f4")
    content = buffer.data.cast("B")
    with path.open("rb") as handle:
        digest.update(handle.read(path.stat().st_size - shape[0] * width))
        while count := handle.readinto(content):
            digest.update(content[:count])
            rows.note(buffer[: count // width], first)
            first += count // width
    return digest.hexdigest(), rows


def spread(matrix: Floats) -> Spread:
    """Measure collapse; see :class:`Spread`."""
    pick = np.unique(np.linspace(0, len(matrix) - 1, min(512, len(matrix))).astype(int))
    sample = np.asarray(matrix[pick], dtype=np.float64)
    sample /= np.linalg.norm(sample, axis=1, keepdims=True)
    cosines = (sample @ sample.T)[np.triu_indices(len(sample), 1)] if len(sample) > 1 else np.ones(1)
    seen: set[bytes] = set()
    constant = np.ones(matrix.shape[1], dtype=bool)
    for _, block in row_blocks(matrix):
        constant &= (block == matrix[0]).all(axis=0)
        seen.update(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in block)
    low, mean, high = (float(np.clip(f(cosines), -1, 1)) for f in (np.min, np.mean, np.max))
    return Spread(low, mean, high, equal_rows=len(matrix) - len(seen), constant_columns=int(constant.sum()))


class _Tee:
    """A file handle that hashes what passes through it."""

    def __init__(self, handle: IO[bytes], digest: hashlib._Hash) -> None:
        self.handle, self.digest = handle, digest

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        return self.handle.write(content)
