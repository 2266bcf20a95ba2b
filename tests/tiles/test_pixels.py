"""Which image files are tiles: each refused kind made for real, each converted kind compared pixel by pixel."""

from __future__ import annotations

import contextlib
import hashlib
import io
import struct

import numpy as np
import pytest
from handmade import GREY, PALETTE, RGB, RGB_ALPHA, chunk, png, tiff, write
from PIL import Image

from croma_bundle.errors import PixelError, SeveralErrors
from croma_bundle.progress import Reporter
from croma_bundle.tiles.pixels import decode, save_png
from croma_bundle.tiles.tileset import hash_tiles, raise_pixel_faults

HEIGHT, WIDTH = 24, 40
ROWS, COLUMNS = np.mgrid[:HEIGHT, :WIDTH]
PICTURE = np.stack([ROWS * 10, COLUMNS * 6, (ROWS + COLUMNS) * 4], axis=-1).astype(np.uint8)
"""No row, column or channel equals another, so that any turn, swap or shift shows."""
GREYS = PICTURE[:, :, 1]
OPAQUE = np.full((HEIGHT, WIDTH), 255, np.uint8)


def encoded(image: Image.Image | np.ndarray, kind: str, **how) -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **how)
    return buffer.getvalue()


def with_alpha(alpha: np.ndarray) -> np.ndarray:
    return np.dstack([PICTURE, alpha])


def one_clear_pixel(value: int) -> np.ndarray:
    alpha = OPAQUE.copy()
    alpha[-1, -1] = value
    return alpha


def palette_image(**info) -> bytes:
    image = Image.fromarray(PICTURE).quantize(7)
    return encoded(image, "PNG", **info)


def lines(samples: np.ndarray) -> list[bytes]:
    return [line.tobytes() for line in samples]


DEEP = PICTURE.astype(">u2") * 257
RED = struct.pack(">HHH", 0, *(int(v) for v in PICTURE[0, 0, 1:]))
FRAMES = [Image.fromarray(np.roll(PICTURE, shift, axis=0)) for shift in range(3)]

