"""doctor: what this machine lacks for a step, each with its remedy, before a long run finds out.

A generator of checks; printing is somebody else's. The questions are in `probes`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from croma_bundle.errors import BundleError, EnvironmentFault
from croma_bundle.launch import engine, probes
from croma_bundle.launch.device import has_toolkit
from croma_bundle.launch.image_lock import compare, read_image_lock
from croma_bundle.launch.images import ARCHITECTURES, IMAGES
from croma_bundle.launch.place import find_checkout
from croma_bundle.launch.steps import SERVICES, embed_service
from croma_bundle.launch.token import read_token
from croma_bundle.launch.venv import find_python
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Encoder
from croma_bundle.progress import Reporter

Verdict = Literal["pass", "warn", "fail", "unknown"]
ENGINE, COMPOSE = "20.10", "2.26"
"""The oldest that the container tests were run with."""
DRIVER = "525"
"""The oldest NVIDIA driver that runs wheels of CUDA 12."""
SHM = 256 << 20
SKEW = 60.0
"""Seconds; a lock without flock is void after five minutes of silence, on the file server's clock."""
HUB = "https://huggingface.co"
GIB = 1 << 30


@dataclass(frozen=True)
class Check:
    """One answer; `fix` says what to do about anything but a pass."""

    check: str
    verdict: Verdict
    found: str
    fix: str = ""


@dataclass(frozen=True)
class Question:
    """What the machine is examined for."""

    volume: Volume
    catalogue: Catalogue
    runtime: str
    family: str
    tileset: str | None
    network: bool
    environ: Mapping[str, str]

    @property
    def encoders(self) -> list[Encoder]:
        return self.catalogue.family(self.family)

    @property
    def in_engine(self) -> bool:
        return self.runtime in ("auto", "docker")


def examine(asked: Question) -> Iterator[Check]:
    """Every check, in the order in which a run would meet them."""
    service = embed_service(asked.family)
    checks: Sequence[Callable[[Question, str], Iterable[Check]]] = (
        _runtime, _toolkit, _gpu, _images, _shm, _volume, _disk, _memory, _token, _hub, _locks, _clock
    )  # fmt: skip
    for check in checks:
        yield from check(asked, service)


def report(asked: Question, reporter: Reporter) -> None:
    """Print every check as it is made.

    Raises:
        EnvironmentFault: at least one failed.
    """
    failed: list[str] = []
    for check in examine(asked):
        text = f"{check.verdict:<8} {check.check}: {check.found}"
        text += f"\n{'':<8} {check.fix}" if check.fix and check.verdict != "pass" else ""
        reporter.result(text, "check", **asdict(check))
        failed += [check.check] if check.verdict == "fail" else []
    if failed:
        raise EnvironmentFault("doctor", f"{len(failed)} checks failed", found=", ".join(failed))


def _runtime(asked: Question, service: str) -> Iterator[Check]:
    if asked.runtime == "venv":
        yield _attempt("python", find_python, "a Python for the families' venvs")
        return
    if asked.runtime == "apptainer":
        from croma_bundle.launch.apptainer import executable

        yield _attempt("apptainer", executable, "apptainer")
        return
    absent: Verdict = "fail" if asked.runtime == "docker" else "warn"
    for name, ask, oldest in (
        ("engine", probes.engine_version, ENGINE),
        ("compose", probes.compose_version, COMPOSE),
    ):
        try:
            version = ask()
        except EnvironmentFault as fault:
            yield Check(name, absent, fault.found or fault.problem, "docs/hospital-it.md; without: RUNTIME=venv")
            continue
        old = probes.numbers(version) < probes.numbers(oldest)
        yield Check(name, "warn" if old else "pass", version, f"{oldest} is the oldest that is tested")


def _attempt(name: str, ask: Callable[[], str], wanted: str) -> Check:
    try:
        return Check(name, "pass", ask())
    except EnvironmentFault as fault:
        return Check(name, "fail", fault.problem, fault.then or f"install {wanted}")


def _toolkit(asked: Question, service: str) -> Iterator[Check]:
    if not asked.in_engine or asked.family == "classical":
        return
    try:
        there = has_toolkit()
    except EnvironmentFault:
        yield Check("container toolkit", "unknown", "no engine answers", "")
        return
    fix = "install nvidia-container-toolkit, then nvidia-ctk runtime configure; without, DEVICE=auto takes the CPU"
    yield Check("container toolkit", "pass" if there else "warn", "known to the engine" if there else "not found", fix)


