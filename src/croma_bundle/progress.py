"""What a run says while it works: a bar on a terminal, a line every ten seconds elsewhere, or JSON events.

People read stderr; stdout is for results. With `--json` every event, results included, is one object on stdout.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO, TypeVar

import click

T = TypeVar("T")
EVERY = 10.0
"""Seconds between two progress lines where there is no terminal."""


class Reporter:
    """Where messages, progress and results go; one per command."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    def say(self, text: str, event: str = "note", **fields: Any) -> None:
        """A sentence for the reader (stderr), or the event with its fields."""
        if self.as_json:
            self._emit(event, text=text, **fields)
        else:
            click.echo(_printable(text, sys.stderr), err=True)

    def warn(self, text: str, **fields: Any) -> None:
        self.say(f"warning: {text}", "warning", **fields)

    def result(self, text: str, event: str, **fields: Any) -> None:
        """What the command was run for (stdout)."""
        if self.as_json:
            self._emit(event, **fields)
        else:
            click.echo(_printable(text, sys.stdout))

    def fault(self, paragraph: str, exit_code: int) -> None:
        if self.as_json:
            self._emit("error", text=paragraph, exit_code=exit_code)
        else:
            click.echo(_printable(f"error: {paragraph}", sys.stderr), err=True)

    def track(self, items: Iterable[T], total: int, label: str, done: int = 0) -> Iterator[T]:
        """Yield `items` and show how many of `total` have passed, `done` of them before the start."""
        if not self.as_json and sys.stderr.isatty():
            with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True) as bar:
                bar.update(done)
                for item in items:
                    bar.update(1)
                    yield item
            return
        began = spoke = time.monotonic()
        for count, item in enumerate(items, done + 1):
            now = time.monotonic()
            if now - spoke >= EVERY or (count == total and self.as_json):
                spoke = now
                left = (now - began) / max(count - done, 1) * (total - count)
                self.say(
                    f"{label}: {count:,} of {total:,}, about {left:,.0f} s left",
                    "progress",
                    label=label,
                    done=count,
                    total=total,
                    seconds_left=round(left, 1),
                )
            yield item

    def ticker(self, label: str) -> Callable[[int, int], None]:
        """A function of (done, total) that says so every ten seconds at most; it may be called from any thread."""
        spoke = time.monotonic()

        def tick(done: int, total: int) -> None:
            nonlocal spoke
            if time.monotonic() - spoke >= EVERY and done < total:
                spoke = time.monotonic()
                self.say(f"{label}: {done:,} of {total:,}", "progress", label=label, done=done, total=total)

        return tick

    @contextlib.contextmanager
    def meter(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """A function that is told how many bytes of `total` there are."""
        if not self.as_json and sys.stderr.isatty():
            with click.progressbar(length=total, label=label, file=sys.stderr) as bar:
                yield lambda there: bar.update(there - bar.pos)
            return
        tick = self.ticker(f"{label}, bytes")
        yield lambda there: tick(there, total)

    def _emit(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}, ensure_ascii=not _shows_all(sys.stdout))
        click.echo(_printable(line, sys.stdout))


def _shows_all(stream: TextIO) -> bool:
    return (stream.encoding or "utf-8").lower().replace("-", "") == "utf8"


def _printable(text: str, stream: TextIO) -> str:
    """The text with escapes for what the stream cannot show, such as the bytes of a file name that is not UTF-8."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
