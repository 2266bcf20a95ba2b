"""The error tree and its exit codes.

    BundleError                      one paragraph: subject, wanted, found, where declared, next command
    ├── VerdictFailed          1     a verdict of `verify` failed
    ├── UsageError             2     a command was typed wrong
    ├── InputError             3     missing or unusable input
    │   ├── ManifestError            manifests/*.toml, tileset.toml
    │   ├── TileManifestError        manifest.csv and other tables of tiles
    │   ├── PixelError               image files
    │   └── CohortError              labels, confounders, groups, k or m that cannot be scored
    │       └── DegenerateEmbedding  the embedding itself leaves a metric undefined
    ├── EnvironmentFault       4     the machine, a missing package, an unwritable volume
    │   ├── LockHeld                 another run has the job
    │   └── DeviceMemory             a batch does not fit the device
    ├── ArtifactError          5     an existing artifact is damaged or incompatible
    └── SeveralErrors        max     several of the above, listed together

130 (interrupted) is click's own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class BundleError(Exception):
    """A fault told to the user in one paragraph, without a traceback.

    Args:
        subject: what it is about ("camelyon · Virchow2", a file).
        problem: one clause, no full stop.
        wanted, found: the two sides of a mismatch, each with where it stands.
        declared: the file and key that asked for it.
        detail: sentences that explain.
        then: the command to type next.
    """

    exit_code: ClassVar[int] = 4

    def __init__(
        self,
        subject: str,
        problem: str,
        *,
        wanted: str | None = None,
        found: str | None = None,
        declared: str | None = None,
        detail: str | None = None,
        then: str | None = None,
    ) -> None:
        self.subject, self.problem = subject, problem
        self.wanted, self.found, self.declared = wanted, found, declared
        self.detail, self.then = detail, then
        super().__init__(self.paragraph())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by fields, so that an error crosses from a worker process whole."""
        return _rebuilt, (type(self), dict(self.__dict__))

    def __str__(self) -> str:
        return self.paragraph()

    def paragraph(self) -> str:
        """The message as printed after ``error: ``; lines after the first are indented."""
        lines = [f"{self.subject}: {self.problem}"]
        facts = {"wanted": self.wanted, "found": self.found, "declared": self.declared}
        for name, value in facts.items():
            if value is not None:
                lines.append(f"  {name:<8} {value}")
        for value in (self.detail, self.then):
            if value is not None:
                lines.append(f"  {value}")
        return visible("\n".join(lines))


def visible(text: str) -> str:
    """The text with escapes for control characters: what came from a file must not steer the reader's terminal."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _rebuilt(kind: type[BundleError], fields: dict[str, Any]) -> BundleError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    error.args = (error.paragraph(),)
    return error


class VerdictFailed(BundleError):
    exit_code = 1


class UsageError(BundleError):
    exit_code = 2


class InputError(BundleError):
    exit_code = 3


class ManifestError(InputError):
    pass


class TileManifestError(InputError):
    pass


class PixelError(InputError):
    pass


class CohortError(InputError):
    pass


class DegenerateEmbedding(CohortError):
    pass


class EnvironmentFault(BundleError):
    exit_code = 4


class LockHeld(EnvironmentFault):
    pass


class DeviceMemory(EnvironmentFault):
    pass


class ArtifactError(BundleError):
    exit_code = 5


class SeveralErrors(BundleError):
    """Several faults at once, those of faults within them too; its exit code is the highest of theirs."""

    errors: tuple[BundleError, ...]

    def __init__(self, errors: Sequence[BundleError]) -> None:
        self.errors = tuple(one for e in errors for one in (e.errors if isinstance(e, SeveralErrors) else (e,)))
        self.exit_code = max(e.exit_code for e in self.errors)  # type: ignore[misc]
        Exception.__init__(self, "\n".join(e.paragraph() for e in self.errors))

    def paragraph(self) -> str:
        return "\n".join(e.paragraph() for e in self.errors)


def raise_all(errors: Sequence[BundleError]) -> None:
    """Raise the one error as it is, several as :class:`SeveralErrors`, none not at all."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SeveralErrors(errors)


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest known name, whatever its case, or an empty string."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(typed.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean '{by_lower[near[0]]}'?" if near else ""


def some(items: Sequence[object], limit: int = 10) -> str:
    """The first items in a comma list, and how many more there are."""
    shown = ", ".join(str(item) for item in items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"
