"""What an architecture is here: a network, how it is called, and which published tensors are its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch._dynamo  # noqa: F401  else timm imports it first, which fails under torch.device("meta")
from torch import Tensor, nn

from croma_bundle.errors import ManifestError

Forward = Callable[[nn.Module, Tensor], Tensor]
Adapt = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Architecture:
    """A network and how it is called: `forward` returns what the entry's pooling takes.

    `stand_in` says what it stands in for; null where it is the published architecture. `left_out` are patterns of the
    published names that have no place here, such as a text encoder's: named, so that any other is still refused.
    `adapt` gives published tensors the network's names, one to one; null where they are the same.
    """

    module: nn.Module
    forward: Forward
    stand_in: str | None = None
    adapt: Adapt | None = None
    left_out: tuple[str, ...] = ()

    def take(self, published: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the network is loaded with, strictly: the published tensors but those left out, under its own names.

        Raises:
            ManifestError: two of them come to one name.
        """
        kept = {name: tensor for name, tensor in published.items() if not self._leaves_out(name)}
        named = self.adapt(kept) if self.adapt else kept
        if len(named) != len(kept):
            found = f"{len(named)} names of {len(kept)} tensors"
            raise ManifestError("a state dict", "two of its tensors come to one name", found=found)
        return named

    def _leaves_out(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.left_out)


def whole(module: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = module(batch)
    return output


def features(module: Any, batch: Tensor) -> Tensor:
    output: Tensor = module.forward_features(batch)
    return output


def last_hidden_state(module: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = module(pixel_values=batch).last_hidden_state
    return output
