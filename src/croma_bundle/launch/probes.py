"""What doctor reads off a machine: one small function a question, each taking what it reads from."""

from __future__ import annotations

import contextlib
import email.utils
import fcntl
import json
import os
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from croma_bundle.errors import BundleError
from croma_bundle.launch.engine import docker
from croma_bundle.manifests.models import Encoder

TIMEOUT = 10.0
"""Seconds until a server counts as unreachable."""


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: str
    driver: str


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, so that 1.0.10 is above 1.0.3; what follows the numbers is left out."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def engine_version() -> str:
    """Raises `EnvironmentFault` where no engine answers."""
    return docker("version", "--format", "{{.Server.Version}}").strip()


def compose_version() -> str:
    return docker("compose", "version", "--short").strip()


def gpus() -> list[Gpu] | None:
    """The host's GPUs; None where its driver does not answer."""
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [Gpu(*row) for row in rows if len(row) == 3]


def fits(capability: str, architectures: Sequence[str]) -> bool:
    """Whether a wheel built for these (`sm_80`, `compute_90`) runs on a GPU of this capability (`8.6`).

    Machine code of one major version runs on later minors of it; PTX (`compute_…`) runs on anything later.
    """
    major, minor = (int(part) for part in capability.split("."))
    for architecture in architectures:
        kind, _, digits = architecture.partition("_")
        built = int(digits[:-1]), int(digits[-1])
        if (kind == "sm" and built[0] == major and built[1] <= minor) or (
            kind == "compute" and built <= (major, minor)
        ):
            return True
    return False


def free_bytes(folder: Path) -> int:
    """Free for a user in the file system of a folder, or of the first folder above that exists."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    space = os.statvfs(there)
    return space.f_bavail * space.f_frsize


def shm_of_service(config: str, service: str) -> int:
    """The /dev/shm that compose gives a service, in bytes; the engine's own 64 MB where it says nothing."""
    return int(json.loads(config)["services"][service].get("shm_size") or 64 << 20)


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    if not meminfo.exists():
        return None
    found = re.search(r"^MemAvailable: +(\d+) kB$", meminfo.read_text(encoding="utf-8"), re.M)
    return int(found[1]) << 10 if found else None


def matrix_bytes(rows: int, encoders: Sequence[Encoder]) -> list[int]:
    """Size of each encoder's matrix: rows × width in float32."""
    return [rows * entry.width * 4 for entry in encoders]


def held_locks(root: Path) -> Iterator[tuple[Path, str]]:
    """Every lock below a folder that somebody holds, and what its text says of who."""
    for path in sorted(root.rglob("*.lock")) if root.is_dir() else ():
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield path, os.pread(descriptor, 4096, 0).decode("utf-8", "replace")
            finally:
                os.close(descriptor)


def file_clock_skew(folder: Path) -> float:
    """Seconds by which the folder's file server is ahead of this machine."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock-", suffix=".tmp") as handle:
        before = time.time()
        handle.write(b".")
        handle.flush()
        os.fsync(handle.fileno())
        return Path(handle.name).stat().st_mtime - before


def hub_access(endpoint: str, repository: str, token: str | None) -> tuple[str, float | None]:
    """What the hub says of a repository with this token, and by how many seconds its clock is ahead (None: unknown).

    One of: granted, no token, bad token, not granted, no such repository, unreachable (…).
    """
    request = urllib.request.Request(f"{endpoint.rstrip('/')}/api/models/{repository}/auth-check")  # noqa: S310
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310 - the user's own endpoint
            return "granted", _ahead(answer.headers.get("Date"))
    except urllib.error.HTTPError as error:
        return _refusal(error, token), _ahead(error.headers.get("Date"))
    except (OSError, ValueError) as error:
        return f"unreachable ({getattr(error, 'reason', error)})", None


def _refusal(error: urllib.error.HTTPError, token: str | None) -> str:
    reason = error.headers.get("X-Error-Code", "")
    if reason == "RepoNotFound" or error.code == 404:
        return "no such repository"
    if error.code == 401 and not token:
        return "no token"
    if error.code == 401 and reason != "GatedRepo":
        return "bad token"
    return "not granted" if error.code in (401, 403) else f"unreachable (HTTP {error.code})"


def _ahead(date: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time() if date else None
    except ValueError:
        return None


def rows_of(path: Path) -> int | None:
    """Rows of a tile manifest, None where there is none that can be read."""
    from croma_bundle.tilemanifest.manifest import read_manifest

    try:
        return len(read_manifest(path)) if path.exists() else None
    except BundleError:
        return None
