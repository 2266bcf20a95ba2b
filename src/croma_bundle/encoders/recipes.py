"""Recipes: from a tile to the array that an encoder takes, as its entry's table says."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transform

from croma_bundle.manifests.models import Recipe

Floats = npt.NDArray[np.float32]
MODES = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}


def prepare(recipe: Recipe, tile: npt.NDArray[np.uint8]) -> Floats:
    """Tile (H, W, 3) uint8 → (3, side, side) float32.

    Scaling follows the published pipelines to the last bit: a tensor is multiplied by 1/255, what comes of PIL is
    divided by 255, in processors too. C-contiguous, so that the network sees equal strides whoever prepared the tile.
    """
    pixels = _cropped(recipe, _resized(recipe, tile)).contiguous()
    of_tensor = recipe.via == "tensor"
    scaled = transform.to_dtype(pixels, torch.float32, scale=True) if of_tensor else pixels.to(torch.float32) / 255
    ready: Floats = transform.normalize(scaled, list(recipe.mean), list(recipe.std)).numpy()
    return ready


def _resized(recipe: Recipe, tile: npt.NDArray[np.uint8]) -> torch.Tensor:
    """The resized tile, uint8 (3, H, W)."""
    image: Any = Image.fromarray(tile)
    if recipe.via == "tensor":
        image = transform.to_image(image)
    size = [recipe.size] if recipe.edge == "shorter" else [recipe.size, recipe.size]
    image = transform.resize(image, size, interpolation=MODES[recipe.interpolation], antialias=recipe.antialias)
    return transform.to_image(image).as_subclass(torch.Tensor)


def _cropped(recipe: Recipe, pixels: torch.Tensor) -> torch.Tensor:
    """The middle; of an odd border, a processor puts the smaller part first, where torchvision rounds half to even."""
    if recipe.crop is None:
        return pixels
    if recipe.via == "processor":
        top, left = ((side - recipe.crop) // 2 for side in pixels.shape[-2:])
        return pixels[:, top : top + recipe.crop, left : left + recipe.crop]
    return transform.center_crop(pixels, [recipe.crop, recipe.crop])
