"""`cross_benchmark.csv`: encoders over several benchmarks, from their written tables alone.

`cross_benchmark.json` holds the same rows, who was left out and why, and the hash of every `run.json` behind it.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.durable import json_bytes, remove, sha256_file, write_bytes, write_json
from croma_bundle.errors import ArtifactError, BundleError, InputError, raise_all, some
from croma_bundle.layout import Volume
from croma_bundle.metrics.bootstrap import SEED, Interval, Replicates, bootstrap, rank_intervals
from croma_bundle.metrics.ranking import Scores, standings
from croma_bundle.scoring.kept import intact
from croma_bundle.scoring.record import made_with
from croma_bundle.scoring.tables import as_records
from croma_bundle.tilemanifest.table import Table, csv_text, read_table

FIRST = ["encoder", "is_control", "on_frontier", "mean_rank", "croma_rank", "ltm10_rank", "rank_lo", "rank_hi"]


@dataclass(frozen=True)
class Cross:
    """The table (header; rows, controls last), who was left out and why, and the SHA-256 of each `run.json`."""

    header: list[str]
    rows: list[list[Any]]
    left_out: dict[str, str]
    runs: dict[str, str]


@dataclass(frozen=True)
class _Row:
    is_control: bool
    scores: Scores | None


def cross_benchmark(volume: Volume, protocol: str, benchmarks: Sequence[str]) -> Cross:
    """Rank the encoders that every benchmark has; controls (of any benchmark) are listed below them without a rank.

    Each benchmark's groups are resampled with the seed of its own run, for all its encoders alike.

    Raises:
        InputError: benchmarks that have not been scored under this protocol, or not at the same m.
        ArtifactError: a `metrics.csv` or table of samples that is not its run's, or a run whose matrices have changed.
    """
    runs = _read_runs(volume, protocol, benchmarks)
    tables = {name: _read(volume, protocol, name, run["outputs"]["metrics.csv"]) for name, run in runs.items()}
    controls = {e for rows in tables.values() for e, row in rows.items() if row.is_control}
    ranked = {
        name: {e: row.scores for e, row in rows.items() if row.scores and e not in controls}
        for name, rows in tables.items()
    }
    placed, _ = standings(ranked)
    complete = [e for e in sorted(controls) if not _absence(e, tables)]
    everyone = {e for rows in tables.values() for e in rows}
    left_out = {e: _absence(e, tables) for e in sorted(everyone) if _absence(e, tables)}
    names = sorted(s.encoder for s in placed)
    cohorts = [_resampled(volume, protocol, name, run, names) for name, run in runs.items()] if names else []
    within = rank_intervals(cohorts) if cohorts else {}
    body: list[list[Any]] = [
        [s.encoder, False, s.on_frontier, s.mean_rank, s.croma_rank, s.ltm10_rank, *_ends(within[s.encoder])]
        for s in placed
    ]
    body += [[e, True, None, None, None, None, None, None] for e in complete]
    for row in body:
        scores = [rows[str(row[0])].scores for rows in tables.values()]
        row += [value for s in scores if s for value in (s.croma_median, s.croma_ltm10)]
    header = [*FIRST, *(f"{name}_croma_{what}" for name in benchmarks for what in ("median", "ltm10"))]
    return Cross(header, body, left_out, _hashes(volume, protocol, benchmarks))


def write_cross(volume: Volume, protocol: str, cross: Cross) -> None:
    """Write the table and, last, the record of what it was made of."""
    path, content = volume.cross_benchmark(protocol), csv_text(cross.header, cross.rows).encode()
    remove(volume.cross_record(protocol))
    write_bytes(path, content)
    record = {
        "runs": cross.runs,
        "versions": made_with(),
        "left_out": cross.left_out,
        "columns": cross.header,
        "rows": as_records(cross.header, cross.rows),
        "outputs": {path.name: hashlib.sha256(content).hexdigest()},
    }
    write_json(volume.cross_record(protocol), {**record, "record_sha256": _sha256(record)})


def _sha256(record: dict[str, Any]) -> str:
    return hashlib.sha256(json_bytes(record)).hexdigest()


def standing_cross(volume: Volume, protocol: str, benchmarks: Sequence[str], checked: Sequence[str]) -> Cross | None:
    """The written table, where it was made of these very runs and all that it was made of stands.

    Args:
        checked: benchmarks whose tables are known to be their runs'.

    Raises:
        InputError, ArtifactError: as `cross_benchmark`.
    """
    runs = _read_runs(volume, protocol, benchmarks)
    hashes, path = _hashes(volume, protocol, benchmarks), volume.cross_benchmark(protocol)
    try:
        record = json.loads(volume.cross_record(protocol).read_bytes())
        if record.pop("record_sha256") != _sha256(record):
            return None
        same = list(record["runs"].items()) == list(hashes.items()) and record["versions"] == made_with()
        if not same or sha256_file(path) != record["outputs"][path.name]:
            return None
        header, left_out = record["columns"], record["left_out"]
        rows = [[row[column] for column in header] for row in record["rows"]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    whole = all(intact(volume.metrics(protocol, n), run["outputs"]) for n, run in runs.items() if n not in checked)
    return Cross(header, rows, left_out, hashes) if whole else None


def _hashes(volume: Volume, protocol: str, benchmarks: Sequence[str]) -> dict[str, str]:
    return {name: sha256_file(volume.metrics(protocol, name) / "run.json") for name in benchmarks}


def is_scored(volume: Volume, protocol: str, benchmark: str) -> bool:
    """True where a whole run stands: `run.json` is written last."""
    return (volume.metrics(protocol, benchmark) / "run.json").exists()


def _read_runs(volume: Volume, protocol: str, benchmarks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The `run.json` of each; raises unless all are scored, and at one m."""
    subject = f"cross-benchmark table ({protocol})"
    faults: list[BundleError] = []
    for name in benchmarks:
        if not is_scored(volume, protocol, name):
            then = f"croma-bundle score --protocol {protocol} --benchmark {name}"
            faults.append(InputError(subject, f"{name} is not scored", then=then))
    raise_all(faults)
    runs = {name: json.loads((volume.metrics(protocol, name) / "run.json").read_text("utf-8")) for name in benchmarks}
    raise_all([fault for name, run in runs.items() if (fault := _stale(volume, protocol, name, run)) is not None])
    depths = {name: run["replay"]["m"] for name, run in runs.items()}
    if len(set(depths.values())) > 1:
        found = ", ".join(f"{name} at m = {m}" for name, m in depths.items())
        then = f"croma-bundle score --protocol {protocol} --benchmark {','.join(benchmarks)} --m {max(depths.values())}"
        raise InputError(subject, "its benchmarks were scored at different m", wanted="one m", found=found, then=then)
    return runs


