"""RUNTIME=venv: a step in a Python environment of this machine, without network isolation.

What needs no torch runs where this command runs: the tools' venv, whose lock names the versions of the images. Each
torch family has a venv of its own, `.venv-<family>`, made from the locks of its image.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from croma_bundle.durable import write_bytes
from croma_bundle.errors import EnvironmentFault, UsageError
from croma_bundle.launch.device import Offer, offered_by_host
from croma_bundle.launch.images import IMAGES
from croma_bundle.launch.place import Place
from croma_bundle.launch.runtime import Command
from croma_bundle.launch.steps import Step
from croma_bundle.launch.token import without_token

PYTHON = (3, 11)
"""The Python of the images, for which the families' locks are made."""
INVENTORY = """
import importlib.metadata, importlib.util
print(importlib.util.find_spec("croma_bundle").origin)
print(*sorted(f"{d.name}=={d.version}" for d in importlib.metadata.distributions()), sep="\\n")
"""
OF_FAMILIES = ("shared", "waiv", "rudolfv2")
OF_IMAGES = ("CROMA_IMAGE", "CROMA_IMAGE_DIGEST")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONNOUSERSITE": "1"}


class Venv:
    name = "venv"

    def offers_gpu(self) -> Offer:
        return offered_by_host()

    def prepare(self, step: Step, place: Place) -> None:
        if step.service.image in OF_FAMILIES:
            make_venv(place.checkout, step.service.image)

    def command(self, step: Step, place: Place, token: Path) -> Command:
        family = step.service.image
        python = venv_python(place.checkout, family) if family in OF_FAMILIES else Path(sys.executable)
        env = {name: value for name, value in without_token(os.environ).items() if name not in OF_IMAGES}
        env |= {"CROMA_WEIGHTS": str(place.weights), "PYTHONNOUSERSITE": "1"}
        env |= {"HF_TOKEN_PATH": str(token)} if step.service.fetches else OFFLINE
        argv = (str(python), "-m", "croma_bundle", "--volume", str(place.volume), *step.command)
        where = f"{step.name} in {python.parent.parent}, without network isolation (RUNTIME=docker for the image)"
        return Command(argv, env, place.checkout, where)


def venv_folder(checkout: Path, family: str) -> Path:
    return checkout / f".venv-{family}"


def venv_python(checkout: Path, family: str) -> Path:
    return venv_folder(checkout, family) / "bin" / "python"


def make_venv(checkout: Path, family: str) -> None:
    """Make the family's venv from its image's locks, unless it is there, of the same locks, and still what it was.

    Raises:
        EnvironmentFault: no Python of the locks' version, or an installation that failed.
        UsageError: something else stands in its place.
    """
    folder = venv_folder(checkout, family)
    locks = [checkout / lock for lock in IMAGES[family].locks_with(os.environ.get("TORCH", ""))]
    stamp, wanted = folder / "made-from", _stamp(locks)
    python = str(venv_python(checkout, family))
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted + (_inventory(python) or "nothing"):
        return
    if folder.exists() and not (folder / "pyvenv.cfg").exists() and any(folder.iterdir()):
        raise UsageError(str(folder), "it is no virtual environment and would be erased", then=f"mv {folder} …")
    clear = [find_python(), "-m", "venv", "--clear", str(folder)]
    _run(clear, "python3.11 has no venv module (apt install python3-venv)")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:"]
    _run([*pip, *(part for lock in locks for part in ("-r", str(lock)))], f"{family}: its packages were not installed")
    _see_sources(python, Path(__file__).resolve().parents[2])
    write_bytes(stamp, (wanted + _inventory(python)).encode())


def _inventory(python: str) -> str:
    """The package that a venv sees, and what is installed in it; empty where its Python does not start."""
    try:
        done = subprocess.run([python, "-c", INVENTORY], capture_output=True, text=True, env=without_token(os.environ))
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def find_python() -> str:
    """A Python of the locks' version: this one, or one on the path."""
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    name = "python{}.{}".format(*PYTHON)
    found = shutil.which(name)
    if found is None:
        raise EnvironmentFault(
            "RUNTIME=venv",
            f"there is no {name} here",
            wanted=f"{name}, for which the families' locks are made",
            found=f"Python {sys.version.split()[0]}",
            then=f"Install it, with its venv module (apt install {name}-venv), or RUNTIME=docker.",
        )
    return found


def _see_sources(python: str, sources: Path) -> None:
    """Let the venv import this package from where it lies; nothing is built or fetched for it."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    write_bytes(Path(site) / "croma_bundle_sources.pth", f"{sources}\n".encode())


def _stamp(locks: list[Path]) -> str:
    missing = [str(lock) for lock in locks if not lock.exists()]
    if missing:
        raise EnvironmentFault("RUNTIME=venv", f"there is no {', '.join(missing)}", then="git checkout images")
    return "".join(f"{hashlib.sha256(lock.read_bytes()).hexdigest()}  {lock.name}\n" for lock in locks)


def _run(command: list[str], problem: str) -> None:
    done = subprocess.run(command, stdout=sys.stderr)
    if done.returncode:
        raise EnvironmentFault("RUNTIME=venv", problem, found=f"exit {done.returncode} of {' '.join(command[:4])} …")
