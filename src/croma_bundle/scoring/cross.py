"""`cross_benchmark.csv`: encoders over several benchmarks, from their written `metrics.csv` alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from croma_bundle.durable import sha256_file, write_bytes
from croma_bundle.errors import ArtifactError, BundleError, InputError, raise_all
from croma_bundle.layout import Volume
from croma_bundle.metrics.ranking import Scores, Standing, standings
from croma_bundle.tilemanifest.table import Table, csv_text, read_table

FIRST = ["encoder", "is_control", "on_frontier", "mean_rank", "croma_rank", "ltm10_rank", "rank_lo", "rank_hi"]


@dataclass(frozen=True)
class Cross:
    """The table (header, rows), the ranked standings, and who was left out and why."""

    header: list[str]
    rows: list[list[object]]
    standings: list[Standing]
    left_out: dict[str, str]


@dataclass(frozen=True)
class _Row:
    is_control: bool
    scores: Scores | None


def cross_benchmark(volume: Volume, protocol: str, benchmarks: Sequence[str]) -> Cross:
    """Rank the encoders that every benchmark has; controls (of any benchmark) are listed below them without a rank.

    Raises:
        InputError: benchmarks that have not been scored under this protocol, or not at the same m.
        ArtifactError: a `metrics.csv` that is not its run's.
    """
    tables = _read_all(volume, protocol, benchmarks)
    controls = {e for rows in tables.values() for e, row in rows.items() if row.is_control}
    ranked = {
        name: {e: row.scores for e, row in rows.items() if row.scores and e not in controls}
        for name, rows in tables.items()
    }
    placed, _ = standings(ranked)
    complete = [e for e in sorted(controls) if not _absence(e, tables)]
    everyone = {e for rows in tables.values() for e in rows}
    left_out = {e: _absence(e, tables) for e in sorted(everyone) if _absence(e, tables)}
    body: list[list[object]] = [
        [s.encoder, False, s.on_frontier, s.mean_rank, s.croma_rank, s.ltm10_rank, None, None] for s in placed
    ]
    body += [[e, True, None, None, None, None, None, None] for e in complete]
    for row in body:
        scores = [rows[str(row[0])].scores for rows in tables.values()]
        row += [value for s in scores if s for value in (s.croma_median, s.croma_ltm10)]
    header = [*FIRST, *(f"{name}_croma_{what}" for name in benchmarks for what in ("median", "ltm10"))]
    return Cross(header, body, placed, left_out)


def write_cross(volume: Volume, protocol: str, cross: Cross) -> None:
    write_bytes(volume.cross_benchmark(protocol), csv_text(cross.header, cross.rows).encode())


def is_scored(volume: Volume, protocol: str, benchmark: str) -> bool:
    """True where a whole run stands: `run.json` is written last."""
    return (volume.metrics(protocol, benchmark) / "run.json").exists()


def _read_all(volume: Volume, protocol: str, benchmarks: Sequence[str]) -> dict[str, dict[str, _Row]]:
    subject = f"cross-benchmark table ({protocol})"
    faults: list[BundleError] = []
    for name in benchmarks:
        if not is_scored(volume, protocol, name):
            then = f"croma-bundle score --protocol {protocol} --benchmark {name}"
            faults.append(InputError(subject, f"{name} is not scored", then=then))
    raise_all(faults)
    runs = {name: json.loads((volume.metrics(protocol, name) / "run.json").read_text("utf-8")) for name in benchmarks}
    depths = {name: run["replay"]["m"] for name, run in runs.items()}
    if len(set(depths.values())) > 1:
        found = ", ".join(f"{name} at m = {m}" for name, m in depths.items())
        then = f"croma-bundle score --protocol {protocol} --benchmark {','.join(benchmarks)} --m {max(depths.values())}"
        raise InputError(subject, "its benchmarks were scored at different m", wanted="one m", found=found, then=then)
    return {name: _read(volume, protocol, name, run["outputs"]["metrics.csv"]) for name, run in runs.items()}


def _read(volume: Volume, protocol: str, benchmark: str, sha256: str) -> dict[str, _Row]:
    path = volume.metrics(protocol, benchmark) / "metrics.csv"
    if not path.exists() or sha256_file(path) != sha256:
        where = volume.relative(path)
        then = f"croma-bundle score --protocol {protocol} --benchmark {benchmark}"
        raise ArtifactError(where, "it is not the table that its run.json states", wanted=sha256, then=then)
    table: Table = read_table(path, ("encoder", "is_control", "croma_median", "croma_ltm10"))
    rows = {}
    for row in table.rows:
        cell = dict(zip(table.header, row, strict=True))
        scores = None
        if cell["croma_median"] and cell["croma_ltm10"]:
            scores = Scores(float(cell["croma_median"]), float(cell["croma_ltm10"]))
        rows[cell["encoder"]] = _Row(cell["is_control"] == "true", scores)
    return rows


def _absence(encoder: str, tables: Mapping[str, Mapping[str, _Row]]) -> str:
    absent = [name for name, rows in tables.items() if encoder not in rows]
    undefined = [name for name, rows in tables.items() if encoder in rows and rows[encoder].scores is None]
    reasons = [f"not scored on {', '.join(absent)}"] if absent else []
    reasons += [f"no CRoMa on {', '.join(undefined)}"] if undefined else []
    return "; ".join(reasons)
