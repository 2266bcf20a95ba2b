"""Small parquet sets with the columns of the published ones, and their metadata served on loopback."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from builders import write_csv
from croma_bundle.layout import Volume

METADATA = ("subset", "slide_id", "patch_id", "biological_class", "medical_center")


def picture(seed: int, size: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


def encoded(rgb: np.ndarray, kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, kind)
    return buffer.getvalue()


def metadata_rows(slides: int = 3, tiles: int = 5, ood: int = 2) -> list[dict[str, str]]:
    """2 classes × 2 centres, every slide in one cell; `ood` rows of a third centre. Patch ids repeat between slides."""
    rows = [
        dict(zip(METADATA, ("ID", f"{label}-{center}-{slide}", f"{tile:03d}", label, center), strict=True))
        for label in ("normal", "tumor")
        for center in ("RUMC", "UMCU")
        for slide in range(slides)
        for tile in range(tiles)
    ]
    return rows + [dict(zip(METADATA, ("OOD", "far", f"{i:03d}", "tumor", "CWZ"), strict=True)) for i in range(ood)]


def parquet_bytes(rows: Sequence[Mapping[str, str]], pictures: Sequence[bytes | None], group_size: int = 7) -> bytes:
    """A parquet file as the published ones: image {bytes, path}, ids, class and centre."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    names = ("slide_id", "patch_id", "biological_class", "medical_center")
    columns: dict[str, Any] = {
        "image": pa.array([{"bytes": p, "path": f"{i}.png"} for i, p in enumerate(pictures)], image)
    }
    columns |= {name: [row[name] for row in rows] for name in names}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, row_group_size=group_size)
    return sink.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class FileServer:
    """Serves `files` by path on loopback, of a media type in `types`; `redirects` lead to other addresses.

    `statuses` are given first, one a request; then answers that break off after so many bytes (`cuts`). Between the
    halves of an answer lie `pause` seconds.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.redirects: dict[str, str] = {}
        self.statuses: list[int] = []
        self.cuts: list[int] = []
        self.pause = 0.0
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                body = outer.files.get(self.path)
                status = 302 if self.path in outer.redirects else 200 if body is not None else 404
                status = outer.statuses.pop(0) if outer.statuses else status
                content = body if status == 200 and body is not None else b""
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                if status == 302:
                    self.send_header("Location", outer.redirects[self.path])
                if self.path in outer.types:
                    self.send_header("Content-Type", outer.types[self.path])
                self.end_headers()
                self.write(content[: outer.cuts.pop(0)] if content and outer.cuts else content)

            def write(self, content: bytes) -> None:
                half = len(content) // 2
                self.wfile.write(content[:half])
                time.sleep(outer.pause)
                self.wfile.write(content[half:])

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def csv_bytes(folder: Path, rows: Sequence[dict[str, str]]) -> bytes:
    return write_csv(folder / "metadata.csv", rows, METADATA).read_bytes()


def declare(volume: Volume, name: str, table: Mapping[str, Any]) -> None:
    """A hub tileset on the volume: `table` as TOML, tables inline."""
    lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
    path = volume.tileset_declaration(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
