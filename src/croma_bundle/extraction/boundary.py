"""Where one encoder ends and the next begins: whatever goes wrong with one is its own, and the others go on."""

from __future__ import annotations

import traceback

from croma_bundle.errors import BundleError, EnvironmentFault


def fault_of(subject: str, error: Exception) -> BundleError:
    """The error as a fault of its subject; the traceback of one that nobody foresaw is printed."""
    if isinstance(error, BundleError):
        return error
    if isinstance(error, MemoryError):
        problem, then = "the machine has not enough memory", "a smaller --batch, or fewer --workers"
        return EnvironmentFault(subject, problem, found=str(error), then=then)
    if isinstance(error, OSError) and error.strerror:
        where = f"  {error.filename}" if error.filename else ""
        return EnvironmentFault(subject, "the machine refused", found=f"{error.strerror}{where}")
    traceback.print_exception(error)
    found = f"{type(error).__name__}: {error}"
    return EnvironmentFault(subject, "croma-bundle failed; please report the lines above", found=found)
