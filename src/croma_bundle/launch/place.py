"""Where a step runs: the checkout, the folders it reads and writes, and whose the files will be."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from croma_bundle.errors import EnvironmentFault, InputError, UsageError, raise_all
from croma_bundle.launch.steps import Step

UNPRIVILEGED = 10001
"""The owner of a volume that root lets be made."""


@dataclass(frozen=True)
class Bind:
    """A path of the host that a step is given; `declared` says who named it."""

    what: str
    source: Path
    declared: str


@dataclass(frozen=True)
class Place:
    """The folders of one launch, all absolute.

    Attributes:
        weights: a Hugging Face hub cache.
        certificates: what the fetching steps trust in place of their own; None: nothing.
    """

    checkout: Path
    volume: Path
    weights: Path
    certificates: Path | None
    uid: int
    gid: int

    def binds(self, step: Step) -> list[Bind]:
        """Every path of the host that the step is given."""
        found = [Bind("the volume", self.volume, "CROMA_VOLUME")]
        if step.service.weights != "none":
            found.append(Bind("the weights", self.weights, "CROMA_WEIGHTS"))
        if step.own_tiles:
            found.append(Bind("the tiles", step.own_tiles, "root in the tileset's tileset.toml"))
        if step.service.fetches and self.certificates:
            found.append(Bind("the certificates", self.certificates, "CROMA_CA_BUNDLE"))
        return found


def require_sources(binds: list[Bind]) -> None:
    """Raise for every bind source that does not exist: an engine would refuse the first, or make folders of root's."""
    raise_all(
        [
            InputError(str(bind.source), f"{bind.what} of this step: there is no such path", declared=bind.declared)
            for bind in binds
            if not bind.source.exists()
        ]
    )


def find_checkout(here: Path | None = None) -> Path:
    """The folder of compose.yaml: the working folder, or the checkout that this package is installed from."""
    for folder in (here or Path.cwd(), Path(__file__).resolve().parents[3]):
        if (folder / "compose.yaml").is_file() and (folder / "images").is_dir():
            return folder
    raise UsageError(
        "launch", "this is no checkout of the bundle", wanted="compose.yaml and images/ in the working folder"
    )


def commit_of(checkout: Path) -> str | None:
    """The commit of the checkout, `-dirty` behind it where it has changes; None where git does not say."""
    describe = ["git", "-C", str(checkout), "describe", "--match=", "--always", "--abbrev=40", "--dirty"]
    try:
        done = subprocess.run(describe, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def open_place(volume: Path, environ: Mapping[str, str]) -> Place:
    """Make the volume where it is missing, and say who its files will belong to."""
    uid, gid = owner_of_files(volume, environ)
    certificates = environ.get("CROMA_CA_BUNDLE")
    return Place(
        checkout=find_checkout(),
        volume=volume.absolute(),
        weights=Path(environ.get("CROMA_WEIGHTS") or volume / "weights").absolute(),
        certificates=Path(certificates).absolute() if certificates else None,
        uid=uid,
        gid=gid,
    )


def owner_of_files(volume: Path, environ: Mapping[str, str]) -> tuple[int, int]:
    """CROMA_UID and CROMA_GID, else the caller; for root the volume's owner, and 10001 for one that is empty."""
    if not volume.exists():
        make_folder(volume, None)
    owner = volume.stat()
    if os.getuid() == 0:
        if owner.st_uid == 0 and "CROMA_UID" not in environ and not any(p.name != ".gitkeep" for p in volume.iterdir()):
            os.chown(volume, UNPRIVILEGED, UNPRIVILEGED)
            owner = volume.stat()
        default = owner.st_uid, owner.st_gid
    else:
        default = os.getuid(), os.getgid()
    return _number(environ, "CROMA_UID", default[0]), _number(environ, "CROMA_GID", default[1])


def make_folder(folder: Path, owner: tuple[int, int] | None) -> None:
    """Make a folder for a step to write to; root gives it to `owner`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(str(folder), f"it cannot be made ({error.strerror})", wanted="a folder") from None
    if owner and os.getuid() == 0:
        os.chown(folder, *owner)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal():
        raise UsageError(f"{name}={text}", "it is no number")
    return int(text)
