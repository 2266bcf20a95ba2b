"""RUNTIME=apptainer: a step in an image without an engine, as computing clusters run them."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from croma_bundle.errors import EnvironmentFault
from croma_bundle.launch.device import Offer, offered_by_host
from croma_bundle.launch.image_lock import read_image_lock
from croma_bundle.launch.place import Place
from croma_bundle.launch.runtime import Command
from croma_bundle.launch.steps import Step
from croma_bundle.launch.token import without_token

EXECUTABLES = ("apptainer", "singularity")
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "HF_ENDPOINT")


class Apptainer:
    name = "apptainer"

    def offers_gpu(self) -> Offer:
        return offered_by_host()

    def prepare(self, step: Step, place: Place) -> None:
        executable()
        image_source(step, place)

    def command(self, step: Step, place: Place, token: Path) -> Command:
        source, digest = image_source(step, place)
        argv = (
            executable(),
            "exec",
            "--containall",  # neither the home folder nor the working folder, and its own /tmp
            "--cleanenv",  # nothing of the caller's environment but what is named below
            *(() if step.service.fetches else ("--net", "--network", "none")),
            *(("--nv",) if step.on_gpu else ()),
            *_binds(step, place, token),
            *(part for item in _environment(step, place, source, digest) for part in ("--env", item)),
            *("--pwd", "/volume", source, "croma-bundle", *step.command),
        )
        env = without_token(os.environ)
        return Command(argv, env, place.checkout, f"{step.name}: {shlex.join(argv)}")


def executable() -> str:
    for name in EXECUTABLES:
        if found := shutil.which(name):
            return found
    raise EnvironmentFault("RUNTIME=apptainer", "it is not installed", wanted=" or ".join(EXECUTABLES))


def image_source(step: Step, place: Place) -> tuple[str, str]:
    """`$CROMA_SIF/<image>.sif` where it exists, else the published image by digest; and that digest.

    Raises:
        EnvironmentFault: there is neither.
    """
    name = step.service.image
    entry = read_image_lock(place.checkout).get(name)
    sif = Path(os.environ.get("CROMA_SIF") or place.checkout) / f"{name}.sif"
    if sif.exists():
        return str(sif.absolute()), "unpublished"
    if entry is not None:
        return f"docker://{entry.pinned}", entry.digest
    raise EnvironmentFault(
        f"image {name}",
        "there is no .sif file of it, and no published one",
        wanted=f"{sif}, or an entry in manifests/images.lock.toml",
        then=f"apptainer build {name}.sif docker-archive:{name}.tar   # of make save FILE={name}.tar IMAGES={name}",
    )


def _binds(step: Step, place: Place, token: Path) -> list[str]:
    binds = [f"{place.volume}:/volume"]
    if step.service.weights != "none":
        binds.append(f"{place.weights}:/weights:{'rw' if step.service.weights == 'write' else 'ro'}")
    if step.own_tiles:
        binds.append(f"{step.own_tiles}:{step.own_tiles}:ro")
    if step.service.fetches:
        binds.append(f"{token}:/run/secrets/hf_token:ro")
        if place.certificates:
            binds.append(f"{place.certificates}:{place.certificates}:ro")
    return [part for bind in binds for part in ("--bind", bind)]


def _environment(step: Step, place: Place, source: str, digest: str) -> list[str]:
    values = {"CROMA_VOLUME": "/volume", "CROMA_IMAGE": source, "CROMA_IMAGE_DIGEST": digest}
    if step.service.weights != "none":
        values["CROMA_WEIGHTS"] = "/weights"
    if not step.service.fetches:
        values["HF_HUB_OFFLINE"] = "1"
        return [f"{name}={value}" for name, value in values.items()]
    values["HF_TOKEN_PATH"] = "/run/secrets/hf_token"  # noqa: S105 - a path
    values |= {name: os.environ[name] for name in PROXIES if name in os.environ}
    if place.certificates:
        values |= dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), str(place.certificates))
    return [f"{name}={value}" for name, value in values.items()]
