"""What is installed: the wheel's contents, and locks in which every package has its hash."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOCKS = [
    ROOT / "requirements/tools.lock",
    ROOT / "requirements/test.lock",
    ROOT / "images/score/requirements.lock",
    ROOT / "images/score/build.lock",
]


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
    assert names == source | manifests | published


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


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.relative_to(ROOT)))
def test_every_locked_package_has_an_exact_version_and_hashes_and_no_address(lock: Path):
    text = lock.read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", re.sub(r"(?m)^ *#.*\n", "", text).strip())
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9][a-z0-9._-]*==[^ ;\\]+", entry), entry[:60]
        assert "--hash=sha256:" in entry, entry[:60]
    assert "://" not in text
    assert "git+" not in text


def test_a_package_has_one_version_in_all_locks():
    tools, test, score, build = (pinned(lock) for lock in LOCKS)
    assert {name: test.get(name) for name in tools} == tools
    assert {name: tools.get(name) for name in score} == score
    assert {name: tools.get(name) for name in build} == build


def test_the_score_lock_is_light():
    assert set(pinned(LOCKS[2])) == {
        *("annotated-types", "click", "numpy"),
        *("pydantic", "pydantic-core", "typing-extensions", "typing-inspection"),
    }


def pinned(lock: Path) -> dict[str, frozenset[str]]:
    """Package → its pinned lines (version and marker); several where Python versions differ."""
    found: dict[str, set[str]] = {}
    for name, rest in re.findall(r"(?m)^([a-z0-9][a-z0-9._-]*)==([^\\\n]+?) *\\?$", lock.read_text(encoding="utf-8")):
        found.setdefault(name, set()).add(rest.strip())
    return {name: frozenset(lines) for name, lines in found.items()}
