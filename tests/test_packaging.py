"""The wheel's contents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_the_manifests_and_nothing_else(wheel: Path):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = {f"croma_bundle/{p.relative_to(ROOT / 'src/croma_bundle')}" for p in ROOT.glob("src/croma_bundle/**/*.py")}
    tables = [p.relative_to(ROOT / "manifests") for p in ROOT.glob("manifests/**/*.toml")]
    manifests = {f"croma_bundle/_manifests/{path}" for path in tables}
    assert len(manifests) >= 3
    published = {"croma_bundle/_published/panel.csv", "croma_bundle/_published/PROVENANCE.json"}
    kernel = {"croma_bundle/metrics/kernel.c"}
    if not wheel.name.endswith("-py3-none-any.whl"):  # there is a C compiler
        kernel.add("croma_bundle/metrics/libkernel.so")
    assert names == source | manifests | published | kernel


def test_the_wheel_s_published_figures_are_the_checkout_s(wheel: Path):
    archive = zipfile.ZipFile(wheel)
    for name, path in (("panel.csv", "published/panel.csv"), ("PROVENANCE.json", "PROVENANCE.json")):
        assert archive.read(f"croma_bundle/_published/{name}") == (ROOT / "results" / path).read_bytes()


def test_the_wheel_finds_its_manifests_without_the_checkout(wheel: Path, tmp_path: Path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", "import croma_bundle.cli as c; print(c.__file__); c.main(['list', 'benchmarks'])"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site") in done.stdout
    assert re.search(r"^phantom +phantom ", done.stdout, re.MULTILINE)


def test_the_wheel_finds_its_published_figures_without_the_checkout(wheel: Path, tmp_path: Path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import croma_bundle.verification.panel as p; print(p.figures_path(), len(p.load_panel().figures))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "site/croma_bundle/_published/panel.csv"), "7"]
