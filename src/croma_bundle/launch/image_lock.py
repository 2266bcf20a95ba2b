"""manifests/images.lock.toml: the published images by digest, and whether what lies here is what it says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from croma_bundle.durable import sha256_file, write_bytes
from croma_bundle.errors import EnvironmentFault, UsageError, VerdictFailed
from croma_bundle.launch.engine import inspect_image
from croma_bundle.launch.images import ARCHITECTURES, BUILD, IMAGES
from croma_bundle.launch.place import find_checkout
from croma_bundle.launch.steps import SERVICES
from croma_bundle.manifests.load import read_named
from croma_bundle.manifests.models import PublishedImage, plain
from croma_bundle.manifests.toml_text import toml_text
from croma_bundle.progress import Reporter

LOCK = "manifests/images.lock.toml"
OVERRIDE = "compose.override.yaml"
UNPUBLISHED = "unpublished"
COMMENT = "The published images. Written by `make push`, read by `make pull`; one table per image."
HEADER = "# Written by `make pull` or `make load`; remove it to run the images that were built here.\n"

Published = Mapping[str, PublishedImage]


@dataclass(frozen=True)
class Finding:
    """One comparison of the lock with what lies here; `then` says what to do where it does not hold."""

    image: str
    holds: bool
    found: str
    then: str = ""


def read_image_lock(checkout: Path) -> dict[str, PublishedImage]:
    path = checkout / LOCK
    return {entry.name: entry for entry in read_named(path, PublishedImage)} if path.exists() else {}


def write_image_lock(checkout: Path, published: Published) -> None:
    tables = {name: {k: v for k, v in plain(published[name]).items() if k != "name"} for name in sorted(published)}
    write_bytes(checkout / LOCK, toml_text(tables, COMMENT).encode())


def lock_hashes(checkout: Path, name: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Lock file → SHA-256, of every lock that an image of these labels is built from; its own comes last."""
    torch = "blackwell" if "sm_120" in labels.get(ARCHITECTURES, "").split() else ""
    return {lock: sha256_file(checkout / lock) for lock in (BUILD, *IMAGES[name].locks_with(torch))}


def is_published(entry: PublishedImage, image: Mapping[str, Any]) -> bool:
    """Whether an image of the engine is the published one: pulled by that digest, or loaded with that id."""
    digests = {reference.rpartition("@")[2] for reference in image.get("RepoDigests") or ()}
    return entry.digest in digests or entry.image_id == image["Id"]


def digest_word(published: Published, name: str, image: Mapping[str, Any]) -> str:
    """What a sidecar records: the published digest, or of another image that it is unpublished, and its id."""
    entry = published.get(name)
    return entry.digest if entry and is_published(entry, image) else f"{UNPUBLISHED}, image id {image['Id']}"


def write_override(checkout: Path, published: Published, references: Mapping[str, str]) -> None:
    """Make compose run each image under its reference, by digest or, where it was loaded, by tag.

    The file is JSON, which is YAML; it is git-ignored.

    Raises:
        UsageError: a compose.override.yaml of the user's own stands there.
    """
    path = checkout / OVERRIDE
    if path.exists() and not path.read_text(encoding="utf-8").startswith(HEADER):
        raise UsageError(OVERRIDE, "it is not of our making and would be replaced", then=f"mv {OVERRIDE} …")
    services = {
        name: {
            "image": references[service.image],
            "pull_policy": "missing" if "@" in references[service.image] else "never",
            "environment": {
                "CROMA_IMAGE": references[service.image],
                "CROMA_IMAGE_DIGEST": published[service.image].digest,
            },
        }
        for name, service in SERVICES.items()
        if service.image in references
    }
    write_bytes(path, (HEADER + json.dumps({"services": services}, indent=2) + "\n").encode())


def overridden(checkout: Path) -> dict[str, str]:
    """Image → the reference that our compose.override.yaml names; empty where there is none of ours."""
    path = checkout / OVERRIDE
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if not text.startswith(HEADER):
        return {}
    services = json.loads(text.removeprefix(HEADER))["services"]
    return {SERVICES[name].image: service["image"] for name, service in services.items() if name in SERVICES}


def compare(checkout: Path) -> Iterator[Finding]:
    """Every published image against the lock files of the checkout, and against what the engine has.

    What was pulled or loaded (compose.override.yaml) must be what the lock says, its local tag too. A build of one's
    own is none of the published, which is no fault.
    """
    chosen = overridden(checkout)
    for name, entry in read_image_lock(checkout).items():
        yield _against_files(checkout, entry)
        local = IMAGES[name].reference(os.environ)
        for reference in dict.fromkeys([chosen.get(name, local), local]):
            yield _against_engine(entry, reference, must=name in chosen)


def verify_images(reporter: Reporter) -> None:
    """Print every finding of `compare`.

    Raises:
        VerdictFailed: at least one does not hold.
    """
    checkout = find_checkout()
    findings = list(compare(checkout))
    if not findings:
        reporter.say(f"images: none is published ({LOCK})")
    failed = [finding for finding in findings if not finding.holds]
    for finding in findings:
        text = f"{'ok' if finding.holds else 'FAILED':<8} image {finding.image}: {finding.found}"
        reporter.result(text, "image", image=finding.image, holds=finding.holds, found=finding.found)
    if failed:
        found = "\n           ".join(f"{finding.image}: {finding.then}" for finding in failed)
        raise VerdictFailed("verify images", f"{len(failed)} of {len(findings)} do not hold", found=found)


def _against_files(checkout: Path, entry: PublishedImage) -> Finding:
    changed = [
        lock
        for lock, digest in entry.locks.items()
        if not (checkout / lock).exists() or sha256_file(checkout / lock) != digest
    ]
    if changed:
        found = f"it was built from other bytes than those of {', '.join(changed)}"
        return Finding(entry.name, False, found, f"git checkout {' '.join(changed)}, or build and push anew")
    return Finding(entry.name, True, f"built from the locks that lie here, at commit {entry.built_from}")


def _against_engine(entry: PublishedImage, reference: str, *, must: bool) -> Finding:
    try:
        image = inspect_image(reference)
    except EnvironmentFault as fault:
        return Finding(entry.name, True, f"{reference} was not looked for: {fault.found or fault.problem}")
    if image is None:
        return Finding(entry.name, True, f"{reference} is not here")
    if is_published(entry, image):
        return Finding(entry.name, True, f"{reference} is the published {entry.digest}")
    found = f"{reference} is {image['Id']}, not the published {entry.digest}"
    if not must:
        return Finding(entry.name, True, f"{found}: a build of one's own")
    return Finding(entry.name, False, f"{found}: the tag was moved, or built again", f"make pull, or rm {OVERRIDE}")
