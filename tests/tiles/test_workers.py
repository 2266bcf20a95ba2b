"""Worker processes: order, how much is in flight, and what is left when someone is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from croma_bundle.errors import EnvironmentFault, PixelError
from croma_bundle.tiles.workers import AHEAD, default_workers, ordered_map


def square_late(number: int) -> int:
    """The earlier asked, the later done: order of completion is not order of request."""
    time.sleep(0.01 * (7 - number % 8))
    return number * number


def refuse_three(number: int) -> int:
    if number == 3:
        raise PixelError(f"tile {number}", "it is truncated")
    return number


def kill_me_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def environment(name: str) -> str | None:
    return os.environ.get(name)


def process_id(_: int) -> int:
    return os.getpid()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_the_order_of_the_items(workers):
    assert list(ordered_map(square_late, range(24), workers)) == [n * n for n in range(24)]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_items_give_no_results(workers):
    assert list(ordered_map(square_late, [], workers)) == []


def test_the_work_is_done_elsewhere_and_with_no_workers_here():
    assert os.getpid() not in set(ordered_map(process_id, range(4), 1))
    assert set(ordered_map(process_id, range(4), 0)) == {os.getpid()}


@pytest.mark.parametrize(("workers", "ahead"), [(0, 1), (2, 2 * AHEAD + 1)])
def test_only_few_items_are_taken_before_they_are_asked_for(workers, ahead):
    taken = []

    def items():
        for number in range(1000):
            taken.append(number)
            yield number

    results = ordered_map(process_id, items(), workers)
    assert taken == [], "nothing starts before the first result is asked for"
    for asked in range(1, 6):
        next(results)
        assert len(taken) <= ahead + asked
    results.close()
    assert len(taken) < 1000


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fault_of_one_item_comes_at_its_place_with_its_fields(workers):
    results = ordered_map(refuse_three, range(6), workers)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(PixelError) as caught:
        next(results)
    assert (caught.value.subject, caught.value.problem) == ("tile 3", "it is truncated")


def test_a_killed_worker_is_a_fault_of_the_machine_not_a_hang_and_not_a_missing_row():
    with pytest.raises(EnvironmentFault) as caught:
        list(ordered_map(kill_me_at_three, range(20), 2))
    said = caught.value
    assert said.exit_code == 4
    assert (said.subject, said.problem) == ("worker processes", "one of them was killed from outside")
    assert "ran out of memory" in said.detail
    assert "WORKERS" in said.detail


def test_each_worker_computes_on_one_thread_and_the_parent_s_setting_comes_back(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]
    assert list(ordered_map(environment, names, 1)) == ["1", "1", "1"]
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def test_the_default_is_one_worker_per_core_this_process_may_use():
    assert default_workers() == len(os.sched_getaffinity(0))


# A parent that dies

PARENT = """
import os, time
from croma_bundle.tiles.workers import ordered_map
def items():
    yield 0
    yield from [SECONDS] * COUNT
if __name__ == "__main__":
    from pathlib import Path
    results = ordered_map(time.sleep, items(), 2)
    next(results)
    print("working", flush=True)
    for _ in results: pass
"""


def marked(mark: str) -> list[int]:
    """Living processes whose environment carries the mark: descendants of the parent, orphaned or not."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def parent(tmp_path):
    """Start a parent with two busy workers, in a process group of its own; returns it and its mark."""
    mark = f"CROMA_TEST_MARK={tmp_path.name}-{os.getpid()}"
    started = []

    def start(seconds: float, count: int) -> tuple[subprocess.Popen[str], str]:
        script = tmp_path / "parent.py"
        script.write_text(PARENT.replace("SECONDS", str(seconds)).replace("COUNT", str(count)))
        name, _, value = mark.partition("=")
        run = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, name: value},
            start_new_session=True,
        )
        started.append(run)
        assert run.stdout is not None
        assert run.stdout.readline() == "working\n"
        return run, mark

    yield start
    for run in started:
        run.kill()
        run.wait()
    for process in marked(mark):
        os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_survives_a_killed_parent_even_in_the_midst_of_a_tile(parent, how):
    run, mark = parent(1.0, count=8)
    assert len(marked(mark)) >= 3, "the parent and two workers"
    run.send_signal(how)
    run.wait()
    assert within(5, lambda: marked(mark) == []), f"orphans: {marked(mark)}"


def test_ctrl_c_stops_everything_with_one_voice(parent):
    """A terminal sends it to the whole group; the workers must not each print a traceback of their own."""
    run, mark = parent(1.0, count=1)  # one worker is at work, one waits for work
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=20)
    assert said.count("Traceback") == 1, said
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "SpawnProcess" not in said
    assert within(5, lambda: marked(mark) == [])
