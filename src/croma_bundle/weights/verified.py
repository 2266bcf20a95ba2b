"""What every file of the hub must pass, weights or tiles: it is what was pinned, it fits, and its bytes are right."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from croma_bundle.durable import sha256_file
from croma_bundle.errors import EnvironmentFault, ManifestError
from croma_bundle.progress import Reporter
from croma_bundle.weights.cache import git_blob_id
from croma_bundle.weights.hub import SPARE, Hub, Stated
from croma_bundle.weights.refusals import not_what_was_pinned
from croma_bundle.weights.wanted import HubCommit


def require_pinned(subject: str, commit: HubCommit, stated: Stated, sha256: str | None, source: str) -> None:
    """Raise `ManifestError` where the hub states another hash than the pinned one, which `source` says."""
    if sha256 and stated.sha256 and sha256 != stated.sha256:
        raise ManifestError(
            subject,
            "the hub has another file than is pinned; nothing was downloaded",
            wanted=f"sha256 {sha256} ({source})",
            found=f"sha256 {stated.sha256} (hub@{commit.revision})",
        )


def require_room(subject: str, problem: str, folder: Path, coming: Iterable[tuple[int, Path]], then: str) -> None:
    """Raise `EnvironmentFault` where what is still to come would not fit into `folder`.

    Args:
        coming: the bytes of each file, and where its part that has come already would lie.
    """
    need = SPARE + sum(size - (partial.stat().st_size if partial.exists() else 0) for size, partial in coming)
    free = shutil.disk_usage(folder).free
    if need > free:
        wanted, found = f"{need:,} bytes", f"{free:,} bytes free"
        raise EnvironmentFault(subject, problem, wanted=wanted, found=found, then=then)


def fetched(
    subject: str,
    hub: Hub,
    commit: HubCommit,
    stated: Stated,
    partial: Path,
    sha256: str | None,
    source: str,
    reporter: Reporter,
) -> str:
    """Fetch a file into `partial`, verify it, and return its sha256.

    Where no sha256 is pinned, the one that the hub states holds, or git's id of a small file.

    Raises:
        InputError: its bytes are others; it was removed. EnvironmentFault, ManifestError: it cannot be had.
    """
    with reporter.meter(subject, stated.bytes) as arrived:
        hub.download(commit, stated, partial, arrived)
    found, wanted = sha256_file(partial), sha256 or stated.sha256
    if found != wanted if wanted else git_blob_id(partial.read_bytes()) != stated.blob:
        partial.unlink()
        said = f"sha256 {wanted}" if wanted else f"git blob {stated.blob}"
        raise not_what_was_pinned(subject, f"{said} ({source if sha256 else commit.says})", found, commit)
    return found
