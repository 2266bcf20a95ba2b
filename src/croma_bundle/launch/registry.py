"""push, pull, save, load: images on their way to other machines, always known by digest."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from croma_bundle import __version__
from croma_bundle.durable import sha256_file
from croma_bundle.errors import BundleError, EnvironmentFault, InputError, UsageError, did_you_mean, raise_all
from croma_bundle.launch.engine import docker, inspect_image, labels_of, require_engine
from croma_bundle.launch.image_lock import (
    LOCK,
    OVERRIDE,
    is_published,
    lock_hashes,
    read_image_lock,
    write_image_lock,
    write_override,
)
from croma_bundle.launch.images import IMAGES
from croma_bundle.manifests.models import PublishedImage
from croma_bundle.progress import Reporter

REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_/-]*[A-Za-z0-9]")


def push(checkout: Path, registry: str, names: Sequence[str] | None, reporter: Reporter) -> None:
    """Push every image that is built here (or those named) and record them in the lock.

    Raises:
        UsageError, InputError, SeveralErrors: before anything is pushed, for each image that would be published with
            an untrue origin: built from a tree with changes, or from another lock than the one that lies here.
    """
    if not REGISTRY.fullmatch(registry):
        raise UsageError(f"REGISTRY={registry}", "it is no registry", wanted="such as registry.example.org/pathology")
    require_engine()
    chosen = _here(names)
    faults: list[BundleError] = []
    for name, image in chosen.items():
        faults += _untrue(checkout, name, image)
    raise_all(faults)
    published = read_image_lock(checkout)
    for name, image in chosen.items():
        repository = f"{registry}/croma-bundle/{name}"
        docker("tag", image["Id"], f"{repository}:{__version__}")
        reporter.say(f"pushing {repository}:{__version__}")
        said = docker("push", f"{repository}:{__version__}")
        published[name] = _entry(checkout, name, image, repository, said)
        reporter.result(published[name].pinned, "pushed", image=name, digest=published[name].digest)
    write_image_lock(checkout, published)
    reporter.say(f"{LOCK} is written; commit it")


def pull(checkout: Path, names: Sequence[str] | None, reporter: Reporter) -> None:
    """Pull the images of the lock (or those named) by digest, and make compose run exactly these."""
    published = read_image_lock(checkout)
    if not published:
        raise InputError(LOCK, "no image is published", then="make images, or make push REGISTRY=…")
    require_engine()
    for name in _known(names, published) if names else published:
        entry = published[name]
        reporter.say(f"pulling {entry.pinned}")
        docker("pull", "--quiet", entry.pinned)
        docker("tag", entry.pinned, IMAGES[name].reference(os.environ))
        reporter.result(entry.pinned, "pulled", image=name, digest=entry.digest)
    write_override(checkout, published, {name: entry.pinned for name, entry in published.items()})
    reporter.say(f"{OVERRIDE} is written: compose runs these digests")


def save(path: Path, names: Sequence[str] | None, reporter: Reporter) -> None:
    """Write the images that are here (or those named) to one archive for a machine without a registry."""
    require_engine()
    chosen = _here(names)
    if not path.absolute().parent.is_dir():
        raise InputError(str(path), "its folder does not exist")
    docker("save", "--output", str(path), *(IMAGES[name].reference(os.environ) for name in chosen))
    text = f"{path}: {', '.join(chosen)}, {path.stat().st_size:,} bytes\nsha256 {sha256_file(path)}"
    reporter.result(text, "saved", images=list(chosen), path=str(path))


def load(checkout: Path, path: Path, reporter: Reporter) -> None:
    """Load an archive of `save`, and make compose run those of its images that are the lock's.

    Raises:
        InputError: the file is missing or no archive.
    """
    if not path.is_file() or not tarfile.is_tarfile(path):
        raise InputError(str(path), "it is no archive of images", then="make save   # where the images are")
    require_engine()
    docker("load", "--input", str(path))
    published, ours = read_image_lock(checkout), dict[str, str]()
    for name, image in _here(None).items():
        reference = IMAGES[name].reference(os.environ)
        entry = published.get(name)
        same = entry is not None and is_published(entry, image)
        if same:
            ours[name] = reference
        text = f"{reference}: {f'the published {entry.digest}' if entry and same else 'unpublished, ' + image['Id']}"
        reporter.result(text, "loaded", image=name, published=same)
    if ours:
        write_override(checkout, published, ours)


def _here(names: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """The named images, or all that are here.

    Raises:
        EnvironmentFault, SeveralErrors: a named one is missing, or there is none at all.
    """
    asked = _known(names, IMAGES) if names else list(IMAGES)
    found = {name: inspect_image(IMAGES[name].reference(os.environ)) for name in asked}
    missing = [name for name, image in found.items() if image is None]
    if missing and (names or len(missing) == len(found)):
        raise_all(
            [
                EnvironmentFault(
                    f"image {IMAGES[name].reference(os.environ)}", "the engine does not have it", then="make images"
                )
                for name in missing
            ]
        )
    return {name: image for name, image in found.items() if image is not None}


def _known(names: Sequence[str], known: Any) -> list[str]:
    raise_all(
        [
            UsageError(f"image {name!r}", f"there is none{did_you_mean(name, known)}", wanted=", ".join(known))
            for name in names
            if name not in known
        ]
    )
    return list(names)


def _untrue(checkout: Path, name: str, image: dict[str, Any]) -> list[BundleError]:
    """What the image's labels say that a published one may not say."""
    labels, reference = labels_of(image), IMAGES[name].reference(os.environ)
    faults: list[BundleError] = []
    commit = labels.get("org.opencontainers.image.revision", "")
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        found, then = f"{commit or 'nothing'} in its label", "commit, then make images"
        faults.append(InputError(f"image {reference}", "it names no commit", wanted="40 hex", found=found, then=then))
    lock, digest = list(lock_hashes(checkout, name, labels).items())[-1]
    if labels.get("croma-bundle.lock.sha256") != digest:
        found = f"{labels.get('croma-bundle.lock.sha256') or 'nothing'} in its label"
        faults.append(
            InputError(
                f"image {reference}",
                f"it was not built from {lock} as that lies here",
                wanted=f"sha256 {digest}",
                found=found,
                then="make images",
            )
        )
    return faults


def _entry(checkout: Path, name: str, image: dict[str, Any], repository: str, said: str) -> PublishedImage:
    """The lock's entry of an image that has just been pushed; `said` is what the engine said of it."""
    digest = re.search(r"digest: (sha256:[0-9a-f]{64})", said)
    if digest is None:
        raise EnvironmentFault(f"docker push {repository}", "the engine named no digest", found=said.strip()[-200:])
    labels = labels_of(image)
    base = labels.get("org.opencontainers.image.base.digest", "")
    return PublishedImage(
        name=name,
        image=repository,
        tag=__version__,
        digest=digest[1],
        image_id=image["Id"],
        base_digest=base if base.startswith("sha256:") else None,
        built_from=labels["org.opencontainers.image.revision"],
        locks=lock_hashes(checkout, name, labels),
    )
