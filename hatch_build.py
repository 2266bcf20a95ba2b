"""Compiles the optional kernel into the wheel or the checkout with $CC or cc; leaves it out where there is none."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HOME = "src/croma_bundle/metrics"
# No contraction: a fused multiply-add rounds once where numpy rounds twice.
OPTIONS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-s", "-Wno-psabi"]


def compile_kernel(source: Path, library: Path) -> str | None:
    """Compile; None where it worked, else why not."""
    library.unlink(missing_ok=True)
    cc = shlex.split(os.environ.get("CC", "cc"))
    if sys.platform != "linux" or not shutil.which(cc[0]):
        return f"there is no {cc[0]} on this {sys.platform}"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    made = library.with_suffix(f".{os.getpid()}.so")  # nobody loads half a library
    command = [*cc, *OPTIONS, f'-DSOURCE="{digest}"', str(source), "-o", str(made)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as fault:
        return f"{command[0]} does not start: {fault}"
    if done.returncode:
        return done.stderr.strip() or f"{command[0]} failed"
    made.replace(library)
    return None


class KernelHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        home = Path(self.root, HOME)
        if reason := compile_kernel(home / "kernel.c", home / "libkernel.so"):
            self.app.display_info(f"without the compiled kernel: {reason}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}
        build_data["artifacts"].append(f"{HOME}/libkernel.so")
