"""What computed a matrix: image, Python, packages, device. Recorded beside the result, never compared."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from croma_bundle import __version__

RECORDED = (
    *("numpy", "scipy", "pillow", "scikit-image", "scikit-learn", "pydantic", "click", "threadpoolctl"),
    *("torch", "torchvision", "timm", "transformers", "safetensors", "huggingface-hub"),
)


def capture(device: str, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """The run-time environment, JSON-ready; no host name, no user, no environment variables.

    Image and digest are what the launcher or compose.override.yaml passed in; an image of no known digest is
    `unpublished` (with its id, where the launcher knew it).
    """
    image = os.environ.get("CROMA_IMAGE") or None
    return {
        "device": device,
        "image": image,
        "image_digest": os.environ.get("CROMA_IMAGE_DIGEST") or ("unpublished" if image else None),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "cpu": _cpu(),
        "packages": versions(RECORDED),
        **({"torch": _torch(sys.modules["torch"], device)} if "torch" in sys.modules else {}),
        **(extra or {}),
    }


def _torch(torch: Any, device: str) -> dict[str, Any]:
    """How an imported torch computes: libraries, flags, threads, and on CUDA the GPU."""
    backends, on_cuda = torch.backends, device.startswith("cuda")
    kernels = ("flash", "mem_efficient", "cudnn", "math")
    cpu = {"cpu_capability": backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": backends.cudnn.version(),
        "driver": _driver() if on_cuda else None,
        "gpu": torch.cuda.get_device_name(device) if on_cuda else None,
        "gpu_capability": list(torch.cuda.get_device_capability(device)) if on_cuda else None,
        **cpu,
        "tf32_matmul": backends.cuda.matmul.allow_tf32,
        "tf32_convolution": backends.cudnn.allow_tf32,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_benchmark": backends.cudnn.benchmark,
        "cudnn_deterministic": backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "attention_kernels": [kind for kind in kernels if getattr(backends.cuda, f"{kind}_sdp_enabled")()],
    }


def _driver() -> str | None:
    """The version of the NVIDIA driver."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found[0] if found else None


def versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions of the named distributions; absent ones are left out."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def bundle_version() -> dict[str, str | None]:
    """Version of this package and the git commit it runs from (null outside a checkout or image)."""
    return {"version": __version__, "git_commit": os.environ.get("CROMA_GIT_COMMIT") or _commit()}


def utc_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@functools.cache
def _commit() -> str | None:
    folder = Path(__file__).resolve().parents[3]
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)
