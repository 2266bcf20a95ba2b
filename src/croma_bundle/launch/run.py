"""Launching: what is missing is fetched, then the step runs; its exit code is ours."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from croma_bundle.errors import BundleError, EnvironmentFault, UsageError, did_you_mean
from croma_bundle.launch.apptainer import Apptainer
from croma_bundle.launch.device import choose, cpu_note
from croma_bundle.launch.docker import Docker
from croma_bundle.launch.place import Place, make_folder, open_place, require_sources
from croma_bundle.launch.runtime import Command, Runtime
from croma_bundle.launch.steps import SERVICES, Step, embed_service
from croma_bundle.launch.token import private_token
from croma_bundle.launch.venv import OF_FAMILIES, Venv
from croma_bundle.layout import Volume, WeightsFolder
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.choice import choose_encoders
from croma_bundle.manifests.models import Encoder, Tileset
from croma_bundle.progress import Reporter
from croma_bundle.weights.wanted import wanted_files

RUNTIMES: Mapping[str, Runtime] = {runtime.name: runtime for runtime in (Docker(), Venv(), Apptainer())}

INTERRUPTED = 130


@dataclass(frozen=True)
class EmbedRequest:
    """What `make embed` was asked for; `options` are those of `croma-bundle embed` that are handed on."""

    family: str
    tileset: str
    encoders: Sequence[str] | None
    device: str
    workers: int | None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launcher:
    """One place, one choice of runtime (`auto`: see `choose_runtime`), one reporter; every run goes through it."""

    place: Place
    runtime: str
    environ: Mapping[str, str]
    reporter: Reporter

    def run(self, step: Step) -> int:
        """Run one step to its end and return its exit code.

        Raises:
            InputError, SeveralErrors: bind sources that do not exist. EnvironmentFault: it cannot run here.
        """
        runtime, owner = self.choose(step), (self.place.uid, self.place.gid)
        writes, own = step.service.weights == "write", self.place.weights.parent == self.place.volume
        if writes or (own and step.service.weights == "read"):
            make_folder(self.place.weights, owner)
        require_sources(self.place.binds(step))
        runtime.prepare(step, self.place)
        private = private_token(self.environ, owner) if step.service.fetches else nullcontext(Path(os.devnull))
        with private as token:
            command = runtime.command(step, self.place, token)
            self.reporter.say(command.where, "launch", runtime=runtime.name, argv=list(command.argv))
            return wait_for(command)

    def choose(self, step: Step) -> Runtime:
        """The runtime asked for; for `auto` docker, or the venv for a step without torch whose image is not here."""
        if self.runtime != "auto":
            return RUNTIMES[self.runtime]
        if step.service.image not in OF_FAMILIES:
            try:
                RUNTIMES["docker"].prepare(step, self.place)
            except EnvironmentFault:
                return RUNTIMES["venv"]
        return RUNTIMES["docker"]


def launcher(volume: Volume, runtime: str, environ: Mapping[str, str], reporter: Reporter) -> Launcher:
    return Launcher(open_place(volume.root, environ), runtime, environ, reporter)


def launch_embed(launch: Launcher, volume: Volume, catalogue: Catalogue, asked: EmbedRequest) -> int:
    """Fetch the tiles and weights that are missing, then embed what can be; returns the worst exit code.

    Weights that could not be fetched stop only their own encoders.
    """
    encoders = choose_encoders(catalogue, "embed", asked.family, asked.encoders)
    tileset = catalogue.tileset(asked.tileset)
    service = embed_service(asked.family)
    device, on_gpu = device_for(launch, Step(service), asked.device, encoders)
    names = ("--encoders", ",".join(asked.encoders)) if asked.encoders else ()
    workers = ("--workers", str(asked.workers)) if asked.workers is not None else ()
    steps = []
    if tileset.images and not volume.pixels(asked.tileset).exists():
        steps.append(Step("tiles", ("fetch", asked.tileset, *workers), own_tiles=own_tiles(tileset)))
    arguments = ("--tileset", asked.tileset, "--device", device, *names, *workers, *asked.options)
    computing = Step(service, arguments, own_tiles=own_tiles(tileset), on_gpu=on_gpu)
    return run_with_weights(launch, asked.family, encoders, names, steps, computing)


def run_with_weights(
    launch: Launcher,
    family: str,
    encoders: Sequence[Encoder],
    names: tuple[str, ...],
    before: Sequence[Step],
    computing: Step,
) -> int:
    """The steps before, the weights that are missing, and the step that computes; returns the worst exit code.

    A step that fails is the last, unless it is the weights' and some encoder has all its files.
    """
    missing = missing_weights(launch.place.weights, encoders)
    fetch = [Step("weights", ("--family", family, *names))] if missing else []
    worst = 0
    for step in (*before, *fetch, computing):
        code = launch.run(step)
        worst = max(worst, code)
        some_left = step.name == "weights" and len(missing_weights(launch.place.weights, encoders)) < len(encoders)
        if code and (code == INTERRUPTED or not some_left):
            break
    return worst


def launch_fetch(launch: Launcher, catalogue: Catalogue, tileset: str, workers: int | None) -> int:
    """The tiles step alone."""
    entry = catalogue.tileset(tileset)
    options = ("--workers", str(workers)) if workers is not None else ()
    return launch.run(Step("tiles", ("fetch", tileset, *options), own_tiles=own_tiles(entry)))


def launch_service(launch: Launcher, service: str, arguments: Sequence[str]) -> int:
    """One service as it is; raises `UsageError` for one that does not exist."""
    if service not in SERVICES:
        raise UsageError(
            f"service {service!r}", f"there is none{did_you_mean(service, SERVICES)}", wanted=", ".join(SERVICES)
        )
    return launch.run(Step(service, tuple(arguments)))


def device_for(launch: Launcher, step: Step, device: str, encoders: Sequence[Encoder]) -> tuple[str, bool]:
    """The device that the step is asked for, and whether a GPU is handed to it."""
    if not step.service.gpu:
        return device, False
    offer = launch.choose(step).offers_gpu()
    chosen = choose(device, offer)
    if device == "auto" and chosen == "cpu":
        launch.reporter.say(cpu_note(encoders, offer), "device", device=chosen)
    return chosen, chosen != "cpu"


def own_tiles(tileset: Tileset) -> Path | None:
    return Path(tileset.root) if tileset.root else None


def missing_weights(weights: Path, encoders: Sequence[Encoder]) -> list[str]:
    """Encoders of which a file is not in the weights folder; what cannot be fetched at all is left to embed to tell."""
    missing = []
    for entry in encoders:
        with suppress(BundleError):
            if not all(file.path(WeightsFolder(weights)).is_file() for file in wanted_files(entry)):
                missing.append(entry.name)
    return missing


def wait_for(command: Command) -> int:
    """Start the command and wait for its end; an interruption, SIGTERM too, ends it and is waited for all the same."""
    terminated = False

    def terminate(*_: object) -> None:
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        child = subprocess.Popen(command.argv, env=dict(command.env), cwd=command.folder)
        while True:
            try:
                code = child.wait()
                break
            except KeyboardInterrupt:
                for each in command.stop:
                    subprocess.run(each, env=dict(command.env), capture_output=True)
                if terminated and not command.stop:  # what a terminal interrupts, it interrupts together
                    child.send_signal(signal.SIGINT)
    except OSError as error:
        raise EnvironmentFault(command.argv[0], f"it cannot be started ({error.strerror})") from None
    finally:
        signal.signal(signal.SIGTERM, previous)
    return code if code >= 0 else 128 - code
