"""RUNTIME=venv: real venvs, real pip, from a folder of wheels that the test writes; no network."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from croma_bundle.errors import EnvironmentFault, InputError, UsageError
from croma_bundle.launch.place import open_place
from croma_bundle.launch.run import launcher
from croma_bundle.launch.steps import Step
from croma_bundle.launch.venv import find_python, make_venv, venv_python
from croma_bundle.layout import Volume
from croma_bundle.progress import Reporter

ON_311 = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the families' locks are for Python 3.11")


def write_wheel(folder: Path, name: str, version: str) -> str:
    """A wheel of one module; returns its SHA-256."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def wheels(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two wheels, and locks of torch and waiv that name one each; pip sees nothing else."""
    folder = tmp_path / "wheels"
    for family, name in (("torch", "underneath"), ("waiv", "ontop")):
        digest = write_wheel(folder, name, "1.0")
        lock = checkout / "images" / family / "requirements.lock"
        lock.parent.mkdir(exist_ok=True)
        lock.write_text(f"{name}==1.0 \\\n    --hash=sha256:{digest}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def imports(checkout: Path, program: str) -> subprocess.CompletedProcess[str]:
    python = str(venv_python(checkout, "waiv"))
    return subprocess.run([python, "-c", program], capture_output=True, text=True)


@ON_311
def test_a_family_s_venv_holds_both_locks_and_sees_this_package(wheels: Path, checkout: Path):
    make_venv(checkout, "waiv")
    done = imports(checkout, "import underneath, ontop, croma_bundle; print(croma_bundle.__file__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == sys.modules["croma_bundle"].__file__


@ON_311
@pytest.mark.parametrize("broken", ["python", "package", "sources"])
def test_a_venv_that_is_not_what_it_was_is_made_again(wheels: Path, checkout: Path, broken: str):
    """Its Python was upgraded away, a package was removed, or it came here with a copy of another checkout."""
    make_venv(checkout, "waiv")
    folder = checkout / ".venv-waiv"
    if broken == "python":
        venv_python(checkout, "waiv").unlink()
        venv_python(checkout, "waiv").symlink_to("/usr/bin/no-such-python3.11")
    if broken == "package":
        pip = [str(venv_python(checkout, "waiv")), "-m", "pip", "--disable-pip-version-check", "uninstall", "-yq"]
        subprocess.run([*pip, "ontop"], check=True)
    if broken == "sources":
        (link,) = folder.glob("lib/python*/site-packages/croma_bundle_sources.pth")
        link.write_text("/no/such/checkout/src\n")
    make_venv(checkout, "waiv")
    done = imports(checkout, "import underneath, ontop, croma_bundle; print(croma_bundle.__file__)")
    assert done.stdout.strip() == sys.modules["croma_bundle"].__file__, done.stderr


@ON_311
def test_it_is_made_again_when_a_lock_changes_and_only_then(wheels: Path, checkout: Path):
    make_venv(checkout, "waiv")
    (checkout / ".venv-waiv" / "mark").touch()
    make_venv(checkout, "waiv")
    assert (checkout / ".venv-waiv" / "mark").exists()
    digest = write_wheel(wheels, "ontop", "2.0")
    (checkout / "images" / "waiv" / "requirements.lock").write_text(f"ontop==2.0 --hash=sha256:{digest}\n")
    make_venv(checkout, "waiv")
    assert not (checkout / ".venv-waiv" / "mark").exists()
    assert imports(checkout, "import ontop; print(ontop.VERSION)").stdout.strip() == "2.0"


@ON_311
def test_a_wheel_of_other_bytes_is_refused_and_the_venv_is_not_taken_for_finished(wheels: Path, checkout: Path):
    write_wheel(wheels, "ontop", "1.0")
    with (wheels / "ontop-1.0-py3-none-any.whl").open("ab") as handle:
        handle.write(b" ")
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="waiv: its packages were not installed"):
            make_venv(checkout, "waiv")


def test_a_folder_that_is_no_venv_is_not_erased(wheels: Path, checkout: Path):
    (checkout / ".venv-waiv").mkdir()
    (checkout / ".venv-waiv" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="no virtual environment"):
        make_venv(checkout, "waiv")
    assert (checkout / ".venv-waiv" / "thesis.tex").exists()


def test_another_python_is_told_which_one_is_wanted(monkeypatch: pytest.MonkeyPatch, tools: Path):
    """A stand-in for the interpreter's version: only one interpreter runs a test."""
    monkeypatch.setattr(sys, "version_info", (3, 13, 1))
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(EnvironmentFault, match=r"there is no python3\.11 here"):
        find_python()
    (tools / "python3.11").symlink_to(sys.executable)
    assert find_python() == str(tools / "python3.11")


def test_a_step_in_the_venv_says_that_nothing_isolates_it_and_has_no_token(
    checkout: Path, volume: Volume, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HF_TOKEN", "hf_canary_of_the_venv")
    launch = launcher(volume, "venv", {"HF_TOKEN": "hf_canary_of_the_venv"}, Reporter())
    command = launch.choose(Step("score")).command(Step("score"), launch.place, tmp_path)
    assert "without network isolation" in command.where
    assert "hf_canary" not in json.dumps([command.argv, dict(command.env)])
    assert command.env["HF_HUB_OFFLINE"] == "1"
    fetching = launch.choose(Step("weights")).command(Step("weights"), launch.place, tmp_path / "token")
    assert "hf_canary" not in json.dumps([fetching.argv, dict(fetching.env)])
    assert fetching.env["HF_TOKEN_PATH"] == str(tmp_path / "token")
    assert "HF_HUB_OFFLINE" not in fetching.env


def test_the_weights_of_an_embed_step_must_be_there(checkout: Path, volume: Volume, tmp_path: Path):
    launch = launcher(volume, "venv", {"CROMA_WEIGHTS": str(tmp_path / "nowhere")}, Reporter())
    with pytest.raises(InputError, match="nowhere: the weights of this step"):
        launch.run(Step("embed-waiv"))
    assert open_place(volume.root, {}).weights == volume.root / "weights"
