"""From an entry to its verified files in a weights folder: offline, without the hub's client, every byte hashed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from croma_bundle.durable import sha256_file
from croma_bundle.errors import ArtifactError, BundleError, InputError, raise_all
from croma_bundle.layout import WeightsFolder
from croma_bundle.manifests.models import Encoder
from croma_bundle.weights.record import Record, read_record, recorded
from croma_bundle.weights.wanted import OwnFolder, WantedFile, bring_command, fetch_command, wanted_files


@dataclass(frozen=True)
class LocalFile:
    """A file whose bytes are those that were pinned. `code` is run when the encoder loads."""

    name: str
    path: Path
    sha256: str
    sha256_source: str
    bytes: int
    code: bool

    def as_recorded(self) -> dict[str, Any]:
        """As it stands in a sidecar."""
        stated = {} if self.code else {"sha256_source": self.sha256_source, "bytes": self.bytes}
        return {"file": self.name, "sha256": self.sha256, **stated}


def resolve(weights: WeightsFolder, entry: Encoder) -> tuple[LocalFile, ...]:
    """The files of an encoder, in the order of its entry; none for one without weights.

    Raises:
        InputError: an unpinned entry, a file that is not there, or one whose hash nobody has stated.
        ArtifactError: a file whose hash is another; several faults are told together.
    """
    record = read_record(weights)
    found, faults = list[LocalFile](), list[BundleError]()
    for wanted in wanted_files(entry):
        try:
            found.append(_resolved(weights, entry, wanted, record))
        except BundleError as fault:
            faults.append(fault)
    raise_all(faults)
    return tuple(found)


def _resolved(weights: WeightsFolder, entry: Encoder, wanted: WantedFile, record: Record) -> LocalFile:
    path = wanted.path(weights)
    subject = f"encoder {entry.name}, {wanted.name}"
    if not path.is_file():
        raise _absent(weights, entry, wanted, path)
    kept = recorded(record, entry.name, wanted)
    sha256, source = wanted.sha256, wanted.sha256_source
    if sha256 is None and kept is not None:
        sha256, source = kept.sha256, kept.sha256_source
    if sha256 is None:
        raise InputError(
            subject,
            "nobody has stated its sha256, so it cannot be trusted",
            found=str(path),
            then=f"{fetch_command(entry)} (takes the hash from the hub and records it in {weights.record})",
        )
    found = sha256_file(path)
    if found != sha256:
        raise ArtifactError(
            subject,
            "its bytes are not those that were pinned",
            wanted=f"sha256 {sha256} ({source})",
            found=f"sha256 {found} ({path})",
            then=fetch_command(entry, "--verify"),
        )
    return LocalFile(wanted.name, path, found, source, path.stat().st_size, wanted.code)


def _absent(weights: WeightsFolder, entry: Encoder, wanted: WantedFile, path: Path) -> InputError:
    subject = f"encoder {entry.name}, {wanted.name}"
    if path.is_symlink():
        problem, found = "link target missing: a hub cache must be copied with its blobs", f"{path} → {path.readlink()}"
    elif not weights.root.is_dir():
        problem, found = "there is no weights folder", str(weights.root)
    else:
        problem, found = "it is not in the weights folder", str(path)
    then = bring_command(wanted, path) if isinstance(wanted.source, OwnFolder) else fetch_command(entry)
    return InputError(subject, problem, wanted=f"{wanted.source}", found=found, then=then)
