"""A folder of executables that comes first on PATH, and a checkout of the files that launching reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from croma_bundle.launch.images import BUILD, IMAGES

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, first on PATH; docker, nvidia-smi and apptainer are found there or not at all."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "CROMA_UID", "CROMA_GID", "CROMA_WEIGHTS", "CROMA_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with compose files, stand-ins for the lock files, and an empty images.lock.toml."""
    root = tmp_path / "checkout"
    (root / "manifests").mkdir(parents=True)
    for lock in {BUILD, *(lock for image in IMAGES.values() for lock in image.locks)}:
        (root / lock).parent.mkdir(parents=True, exist_ok=True)
        (root / lock).write_text(f"# {lock}\n")
    for name in ("compose.yaml", "compose.gpu.yaml"):
        shutil.copy(REPOSITORY / name, root / name)
    (root / "manifests" / "images.lock.toml").write_text("# none\n")
    monkeypatch.chdir(root)
    return root
