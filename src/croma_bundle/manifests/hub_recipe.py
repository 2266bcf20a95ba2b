"""The recipe that timm reads off a repository's config.json, as `lock-weights` recorded it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from croma_bundle.manifests.models import Recipe

STATED = ("input_size", "interpolation", "mean", "std")
"""What a configuration has to state for itself; for the rest timm's defaults are part of the format."""
CROP_PCT, CROP_MODE = 0.875, "center"
EDGES = {"center": "shorter", "squash": "squash"}


def recipe_of(transform: Mapping[str, Any]) -> Recipe | None:
    """timm's evaluation pipeline as a recipe; None where the configuration does not say it all, or no recipe can.

    The resize is to floor(side / crop_pct), on the PIL image; then the middle is cropped.
    """
    try:
        (_, height, width), interpolation, mean, std = (transform[key] for key in STATED)
        edge = EDGES[transform.get("crop_mode", CROP_MODE)]
        size = math.floor(width / transform.get("crop_pct", CROP_PCT))
        if height != width:
            return None
        channels = {"mean": tuple(map(float, mean)), "std": tuple(map(float, std))}
        return Recipe(size=size, edge=edge, interpolation=interpolation, via="pil", crop=width, **channels)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, ValidationError, ZeroDivisionError):
        return None
