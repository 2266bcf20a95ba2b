"""What a runtime is: one module each for docker, venv and apptainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from croma_bundle.launch.device import Offer
from croma_bundle.launch.place import Place
from croma_bundle.launch.steps import Step


@dataclass(frozen=True)
class Command:
    """A process to start: its argument list, the whole of its environment, and a line that says where it runs.

    `stop`: commands that end what it started elsewhere, for a process whose own end does not.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    where: str
    stop: tuple[tuple[str, ...], ...] = ()


class Runtime(Protocol):
    """How a step is run. A command never holds a token: `token` is the path of a file that does, or /dev/null."""

    name: str

    def offers_gpu(self) -> Offer: ...

    def prepare(self, step: Step, place: Place) -> None:
        """Raise `EnvironmentFault` where the step cannot run here; may install what it needs."""
        ...

    def command(self, step: Step, place: Place, token: Path) -> Command: ...
