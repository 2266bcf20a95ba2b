"""The steps as every runtime sees them: which image, which command, and what it may reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from croma_bundle.errors import UsageError, did_you_mean

Weights = Literal["none", "read", "write"]


@dataclass(frozen=True)
class Service:
    """A kind of step, under the name it has in compose.yaml.

    Attributes:
        image: whose image, and whose locks.
        command: what `croma-bundle` is called with; arguments are appended.
        fetches: has network and the token; all others have neither.
        gpu: can use one.
    """

    image: str
    command: tuple[str, ...]
    fetches: bool = False
    weights: Weights = "none"
    gpu: bool = False


SERVICES: Mapping[str, Service] = {
    "tiles": Service("tiles", ("tiles",), fetches=True),
    "weights": Service("tiles", ("weights",), fetches=True, weights="write"),
    "embed-classical": Service("tiles", ("embed", "--family", "classical")),
    "embed-shared": Service("shared", ("embed", "--family", "shared"), weights="read", gpu=True),
    "embed-waiv": Service("waiv", ("embed", "--family", "waiv"), weights="read", gpu=True),
    "embed-rudolfv2": Service("rudolfv2", ("embed", "--family", "rudolfv2"), weights="read", gpu=True),
    "smoke-classical": Service("tiles", ("smoke", "--family", "classical")),
    "smoke-shared": Service("shared", ("smoke", "--family", "shared"), weights="read", gpu=True),
    "smoke-waiv": Service("waiv", ("smoke", "--family", "waiv"), weights="read", gpu=True),
    "smoke-rudolfv2": Service("rudolfv2", ("smoke", "--family", "rudolfv2"), weights="read", gpu=True),
    "score": Service("score", ("score",)),
    "probe": Service("score", ("probe",)),
    "verify": Service("score", ("verify",)),
    "status": Service("score", ("status",)),
    "list": Service("score", ("list",)),
}


@dataclass(frozen=True)
class Step:
    """One run of a service: its arguments, the tiles it reads from outside the volume, and whether on a GPU."""

    name: str
    arguments: tuple[str, ...] = ()
    own_tiles: Path | None = None
    on_gpu: bool = False

    @property
    def service(self) -> Service:
        return SERVICES[self.name]

    @property
    def command(self) -> tuple[str, ...]:
        """Everything after `croma-bundle`."""
        return (*self.service.command, *self.arguments)


def smoke_service(family: str) -> str:
    """The service that smokes a family, in the image that embeds with it; raises `UsageError` where there is none."""
    return embed_service(family).replace("embed-", "smoke-", 1)


def embed_service(family: str) -> str:
    """The service that embeds with a family; raises `UsageError` where there is none."""
    name = f"embed-{family}"
    if name not in SERVICES:
        families = [known.removeprefix("embed-") for known in SERVICES if known.startswith("embed-")]
        raise UsageError(
            f"family {family!r}",
            f"no image embeds with it{did_you_mean(family, families)}",
            wanted=", ".join(families),
            detail="A private encoder names, in its declaration, the family whose image runs it.",
        )
    return name
