"""What the embed loop reads: the tiles of one tileset, their frozen rows and pixel hashes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from croma_bundle.errors import PixelError
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Tileset
from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.pixel_record import PixelRecord
from croma_bundle.tiles.parquet import file_of
from croma_bundle.tiles.tileset import raise_pixel_faults


@dataclass(frozen=True)
class EmbedInput:
    """The tiles of one tileset, ready to be embedded by any encoder.

    `paths` say where each tile is read from (an image path map included); they are no part of identity.
    """

    volume: Volume
    tileset: Tileset
    manifest: TileManifest
    pixels: PixelRecord
    paths: tuple[Path, ...]

    def require_files(self) -> None:
        """Raise `PixelError`s naming every file that is not there, before any encoder is loaded."""
        missing = [PixelError(str(path), "there is no such file") for path in self.paths if not file_of(path).is_file()]
        raise_pixel_faults(missing, len(self.paths))
