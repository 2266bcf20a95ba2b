"""`weights`: the pinned files of encoders into a hub cache, every one verified; one that fails stops no other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from croma_bundle.durable import lock
from croma_bundle.errors import BundleError, EnvironmentFault, raise_all
from croma_bundle.layout import WeightsFolder
from croma_bundle.manifests.models import Encoder
from croma_bundle.progress import Reporter
from croma_bundle.weights.obtain import Run, obtain
from croma_bundle.weights.record import read_record
from croma_bundle.weights.refusals import HubUnreachable

DONE = {"fetched": "fetched", "verified": "verified, was there", "there": "up to date, skipped", "none": "needs none"}


def fetch_all(weights: WeightsFolder, entries: Sequence[Encoder], reporter: Reporter, *, verify: bool = False) -> None:
    """Fetch what is missing, print a line per encoder and a summary.

    Raises:
        BundleError, SeveralErrors: everything that failed, after all the rest was fetched.
    """
    if weights.root.exists() and not weights.root.is_dir():
        raise EnvironmentFault(f"weights {weights.root}", "it is a file", wanted="a folder")
    unwritable = _unwritable(weights.root)
    held: AbstractContextManager[None] = nullcontext() if unwritable else lock(weights.lock, f"weights {weights.root}")
    counts = dict.fromkeys((*DONE, "failed"), 0)
    faults = list[BundleError]()
    with held:
        run = Run(weights, reporter, verify, unwritable, read_record(weights))
        for entry in entries:
            counts[_tried(run, entry, faults)] += 1
    ok, skipped = counts["fetched"] + counts["verified"], counts["there"] + counts["none"]
    reporter.say(f"weights: {ok} ok, {skipped} skipped, {counts['failed']} failed", "summary", **counts)
    raise_all(list(dict.fromkeys(faults)))


def _unwritable(folder: Path) -> str | None:
    """Why the folder, made where it does not exist, cannot be written to; None where it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    if os.access(folder, os.W_OK | os.X_OK):
        return None
    return "it is mounted read-only" if os.statvfs(folder).f_flag & os.ST_RDONLY else "no write permission"


def _tried(run: Run, entry: Encoder, faults: list[BundleError]) -> str:
    """The outcome for one encoder; what went wrong joins `faults`."""
    try:
        outcome, files = obtain(run, entry)
    except BundleError as fault:
        if isinstance(fault, HubUnreachable):
            run.unreachable = fault
        faults.append(fault)
        problem = getattr(fault, "problem", "see below")
        run.reporter.say(f"{entry.name}: failed, {problem}", "failed", encoder=entry.name)
        return "failed"
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else str(run.weights.root)
        faults.append(EnvironmentFault(where, f"the machine refused ({error.strerror or error})"))
        run.reporter.say(f"{entry.name}: failed, {error.strerror or error}", "failed", encoder=entry.name)
        return "failed"
    total = sum(kept.bytes for kept in files)
    text = f"{entry.name}: {DONE[outcome]}" + (f", {len(files)} files, {total:,} bytes" if files else "")
    rows = [{"file": kept.file, "sha256": kept.sha256, "sha256_source": kept.sha256_source} for kept in files]
    run.reporter.result(text, "weights", encoder=entry.name, outcome=outcome, files=rows)
    return outcome
