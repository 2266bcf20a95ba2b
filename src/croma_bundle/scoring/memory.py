"""How much memory a survey takes, and what it does without where that is too much. No result depends on it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from croma_bundle.errors import EnvironmentFault, UsageError
from croma_bundle.metrics.arrangement import BLOCK, sample_size
from croma_bundle.metrics.candidates import UNHELD_BLOCKS, expected_pairs
from croma_bundle.metrics.leading import COUNT, may_pay

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
BASE = 100 * 2**20
"""Python, numpy and the tables, in bytes."""
SMALL_BLOCK = 256


@dataclass(frozen=True)
class Plan:
    """How a survey runs: rows per block, whether the float32 factor is held, threads, and the bytes that this takes."""

    block: int
    hold: bool
    threads: int
    needed: int


def parse_size(text: str) -> int:
    """Bytes of "4G", "500M", "1073741824"; raises `UsageError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if not match or float(match[1]) <= 0:
        raise UsageError(
            f"--memory-limit {text}", "this is not a size", wanted="a number with K, M, G or T, such as 4G"
        )
    return int(float(match[1]) * UNITS[match[2].upper()])


def half_of_free() -> int:
    """Half the memory that this machine, or the container it runs in, has free, in bytes."""
    free = _meminfo("MemAvailable")
    limit = _cgroup("memory.max")
    if limit is not None:
        free = min(free, max(0, limit - (_cgroup("memory.current") or 0)))
    return free // 2


def plan(
    limit: int, subject: str, *, rows: int, width: int, itemsize: int, k: int, m: int, threads: int | None
) -> Plan:
    """The fastest way to survey that fits into `limit` bytes.

    Raises:
        EnvironmentFault: none fits.
    """
    cores = threads or len(os.sched_getaffinity(0))
    ways = [(BLOCK, True, cores), (BLOCK, False, cores), (SMALL_BLOCK, False, cores), (SMALL_BLOCK, False, 1)]
    plans = [
        Plan(b, hold, t, needed(b, hold, t, rows=rows, width=width, itemsize=itemsize, k=k, m=m)) for b, hold, t in ways
    ]
    for way in plans:
        if way.needed <= limit:
            return way
    raise EnvironmentFault(
        subject,
        "it does not fit into the memory that it may take",
        wanted=f"at least {gigabytes(plans[-1].needed)} for {rows:,} rows × {width:,}",
        found=f"{gigabytes(limit)} (--memory-limit; by default half of what is free)",
    )


def needed(block: int, hold: bool, threads: int, *, rows: int, width: int, itemsize: int, k: int, m: int) -> int:
    """Bytes at the peak of one survey, about: mapped matrix, held factor, pairs, results, and blocks at work."""
    pairs = expected_pairs(rows, k, m)
    block = min(block, rows)
    mapped = rows * width * itemsize
    sample = sample_size(rows)
    lines = rows * (COUNT + 1) if may_pay(rows, width) else 0
    factor = ((rows if hold else sample) * width + lines) * 4
    waiting = rows * pairs * 10 * 3 // 10  # a block's pairs are dropped when it is done; a quarter waits at most
    results = 2 * rows * (k * 13 + m * 16)
    tall = block if hold else min(UNHELD_BLOCKS * block, rows)
    product = max(tall * 12, sample * 20) * block + (0 if hold else (tall + block) * width * 4)
    selecting = block * pairs * 120
    return BASE + mapped + factor + waiting + results + threads * (product + selecting)


def gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 2**33


def _cgroup(name: str) -> int | None:
    try:
        text = Path("/sys/fs/cgroup", name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
