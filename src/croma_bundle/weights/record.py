"""`weights.lock.json`: what lies in a weights folder, and who stated its hash."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from croma_bundle.durable import write_json
from croma_bundle.errors import ArtifactError
from croma_bundle.layout import WeightsFolder
from croma_bundle.weights.wanted import HubCommit, Source, WantedFile, WheelRelease

SCHEMA = 1


@dataclass(frozen=True)
class KeptFile:
    """A file that was verified; `repository` and `revision` are those of `identity`."""

    encoder: str
    repository: str
    revision: str
    file: str
    sha256: str
    sha256_source: str
    bytes: int
    fetched_at: str


Record = dict[tuple[str, str, str, str], KeptFile]


def keep(encoder: str, wanted: WantedFile, sha256: str, sha256_source: str, size: int) -> KeptFile:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return KeptFile(encoder, *identity(wanted.source), wanted.name, sha256, sha256_source, size, now)


def identity(source: Source) -> tuple[str, str]:
    """How a record names a source: repository and commit, project and version, or the folder of one's own."""
    if isinstance(source, HubCommit):
        return source.repository, source.revision
    return (source.project, source.version) if isinstance(source, WheelRelease) else (f"local--{source.encoder}", "")


def recorded(record: Record, encoder: str, wanted: WantedFile) -> KeptFile | None:
    """What was verified of a wanted file, for this encoder or for another that needs the same file."""
    place = (*identity(wanted.source), wanted.name)
    own = record.get((encoder, *place))
    return own or next((kept for key, kept in record.items() if key[1:] == place), None)


def read_record(weights: WeightsFolder) -> Record:
    """The record of a folder, empty where there is none."""
    try:
        document = json.loads(weights.record.read_bytes())
        kept = [KeptFile(**row) for row in document["files"]]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            str(weights.record),
            "it is damaged",
            found=f"{type(error).__name__}: {error}",
            then="Remove it: `make weights FAMILY=…` verifies what lies there and writes it again.",
        ) from None
    return {(k.encoder, k.repository, k.revision, k.file): k for k in kept}


def write_record(weights: WeightsFolder, record: Record, new: Iterable[KeptFile]) -> Record:
    """The record with `new` in it, written."""
    joined = {**record, **{(k.encoder, k.repository, k.revision, k.file): k for k in new}}
    files = [asdict(joined[key]) for key in sorted(joined)]
    write_json(weights.record, {"schema": SCHEMA, "files": files})
    return joined
