"""RUNTIME=docker: a step is a service of compose.yaml, run once."""

from __future__ import annotations

import functools
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from croma_bundle.errors import EnvironmentFault
from croma_bundle.launch import engine
from croma_bundle.launch.device import Offer, offered_by_engine
from croma_bundle.launch.image_lock import OVERRIDE, digest_word, read_image_lock
from croma_bundle.launch.place import Place, commit_of
from croma_bundle.launch.runtime import Command
from croma_bundle.launch.steps import Step
from croma_bundle.launch.token import without_token


class Docker:
    name = "docker"

    def offers_gpu(self) -> Offer:
        return offered_by_engine()

    def prepare(self, step: Step, place: Place) -> None:
        engine.require_engine()
        self.image(step, place)

    def command(self, step: Step, place: Place, token: Path) -> Command:
        reference, image = self.image(step, place)
        built, here = _commit(image), commit_of(place.checkout)
        where = f"{step.name} in {reference}, built from commit {built}"
        if here and built != here:
            where += f" (this checkout is at {here}; make images renews a build)"
        digest = digest_word(read_image_lock(place.checkout), step.service.image, image)
        env = self.environment(step, place, token) | {"CROMA_IMAGE_DIGEST": digest}
        name = f"croma-bundle-{step.name}-{secrets.token_hex(4)}"
        files = compose_files(step, place)
        argv = ("docker", "compose", *files, "run", "--rm", "--name", name, step.name, *step.arguments)
        # An interrupted `compose run` leaves its container at work. Stopping sends the container SIGINT.
        stop = (("docker", "stop", "--time", "60", name), ("docker", "rm", "--force", name))
        return Command(argv, env, place.checkout, where, stop)

    def environment(self, step: Step, place: Place, token: Path) -> dict[str, str]:
        """What compose.yaml reads, all of it absolute; of the token only its path, and only for a fetching step."""
        env = without_token(os.environ) | {
            "CROMA_VOLUME": str(place.volume),
            "CROMA_WEIGHTS": str(place.weights),
            "CROMA_UID": str(place.uid),
            "CROMA_GID": str(place.gid),
        }
        if step.own_tiles:
            env["CROMA_TILES_ROOT"] = str(step.own_tiles)
        if place.certificates:
            env["CROMA_CA_BUNDLE"] = str(place.certificates)
        if step.service.fetches:
            env["HF_TOKEN_PATH"] = str(token)
        return env

    def image(self, step: Step, place: Place) -> tuple[str, dict[str, Any]]:
        """The reference that compose would run, and what the engine knows of it.

        Raises:
            EnvironmentFault: the engine does not have it.
        """
        env = self.environment(step, place, Path(os.devnull))
        reference = images_of(place.checkout, compose_files(step, place), tuple(sorted(env.items())))[step.name]
        image = engine.inspect_image(reference)
        if image is None:
            raise EnvironmentFault(
                f"image {reference}",
                f"the engine does not have it, and {step.name} runs in it",
                then="make images (builds it), make pull (where manifests/images.lock.toml names it), or make load; "
                "without an image: RUNTIME=venv",
            )
        return reference, image


@functools.cache
def images_of(checkout: Path, files: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """The image of every service as compose resolves it, which takes it a while: one question for all steps alike."""
    config = engine.docker("compose", *files, "config", "--format", "json", folder=checkout, env=dict(env))
    return {name: service["image"] for name, service in json.loads(config)["services"].items()}


def compose_files(step: Step, place: Place) -> tuple[str, ...]:
    """`-f` options, later files over earlier ones; compose reads none by itself once one is named."""
    names = ["compose.yaml"]
    if (place.checkout / OVERRIDE).exists():
        names.append(OVERRIDE)
    if step.on_gpu:
        names.append("compose.gpu.yaml")
    return tuple(option for name in names for option in ("-f", name))


def _commit(image: dict[str, Any]) -> str:
    return engine.labels_of(image).get("org.opencontainers.image.revision") or "unknown"