def _stale(volume: Volume, protocol: str, benchmark: str, run: Mapping[str, Any]) -> ArtifactError | None:
    """What is wrong with a run whose matrices or rows have changed since."""
    inputs = run["inputs"]
    tileset = inputs["tileset"]
    now = {name: volume.sidecar(tileset, name) for name in inputs["encoders"]}
    changed = [
        name
        for name, path in now.items()
        if not path.exists() or sha256_file(path) != inputs["encoders"][name]["sidecar_sha256"]
    ]
    manifest = volume.tile_manifest(tileset)
    if not manifest.exists() or sha256_file(manifest) != inputs["manifest_sha256"]:
        changed.append("the tileset's manifest")
    if not changed:
        return None
    return ArtifactError(
        f"cross-benchmark table ({protocol})",
        f"{benchmark} was scored from what is no longer there",
        found=f"changed since: {some(changed)}",
        then=f"croma-bundle score --protocol {protocol} --benchmark {benchmark}",
    )


def _ends(interval: Interval) -> tuple[float, float]:
    return interval.lo, interval.hi


def _read(volume: Volume, protocol: str, benchmark: str, sha256: str) -> dict[str, _Row]:
    path = volume.metrics(protocol, benchmark) / "metrics.csv"
    if not path.exists() or sha256_file(path) != sha256:
        raise _not_the_runs(volume.relative(path), protocol, benchmark, sha256)
    table: Table = read_table(path, ("encoder", "is_control", "croma_median", "croma_ltm10"))
    rows = {}
    for row in table.rows:
        cell = dict(zip(table.header, row, strict=True))
        scores = None
        if cell["croma_median"] and cell["croma_ltm10"]:
            scores = Scores(float(cell["croma_median"]), float(cell["croma_ltm10"]))
        rows[cell["encoder"]] = _Row(cell["is_control"] == "true", scores)
    return rows


def _not_the_runs(where: str, protocol: str, benchmark: str, sha256: str) -> ArtifactError:
    then = f"croma-bundle score --protocol {protocol} --benchmark {benchmark}"
    return ArtifactError(where, "it is not the table that its run.json states", wanted=sha256, then=then)


def _resampled(
    volume: Volume, protocol: str, benchmark: str, run: Mapping[str, Any], encoders: Sequence[str]
) -> dict[str, Replicates]:
    """The bootstrap of these encoders on one benchmark, from the margins that its run wrote."""
    replay, outputs = run["replay"], run["outputs"]
    margins, text = dict[str, npt.NDArray[np.float64]](), ""
    for encoder in encoders:
        text = _samples(volume, protocol, benchmark, encoder, outputs.get(f"per_sample/{encoder}.csv", ""))
        margins[encoder] = _column(text, f"croma_m{replay['m']}")
    units = list(csv.DictReader(io.StringIO(text, newline="")))  # the same for all encoders
    groups, scopes = (np.array([unit[column] for unit in units]) for column in ("group_id", "subset"))
    return bootstrap(margins, groups, scopes, seed=replay.get("seed", SEED))


def _samples(volume: Volume, protocol: str, benchmark: str, encoder: str, sha256: str) -> str:
    path = volume.metrics(protocol, benchmark) / "per_sample" / f"{encoder}.csv.gz"
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error):
        content = b""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise _not_the_runs(volume.relative(path), protocol, benchmark, sha256)
    return content.decode()


def _column(text: str, name: str) -> npt.NDArray[np.float64]:
    """One column of numbers of a table of samples."""
    header = text.split("\n", 1)[0].split(",")
    where = header.index(name)
    with io.StringIO(text) as lines:
        found: npt.NDArray[np.float64] = np.loadtxt(
            lines, delimiter=",", skiprows=1, usecols=where, quotechar='"', comments=None, ndmin=1
        )
    return found


def _absence(encoder: str, tables: Mapping[str, Mapping[str, _Row]]) -> str:
    absent = [name for name, rows in tables.items() if encoder not in rows]
    undefined = [name for name, rows in tables.items() if encoder in rows and rows[encoder].scores is None]
    reasons = [f"not scored on {', '.join(absent)}"] if absent else []
    reasons += [f"no CRoMa on {', '.join(undefined)}"] if undefined else []
    return "; ".join(reasons)
