"""The compiled inner loops of ``kernel.c``, where the package was built with a C compiler.

They give the bytes that the numpy code gives, and are used where they are there; ``CROMA_KERNEL`` chooses ("numpy", or
"c", which fails where they are not). A library of another source than the one beside it, or one whose sums differ from
this numpy's, is not used.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from croma_bundle.metrics.arrangement import Arrangement, Block

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

VARIABLE = "CROMA_KERNEL"
SOURCE = Path(__file__).with_name("kernel.c")
LIBRARY = Path(__file__).with_name("libkernel.so")
TILE = 128
"""Partners that are sifted at a time, as in the source."""
WIDTHS = (1, 7, 8, 100, 128, 135, 1000, 1536, 2563)
"""Widths that a library is tried on: below and above each step of the summation."""


class Pairs(NamedTuple):
    """Pairs of one block's rows: row within the block, partner in the arrangement, minus-distance."""

    row: npt.NDArray[np.int16]
    partner: npt.NDArray[np.int32]
    closeness: Singles


class Gathering(Protocol):
    """Finds the pairs of a block of the product within the limits of its rows, and within those of its columns.

    `factors` are those of the two blocks' rows, contiguous; only sifting reads them."""

    def __call__(
        self, product: Singles, one: Block, other: Block, *, both: bool, factors: tuple[Singles, ...] = ()
    ) -> tuple[Pairs, Pairs | None]: ...


def chosen() -> Kernel | None:
    """The kernel to use; None: numpy.

    Raises:
        UsageError: ``CROMA_KERNEL`` names no kernel.
        EnvironmentFault: it demands the compiled one, which cannot be used.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "numpy", "c"):
        raise UsageError(VARIABLE, f"'{asked}' is no kernel", wanted="numpy or c; unset: c where it was built")
    if asked == "numpy":
        return None
    kernel, reason = _load(LIBRARY)
    if asked == "c" and kernel is None:
        raise EnvironmentFault(
            VARIABLE, f"the compiled kernel cannot be used: {reason}", wanted="a package built with it"
        )
    return kernel


def name() -> str:
    """What :func:`chosen` gives: "c" or "numpy"."""
    return "c" if chosen() else "numpy"


class Kernel:
    """The library's functions on arrays."""

    def __init__(self, library: ctypes.CDLL) -> None:
        whole, at = ctypes.c_int64, ctypes.c_void_p
        takes = {
            "dots": [at, whole, at, at, whole, at, at],
            "centre": [at, whole, at, whole, at, at, at, at, at],
            "guess": [at, whole, whole, whole, at, at, at, at, at, at],
            "gather": [at, whole, whole, whole, whole, whole, at, at, at],
            "sift": [at, whole, whole, whole, whole, whole, at, at, at, at],
            "order": [at, whole, at, at, at, at],
        }
        self._call = {name: getattr(library, f"croma_{name}") for name in takes}
        for name, function in self._call.items():
            function.argtypes, function.restype = takes[name], None

    def dots(self, x: Singles, rows: Ints, partners: Ints) -> Floats:
        """Dot product of each row of x with its partner, summed as ``numpy.add.reduce`` does."""
        own, out = np.empty(x.shape[1]), np.empty(len(rows))
        rows, partners = (np.ascontiguousarray(side, dtype=np.int64) for side in (rows, partners))
        self._call["dots"](_at(x), x.shape[1], _at(rows), _at(partners), len(rows), _at(own), _at(out))
        return out

    def centre(
        self, x: Singles, source: Ints, centre: Floats, scale: Floats, held: Singles | None, half: Floats
    ) -> None:
        """Of each row ``x[source]``: fill in its scale, what is held of it (unless None), and its half square."""
        unit, source = np.empty(x.shape[1]), np.ascontiguousarray(source, dtype=np.int64)
        to = [_at(scale), None if held is None else _at(held), _at(half)]
        self._call["centre"](_at(x), x.shape[1], _at(source), len(source), _at(centre), _at(unit), *to)

    def order(self, row: npt.NDArray[np.int16], closeness: Singles, rows: int) -> Ints:
        """What sorts pairs by row (0 to rows − 1), then nearest first, stably."""
        order = np.empty(len(row), dtype=np.int64)
        start, key, room = np.empty(rows + 1, dtype=np.int64), np.empty_like(order), np.empty_like(order)
        pairs = _Pairs(_at(row), None, _at(closeness), len(row))
        self._call["order"](ctypes.byref(pairs), rows, _at(start), _at(key), _at(room), _at(order))
        return order

    def takes(self, x: npt.NDArray[Any]) -> bool:
        """Whether ``dots`` can read the rows of x."""
        return bool(x.dtype == np.float32 and x.flags.c_contiguous and x.flags.aligned)

    def gathering(self, a: Arrangement, limits: Singles) -> Gathering:
        """For the rows of `a`; `limits` is (4, N) and may change meanwhile."""
        return _Gathering(self._call["gather"], a, limits)

    def sifting(self, a: Arrangement, limits: Singles) -> Gathering:
        """As ``gathering``, of blocks that hold no less than the product."""
        return _Sifting(self._call["sift"], a, limits)

    def guess(self, a: Arrangement, block: Block, product: Singles, k_rank: int, m_rank: int) -> list[Singles]:
        """Of each row of a block, by its product with the sample: the k_rank-th nearest of its candidates, and the
        m_rank-th of each type; minus infinity where there are fewer."""
        product, ranks = np.ascontiguousarray(product), np.array([k_rank, m_rank], dtype=np.int64)
        n, p = product.shape
        best, found = np.empty(k_rank + 2 * m_rank, dtype=np.float32), list(np.empty((3, n), dtype=np.float32))
        rows, _kept = _rows(a)
        self._call["guess"](
            _at(product), block.start, n, p, ctypes.byref(rows), _at(ranks), _at(best), *map(_at, found)
        )
        return found


