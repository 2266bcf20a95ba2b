"""Decoding tiles: only 8-bit images whose RGB is unambiguous, and the hash of what was decoded.

Refused by file and mode: 16-bit, float, CMYK, Lab, bilevel, several frames, alpha that is not fully opaque, truncated.
Greyscale and palette become RGB. EXIF orientation and ICC profiles are ignored; orientation is counted and said.
"""

from __future__ import annotations

import hashlib
import io
import struct
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, UnidentifiedImageError

from croma_bundle.errors import PixelError
from croma_bundle.tiles.parquet import NO_IMAGE, image_bytes, parquet_reference
from croma_bundle.tiles.spool import Slice

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
ORIENTATION, BITS_PER_SAMPLE, SAMPLE_FORMAT = 274, 258, 339  # TIFF tags
UNSIGNED = 1
TURN_BACK = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""What undoes the turn that an orientation asks for."""


@dataclass(frozen=True)
class Tile:
    """A decoded tile: `rgb` (H, W, 3) uint8, whether an EXIF orientation was ignored, and what was decoded."""

    rgb: npt.NDArray[np.uint8]
    oriented: bool
    format: str = "PNG"
    mode: str = "RGB"

    def digest(self) -> bytes:
        """SHA-256 of (width u32le, height u32le, RGB bytes)."""
        height, width, _ = self.rgb.shape
        return hashlib.sha256(struct.pack("<II", width, height) + self.rgb.tobytes()).digest()


def decode(source: Path | Slice) -> Tile:
    """Decode one image completely: a file, a row of a parquet file (`x.parquet#<row>`), or what was read of one.

    Raises:
        PixelError: it is missing, truncated, not an image, or its RGB would be a guess.
    """
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    path = source.path if isinstance(source, Slice) else source
    try:
        if isinstance(source, Path) and path.exists() and not path.is_file():
            raise PixelError(str(path), "it is not a file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters of it is raised or checked below
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with _opened(source) as content, Image.open(content, formats=FORMATS) as image:
                return _decoded(image, content, path)
    except (PixelError, MemoryError):
        raise
    except FileNotFoundError:
        raise PixelError(str(path), "there is no such file") from None
    except UnidentifiedImageError:
        with _opened(source) as content:
            size = content.seek(0, io.SEEK_END)
        found = f"{size:,} bytes that are none of them" if size else "an empty file"
        raise PixelError(str(path), "this is not an image", wanted=", ".join(FORMATS), found=found) from None
    except OSError as error:
        if error.errno is None:
            raise _undecodable(path, error) from None
        raise PixelError(str(path), f"it cannot be read ({error.strerror})") from None
    except Exception as error:  # what a decoder trips over in a damaged file is of any kind
        raise _undecodable(path, error) from None


def _opened(source: Path | Slice) -> BinaryIO:
    if isinstance(source, Slice):
        if not source.length:
            raise PixelError(str(source.path), NO_IMAGE)
        return io.BytesIO(source.content())
    reference = parquet_reference(source)
    return io.BytesIO(image_bytes(*reference)) if reference else source.open("rb")


def _undecodable(path: Path, error: Exception) -> PixelError:
    return PixelError(str(path), "it cannot be decoded to the end", found=str(error) or type(error).__name__)


def _decoded(image: Image.Image, source: BinaryIO, path: Path) -> Tile:
    reason = _ambiguous(image, source)
    if reason:
        raise PixelError(str(path), reason, wanted="8-bit RGB, greyscale or palette, opaque")
    turned = _tags(image).get(ORIENTATION, 1)  # Pillow turns a TIFF while loading it, and only a TIFF
    image.load()
    kind = str(image.format)
    if kind in WHOLE:
        source.seek(0)
        WHOLE[kind](source, path)
    oriented = turned not in (0, 1) or image.getexif().get(ORIENTATION, 1) not in (0, 1)
    stored = image.transpose(TURN_BACK[turned]) if turned in TURN_BACK else image
    return Tile(_rgb(stored, path), oriented, kind, image.mode)


def save_png(rgb: npt.NDArray[np.uint8]) -> bytes:
    """The tile (H, W, 3) uint8 as PNG, losslessly."""
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, "PNG", compress_level=4)
    return buffer.getvalue()


def _ambiguous(image: Image.Image, source: BinaryIO) -> str | None:
    """Why the image's RGB would be a guess, or None. Reads headers only."""
    if (frames := getattr(image, "n_frames", 1)) > 1:
        return f"it holds {frames} frames"
    bits = _bits(image, source)
    if bits > 8:
        return f"it has {bits} bits per channel (mode {image.mode})"
    if not set(_tags(image).get(SAMPLE_FORMAT, ())) <= {UNSIGNED}:
        return f"its samples are not unsigned integers (mode {image.mode})"
    if image.mode not in ("RGB", "RGBA", "L", "LA", "P", "PA"):
        return f"its mode is {image.mode}"
    if image.mode == "L" and bits < 8 and "transparency" in image.info:
        return f"it is not opaque (a transparent grey of {bits} bits)"
    return None


def _bits(image: Image.Image, source: BinaryIO) -> int:
    """Bits per channel as the file states them: Pillow opens 16-bit RGB as 8-bit without a word."""
    if image.format == "PNG":
        place = source.tell()
        source.seek(24)
        bits = source.read(1)[0]
        source.seek(place)
        return bits
    stated: Sequence[int] | int = _tags(image).get(BITS_PER_SAMPLE, 8)
    return stated if isinstance(stated, int) else max(stated)


def _tags(image: Image.Image) -> Mapping[int, Any]:
    """The tags of a TIFF; none for other formats."""
    tags: Mapping[int, Any] = image.tag_v2 if image.format == "TIFF" else {}  # type: ignore[attr-defined]
    return tags


def _require_whole_png(source: BinaryIO, path: Path) -> None:
    """Raise `PixelError` where a PNG is cut off or damaged behind its last pixel or in it: Pillow does not look."""
    source.seek(len(PNG_SIGNATURE))
    while len(head := source.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        body, check = source.read(length), source.read(4)
        if len(body) < length or len(check) < 4:
            break
        if kind[:1].isupper() and struct.unpack(">I", check)[0] != zlib.crc32(body, zlib.crc32(kind)):
            raise PixelError(str(path), "it is damaged", found=f"a wrong checksum of its {kind.decode()} chunk")
        if kind == b"IEND":
            return
    raise PixelError(str(path), "it is truncated", found="the end of the file before the end of the image (IEND)")


def _require_whole_jpeg(source: BinaryIO, path: Path) -> None:
    """Raise `PixelError` where the end marker is missing: whether Pillow notices depends on the last block.

    Behind a start of scan (FF DA) the two bytes FF D9 stand for the end only; the thumbnail's end stands before it.
    """
    content = source.read()
    if content.find(b"\xff\xd9", content.rfind(b"\xff\xda")) < 0:
        raise PixelError(str(path), "it is truncated", found="the end of the file before the end of the image (EOI)")


WHOLE = {"PNG": _require_whole_png, "JPEG": _require_whole_jpeg}


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
