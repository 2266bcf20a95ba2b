"""The real command, killed with SIGKILL at random moments: nothing half-done passes, no process survives, and the
resumed matrix is bitwise that of a run that was left alone.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from croma_bundle.artifacts.pair import embedded
from croma_bundle.durable import sha256_file
from croma_bundle.errors import BundleError
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.verification.artifacts import verify_all
from embedded import Recorder, add_cohort, artifacts, declare_encoder, embed_here, names

NAME = "Slow"
KILLS = 20
SEED = 20260712


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple[Volume, str, float]:
    """1,200 tiles of 32 pixels, five chunks of batches of 7; the hash of the matrix, and how long an embed takes."""
    root = tmp_path_factory.mktemp("kill")
    volume = Volume(root / "volume")
    add_cohort(volume, root / "tiles", size=32, slides=3, tiles=100)
    declare_encoder(volume, NAME, batch_size=7)
    with running(volume) as (process, began):
        assert process.wait(120) == 0
        took = time.monotonic() - began
    expected = sha256_file(volume.matrix("cohort", NAME))
    shutil.rmtree(volume.embeddings("cohort"))
    return volume, expected, took


def start(volume: Volume, workers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(volume.root), "embed"]
    command += ["--tileset", "cohort", "--encoders", NAME, "--workers", str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@contextlib.contextmanager
def running(volume: Volume, workers: int = 0):
    """An embed that has taken its lock, and the time at which it did; it is gone afterwards."""
    process = start(volume, workers)
    lock = volume.job_lock("cohort", NAME)
    try:
        while process.poll() is None and not (lock.exists() and lock.stat().st_size):
            time.sleep(0.001)
        yield process, time.monotonic()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers too, should they have outlived it
        process.communicate()


def of_session(leader: int) -> list[int]:
    """Processes of the session that `leader` began, zombies left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return found


def wait_until_gone(leader: int, seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while left := of_session(leader):
        assert time.monotonic() < end, f"processes {left} outlived the killed run"
        time.sleep(0.05)


def require_nothing_half_done(volume: Volume, expected: str) -> str:
    """What stands there in one word; fails where anything but nothing or the whole artifact would be accepted."""
    chunks = len(list(volume.work("cohort", NAME).glob("chunk-*.json")))
    if not embedded(volume, "cohort"):
        return f"{chunks} chunks"
    try:
        verify_all(volume, load_catalogue(volume), None, Recorder())
    except BundleError as fault:
        refused = fault
    else:
        refused = None
    if refused is not None:
        assert refused.subject == f"cohort · {NAME}"
        assert "half an artifact" in refused.problem
        return "between the renames"
    assert sha256_file(volume.matrix("cohort", NAME)) == expected
    return "published"


def test_twenty_kills_at_random_moments_leave_nothing_half_done_and_resume_bitwise(ready, tmp_path: Path):
    volume, expected, took = ready
    moments = random.Random(SEED)
    seen: Counter[str] = Counter()
    for kill in range(KILLS):
        workers = 2 if kill % 5 == 4 else 0
        delay = moments.uniform(0, took * (1 if not workers else 2))
        with running(volume, workers) as (process, began):
            time.sleep(max(0, began + delay - time.monotonic()))
            process.send_signal(signal.SIGKILL)
            process.wait()
            wait_until_gone(process.pid)
        state = require_nothing_half_done(volume, expected)
        seen[state] += 1
        if kill % 3 == 2 or state == "published":  # else the next run resumes this one and is killed in its turn
            copy = Volume(tmp_path / str(kill))
            shutil.copytree(volume.root, copy.root)
            embed_here(copy, NAME)
            assert sha256_file(copy.matrix("cohort", NAME)) == expected, f"other bytes after kill {kill} ({state})"
            left = {name for name in names(artifacts(copy)) if not name.startswith(".manifest.csv.")}
            assert left == {"manifest.csv", f"{NAME}.npy", f"{NAME}.npy.json"}
            shutil.rmtree(volume.embeddings("cohort"))
    embed_here(volume, NAME)
    assert sha256_file(volume.matrix("cohort", NAME)) == expected
    assert sum(seen.values()) == KILLS
    print("killed with", dict(seen))


def test_a_kill_while_workers_compute_leaves_no_worker_behind(ready, tmp_path: Path):
    volume = Volume(tmp_path / "volume")
    shutil.copytree(ready[0].root, volume.root, ignore=shutil.ignore_patterns("embeddings"))
    with running(volume, workers=3) as (process, _):
        end = time.monotonic() + 60
        while len(of_session(process.pid)) < 4 and time.monotonic() < end:  # itself, three workers
            time.sleep(0.01)
        assert len(of_session(process.pid)) >= 4
        process.kill()
        process.wait()
        wait_until_gone(process.pid)


def test_of_two_runs_at_once_the_loser_exits_4_and_names_the_holder_and_a_killed_holder_frees_the_job(
    ready, cli, volume: Volume
):
    shutil.copytree(ready[0].root, volume.root, ignore=shutil.ignore_patterns("embeddings"), dirs_exist_ok=True)
    with running(volume) as (holder, _):
        holder.send_signal(signal.SIGSTOP)
        assert holder.poll() is None
        loser = cli("embed", "--tileset", "cohort", "--encoders", NAME, exits=4)
        assert f"cohort · {NAME}: another run is at work on it" in loser.stderr
        assert f"uid {os.getuid()} on {os.uname().nodename} since 2" in loser.stderr
        assert str(volume.job_lock("cohort", NAME)) in loser.stderr
        holder.kill()
        holder.wait()
    assert embedded(volume, "cohort") == []
    done = cli("embed", "--tileset", "cohort", "--encoders", NAME, "--workers", "0")
    assert sha256_file(volume.matrix("cohort", NAME)) == ready[1]
    assert "another run" not in done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_exits_130_and_the_next_run_goes_on(ready, volume: Volume, how: int):
    shutil.copytree(ready[0].root, volume.root, ignore=shutil.ignore_patterns("embeddings"), dirs_exist_ok=True)
    with running(volume) as (process, _):
        while process.poll() is None and not list(volume.work("cohort", NAME).glob("chunk-*.json")):
            time.sleep(0.001)
        process.send_signal(how)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    said = Recorder()
    embed_here(volume, NAME, reporter=said)
    assert sha256_file(volume.matrix("cohort", NAME)) == ready[1]
    assert any("resuming after" in text for text in said.said)