# What is refused: the file, and what must be said of it.
REFUSED = {
    "16-bit grey PNG": (encoded(GREYS.astype(np.uint16) * 257, "PNG"), "it has 16 bits per channel (mode I;16)"),
    "16-bit RGB PNG": (png(RGB, 16, lines(DEEP), WIDTH), "it has 16 bits per channel (mode RGB)"),
    "16-bit RGBA PNG": (
        png(RGB_ALPHA, 16, lines(np.dstack([DEEP, np.full((HEIGHT, WIDTH), 65535, ">u2")])), WIDTH),
        "it has 16 bits per channel (mode RGBA)",
    ),
    "16-bit grey TIFF": (
        tiff(GREYS[..., None].astype(np.uint16) * 257, photometric=1),
        "it has 16 bits per channel (mode I;16)",
    ),
    "16-bit RGB TIFF": (tiff(PICTURE.astype(np.uint16) * 257, photometric=2), "it has 16 bits per channel (mode RGB)"),
    "float TIFF": (encoded(GREYS.astype(np.float32) / 255, "TIFF"), "it has 32 bits per channel (mode F)"),
    "32-bit TIFF": (encoded(GREYS.astype(np.int32), "TIFF"), "it has 32 bits per channel (mode I)"),
    "signed TIFF": (
        tiff(GREYS[..., None].view(np.int8), photometric=1, sample_format=2),
        "its samples are not unsigned integers (mode L)",
    ),
    "CMYK JPEG": (encoded(Image.fromarray(PICTURE).convert("CMYK"), "JPEG"), "its mode is CMYK"),
    "CMYK TIFF": (encoded(Image.fromarray(PICTURE).convert("CMYK"), "TIFF"), "its mode is CMYK"),
    "Lab TIFF": (encoded(Image.fromarray(PICTURE).convert("LAB"), "TIFF"), "its mode is LAB"),
    "bilevel PNG": (encoded(Image.fromarray(GREYS).convert("1"), "PNG"), "its mode is 1"),
    "bilevel TIFF": (encoded(Image.fromarray(GREYS).convert("1"), "TIFF"), "its mode is 1"),
    "clear RGBA PNG": (encoded(with_alpha(OPAQUE * 0), "PNG"), "it is not opaque (mode RGBA, lowest alpha 0)"),
    "RGBA PNG with one pixel of alpha 254": (
        encoded(with_alpha(one_clear_pixel(254)), "PNG"),
        "it is not opaque (mode RGBA, lowest alpha 254)",
    ),
    "RGBA WEBP": (
        encoded(with_alpha(one_clear_pixel(3)), "WEBP", lossless=True),
        "it is not opaque (mode RGBA, lowest alpha 3)",
    ),
    "RGBA TIFF": (encoded(with_alpha(one_clear_pixel(9)), "TIFF"), "it is not opaque (mode RGBA, lowest alpha 9)"),
    "grey PNG with alpha": (
        encoded(Image.merge("LA", [Image.fromarray(GREYS), Image.fromarray(one_clear_pixel(100))]), "PNG"),
        "it is not opaque (mode LA, lowest alpha 100)",
    ),
    "palette PNG with a clear colour": (palette_image(transparency=0), "it is not opaque (mode P, lowest alpha 0)"),
    "palette PNG with half clear colours": (
        palette_image(transparency=bytes([255, 128])),
        "it is not opaque (mode P, lowest alpha 128)",
    ),
    "RGB PNG with a colour that is clear": (
        png(RGB, 8, lines(PICTURE), WIDTH, (b"tRNS", RED)),
        "it is not opaque (mode RGB, lowest alpha 0)",
    ),
    "grey PNG with a grey that is clear": (
        png(GREY, 8, lines(GREYS), WIDTH, (b"tRNS", struct.pack(">H", int(GREYS[0, 3])))),
        "it is not opaque (mode L, lowest alpha 0)",
    ),
    "2-bit grey PNG with a grey that is clear": (
        png(GREY, 2, [b"\x1b" * 4] * 16, 16, (b"tRNS", b"\0\3")),
        "it is not opaque (a transparent grey of 2 bits)",
    ),
    "animated PNG": (encoded(FRAMES[0], "PNG", save_all=True, append_images=FRAMES[1:]), "it holds 3 frames"),
    "animated WEBP": (encoded(FRAMES[0], "WEBP", save_all=True, append_images=FRAMES[1:]), "it holds 3 frames"),
    "multi-page TIFF": (encoded(FRAMES[0], "TIFF", save_all=True, append_images=FRAMES[1:]), "it holds 3 frames"),
    "text file": (b"sample_id,image_path\n" * 50, "this is not an image"),
    "0 bytes": (b"", "this is not an image"),
    "GIF": (encoded(FRAMES[0], "GIF"), "this is not an image"),
    "HTML of a failed download called .png": (b"<!DOCTYPE html><html>404</html>", "this is not an image"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_image_whose_rgb_would_be_a_guess_is_refused_by_file_and_reason(tmp_path, kind):
    content, reason = REFUSED[kind]
    path = write(tmp_path / "a folder" / f"{kind}.img", content)
    with pytest.raises(PixelError) as caught:
        decode(path)
    assert (caught.value.subject, caught.value.problem) == (str(path), reason)
    assert caught.value.wanted, "what would be accepted is said"


def test_an_empty_file_is_called_empty_and_a_text_file_by_its_size(tmp_path):
    with pytest.raises(PixelError) as empty:
        decode(write(tmp_path / "a.png", b""))
    assert empty.value.found == "an empty file"
    with pytest.raises(PixelError) as text:
        decode(write(tmp_path / "b.png", b"x" * 1234))
    assert text.value.found == "1,234 bytes that are none of them"


COLOURS = [9, 8, 7, 200, 100, 50, 1, 2, 3]
CONVERTED = {
    "RGB PNG": (encoded(PICTURE, "PNG"), PICTURE),
    "RGB PNG made by hand": (png(RGB, 8, lines(PICTURE), WIDTH), PICTURE),
    "interlaced-free BMP": (encoded(PICTURE, "BMP"), PICTURE),
    "RGB TIFF": (encoded(PICTURE, "TIFF"), PICTURE),
    "RGB TIFF made by hand": (tiff(PICTURE, photometric=2), PICTURE),
    "RGB TIFF, LZW": (encoded(PICTURE, "TIFF", compression="tiff_lzw"), PICTURE),
    "lossless WEBP": (encoded(PICTURE, "WEBP", lossless=True), PICTURE),
    "greyscale PNG": (encoded(GREYS, "PNG"), np.dstack([GREYS] * 3)),
    "greyscale TIFF": (tiff(GREYS[..., None], photometric=1), np.dstack([GREYS] * 3)),
    "greyscale TIFF, white is zero": (tiff(255 - GREYS[..., None], photometric=0), np.dstack([GREYS] * 3)),
    "2-bit greyscale PNG": (
        png(GREY, 2, [b"\x1b" * 4] * 16, 16),  # 00 01 10 11, four times a line
        np.dstack([np.tile(np.array([0, 85, 170, 255], np.uint8), (16, 4))] * 3),
    ),
    "palette PNG": (
        png(PALETTE, 8, lines((COLUMNS % 3).astype(np.uint8)), WIDTH, (b"PLTE", bytes(COLOURS))),
        np.array(COLOURS, np.uint8).reshape(3, 3)[COLUMNS % 3],
    ),
    "palette PNG whose clear colour is used nowhere": (
        png(
            PALETTE, 8, lines((COLUMNS % 2).astype(np.uint8)), WIDTH,
            (b"PLTE", bytes(COLOURS)), (b"tRNS", bytes([255, 255, 0])),
        ),
        np.array(COLOURS, np.uint8).reshape(3, 3)[COLUMNS % 2],
    ),
    "opaque RGBA PNG": (encoded(with_alpha(OPAQUE), "PNG"), PICTURE),
    "opaque grey PNG with alpha": (
        encoded(Image.merge("LA", [Image.fromarray(GREYS), Image.fromarray(OPAQUE)]), "PNG"),
        np.dstack([GREYS] * 3),
    ),
    "RGB PNG whose clear colour is used nowhere": (
        png(RGB, 8, lines(PICTURE), WIDTH, (b"tRNS", struct.pack(">HHH", 255, 255, 255))),
        PICTURE,
    ),
    "a PNG with a note and something behind its end": (
        png(RGB, 8, lines(PICTURE), WIDTH, (b"tEXt", b"Comment\0hello")) + b"trailing bytes",
        PICTURE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONVERTED)
def test_an_unambiguous_image_is_decoded_to_the_rgb_it_was_made_from(tmp_path, kind):
    content, wanted = CONVERTED[kind]
    tile = decode(write(tmp_path / "x", content))
    assert tile.rgb.dtype == np.uint8
    np.testing.assert_array_equal(tile.rgb, wanted)
    assert tile.oriented is False


def test_a_jpeg_is_decoded_to_what_libjpeg_gives_in_scikit_image_and_grey_to_three_equal_channels(tmp_path):
    io_ = pytest.importorskip("skimage.io")
    path = write(tmp_path / "x.jpg", encoded(PICTURE, "JPEG", quality=90))
    np.testing.assert_array_equal(decode(path).rgb, io_.imread(path))
    grey = decode(write(tmp_path / "g.jpg", encoded(GREYS, "JPEG", quality=100))).rgb
    assert np.abs(grey.astype(int) - GREYS[..., None]).max() <= 2
    assert (grey == grey[..., :1]).all()


# Orientation


def with_orientation(kind: str, orientation: int) -> bytes:
    if kind == "TIFF":
        return tiff(PICTURE, photometric=2, orientation=orientation)
    if kind == "TIFF, LZW":
        return encoded(PICTURE, "TIFF", compression="tiff_lzw", tiffinfo={274: orientation})
    exif = Image.Exif()
    exif[274] = orientation
    return encoded(PICTURE, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "TIFF, LZW"])
def test_an_orientation_is_ignored_and_noted_whatever_the_format(tmp_path, kind, orientation):
    tile = decode(write(tmp_path / "x", with_orientation(kind, orientation)))
    np.testing.assert_array_equal(tile.rgb, PICTURE)
    assert tile.oriented is (orientation != 1)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_an_orientation_in_a_jpeg_is_ignored_and_noted(tmp_path, orientation):
    plain = decode(write(tmp_path / "plain.jpg", encoded(PICTURE, "JPEG"))).rgb
    tile = decode(write(tmp_path / "x.jpg", with_orientation("JPEG", orientation)))
    np.testing.assert_array_equal(tile.rgb, plain)
    assert tile.oriented is (orientation != 1)


def test_an_orientation_behind_the_pixels_of_a_png_is_noted_too(tmp_path):
    exif = b"MM\0*\0\0\0\x08" + struct.pack(">HHHIHHI", 1, 274, 3, 1, 6, 0, 0)
    whole = png(RGB, 8, lines(PICTURE), WIDTH)
    tile = decode(write(tmp_path / "x.png", whole[:-12] + chunk(b"eXIf", exif) + whole[-12:]))
    assert tile.oriented is True
    np.testing.assert_array_equal(tile.rgb, PICTURE)


# Truncation and damage

BIG = np.kron(PICTURE, np.ones((4, 4, 1), np.uint8))
WHOLE = {
    "PNG": encoded(PICTURE, "PNG"),
    "PNG of many pieces": b"".join(
        [png(RGB, 8, lines(PICTURE), WIDTH)[:33]]
        + [chunk(b"IDAT", piece) for piece in (lambda d: [d[i : i + 64] for i in range(0, len(d), 64)])(
            png(RGB, 8, lines(PICTURE), WIDTH)[41:-16])]
        + [chunk(b"IEND", b"")]
    ),
    "JPEG": encoded(PICTURE, "JPEG", quality=90),
    "progressive JPEG": encoded(PICTURE, "JPEG", quality=90, progressive=True),
    "JPEG in colour without subsampling": encoded(PICTURE, "JPEG", quality=95, subsampling=0),
    "TIFF": tiff(PICTURE, photometric=2),
    "TIFF, LZW": encoded(PICTURE, "TIFF", compression="tiff_lzw"),
    "BMP": encoded(PICTURE, "BMP"),
    "WEBP": encoded(PICTURE, "WEBP", lossless=True),
}  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE)
def test_a_file_cut_off_anywhere_fails_be_it_by_its_last_byte(tmp_path, kind):
    content = WHOLE[kind]
    decode(write(tmp_path / "whole", content))
    survived = []
    for length in {*range(0, len(content), 37), *range(max(0, len(content) - 40), len(content))}:
        try:
            decode(write(tmp_path / "cut", content[:length]))
        except PixelError:
            continue
        survived.append(length - len(content))
    assert survived == []


def test_a_cut_png_whose_pixels_are_all_there_is_called_truncated(tmp_path):
    with pytest.raises(PixelError) as caught:
        decode(write(tmp_path / "x.png", WHOLE["PNG"][:-12]))
    assert caught.value.problem == "it is truncated"


@pytest.mark.parametrize("behind", [b"", b"\0" * 100, b"\xff\xd9 a note of the scanner"])
def test_bytes_behind_the_end_of_a_jpeg_do_not_matter_and_its_thumbnail_is_not_its_end(tmp_path, behind):
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9286] = b"ASCII\0\0\0" + encoded(PICTURE[:8, :8], "JPEG")
    whole = encoded(PICTURE, "JPEG", exif=exif)
    assert whole.count(b"\xff\xd9") == 2, "the embedded picture ends too"
    np.testing.assert_array_equal(
        decode(write(tmp_path / "a.jpg", whole + behind)).rgb, decode(write(tmp_path / "b.jpg", whole)).rgb
    )
    with pytest.raises(PixelError):
        decode(write(tmp_path / "cut.jpg", whole[:-2]))


