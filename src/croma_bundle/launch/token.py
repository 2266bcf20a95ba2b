"""The hub token on its way to a fetching step: a private file, named by its path; never in argv or a variable."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from croma_bundle.errors import EnvironmentFault

MEMORY = Path("/dev/shm")  # noqa: S108 - only where to make a private folder
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH")
"""What a process we start is never handed on as it is."""


def without_token(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in VARIABLES}


def token_file(environ: Mapping[str, str]) -> Path:
    """Where the hub's own client keeps the caller's token."""
    if path := environ.get("HF_TOKEN_PATH"):
        return Path(path)
    home = Path(environ.get("HOME") or os.devnull)
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    return Path(environ.get("HF_HOME") or cache / "huggingface") / "token"


def read_token(environ: Mapping[str, str]) -> str | None:
    """HF_TOKEN, else the content of the caller's token file, else None."""
    if token := environ.get("HF_TOKEN", "").strip():
        return token
    try:
        return token_file(environ).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


@contextlib.contextmanager
def private_token(environ: Mapping[str, str], owner: tuple[int, int]) -> Iterator[Path]:
    """A file of `owner`'s that holds the token for the duration, in memory where the machine has /dev/shm.

    Yields /dev/null where there is no token. A copy, because the caller's own file may be unreadable to `owner`.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    token = read_token(environ)
    if token is None:
        yield Path(os.devnull)
        return
    folder = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    with contextlib.ExitStack() as kept:
        try:
            private = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="croma-", dir=folder)))
            path = _write_private(private / "hf_token", token, owner)
        except OSError as error:
            problem = f"the token for the step that fetches cannot be written there ({error.strerror})"
            raise EnvironmentFault(str(folder), problem, then=f"Free some space in {folder}.") from None
        yield path


def _write_private(path: Path, token: str, owner: tuple[int, int]) -> Path:
    """Write the token for `owner` alone to read; the folder is given away with it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(token)
    if os.getuid() == 0:
        os.chown(path, *owner)
        os.chown(path.parent, *owner)
    return path
