"""Code of a checkpoint's repository: staged in a folder of its own from verified bytes, and imported from nowhere else.

Nothing is fetched, nothing is kept in a cache, and a file that the entry does not list cannot be imported.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from croma_bundle.errors import ArtifactError, EnvironmentFault, InputError, ManifestError
from croma_bundle.manifests.models import Encoder
from croma_bundle.weights.resolve import LocalFile

CONFIG = "config.json"
COPIED = (".py", ".json")
"""Files that are copied, and hashed once more as copies; the large ones are linked."""


def stage(entry: Encoder, files: Sequence[LocalFile]) -> tempfile.TemporaryDirectory[str]:
    """A folder that holds exactly these files under their names; it goes when the returned object does."""
    folder = tempfile.TemporaryDirectory(prefix="croma_remote_")
    for file in files:
        target = Path(folder.name, file.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not file.name.endswith(COPIED):
            target.symlink_to(file.path.resolve())
            continue
        content = file.path.read_bytes()
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise ArtifactError(f"encoder {entry.name}, {file.name}", "it was changed while it was read")
        target.write_bytes(content)
    return folder


def published_classes(entry: Encoder, folder: Path) -> tuple[type[Any] | None, type[Any]]:
    """The configuration's class, where the repository has its own, and the network's, as its config.json names them.

    Raises:
        ManifestError: config.json names none, or code that the entry does not list or pin.
    """
    stated = _configuration(entry, folder).get("auto_map", {})
    if "AutoModel" not in stated:
        found = ", ".join(stated) or "no auto_map"
        raise ManifestError(f"encoder {entry.name}, {CONFIG}", "it names no class", wanted="AutoModel", found=found)
    package = _package(folder)
    config = _class(entry, package, stated["AutoConfig"]) if "AutoConfig" in stated else None
    return config, _class(entry, package, stated["AutoModel"])


def _configuration(entry: Encoder, folder: Path) -> dict[str, Any]:
    try:
        stated = json.loads((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise ManifestError(f"encoder {entry.name}", f"its files lack {CONFIG}") from None
    except ValueError as error:
        raise InputError(f"encoder {entry.name}, {CONFIG}", "it is not JSON", found=str(error)) from None
    if not isinstance(stated, dict):
        raise InputError(f"encoder {entry.name}, {CONFIG}", "it is not a JSON object")
    return stated


def _package(folder: Path) -> str:
    """The staged folder as a package under its own name, which no other load shares."""
    package = ModuleType(folder.name)
    package.__path__ = [str(folder)]
    sys.modules[folder.name] = package
    return folder.name


def _class(entry: Encoder, package: str, stated: str) -> type[Any]:
    """A class by its reference: `module.Class`, or `repository--module.Class` where another repository has the code."""
    repository, _, name = stated.rpartition("--")
    if repository and repository not in (entry.code_repository, entry.repository):
        wanted = f"code_repository = {repository!r} and a code_revision in its entry"
        raise ManifestError(f"encoder {entry.name}", "its code is in a repository that is not pinned", wanted=wanted)
    module, _, attribute = name.rpartition(".")
    try:
        found: type[Any] = getattr(importlib.import_module(f"{package}.{module}"), attribute)
    except ModuleNotFoundError as error:
        raise _missing(entry, package, error) from None
    except Exception as error:
        raise code_failed(entry, f"{module}.py", error) from error
    return found


def _missing(entry: Encoder, package: str, error: ModuleNotFoundError) -> ManifestError | EnvironmentFault:
    name = error.name or str(error)
    if name.startswith(f"{package}."):
        file = name.removeprefix(f"{package}.").replace(".", "/") + ".py"
        problem = f"its code imports {file}, which is not among the files of its entry"
        return ManifestError(f"encoder {entry.name}", problem, wanted=f"{{ name = {file!r} }} in files")
    return EnvironmentFault(
        f"encoder {entry.name}",
        f"its code imports {name}, which is not installed here",
        wanted=f"the image of the family {entry.family}",
        then=f"make embed FAMILY={entry.family} TILESET=… ENCODERS={entry.name}",
    )


def code_failed(entry: Encoder, what: str, error: Exception) -> InputError:
    """Whatever code that is not ours raises while it loads."""
    return InputError(
        f"encoder {entry.name}, {what}", "it failed while it was loaded", found=f"{type(error).__name__}: {error}"
    )