def test_a_flipped_bit_anywhere_in_the_pixels_of_a_png_fails(tmp_path):
    content = WHOLE["PNG"]
    start, end = content.index(b"IDAT") + 4, content.index(b"IEND") - 4
    survived = []
    for at in range(start, end, 3):
        damaged = bytearray(content)
        damaged[at] ^= 1
        try:
            decode(write(tmp_path / "x.png", bytes(damaged)))
        except PixelError:
            continue
        survived.append(at)
    assert survived == []


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.filterwarnings("error")
def test_no_damage_to_a_file_shows_as_anything_but_a_fault_of_that_file(tmp_path, kind, capfd):
    """Decoders trip over damaged headers in their own ways; whatever they raise, the user is told the file."""
    generator = np.random.default_rng(3)
    content = WHOLE[kind]
    for _ in range(150):
        damaged = bytearray(content)
        for at in generator.integers(0, min(len(content), 300), 3):
            damaged[at] = generator.integers(0, 256)
        path = write(tmp_path / "x", bytes(damaged))
        with contextlib.suppress(PixelError):
            assert decode(path).rgb.ndim == 3
    capfd.readouterr()  # libtiff prints what it finds


def test_a_lenient_mode_that_someone_switched_on_is_switched_off(tmp_path, monkeypatch):
    from PIL import ImageFile

    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(PixelError, match="cannot be decoded to the end"):
        decode(write(tmp_path / "x.jpg", WHOLE["JPEG"][:-200]))


