"""DEVICE: which device a step is asked to compute on, and whether there is a GPU to ask for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from croma_bundle.errors import EnvironmentFault, UsageError
from croma_bundle.launch.engine import docker
from croma_bundle.manifests.models import Encoder

DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True)
class Offer:
    """Whether a GPU can be had, and why (not)."""

    gpu: bool
    why: str


def gpus_of_host() -> list[str]:
    """Names of the GPUs that the host's driver shows; none where there is no driver."""
    try:
        done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.startswith("GPU ")] if not done.returncode else []


def offered_by_host() -> Offer:
    gpus = gpus_of_host()
    return Offer(bool(gpus), f"{len(gpus)} GPUs" if gpus else "nvidia-smi shows no GPU")


def offered_by_engine() -> Offer:
    """A GPU of the host, and a toolkit through which the engine can hand it on."""
    host = offered_by_host()
    if not host.gpu:
        return host
    return host if has_toolkit() else Offer(False, "the engine has no NVIDIA container toolkit")


def has_toolkit() -> bool:
    """Whether the engine knows the NVIDIA runtime or a CDI device of it, or its hook lies on the path."""
    info = json.loads(docker("info", "--format", "{{json .}}"))
    devices = [device.get("ID", "") for device in info.get("DiscoveredDevices") or ()]
    known = "nvidia" in (info.get("Runtimes") or {}) or any(device.startswith("nvidia.com/gpu") for device in devices)
    return known or shutil.which("nvidia-container-runtime-hook") is not None


def choose(device: str, offer: Offer) -> str:
    """`auto` made cpu or cuda; raises for a device that does not exist or is not offered."""
    if not DEVICE.fullmatch(device):
        raise UsageError(f"DEVICE={device}", "there is no such device", wanted="auto, cpu, cuda or cuda:N")
    if device == "auto":
        return "cuda" if offer.gpu else "cpu"
    if device != "cpu" and not offer.gpu:
        raise EnvironmentFault(
            f"DEVICE={device}", "no GPU can be had here", found=offer.why, then="croma-bundle doctor, or DEVICE=cpu"
        )
    return device


def cpu_note(encoders: Sequence[Encoder], offer: Offer) -> str:
    """The line for a run that went to the CPU because nothing else was offered."""
    other = [entry.name for entry in encoders if entry.precision != "float32"]
    note = f"device auto: the CPU ({offer.why})"
    return f"{note}; not computed as published, which was mixed-float16 on CUDA: {', '.join(other)}" if other else note
