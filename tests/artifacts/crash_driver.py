"""Run an embed again and again, each time killed (SIGKILL) just before the next change of the file system.

    python crash_driver.py TEMPLATE FOLDER ENCODER [--force]

Copies the volume TEMPLATE to FOLDER/000, FOLDER/001, … and in copy n kills a forked run before its n-th change: a file
opened for writing, a rename, a removal, a folder made or removed. Stops at the first run that comes to its end. Prints
one JSON list: for every copy the change before which it was killed (null for the run that ended).

The changes are seen through Python's audit events, so the code that runs is the real one, unaltered.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from croma_bundle.extraction import chunks
from croma_bundle.layout import Volume
from embedded import embed_here

TILES_PER_CHUNK = 8
"""Small, so that a cohort of a dozen tiles has chunks; the tests that resume set the same."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")


def change_of(event: str, args: tuple, root: str) -> str | None:
    """The change inside `root` that an audit event announces, or None."""
    if event == "open":
        _, mode, flags = args
        writes = bool(flags & WRITING) if isinstance(flags, int) else False
        if not writes and not (isinstance(mode, str) and set(mode) & set("wxa+")):
            return None
    elif event not in CHANGES:
        return None
    paths = [os.fspath(a) for a in args[:2] if isinstance(a, str | os.PathLike)]
    inside = [path for path in paths if str(path).startswith(root) or not Path(path).is_absolute()]
    return f"{event} {' → '.join(Path(path).name for path in inside)}" if inside else None


def run_until(volume: Volume, encoder: str, force: bool, number: int, note: Path) -> None:
    """In a forked child: embed, and die before change `number`."""
    seen = 0

    def watch(event: str, args: tuple) -> None:
        nonlocal seen
        change = change_of(event, args, str(volume.root))
        if change is None:
            return
        if seen == number:
            os.write(note_fd, change.encode())
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    note_fd = os.open(note, os.O_WRONLY | os.O_CREAT)
    sys.addaudithook(watch)
    embed_here(volume, encoder, force=force)


def main(template: Path, folder: Path, encoder: str, force: bool) -> None:
    chunks.TILES_PER_CHUNK = TILES_PER_CHUNK
    shutil.copytree(template, folder / "warm")
    embed_here(Volume(folder / "warm"), encoder, force=force)  # imports everything once, before the forks
    points: list[str | None] = []
    while True:
        number = len(points)
        volume = Volume(folder / f"{number:03d}")
        shutil.copytree(template, volume.root)
        note = folder / f"{number:03d}.txt"
        child = os.fork()
        if child == 0:
            try:
                run_until(volume, encoder, force, number, note)
            except BaseException as error:
                os.write(2, f"{error!r}\n".encode())
                os._exit(1)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            points.append(note.read_text())
            continue
        assert os.WIFEXITED(status)
        assert os.WEXITSTATUS(status) == 0, f"run {number} failed by itself"
        points.append(None)
        break
    print(json.dumps(points))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], "--force" in sys.argv[4:])
