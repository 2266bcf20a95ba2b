"""Which device computes: what `auto` is here, and that what was asked for can be had."""

from __future__ import annotations

import re
from collections.abc import Sequence

from croma_bundle.errors import EnvironmentFault, UsageError
from croma_bundle.manifests.models import Encoder

DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def resolve_device(entry: Encoder, device: str) -> str:
    """The device that computes an encoder: "cpu", "cuda" or "cuda:N".

    Raises:
        UsageError: there is no such kind of device. EnvironmentFault: the asked one cannot be had.
    """
    if not DEVICE.fullmatch(device):
        raise UsageError(f"--device {device}", "there is no such device", wanted="auto, cpu, cuda or cuda:N")
    if entry.backend == "classical":
        if device in ("auto", "cpu"):
            return "cpu"
        problem = f"{entry.name} computes on the CPU only (family {entry.family})"
        raise EnvironmentFault(f"--device {device}", problem, wanted="auto or cpu")
    if device == "cpu":
        return device
    count = _cuda_devices(entry)
    if device == "auto":
        return "cuda" if count else "cpu"
    if int(device.partition(":")[2] or 0) >= count:
        found = f"{count} CUDA devices" if count else "no CUDA device (torch sees none)"
        raise EnvironmentFault(
            f"--device {device}", "it cannot be had here", found=found, then="croma-bundle doctor, or --device cpu"
        )
    return device


def kind(device: str) -> str:
    """What a contract records of a device: its kind."""
    return device.partition(":")[0]


def cpu_note(entries: Sequence[Encoder], device: str) -> str | None:
    """The line for `auto` where it is the CPU, and encoders of which the published vectors were made otherwise."""
    others = [entry for entry in entries if entry.precision != "float32"]
    try:
        if device != "auto" or not others or resolve_device(others[0], device) != "cpu":
            return None
    except EnvironmentFault:  # told of each encoder when its turn comes
        return None
    names = ", ".join(entry.name for entry in others)
    return f"device auto: the CPU; not computed as published, which was mixed-float16 on CUDA: {names}"


def _cuda_devices(entry: Encoder) -> int:
    from croma_bundle.encoders.families import require_libraries

    require_libraries(entry)
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
