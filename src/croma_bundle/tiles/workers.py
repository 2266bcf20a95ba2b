"""Worker processes that give results in order, hold little in flight, and die with their parent."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext
from typing import TypeVar

from croma_bundle.errors import EnvironmentFault

T = TypeVar("T")
R = TypeVar("R")
AHEAD = 4
"""Calls in flight per worker."""
SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def default_workers() -> int:
    """As many as the cores this process may use."""
    return len(os.sched_getaffinity(0))


def ordered_map(
    function: Callable[[T], R], items: Iterable[T], workers: int, ahead: int | None = None, nice: int = 0
) -> Iterator[R]:
    """Yield `function(item)` for each item, in the order of the items, computed in `workers` processes (0: here).

    `function` must be importable. Workers are spawned, compute on one thread each, give way to others by `nice`, and
    end when the parent ends, killed or not. At most `ahead` items are under way (default: `AHEAD` per worker).

    Raises:
        EnvironmentFault: a worker was killed (out of memory, most often).
    """
    if workers < 1:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")
    waiting = iter(items)
    with _OneThreadEach(), _pool(workers, context, nice) as pool:
        pending: deque[Future[R]] = deque()
        try:
            for item in itertools.islice(waiting, ahead or workers * AHEAD):
                pending.append(_submit(pool, function, item))
            while pending:
                yield pending.popleft().result()
                for item in itertools.islice(waiting, 1):
                    pending.append(_submit(pool, function, item))
        except BrokenProcessPool:
            raise EnvironmentFault(
                "worker processes",
                "one of them was killed from outside",
                detail="Most often the machine ran out of memory; nothing half-done was kept. Try fewer WORKERS.",
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _pool(workers: int, context: SpawnContext, nice: int) -> ProcessPoolExecutor:
    try:
        return ProcessPoolExecutor(workers, context, _start, (nice,))
    except OSError as error:
        raise EnvironmentFault(
            "worker processes",
            f"they cannot be started ({error.strerror})",
            detail="They meet through /dev/shm. Most often it is missing, full, or cannot be written to.",
            then="docker run --shm-size=64m …, or no worker processes: WORKERS=0 (probe: THREADS=1)",
        ) from None


def _submit(pool: ProcessPoolExecutor, function: Callable[[T], R], item: T) -> Future[R]:
    """Submit, which may spawn a worker: with Ctrl-C blocked, so that it reaches the parent alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(function, item)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(nice: int) -> None:
    """In a worker, first of all: give way, and watch the parent in order to end with it."""
    os.nice(nice)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:  # a spawned process always has one
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _OneThreadEach:
    """Sets the thread counts that spawned processes inherit, and restores them."""

    def __enter__(self) -> None:
        self.before = {name: os.environ.get(name) for name in SINGLE_THREADED}
        os.environ.update(dict.fromkeys(SINGLE_THREADED, "1"))

    def __exit__(self, *_: object) -> None:
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
