"""The images of the bundle: which lock files each is built from, and what it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from croma_bundle import __version__

TORCH = "images/torch/requirements.lock"
BLACKWELL = "images/torch/blackwell.lock"
"""In place of TORCH in a build with TORCH=blackwell, for GPUs newer than Hopper."""
BUILD = "images/wheel/requirements.lock"
"""What builds this package's wheel, for every image; nothing of it is in one."""
ARCHITECTURES = "croma-bundle.cuda.architectures"
"""The label of an image that names what its torch is built for, as `sm_50 sm_60 …`."""


@dataclass(frozen=True)
class Image:
    """One image. `locks` are installed in this order, in the image and in the family's venv alike."""

    name: str
    locks: tuple[str, ...]

    @property
    def variable(self) -> str:
        """The environment variable that names another one, in compose.yaml too."""
        return f"CROMA_{self.name.upper()}_IMAGE"

    def locks_with(self, torch: str) -> tuple[str, ...]:
        """The locks under another torch (`blackwell`); those of the images under their own."""
        return tuple(BLACKWELL if lock == TORCH and torch == "blackwell" else lock for lock in self.locks)

    def reference(self, environ: Mapping[str, str]) -> str:
        """What a build is called."""
        return environ.get(self.variable) or f"croma-bundle/{self.name}:{__version__}"


IMAGES: Mapping[str, Image] = {
    image.name: image
    for image in (
        Image("score", ("images/score/requirements.lock",)),
        Image("tiles", ("images/tiles/requirements.lock",)),
        Image("shared", (TORCH, "images/shared/requirements.lock")),
        Image("waiv", (TORCH, "images/waiv/requirements.lock")),
        Image("rudolfv2", (TORCH, "images/rudolfv2/requirements.lock")),
    )
}