# What is not a readable file


def test_what_is_no_file_is_refused_by_its_kind_and_does_not_hang(tmp_path):
    import os

    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "gone.png")
    write(tmp_path / "file", b"")
    said = {}
    for name in ("folder.png", "pipe.png", "dangling.png", "absent.png", "file/below.png", "x" * 300 + ".png"):
        with pytest.raises(PixelError) as caught:
            decode(tmp_path / name)
        said[name[:20]] = caught.value.problem
    assert said == {
        "folder.png": "it is not a file",
        "pipe.png": "it is not a file",
        "dangling.png": "there is no such file",
        "absent.png": "there is no such file",
        "file/below.png": "it cannot be read (Not a directory)",
        "x" * 20: "it cannot be read (File name too long)",
    }


# Digests


def test_the_digest_is_the_sha256_of_width_height_and_rgb_bytes(tmp_path):
    tile = decode(write(tmp_path / "x.png", encoded(PICTURE, "PNG")))
    size = (40).to_bytes(4, "little") + (24).to_bytes(4, "little")
    assert tile.digest() == hashlib.sha256(size + PICTURE.tobytes()).digest()


def test_the_digest_is_that_of_the_pixels_not_of_the_file(tmp_path):
    digests = {
        decode(write(tmp_path / name, content)).digest()
        for name, content in {
            "a.png": encoded(PICTURE, "PNG", compress_level=0),
            "b.png": encoded(PICTURE, "PNG", compress_level=9),
            "c.tif": encoded(PICTURE, "TIFF"),
            "d.png": encoded(with_alpha(OPAQUE), "PNG"),
            "e.png": save_png(PICTURE),
        }.items()
    }
    assert len(digests) == 1


