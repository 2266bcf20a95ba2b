"""What a declaration says its rows come to, checked before anything is embedded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from croma_bundle.errors import CohortError, TileManifestError
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Benchmark, Tileset
from croma_bundle.tilemanifest.design import DesignCheck, check_design
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.selection import benchmark_rows

NEEDED_M = 5
"""Typed candidates of either kind that every row of a declared benchmark must have: the headline m of CRoMa."""


@dataclass(frozen=True)
class ViewCheck:
    """One benchmark's rows: its counts, and the design of every scope (one for `all`, one per subset)."""

    benchmark: Benchmark
    rows: int
    groups: int
    scopes: dict[str, DesignCheck]

    @property
    def largest_m(self) -> int:
        return min(check.largest_m for check in self.scopes.values())

    def text(self) -> str:
        where = "" if self.benchmark.design == "all" else f" in {len(self.scopes):,} subsets"
        return (
            f"benchmark {self.benchmark.name}: {self.rows:,} rows of {self.groups:,} groups{where}; every row has at "
            f"least {self.largest_m:,} candidates of either type"
        )


def require_size(entry: Tileset, manifest: TileManifest) -> None:
    """Raise `TileManifestError` where the tileset does not hold what its declaration says."""
    if entry.expected is None:
        return
    groups = len(set(manifest.column("group_id")))
    wanted = {"tiles": entry.expected.rows, "groups": entry.expected.groups}
    _require(f"tileset {entry.name}", wanted, {"tiles": len(manifest), "groups": groups})


def check_view(volume: Volume, benchmark: Benchmark, entry: Tileset, manifest: TileManifest) -> ViewCheck:
    """Count the rows of a benchmark and the candidates of each.

    Raises:
        TileManifestError: the counts are not those that `expected` declares.
        CohortError: it declares what to expect, and a row has fewer than five candidates of a type.
    """
    subject, confounder = f"benchmark {benchmark.name}", benchmark.confounder or entry.confounder
    index, subsets = benchmark_rows(volume, benchmark, manifest)
    values = manifest.require_column(confounder, subject)
    columns = [manifest.column("label"), values, manifest.column("group_id")]
    rows = [tuple(column[i] for column in columns) for i in index]
    if benchmark.expected is not None:
        _require(subject, benchmark.expected.model_dump(), _counts(rows))
    scopes = _scopes(rows, subsets)
    check = ViewCheck(benchmark, len(rows), len({group for _, _, group in rows}), scopes)
    if benchmark.expected is not None and check.largest_m < NEEDED_M:
        raise CohortError(
            subject,
            "not every row has typed candidates enough in other groups",
            wanted=f"at least {NEEDED_M} of the same label at another {confounder}, and of another label at the same",
            found=f"{check.largest_m} at the least ({_worst(scopes)})",
        )
    return check


def _scopes(rows: Sequence[tuple[str, ...]], subsets: Sequence[str] | None) -> dict[str, DesignCheck]:
    grouped: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for row, subset in zip(rows, subsets or ["all rows"] * len(rows), strict=True):
        grouped[subset].append(row)
    return {subset: check_design(*map(list, zip(*members, strict=True))) for subset, members in grouped.items()}


def _worst(scopes: dict[str, DesignCheck]) -> str:
    return min(scopes, key=lambda subset: scopes[subset].largest_m)


def _counts(rows: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """What `Expected` names; `cell_rows` is −1 where cells differ in size."""
    cells = Counter((label, value) for label, value, _ in rows)
    sizes = set(cells.values())
    return {
        "rows": len(rows),
        "labels": len({label for label, _, _ in rows}),
        "confounders": len({value for _, value, _ in rows}),
        "groups": len({group for _, _, group in rows}),
        "cells": len(cells),
        "cell_rows": sizes.pop() if len(sizes) == 1 else -1,
    }


def _require(subject: str, wanted: dict[str, int | None], found: dict[str, int]) -> None:
    wrong = [name for name, value in wanted.items() if value is not None and value != found[name]]
    if wrong:
        raise TileManifestError(
            subject,
            "its rows are not what is declared",
            wanted=", ".join(f"{name} {wanted[name]:,}" for name in wrong),
            found=", ".join(f"{name} {_shown(found[name])}" for name in wrong),
        )


def _shown(value: int) -> str:
    return "unequal" if value < 0 else f"{value:,}"
