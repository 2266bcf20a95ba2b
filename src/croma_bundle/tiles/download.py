"""The files of a tileset onto the volume: from the hub at a commit, or over HTTPS; each verified before it is used.

A file that lies there with the right hash is not fetched: copying the files by hand works without a network.
"""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from pathlib import Path

from croma_bundle.durable import fsync_folder, sha256_file, write_bytes
from croma_bundle.errors import EnvironmentFault, InputError
from croma_bundle.manifests.models import Dataset, DatasetFile, Metadata
from croma_bundle.progress import Reporter
from croma_bundle.weights.hub import Hub, connect
from croma_bundle.weights.refusals import not_what_was_pinned
from croma_bundle.weights.verified import fetched, require_pinned, require_room
from croma_bundle.weights.wanted import HubCommit, no_such_file

LARGEST = 256 << 20
"""Bytes of a metadata table beyond which it is none."""
ATTEMPTS, TIMEOUT = 3, 30.0


def fetch_dataset(subject: str, dataset: Dataset, folder: Path, reporter: Reporter) -> dict[str, Path]:
    """The parquet files of a dataset below `folder`, by name.

    Raises:
        InputError: the hub has no such commit or file, or what came is not what was pinned.
        EnvironmentFault: no access, no network, no room.
    """
    places = {file.name: folder / file.name for file in dataset.files}
    missing = [file for file in dataset.files if not _holds(places[file.name], file, subject, reporter)]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        coming = [(file.bytes, _partial(places[file.name])) for file in missing]
        require_room(subject, "there is no room for its files", folder, coming, "Free some, or name another --volume.")
        hub, commit = connect(), HubCommit(dataset.repository, dataset.revision, "dataset")
        for file in missing:
            _from_hub(subject, hub, commit, file, places[file.name], reporter)
    return places


def fetch_metadata(subject: str, metadata: Metadata, folder: Path, reporter: Reporter) -> Path:
    """A metadata table below `folder`.

    Raises:
        InputError: its hash is not known, or what came has another one. EnvironmentFault: it cannot be reached.
    """
    if metadata.sha256 is None:
        raise InputError(
            subject,
            f"the sha256 of {metadata.file} is not known, so nothing can say whether it is the right one",
            wanted=f"sha256 of {metadata.url}",
            found="null",
            then="make lock-tilesets (fetches it once and writes manifests/tilesets.lock.toml; compare, then commit)",
        )
    path = folder / metadata.file
    if path.is_file() and sha256_file(path) == metadata.sha256:
        return path
    write_bytes(path, download(subject, metadata.url))
    found = sha256_file(path)
    if found != metadata.sha256:
        path.unlink()
        raise not_what_was_pinned(f"{subject}, {metadata.file}", f"sha256 {metadata.sha256}", found, metadata.url)
    reporter.say(f"{subject}: {metadata.file} fetched and verified")
    return path


def download(subject: str, url: str) -> bytes:
    """A small file over HTTP(S), with the caller's proxy and certificates; a fault that may pass is tried again."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 (the manifest allows https only)
                content: bytes = answer.read(LARGEST + 1)
            if answer.length:  # a read of at most so many bytes says nothing of an end that came too early
                raise EOFError("the connection broke off")
            if len(content) > LARGEST:
                raise InputError(subject, f"what {url} serves is no metadata table", found=f"over {LARGEST:,} bytes")
            return content
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise InputError(subject, "there is no such file", wanted=url, found="HTTP 404") from None
            found = f"HTTP {error.code}"
        except (OSError, urllib.error.URLError, EOFError) as error:
            found = f"{type(error).__name__}: {getattr(error, 'reason', error)}"
        except Exception as error:  # http.client raises of its own when a connection breaks
            found = f"{type(error).__name__}: {error}"
            if isinstance(error, InputError):
                raise
        if attempt < ATTEMPTS:
            time.sleep(attempt)
    raise EnvironmentFault(
        subject,
        "its metadata cannot be fetched",
        wanted=url,
        found=found,
        then="Check network, proxy and certificates (docs/hospital-it.md), or put the file into source/ by hand.",
    )


def _holds(path: Path, file: DatasetFile, subject: str, reporter: Reporter) -> bool:
    """Whether the file lies there whole; a damaged one is removed."""
    if not path.is_file():
        return False
    if path.stat().st_size == file.bytes and sha256_file(path) == file.sha256:
        return True
    reporter.warn(f"{subject}: {file.name} is not what was pinned; it is removed and fetched again")
    path.unlink()
    return False


def _from_hub(subject: str, hub: Hub, commit: HubCommit, file: DatasetFile, path: Path, reporter: Reporter) -> None:
    facts = hub.stated(commit)
    if file.name not in facts:
        raise no_such_file(subject, commit, file.name, facts)
    what, pinned = f"{subject}, {file.name}", (file.sha256, "manifest")
    require_pinned(what, commit, facts[file.name], *pinned)
    partial = _partial(path)
    fetched(what, hub, commit, facts[file.name], partial, *pinned, reporter)
    with partial.open("rb") as handle:
        os.fsync(handle.fileno())
    partial.replace(path)
    fsync_folder(path.parent)
    reporter.say(f"{subject}: {file.name} fetched and verified, {file.bytes:,} bytes")


def _partial(path: Path) -> Path:
    """Where what has come of a file lies until it is whole."""
    return path.with_name(f".{path.name}.incomplete")
