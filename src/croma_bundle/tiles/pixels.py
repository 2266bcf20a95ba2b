"""Decoding tiles: only 8-bit images whose RGB is unambiguous, and the hash of what was decoded.

Refused by file and mode: 16-bit, float, CMYK, Lab, bilevel, several frames, alpha that is not fully opaque, truncated.
Greyscale and palette become RGB. EXIF orientation and ICC profiles are ignored; orientation is counted and said.
"""

from __future__ import annotations

import hashlib
import io
import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, UnidentifiedImageError

from croma_bundle.errors import PixelError

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
ORIENTATION = 0x0112
BITS_PER_SAMPLE = 258


@dataclass(frozen=True)
class Tile:
    """A decoded tile: `rgb` (H, W, 3) uint8, and whether an EXIF orientation was ignored."""

    rgb: npt.NDArray[np.uint8]
    oriented: bool

    def digest(self) -> bytes:
        """SHA-256 of (width u32le, height u32le, RGB bytes)."""
        height, width, _ = self.rgb.shape
        return hashlib.sha256(struct.pack("<II", width, height) + self.rgb.tobytes()).digest()


def decode(path: Path) -> Tile:
    """Decode one image file completely.

    Raises:
        PixelError: the file is missing, truncated, not an image, or its RGB would be a guess.
    """
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                reason = _ambiguous(image, path)
                if reason:
                    raise PixelError(str(path), reason, wanted="8-bit RGB, greyscale or palette, opaque")
                image.load()
                return Tile(_rgb(image, path), image.getexif().get(ORIENTATION, 1) not in (0, 1))
    except FileNotFoundError:
        raise PixelError(str(path), "there is no such file") from None
    except UnidentifiedImageError:
        size = path.stat().st_size
        found = f"{size:,} bytes that are none of them" if size else "an empty file"
        raise PixelError(str(path), "this is not an image", wanted=", ".join(FORMATS), found=found) from None
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError, Warning) as error:
        raise PixelError(
            str(path), "it cannot be decoded to the end", found=str(error) or type(error).__name__
        ) from None


def save_png(rgb: npt.NDArray[np.uint8]) -> bytes:
    """The tile (H, W, 3) uint8 as PNG, losslessly."""
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, "PNG", compress_level=4)
    return buffer.getvalue()


def _ambiguous(image: Image.Image, path: Path) -> str | None:
    """Why the image's RGB would be a guess, or None. Reads headers only."""
    if (frames := getattr(image, "n_frames", 1)) > 1:
        return f"it holds {frames} frames"
    bits = _bits(image, path)
    if bits > 8:
        return f"it has {bits} bits per channel (mode {image.mode})"
    if image.mode not in ("RGB", "RGBA", "L", "LA", "P", "PA"):
        return f"its mode is {image.mode}"
    return None


def _bits(image: Image.Image, path: Path) -> int:
    """Bits per channel as the file states them: Pillow opens 16-bit RGB as 8-bit without a word."""
    if image.format == "PNG":
        with path.open("rb") as handle:
            return handle.read(25)[24]
    stated: Sequence[int] | int = image.tag_v2.get(BITS_PER_SAMPLE, 8) if image.format == "TIFF" else 8  # type: ignore[attr-defined]
    return stated if isinstance(stated, int) else max(stated)


def _rgb(image: Image.Image, path: Path) -> npt.NDArray[np.uint8]:
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        lowest = image.convert("RGBA").getchannel("A").getextrema()[0]
        if lowest != 255:
            raise PixelError(
                str(path),
                f"it is not opaque (mode {image.mode}, lowest alpha {lowest})",
                wanted="no alpha, or alpha 255 everywhere: what shows through would be a guess",
            )
    return np.array(image.convert("RGB"), dtype=np.uint8)