def _gpu(asked: Question, service: str) -> Iterator[Check]:
    if asked.family == "classical":
        return
    found = probes.gpus()
    if not found:
        why = "nvidia-smi does not answer" if found is None else "nvidia-smi shows none"
        yield Check("gpu", "warn", why, "install the NVIDIA driver; without, DEVICE=auto takes the CPU")
        return
    built = _architectures(asked)
    for gpu in found:
        name = f"gpu {gpu.name}"
        old = probes.numbers(gpu.driver) < probes.numbers(DRIVER)
        yield Check(f"{name} driver", "fail" if old else "pass", gpu.driver, f"driver {DRIVER} or newer")
        if built is None:
            fix = f"make images, or make pull; the image's label {ARCHITECTURES} says what it is built for"
            yield Check(name, "unknown", f"compute capability {gpu.capability}; the image is not here", fix)
            continue
        runs = probes.fits(gpu.capability, built)
        found_text = f"compute capability {gpu.capability}, the wheel is built for {' '.join(built)}"
        fix = "it is not among them: make images TORCH=blackwell for one newer than Hopper, or DEVICE=cpu"
        yield Check(name, "pass" if runs else "fail", found_text, fix)


def _architectures(asked: Question) -> list[str] | None:
    try:
        image = engine.inspect_image(IMAGES[asked.family].reference(asked.environ)) if asked.in_engine else None
    except (EnvironmentFault, KeyError):
        return None
    label = engine.labels_of(image).get(ARCHITECTURES, "") if image else ""
    return label.split() or None


def _images(asked: Question, service: str) -> Iterator[Check]:
    if not asked.in_engine:
        return
    try:
        checkout = find_checkout()
        if not read_image_lock(checkout):
            yield _built_here(asked, service)
            return
        for finding in compare(checkout):
            yield Check(f"image {finding.image}", "pass" if finding.holds else "fail", finding.found, finding.then)
    except BundleError as fault:
        yield Check("images", "unknown", getattr(fault, "problem", "see below"))


def _built_here(asked: Question, service: str) -> Check:
    """Where no image is published: whether the one that would embed was built."""
    reference = IMAGES[SERVICES[service].image].reference(asked.environ)
    if engine.inspect_image(reference):
        return Check("images", "pass", f"none is published; {reference} was built here")
    falls_back = asked.runtime == "auto" and asked.family == "classical"
    fix = "make images, or RUNTIME=venv" if not falls_back else "make images; without, the tools' venv is taken"
    return Check("images", "warn" if falls_back else "fail", f"the engine does not have {reference}", fix)


def _shm(asked: Question, service: str) -> Iterator[Check]:
    fix = "mount a larger /dev/shm (compose.yaml: shm_size), or WORKERS=0"
    if asked.runtime == "apptainer":
        return
    if asked.runtime == "venv":
        size = probes.free_bytes(Path("/dev/shm"))  # noqa: S108
    else:
        try:
            config = engine.docker("compose", "config", "--format", "json", folder=find_checkout())
            size = probes.shm_of_service(config, service)
        except BundleError as fault:
            yield Check("shared memory", "unknown", getattr(fault, "found", None) or str(fault))
            return
    yield Check("shared memory", "pass" if size >= SHM else "warn", f"{size / (1 << 20):,.0f} MiB", fix)


def _volume(asked: Question, service: str) -> Iterator[Check]:
    root = asked.volume.root
    if not root.exists():
        yield Check("volume", "warn", f"{root} does not exist", "make creates it; CROMA_VOLUME names another")
        return
    try:
        asked.volume.require_writable()
    except EnvironmentFault as fault:
        yield Check("volume", "fail", f"{root}: {fault.problem}", fault.then or "")
        return
    owner = root.stat()
    yield Check("volume", "pass", f"{root}, owner {owner.st_uid}:{owner.st_gid}")