def _rows(a: Arrangement, limits: Singles | None = None) -> tuple[_Rows, list[Any]]:
    """The rows as C reads them, and what must stay alive meanwhile."""
    codes = (a.labels, a.confounders, a.groups, a.cell_end)
    kept: list[Any] = [np.ascontiguousarray(code, dtype=np.int64) for code in codes]
    return _Rows(*map(_at, kept), None if limits is None else _at(limits), len(a.given)), [*kept, limits]


class _Gathering:
    def __init__(self, gather: Any, a: Arrangement, limits: Singles) -> None:
        self.gather = gather
        self.rows, self.kept = _rows(a, limits)

    def __call__(
        self, product: Singles, one: Block, other: Block, *, both: bool, factors: tuple[Singles, ...] = ()
    ) -> tuple[Pairs, Pairs | None]:
        n, p = product.shape
        mine, theirs = _Found(n * p), _Found(n * p if both else 0)
        stride = product.strides[0] // product.itemsize
        found = ctypes.byref(mine), ctypes.byref(theirs) if both else None
        rows = map(ctypes.byref, [self.rows, *self.more(*factors)])
        self.gather(_at(product), stride, one.start, n, other.start, p, *rows, *found)
        return mine.pairs(), theirs.pairs() if both else None

    def more(self, *factors: Singles) -> list[ctypes.Structure]:
        """What else the function takes."""
        return []


class _Sifting(_Gathering):
    def __init__(self, sift: Any, a: Arrangement, limits: Singles) -> None:
        super().__init__(sift, a, limits)
        self.half = a.h.astype(np.float32)

    def more(self, *factors: Singles) -> list[ctypes.Structure]:
        mine, other = factors
        return [_Sift(mine, other, self.half)]


class _Rows(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("label", "confounder", "group", "cell_end", "limit")),
        ("n", ctypes.c_int64),
    )


class _Sift(ctypes.Structure):
    """The factors of both blocks, and room for the pairs of a tile."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("mine", "other")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("half", "row", "column", "sum")),
    )

    def __init__(self, mine: Singles, other: Singles, half: Singles) -> None:
        room = len(mine) * min(TILE, len(other))
        self.room = *np.empty((2, room), dtype=np.int16), np.empty(room, dtype=np.float32)
        super().__init__(_at(mine), _at(other), mine.shape[1], _at(half), *map(_at, self.room))


class _Pairs(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_void_p) for name in ("row", "partner", "closeness")), ("count", ctypes.c_int64))


class _Found(_Pairs):
    """Room for the pairs of a block: memory that is not written to is not taken."""

    def __init__(self, room: int) -> None:
        self.room = Pairs(
            np.empty(room, dtype=np.int16), np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float32)
        )
        super().__init__(*map(_at, self.room), 0)

    def pairs(self) -> Pairs:
        row, partner, closeness = self.room
        return Pairs(row[: self.count].copy(), partner[: self.count].copy(), closeness[: self.count].copy())


def _at(array: Any) -> int:
    return int(array.ctypes.data)


@functools.cache
def _load(path: Path) -> tuple[Kernel | None, str]:
    """The kernel, or None and why not."""
    if not path.exists():
        return None, "this package was built without it"
    try:
        library = ctypes.CDLL(str(path))
        library.croma_kernel_source.restype = ctypes.c_char_p
        built = library.croma_kernel_source().decode()
    except (OSError, AttributeError) as fault:
        return None, f"{path.name} does not load ({fault})"
    if built != hashlib.sha256(SOURCE.read_bytes()).hexdigest():
        return None, f"{path.name} was built from another {SOURCE.name}"
    kernel = Kernel(library)
    if not all(_agrees(kernel, width) for width in WIDTHS):
        return None, "this numpy sums in another order"
    return kernel, ""


def _agrees(kernel: Kernel, width: int) -> bool:
    x = np.sin(np.arange(5.0 * width)).astype(np.float32).reshape(5, width)
    row, partner = np.divmod(np.arange(25), 5)
    wide = x.astype(np.float64)
    wanted: Floats = np.add.reduce(wide[row] * wide[partner], axis=-1)
    return kernel.dots(x, row, partner).tobytes() == wanted.tobytes()
