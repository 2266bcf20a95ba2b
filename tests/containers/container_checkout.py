"""A checkout of its own for the container tests, and how commands are run in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
BUILT = ("torch", "score", "tiles", "shared", "waiv", "rudolfv2")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CA_MARKER = "marker-of-the-ca-bundle-5e0c6f1d"
PIP_MARKER = "marker-of-the-pip-conf-a93b7740"


@dataclass(frozen=True)
class Checkout:
    """A copy of the repository with its own compose project and image names, and the secrets that its builds get."""

    root: Path
    images: Mapping[str, str]
    ca_bundle: Path
    pip_conf: Path
    env: Mapping[str, str] = field(repr=False)

    @property
    def image(self) -> str:
        """The scoring image."""
        return self.images["score"]

    def with_env(self, **env: str) -> Checkout:
        return replace(self, env={**self.env, **env})

    def at(self, root: Path) -> Checkout:
        """The same images and names from another copy of the repository."""
        return replace(self, root=root)

    def run(
        self,
        *command: str | Path,
        exits: int | None = 0,
        root: Path | None = None,
        stdin: str | None = None,
        **env: str | Path,
    ) -> subprocess.CompletedProcess[str]:
        full = {**self.env, **{key: str(value) for key, value in env.items()}}
        streams = {"input": stdin, "capture_output": True, "text": True}
        done = subprocess.run(list(map(str, command)), cwd=root or self.root, env=full, timeout=900, **streams)
        told = f"{' '.join(done.args)}: exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert exits is None or done.returncode == exits, told
        return done

    def compose(
        self, *args: str, exits: int = 0, volume: Path, uid: int = 12345, gid: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`docker compose run --rm <args>` on `volume` as `uid`."""
        ids = {"CROMA_UID": str(uid), "CROMA_GID": str(uid if gid is None else gid)}
        return self.run("docker", "compose", "run", "--rm", *args, exits=exits, CROMA_VOLUME=volume, **ids)

    def inside(self, program: str, *, volume: Path, uid: int = 12345) -> str:
        """The standard output of a Python program, run where the scoring service runs."""
        return self.compose("--entrypoint", "python", "score", "-c", program, volume=volume, uid=uid).stdout

    def launch(self, *args: str, exits: int | None = 0, **env: str | Path) -> subprocess.CompletedProcess[str]:
        """`croma-bundle launch --runtime docker <args>`, as make calls it."""
        command = (f"{self.env['VENV']}/bin/croma-bundle", "launch", "--runtime", "docker")
        return self.run(*command, *args, exits=exits, **env)

    def build(self, *options: str, **env: str | Path) -> subprocess.CompletedProcess[str]:
        """`make images`, as a site behind a TLS-inspecting proxy types it."""
        command = ("make", "images", f"CA_BUNDLE={self.ca_bundle}", f"PIP_CONF={self.pip_conf}", *options)
        return self.run(*command, **env)

    def inspect(self, image: str = "score") -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self.run("docker", "image", "inspect", self.images[image]).stdout)
        return found[0]

    def docker_build(self, image: str, tag: str, *options: str, root: Path | None = None) -> None:
        """The build of an image without make and compose."""
        secrets = [f"--secret=id=ca_bundle,src={self.ca_bundle}", f"--secret=id=pip_conf,src={self.pip_conf}"]
        given = [f"--build-arg={name}={self.env[name]}" for name in ("BASE_IMAGE",) if name in self.env]
        what = [f"--build-arg=IMAGE={image}", f"--tag={tag}", "--file=images/Dockerfile"]
        self.run("docker", "build", *options, *secrets, *given, *what, ".", root=root, DOCKER_BUILDKIT="1")

    def hardened(self, image: str, *command: str, entrypoint: str = "python", exits: int = 0) -> str:
        """What a command prints in an image, as a uid without an account, with nothing to write to but /tmp."""
        limits = ("--user=12345:12345", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")
        limits += ("--network=none", "--tmpfs=/tmp", f"--entrypoint={entrypoint}")
        return self.run("docker", "run", "--rm", *limits, self.images[image], *command, exits=exits).stdout


def tools_venv(folder: Path) -> Path:
    """What make takes for the tools' venv: the command line of the test venv."""
    command = folder / "bin" / "croma-bundle"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m croma_bundle "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return folder


def host_cli(volume: Path, *args: str) -> None:
    """Run the command line of the test venv."""
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(volume), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def copy_repository(target: Path) -> None:
    """What git would take from the working tree, or all but venvs, caches and volumes where there is no git."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode:
        ignored = shutil.ignore_patterns(".*venv*", "__pycache__", ".*_cache", "volume", "build", "dist")
        shutil.copytree(REPOSITORY, target, ignore=ignored)
        return
    for name in filter(None, done.stdout.split("\0")):
        source = REPOSITORY / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def trusted_certificates() -> Path:
    """The certificates that builds on this machine need; pip's own where it needs none in particular."""
    given = os.environ.get("CROMA_TEST_CA_BUNDLE")
    if given:
        return Path(given)
    program = "from pip._vendor import certifi; print(certifi.where())"
    return Path(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    )
