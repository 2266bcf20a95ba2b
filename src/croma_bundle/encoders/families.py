"""What a family's checkpoints are loaded with: in another family's image they might load and compute something else."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec

from croma_bundle.errors import EnvironmentFault
from croma_bundle.manifests.models import Encoder

LIBRARIES: Mapping[str, Mapping[str, str]] = {
    "shared": {"timm": "1.0.28", "transformers": "4.57.6"},
    "waiv": {"transformers": "5.14.1"},
    "rudolfv2": {"timm": "1.0.28", "transformers": "5.14.1"},
}
"""As images/<family>/requirements.in pins them; a private family has none."""


def require_libraries(entry: Encoder) -> None:
    """Raise `EnvironmentFault` where this is not the image, or the venv, of the entry's family."""
    wanted = LIBRARIES.get(entry.family, {})
    installed = {name: _version(name) for name in wanted}
    if find_spec("torch") is None or find_spec("torchvision") is None:
        found = "torch is not installed here"
    elif installed != wanted:
        found = ", ".join(f"{name} {version or 'not installed'}" for name, version in installed.items())
    else:
        return
    raise EnvironmentFault(
        f"encoder {entry.name}",
        f"it is of the family {entry.family}, whose libraries are not these",
        wanted=", ".join(["torch", *(f"{name} {version}" for name, version in wanted.items())]),
        found=found,
        then=f"make embed FAMILY={entry.family} TILESET=… ENCODERS={entry.name}   # or make smoke",
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
