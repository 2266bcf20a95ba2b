"""Writing a scored benchmark to `metrics/<protocol>/<benchmark>/`; `run.json` is removed first and written last."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from croma_bundle.durable import atomic_file, json_bytes, remove, sweep_temporaries, write_bytes, write_json
from croma_bundle.errors import BundleError
from croma_bundle.scoring.kept import standing_samples
from croma_bundle.scoring.record import ORDER, resolved
from croma_bundle.scoring.score import BenchmarkScore
from croma_bundle.scoring.tables import (
    K_SWEEP,
    M_SWEEP,
    METRICS,
    PAIRWISE,
    Rows,
    as_records,
    k_sweep_rows,
    m_sweep_rows,
    pairwise_rows,
    per_sample_text,
    places,
)
from croma_bundle.tilemanifest.table import csv_text


def write_score(
    folder: Path, score: BenchmarkScore, metrics: Rows, plan: dict[str, Any], refused: Sequence[BundleError] = ()
) -> dict[str, Any]:
    """Write every table of a benchmark and return its `run.json`.

    `run.json` holds the SHA-256 of every table, of the `.csv.gz` files before compression. Tables of encoders that this
    run did not score are removed, so that the folder is one run; those of samples that would be written again stay.
    `refused`: why members of the roster were not scored.
    """
    points = {e.member.name: (e.point.k, e.point.tau) for e in score.encoders}
    standing = standing_samples(folder, plan, points)
    (folder / "per_sample").mkdir(parents=True, exist_ok=True)
    remove(folder / "run.json")
    sweep_temporaries(folder)
    sweep_temporaries(folder / "per_sample")
    outputs: dict[str, str] = {}
    for name, content in tables(score, metrics):
        write_bytes(folder / name, content)
        outputs[name] = hashlib.sha256(content).hexdigest()
    leading = places(score)
    for encoder in score.encoders:
        name = f"per_sample/{encoder.member.name}.csv"
        outputs[name] = standing.get(name) or write_packed(folder / f"{name}.gz", per_sample_text(encoder, leading))
    if "pairwise.csv" not in outputs:
        remove(folder / "pairwise.csv")
    for stale in (folder / "per_sample").glob("*.csv.gz"):
        if f"per_sample/{stale.name.removesuffix('.gz')}" not in outputs:
            remove(stale)
    parts = {**plan, "resolved": resolved(score, refused), "outputs": dict(sorted(outputs.items()))}
    run = {part: parts[part] for part in ORDER}
    write_json(folder / "run.json", run)
    return run


def write_packed(path: Path, texts: Iterable[str]) -> str:
    """Write a `.gz` (mtime 0) and return the SHA-256 of what is in it; one text is packed while the next is made."""
    digest, packer = hashlib.sha256(), zlib.compressobj(level=1, wbits=31)

    def pack(text: str) -> bytes:
        content = text.encode()
        digest.update(content)
        return packer.compress(content)

    with atomic_file(path) as handle, ThreadPoolExecutor(1) as beside:
        ahead: Future[bytes] = beside.submit(bytes)
        for text in texts:
            handle.write(ahead.result())
            ahead = beside.submit(pack, text)
        handle.write(ahead.result() + packer.flush())
    return digest.hexdigest()


def tables(score: BenchmarkScore, metrics: Rows) -> Iterator[tuple[str, bytes]]:
    """Name and content of every table but those of samples."""
    yield "metrics.csv", csv_text(METRICS, metrics).encode()
    yield "metrics.json", json_bytes({"columns": METRICS, "rows": as_records(METRICS, metrics)})
    yield "k_sweep.csv", csv_text(K_SWEEP, k_sweep_rows(score)).encode()
    yield "m_sweep.csv", csv_text(M_SWEEP, m_sweep_rows(score)).encode()
    if pairs := pairwise_rows(score):
        yield "pairwise.csv", csv_text(PAIRWISE, pairs).encode()
