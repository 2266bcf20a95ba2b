"""Image files made by hand where no library writes them: PNG and TIFF by struct and zlib alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

GREY, RGB, PALETTE, GREY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
"""Colour types of PNG (ISO/IEC 15948, table 9)."""


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(colour: int, bits: int, lines: Sequence[bytes], width: int, *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG of the given packed lines, unfiltered; `extra` chunks stand before the pixels."""
    header = struct.pack(">IIBBBBB", width, len(lines), bits, colour, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + line for line in lines))
    parts = [(b"IHDR", header), *extra, (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, body) for kind, body in parts)


def tiff(samples: np.ndarray, *, photometric: int, sample_format: int = 1, orientation: int | None = None) -> bytes:
    """An uncompressed little-endian TIFF of (H, W, C) samples of any width of bits."""
    height, width, channels = samples.shape
    bits = samples.dtype.itemsize * 8
    data = samples.astype(samples.dtype.newbyteorder("<")).tobytes()
    short, long = 3, 4
    many = channels > 2  # then the shorts do not fit into the entry and stand behind the directory
    entries = [
        (256, short, 1, width), (257, short, 1, height), (258, short, channels, bits), (259, short, 1, 1),
        (262, short, 1, photometric), (273, long, 1, None), (277, short, 1, channels), (278, short, 1, height),
        (279, long, 1, len(data)), (339, short, channels, sample_format),
    ]  # fmt: skip
    if orientation is not None:
        entries = sorted([*entries, (274, short, 1, orientation)])
    after = 8 + 2 + 12 * len(entries) + 4
    arrays = b""
    packed = []
    for tag, kind, count, value in entries:
        if tag in (258, 339) and many:
            field = struct.pack("<I", after + len(arrays))
            arrays += struct.pack(f"<{count}H", *[value] * count)
        elif tag in (258, 339):
            field = struct.pack(f"<{count}H", *[value] * count).ljust(4, b"\0")
        else:
            field = value
        packed.append((tag, kind, count, field))
    start = after + len(arrays)
    directory = b"".join(
        struct.pack("<HHI", tag, kind, count)
        + (field if isinstance(field, bytes) else struct.pack("<I", start if field is None else field))
        for tag, kind, count, field in packed
    )
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory + struct.pack("<I", 0) + arrays + data


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
