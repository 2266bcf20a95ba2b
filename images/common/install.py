"""Installs into a venv while an image is built: packages by hash from lock files, or one wheel that lies here.

    python3 install.py VENV LOCK…       python3 install.py VENV WHEEL

Only wheels are taken. Modules are compiled, because nobody can write byte code later, and the venv's SBOM is renewed.
Secrets of the build: `ca_bundle`, certificates to trust in place of pip's own; `pip_conf`, a pip configuration.
"""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

from sbom import renew_sbom

SETTINGS = {
    "PIP_CACHE_DIR": "/root/.cache/pip",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}
SECRETS = {"PIP_CERT": "/run/secrets/ca_bundle", "PIP_CONFIG_FILE": "/run/secrets/pip_conf"}


def main(venv: Path, sources: list[str]) -> None:
    if not (venv / "pyvenv.cfg").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run([*pip(venv), "--report", report, *wanted(sources)], env=environment())
        if done.returncode:
            sys.exit(done.returncode)
        renew_sbom(venv, json.loads(report.read_text(encoding="utf-8"))["install"])
    uncompiled = [path for path in sorted(venv.rglob("*.py")) if not Path(cache_from_source(str(path))).exists()]
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_module, map(str, uncompiled), chunksize=32))


def pip(venv: Path) -> list[str | Path]:
    """pip of the base image, for a venv that has none of its own."""
    return [sys.executable, "-m", "pip", "--python", venv / "bin/python", "install", "--no-compile"]


def wanted(sources: list[str]) -> list[str]:
    if sources[0].endswith(".whl"):
        return ["--no-deps", "--no-index", *sources]
    return ["--require-hashes", "--only-binary", ":all:", *(part for lock in sources for part in ("-r", lock))]


def environment() -> dict[str, str]:
    given = {name: path for name, path in SECRETS.items() if Path(path).is_file() and Path(path).stat().st_size}
    return {**os.environ, **SETTINGS, **given}


def compile_module(path: str) -> None:
    """Byte code that is never checked against the source. A template that is no valid Python has none."""
    with suppress(py_compile.PyCompileError):
        py_compile.compile(path, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
