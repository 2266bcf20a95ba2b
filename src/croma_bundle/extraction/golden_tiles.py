"""The golden tiles: nine of the phantom, generated, so that everybody has them without a download."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.tilemanifest.pixel_record import pixels_sha256
from croma_bundle.tiles.phantom import PhantomSpec, phantom_rows, render
from croma_bundle.tiles.pixels import Tile

SPEC = PhantomSpec(seed=1, tile_size=256, slides_per_cell=1, tiles_per_slide=1)
"""Every tissue at every centre once, at the size of the published tiles."""


@dataclass(frozen=True)
class GoldenTiles:
    names: tuple[str, ...]
    pixels: tuple[npt.NDArray[np.uint8], ...]

    def identity(self) -> dict[str, Any]:
        """What they are and what they came out as: another machine's tiles are compared before its vectors are."""
        digests = [Tile(pixels, oriented=False).digest() for pixels in self.pixels]
        return {"phantom": asdict(SPEC), "pixels_sha256": pixels_sha256(digests)}


def golden_tiles() -> GoldenTiles:
    rows = phantom_rows(SPEC)
    return GoldenTiles(tuple(row.sample_id for row in rows), tuple(render(SPEC, row) for row in rows))
