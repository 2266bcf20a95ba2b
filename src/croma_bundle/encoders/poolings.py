"""Poolings: from what a network returns to one vector per tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from croma_bundle.errors import ManifestError

if TYPE_CHECKING:
    import torch

    from croma_bundle.manifests.models import Encoder, Tokens


def pool(entry: Encoder, output: torch.Tensor) -> torch.Tensor:
    """(B, width) of a network's output; (B, tokens, C) must be laid out as the entry says.

    Raises:
        ManifestError: other tokens or another width than declared.
    """
    if entry.pooling in OF_TOKENS:
        _require_tokens(entry, output)
        output = OF_TOKENS[entry.pooling](entry.tokens, output)
    if output.ndim != 2 or output.shape[1] != entry.width:
        has = f"width {output.shape[1]}" if output.ndim == 2 else f"shape {tuple(output.shape)}"
        _refuse(
            entry, "its vectors have another width", f"width = {entry.width} (its entry)", f"{has}, {entry.pooling}"
        )
    return output


def _cls(tokens: Tokens, output: torch.Tensor) -> torch.Tensor:
    return output[:, 0]


def _cls_and_mean(tokens: Tokens, output: torch.Tensor) -> torch.Tensor:
    """The class token beside the mean of the patches; registers are in neither."""
    from torch import cat

    return cat([output[:, 0], output[:, tokens.cls + tokens.registers :].mean(dim=1)], dim=1)


OF_TOKENS: Mapping[str, Callable[..., torch.Tensor]] = {
    "cls": _cls,
    "cls+mean": _cls_and_mean,
}
"""Poolings of (B, tokens, C). The others are what the network returns."""


def _require_tokens(entry: Encoder, output: torch.Tensor) -> None:
    if entry.tokens is None:
        raise ManifestError(f"encoder {entry.name}", f"pooling = {entry.pooling!r} needs its tokens")
    wanted = entry.tokens.total
    if output.ndim != 3 or output.shape[1] != wanted:
        layout = f"{wanted} tokens ({entry.tokens.cls} class, {entry.tokens.registers} registers, "
        _refuse(
            entry, "its tokens are others", f"{layout}{entry.tokens.patches} patches)", f"shape {tuple(output.shape)}"
        )


def _refuse(entry: Encoder, problem: str, wanted: str, found: str) -> None:
    raise ManifestError(f"encoder {entry.name}", problem, wanted=wanted, found=found)
