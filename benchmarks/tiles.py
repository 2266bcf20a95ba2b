"""Times reading tiles from parquet files beside reading the same tiles from PNG files.

    make bench-tiles                          # 6,000 tiles of 256 pixels; about 2 GB of scratch space (TMPDIR)
    .venv-test/bin/python benchmarks/tiles.py --tiles 20000 --turns 1

The parquet files are laid out as the published ones: image {bytes, path} beside the ids, three parts, written by
pyarrow with its defaults, in row groups of 100 or 1,000. Tiles are asked for in the order of the files, or at random.
`read` is the encoded bytes alone, `decode` the whole look: read, decoded to the end, pixels hashed. One process each,
one after another; the best of the turns. The digests of PNG files and of PNG in parquet must be equal.

Ratios, not tiles a second, carry over to other machines. All files lie in the page cache: on a slow disk fewer bytes
and fewer files count for more.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import random
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

SIZE, DISTINCT, PARTS = 256, 200, 3
SOURCES = {
    "PNG files": "png",
    **{f"{k} in parquet, groups of {g}": f"{k}-{g}" for k in ("PNG", "JPEG") for g in (100, 1000)},
}
ORDERS = ("in order", "random")


def distinct_tiles() -> list[tuple[bytes, bytes]]:
    """(PNG, JPEG) of crops of generated tissue."""
    import numpy as np
    from PIL import Image

    from croma_bundle.tiles.phantom import PhantomSpec, phantom_rows, render

    spec = PhantomSpec(seed=0, tile_size=512, slides_per_cell=1, tiles_per_slide=1, centre_strength=1.0)
    fields = [render(spec, tile) for tile in phantom_rows(spec)]
    rng, made = np.random.default_rng(0), []
    for i in range(DISTINCT):
        y, x = rng.integers(0, 512 - SIZE, 2)
        noise = rng.normal(0, 4, (SIZE, SIZE, 1))
        tile = Image.fromarray(
            np.clip(fields[i % len(fields)][y : y + SIZE, x : x + SIZE] + noise, 0, 255).astype("u1")
        )
        png, jpeg = io.BytesIO(), io.BytesIO()
        tile.save(png, "PNG")
        tile.save(jpeg, "JPEG", quality=80)
        made.append((png.getvalue(), jpeg.getvalue()))
    return made


def marked(png: bytes, jpeg: bytes, number: int) -> tuple[bytes, bytes]:
    """Both with a comment that makes them unlike any other, so that no writer stores two of them once."""
    text = b"Comment\0" + str(number).encode()
    chunk = len(text).to_bytes(4, "big") + b"tEXt" + text + zlib.crc32(b"tEXt" + text).to_bytes(4, "big")
    comment = b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text
    return png[:33] + chunk + png[33:], jpeg[:2] + comment + jpeg[2:]


def make(folder: Path, count: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    base = distinct_tiles()
    images = [marked(*base[i % DISTINCT], i) for i in range(count)]
    (folder / "png").mkdir()
    for i, (png, _) in enumerate(images):
        (folder / "png" / f"{i:06d}.png").write_bytes(png)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    size = -(-count // PARTS)
    for name, which in (("PNG", 0), ("JPEG", 1)):
        print(f"{name}: {sum(len(both[which]) for both in images) / count / 1e3:.1f} kB a tile")
        for part in range(PARTS):
            rows = range(part * size, min((part + 1) * size, count))
            cells = pa.array([{"bytes": images[i][which], "path": f"{i}.png"} for i in rows], kind)
            table = pa.table(
                {"image": cells, "slide_id": [f"s{i // 50}" for i in rows], "patch_id": list(map(str, rows))}
            )
            for group in (100, 1000):
                pq.write_table(table, folder / f"{name}-{group}-{part}.parquet", row_group_size=group)


def paths_of(folder: Path, source: str, order: str, count: int) -> list[Path]:
    rows, size = list(range(count)), -(-count // PARTS)
    if order == "random":
        random.Random(0).shuffle(rows)
    if source == "png":
        return [folder / "png" / f"{i:06d}.png" for i in rows]
    return [folder / f"{source}-{i // size}.parquet#{i % size}" for i in rows]


def measure(folder: Path, source: str, order: str, count: int) -> None:
    """Prints tiles a second read and decoded, the peak memory in MB, and a digest of all pixels."""
    from croma_bundle.tiles.pixels import decode
    from croma_bundle.tiles.spool import Slice, spooled

    paths, speeds, digest = paths_of(folder, source, order, count), [], hashlib.sha256()
    for decoded in (False, True):
        began = time.perf_counter()
        with spooled(paths, folder / "scratch") as tiles:
            for tile in tiles:
                if decoded:
                    digest.update(decode(tile).digest())
                else:
                    _ = tile.content() if isinstance(tile, Slice) else tile.read_bytes()
        speeds.append(count / (time.perf_counter() - began))
    print(*speeds, peak_memory(), digest.hexdigest())


def peak_memory() -> float:
    """MB of this process; what `getrusage` says begins with the parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, default=6000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        folder, source, order = chosen.measure
        measure(Path(folder), source, order, chosen.tiles)
        return
    with tempfile.TemporaryDirectory(prefix="bench-tiles-") as folder:
        make(Path(folder), chosen.tiles)
        compare(folder, chosen.tiles, chosen.turns)


def compare(folder: str, count: int, turns: int) -> None:
    print(f"{'':30} {'':8} {'read':>8} {'decode':>8} {'× files':>8} {'× files':>8}   peak MB")
    for order in ORDERS:
        best: dict[str, list[float]] = {}
        pixels: dict[str, str] = {}
        for _ in range(turns):
            for name, source in SOURCES.items():
                command = [sys.executable, __file__, "--tiles", str(count), "--measure", folder, source, order]
                *figures, pixels[name] = subprocess.run(
                    command, check=True, capture_output=True, text=True
                ).stdout.split()
                read, decode, peak = map(float, figures)
                known = best.setdefault(name, [0.0, 0.0, 0.0])
                best[name] = [max(known[0], read), max(known[1], decode), max(known[2], peak)]
        files = best["PNG files"]
        for name, (read, decode, peak) in best.items():
            ratios = f"{read / files[0]:8.2f} {decode / files[1]:8.2f}"
            print(f"{name:30} {order:8} {read:8,.0f} {decode:8,.0f} {ratios} {peak:9,.0f}", flush=True)
        alike = {pixels[name] for name in pixels if name.startswith("PNG")}
        print(f"pixels of PNG files and of PNG in parquet: {'equal' if len(alike) == 1 else 'DIFFERENT'}")
        if len(alike) > 1:
            sys.exit(1)


if __name__ == "__main__":
    main()
