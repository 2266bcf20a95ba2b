"""Placing and removing files in a hub cache: a blob named by its hash, and a link to it in the commit's snapshot."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from croma_bundle.durable import fsync_folder
from croma_bundle.layout import WeightsFolder
from croma_bundle.weights.wanted import HubCommit


def place(weights: WeightsFolder, commit: HubCommit, name: str, etag: str, partial: Path) -> Path:
    """Move a verified download to where the hub's own client would have put it; where links cannot be, the file."""
    blob, pointer = weights.blob(commit.repository, etag), weights.snapshot(commit.repository, commit.revision) / name
    with partial.open("rb") as handle:
        os.fsync(handle.fileno())
    partial.replace(blob)
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:
        blob.replace(pointer)
    fsync_folder(blob.parent)
    fsync_folder(pointer.parent)
    return pointer


def discard(path: Path) -> None:
    """Remove a file whose bytes are wrong, and the blob that it links to."""
    if path.is_symlink():
        path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def git_blob_id(content: bytes) -> str:
    """What git, and so the hub, calls a small file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