def _disk(asked: Question, service: str) -> Iterator[Check]:
    free = probes.free_bytes(asked.volume.root)
    if asked.tileset is None:
        yield Check("disk", "unknown", f"{free / GIB:,.1f} GiB free", "TILESET=… says how much is needed")
        return
    rows = probes.rows_of(asked.volume.tile_manifest(asked.tileset))
    if rows is None:
        fix = f"make tiles TILESET={asked.tileset}"
        yield Check("disk", "unknown", f"{free / GIB:,.1f} GiB free; {asked.tileset} has no manifest yet", fix)
        return
    sizes = probes.matrix_bytes(rows, asked.encoders)
    need = sum(sizes) + max(sizes)  # the chunks of the one at work stand beside the matrices
    found = f"{free / GIB:,.1f} GiB free, {need / GIB:,.2f} GiB for {len(sizes)} matrices of {rows:,} rows"
    yield Check("disk", "pass" if free >= need else "fail", found, "free space, or another CROMA_VOLUME")


def _memory(asked: Question, service: str) -> Iterator[Check]:
    there = probes.available_memory()
    rows = probes.rows_of(asked.volume.tile_manifest(asked.tileset)) if asked.tileset else None
    if there is None or rows is None:
        found = "unknown" if there is None else f"{there / GIB:,.1f} GiB available"
        yield Check("memory", "unknown", found, "TILESET=… says how much the matrix needs")
        return
    need = max(probes.matrix_bytes(rows, asked.encoders))
    found = f"{there / GIB:,.1f} GiB available, {need / GIB:,.2f} GiB for the largest matrix, and the model beside it"
    yield Check("memory", "pass" if there >= 2 * need else "fail", found, "more memory, or fewer WORKERS")


def _token(asked: Question, service: str) -> Iterator[Check]:
    gated = [entry.name for entry in asked.encoders if entry.gated]
    if not gated:
        yield Check("token", "pass", f"none is needed: no encoder of {asked.family} is gated")
        return
    there = read_token(asked.environ) is not None
    found = "there is one" if there else f"none, and gated are: {', '.join(gated)}"
    yield Check("token", "pass" if there else "warn", found, "HF_TOKEN=… or the hub's own login; only to fetch weights")


def _hub(asked: Question, service: str) -> Iterator[Check]:
    gated = {
        repository: entry.name
        for entry in asked.encoders
        for repository in (entry.repository, entry.code_repository)
        if entry.gated and repository
    }
    if not gated:
        return
    if not asked.network:
        yield Check(
            "gated access", "unknown", f"not asked of {len(gated)} repositories", "croma-bundle doctor --network"
        )
        return
    endpoint, token = asked.environ.get("HF_ENDPOINT") or HUB, read_token(asked.environ)
    for repository, name in gated.items():
        word, ahead = probes.hub_access(endpoint, repository, token)
        verdict: Verdict = "pass" if word == "granted" else "unknown" if word.startswith("unreachable") else "fail"
        yield Check(f"access to {repository} ({name})", verdict, word, _access_fix(word, endpoint, repository))
        if ahead is not None and abs(ahead) > SKEW:
            yield Check("clock", "warn", f"the hub's is {ahead:+.0f} s from this machine's", "set the clock (NTP)")


def _access_fix(word: str, endpoint: str, repository: str) -> str:
    return {
        "no token": "HF_TOKEN=…, a token of an account that was granted access",
        "bad token": "make a new token (read access is enough)",
        "not granted": f"ask for access at {endpoint}/{repository}, with the account of the token",
        "no such repository": "is it spelt as its owner spells it? HF_ENDPOINT may be a mirror without it",
    }.get(word, "a proxy (HTTPS_PROXY), certificates (CROMA_CA_BUNDLE), or no network at all")


def _locks(asked: Question, service: str) -> Iterator[Check]:
    held = list(probes.held_locks(asked.volume.root))
    for path, who in held:
        try:
            holder = json.loads(who)
            text = f"uid {holder['user']} on {holder['host']} since {holder['started']}"
        except (ValueError, KeyError, TypeError):
            text = "a run that has not said who it is"
        yield Check("lock", "warn", f"{asked.volume.relative(path)} is held by {text}", "wait for that run to end")
    if not held:
        yield Check("locks", "pass", "none is held")


def _clock(asked: Question, service: str) -> Iterator[Check]:
    root = asked.volume.root
    if not (root.is_dir() and os.access(root, os.W_OK)):
        yield Check("clock", "unknown", "the volume cannot be written to")
        return
    skew = probes.file_clock_skew(root)
    found = f"the volume's is {skew:+.1f} s from this machine's"
    yield Check("clock", "pass" if abs(skew) <= SKEW else "warn", found, "set both clocks (NTP)")
