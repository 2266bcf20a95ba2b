"""Files that are either whole or absent, and locks that die with their holder.

A file is written to a hidden temporary in its own folder (ending in `.tmp`, so never taken for an artifact), fsynced,
renamed over its name, and the folder is fsynced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from croma_bundle.errors import LockHeld

STALE_AFTER = 300.0
"""Seconds without a heartbeat after which a lock file is void, where the file system has no `flock`."""
BLOCK = 1 << 20


def fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a whole file or nothing: yields a binary handle whose content becomes `path` on a clean exit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    with atomic_file(path) as handle:
        handle.write(content)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """UTF-8 JSON, two-space indent, keys as given, newline at the end; NaN and infinity are refused."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def remove(path: Path) -> None:
    """Remove a file so that it stays removed after a power cut."""
    path.unlink(missing_ok=True)
    fsync_folder(path.parent)


def sweep_temporaries(folder: Path, name: str = "") -> None:
    """Remove what a killed writer left of `name` (or of everything) in `folder`; call it under that job's lock."""
    for leftover in folder.glob(f".{name}*.tmp") if folder.is_dir() else ():
        leftover.unlink(missing_ok=True)


def listing(folder: Path) -> list[str]:
    """Sorted names in a folder, none where it does not exist; raises `OSError` where it may not be read."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []


def sha256_file(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextlib.contextmanager
def lock(path: Path, subject: str) -> Iterator[None]:
    """Hold `path` as a lock for the duration, or raise `LockHeld` naming the holder.

    `flock` frees itself when the holder dies, in a container too. The text of the file only says who it was. On a file
    system without `flock` the file's age stands in: its holder touches it, and `STALE_AFTER` seconds of silence free
    it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        stop = threading.Event()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise _held(path, descriptor, subject) from None
            _beat_or_refuse(path, descriptor, subject, stop)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_me()).encode(), 0)
        try:
            yield
        finally:
            stop.set()
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _me() -> dict[str, str]:
    return {
        "user": str(os.getuid()),
        "host": socket.gethostname(),
        "container": os.environ.get("CROMA_IMAGE", ""),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _held(path: Path, descriptor: int, subject: str) -> LockHeld:
    try:
        who = json.loads(os.pread(descriptor, 4096, 0))
        holder = f"uid {who['user']} on {who['host']} since {who['started']}"
        if who["container"]:
            holder += f" (image {who['container']})"
    except (ValueError, KeyError, TypeError):
        holder = "a run that has not said who it is"
    return LockHeld(subject, "another run is at work on it", found=f"{holder}, lock {path}", then="Wait for it to end.")


def _beat_or_refuse(path: Path, descriptor: int, subject: str, stop: threading.Event) -> None:
    """The lock where `flock` is unsupported: a non-empty file younger than `STALE_AFTER` is held."""
    status = os.fstat(descriptor)
    if status.st_size and time.time() - status.st_mtime < STALE_AFTER:
        raise _held(path, descriptor, subject)

    def beat() -> None:
        while not stop.wait(STALE_AFTER / 10):
            with contextlib.suppress(OSError):  # a heartbeat that cannot be written is a missed heartbeat
                os.utime(path)

    threading.Thread(target=beat, daemon=True).start()
