"""`lock-tilesets`: fetch the metadata tables whose hash is not known, once, and write what they hash to."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from croma_bundle.durable import write_bytes
from croma_bundle.errors import BundleError, TileManifestError, raise_all
from croma_bundle.manifests.models import Benchmark, Tileset
from croma_bundle.manifests.tilesets_lock import LockedTileset, read_tilesets_lock, tilesets_lock_text
from croma_bundle.progress import Reporter
from croma_bundle.tilemanifest.join import keys_of, read_metadata
from croma_bundle.tiles.download import download


def lock_tilesets(
    output: Path, entries: Sequence[Tileset], benchmarks: Sequence[Benchmark], reporter: Reporter
) -> None:
    """Resolve every unknown hash of `entries` (as declared, without the lock) and write `output`.

    A table whose rows are not those that tileset and benchmark declare is not locked.

    Raises:
        BundleError, SeveralErrors: every tileset that failed, after the others were written.
    """
    lock = read_tilesets_lock(output.parent) if output.exists() else {}
    faults: list[BundleError] = []
    for entry in entries:
        if entry.metadata is None or entry.metadata.sha256 is not None:
            continue
        try:
            lock[entry.name] = locked = _resolved(entry, benchmarks)
        except BundleError as fault:
            faults.append(fault)
            continue
        text = f"{entry.name}: {entry.metadata.file}, {locked.rows:,} rows, sha256 {locked.sha256}"
        reporter.result(text, "locked", tileset=entry.name, sha256=locked.sha256)
    content = tilesets_lock_text(lock).encode()
    if lock and (not output.exists() or output.read_bytes() != content):
        write_bytes(output, content)
        reporter.say(f"written to {output}: compare it with another source if you can, then commit it")
    raise_all(faults)


def _resolved(entry: Tileset, benchmarks: Sequence[Benchmark]) -> LockedTileset:
    assert entry.metadata is not None  # noqa: S101 (the caller looked)
    content = download(f"tileset {entry.name}", entry.metadata.url)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / entry.metadata.file
        path.write_bytes(content)
        keys = keys_of(read_metadata(path))
    occurrences = [b.expected.rows for b in benchmarks if b.tileset == entry.name and b.expected and not b.rows]
    wanted = {"tiles": entry.expected.rows if entry.expected else None, "rows": next(iter(occurrences), None)}
    found = {"tiles": len(set(keys)), "rows": len(keys)}
    if wrong := [name for name, count in wanted.items() if count not in (None, found[name])]:
        raise TileManifestError(
            f"tileset {entry.name}",
            f"{entry.metadata.file} is not the table that is declared, and is not locked",
            wanted=", ".join(f"{wanted[name]:,} {name}" for name in wrong),
            found=", ".join(f"{found[name]:,} {name}" for name in wrong),
        )
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    digest = hashlib.sha256(content).hexdigest()
    return LockedTileset(name=entry.name, url=entry.metadata.url, sha256=digest, rows=len(keys), resolved=now)