def test_equal_bytes_of_another_shape_have_another_digest(tmp_path):
    wide = decode(write(tmp_path / "w.png", encoded(PICTURE, "PNG")))
    tall = decode(write(tmp_path / "t.png", encoded(PICTURE.reshape(WIDTH, HEIGHT, 3), "PNG")))
    assert wide.rgb.tobytes() == tall.rgb.tobytes()
    assert wide.digest() != tall.digest()


# Many tiles


def tiles(folder, names):
    return [write(folder / name, encoded(PICTURE, "PNG")) for name in names]


@pytest.mark.parametrize("workers", [0, 2])
def test_all_bad_files_are_named_at_once_and_the_good_ones_are_not(tmp_path, workers):
    paths = tiles(tmp_path, [f"good{i}.png" for i in range(4)])
    bad = [
        write(tmp_path / "deep.png", REFUSED["16-bit RGB PNG"][0]),
        tmp_path / "absent.png",
        write(tmp_path / "cut.jpg", WHOLE["JPEG"][:-9]),
    ]
    mixed = [paths[0], bad[0], paths[1], bad[1], paths[2], bad[2], paths[3]]
    with pytest.raises(SeveralErrors) as caught:
        hash_tiles("tileset x", mixed, tmp_path, workers, Reporter())
    assert [error.subject for error in caught.value.errors] == [str(path) for path in bad]
    assert caught.value.exit_code == 3


def test_of_very_many_bad_files_ten_are_told_in_full_and_the_rest_by_name(tmp_path):
    faults = [PixelError(f"t{i}.png", "there is no such file") for i in range(75)]
    with pytest.raises(SeveralErrors) as caught:
        raise_pixel_faults(faults, 100)
    *first, last = caught.value.errors
    assert [error.subject for error in first] == [f"t{i}.png" for i in range(10)]
    assert last.subject == "75 of 100 tiles"
    assert all(f"t{i}.png" in last.found for i in range(10, 60))
    assert last.found.endswith("and 15 more")


@pytest.mark.parametrize("workers", [0, 2])
def test_digests_come_in_the_order_of_the_rows_with_sizes_counted_and_orientations_told(tmp_path, workers, capsys):
    pictures = [np.full((8, 8 + i % 2, 3), i, np.uint8) for i in range(12)]
    paths = [write(tmp_path / f"{(i * 5) % 12}.png", encoded(p, "PNG")) for i, p in enumerate(pictures)]
    paths.append(write(tmp_path / "turned.jpg", with_orientation("JPEG", 6)))
    tiles = hash_tiles("tileset x", paths, tmp_path, workers, Reporter())
    for picture, digest in zip(pictures, [tile.digest for tile in tiles], strict=False):
        header = struct.pack("<II", picture.shape[1], picture.shape[0])
        assert digest == hashlib.sha256(header + picture.tobytes()).digest()
    assert [tile.size for tile in tiles] == ["8x8", "9x8"] * 6 + ["40x24"]
    assert capsys.readouterr().err == "warning: tileset x: the EXIF orientation of 1 tiles was ignored\n"
