"""Talking to the Docker engine through its own command line."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from croma_bundle.errors import EnvironmentFault
from croma_bundle.launch.token import without_token

WANTED = "a Docker engine, 20.10 or newer, with the compose v2 plugin"


def docker(*arguments: str, folder: Path | None = None, env: dict[str, str] | None = None) -> str:
    """The standard output of `docker …`; raises `EnvironmentFault` with the engine's own last words."""
    try:
        env = without_token(os.environ) if env is None else env
        done = subprocess.run(["docker", *arguments], cwd=folder, env=env, capture_output=True, text=True)
    except OSError as error:
        raise EnvironmentFault(
            "docker", f"it cannot be started ({error.strerror})", wanted=WANTED, then="docs/hospital-it.md"
        ) from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = [line for line in lines if line and not line.startswith("Run 'docker")] or ["no word of why"]
        raise EnvironmentFault(f"docker {arguments[0]}", "it failed", found=said[-1])
    return done.stdout


def require_engine() -> None:
    """Raise `EnvironmentFault` where docker or compose is missing, or no engine answers."""
    try:
        docker("compose", "version")
    except EnvironmentFault as fault:
        if fault.wanted:  # docker itself is missing
            raise
        raise EnvironmentFault(
            "docker compose",
            "this docker has no compose",
            wanted=WANTED,
            found=fault.found,
            then="Install it (Debian: docker-compose-v2 or docker-compose-plugin). Without it: RUNTIME=venv",
        ) from None
    try:
        docker("version", "--format", "{{.Server.Version}}")
    except EnvironmentFault as fault:
        raise EnvironmentFault(
            "docker",
            "no engine answers",
            wanted=WANTED,
            found=fault.found,
            then="Start it (systemctl start docker), or join the group docker. Without one: RUNTIME=venv",
        ) from None


def inspect_image(reference: str) -> dict[str, Any] | None:
    """What the engine knows of an image, or None where it does not have it."""
    try:
        found: list[dict[str, Any]] = json.loads(docker("image", "inspect", reference))
    except EnvironmentFault as fault:
        if "No such image" in (fault.found or ""):
            return None
        raise
    return found[0]


def labels_of(image: dict[str, Any]) -> dict[str, str]:
    return image["Config"].get("Labels") or {}
