"""Files that are whole or absent, and locks that die with their holder: real processes, really killed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from croma_bundle import durable
from croma_bundle.durable import (
    STALE_AFTER,
    atomic_file,
    json_bytes,
    lock,
    remove,
    sha256_file,
    sweep_temporaries,
    write_bytes,
    write_json,
)
from croma_bundle.errors import LockHeld

HOLD = """
import sys, time
from pathlib import Path
from croma_bundle.durable import lock
with lock(Path(sys.argv[1]), "camelyon · Virchow2"):
    print("holding", flush=True)
    time.sleep(60)
"""
WRITE_HALF = """
import sys, time
from pathlib import Path
from croma_bundle.durable import atomic_file
with atomic_file(Path(sys.argv[1])) as handle:
    handle.write(b"new" * 100_000)
    handle.flush()
    print("half", flush=True)
    time.sleep(60)
"""


@contextmanager
def process(code: str, path: Path, says: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has printed `says`; killed at the end."""
    started = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline().strip() == says
        yield started
    finally:
        started.kill()
        started.wait()


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def fail_after_half(path: Path, failure: BaseException) -> None:
    with atomic_file(path) as handle:
        handle.write(b"half")
        raise failure


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


# Files


def test_a_file_is_written_with_its_folders(tmp_path):
    write_bytes(tmp_path / "a" / "b" / "x.npy", b"content")
    assert (tmp_path / "a" / "b" / "x.npy").read_bytes() == b"content"
    assert names(tmp_path / "a" / "b") == ["x.npy"]


def test_a_writer_killed_mid_write_leaves_the_old_file_whole_and_nothing_that_looks_like_an_artifact(tmp_path):
    path = tmp_path / "Virchow2.npy"
    path.write_bytes(b"old")
    with process(WRITE_HALF, path, "half") as writer:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert path.read_bytes() == b"old"
    left = sorted(set(names(tmp_path)) - {path.name})
    assert len(left) == 1, "the temporary is what a killed process cannot clean up"
    assert not left[0].endswith((".npy", ".json"))
    assert left[0].startswith("."), "and no listing of artifacts shows it"


def test_the_file_is_invisible_until_it_is_whole(tmp_path):
    path = tmp_path / "x"
    with atomic_file(path) as handle:
        handle.write(b"1234")
        assert not path.exists()
        during = names(tmp_path)
    assert path.read_bytes() == b"1234"
    assert [name.endswith((".npy", ".json")) for name in during] == [False]


def test_a_writer_that_fails_leaves_the_old_file_and_no_temporary(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        fail_after_half(path, ZeroDivisionError())
    assert names(tmp_path) == ["x.npy"]
    assert path.read_bytes() == b"old"


def test_an_interrupt_leaves_no_temporary_either(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fail_after_half(tmp_path / "x", KeyboardInterrupt())
    assert names(tmp_path) == []


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664), (0o077, 0o600)])
def test_permissions_follow_the_umask_so_that_a_group_can_read_a_shared_volume(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_bytes(tmp_path / "x", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode


@pytest.mark.parametrize("name", ["with space.csv", "ünïcode ✓.csv", "quote'\".csv", "-dash", "[glob]*?.csv"])
def test_any_file_name_can_be_written_and_swept(tmp_path, name):
    write_bytes(tmp_path / name, b"x")
    assert names(tmp_path) == [name]


def test_sweeping_removes_leftovers_of_that_name_only_and_no_file(tmp_path):
    for name in (".A.npy.0badcafe.tmp", ".A.npy.json.0badcafe.tmp", ".B.npy.0badcafe.tmp", "A.npy", "notes.tmp"):
        (tmp_path / name).write_bytes(b"")
    sweep_temporaries(tmp_path, "A.npy")
    assert sorted(names(tmp_path)) == [".B.npy.0badcafe.tmp", "A.npy", "notes.tmp"]
    sweep_temporaries(tmp_path)
    assert sorted(names(tmp_path)) == ["A.npy", "notes.tmp"]


def test_sweeping_a_folder_that_is_not_there_does_nothing(tmp_path):
    sweep_temporaries(tmp_path / "absent")
    assert names(tmp_path) == []


def test_removing_twice_is_removing_once(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    remove(tmp_path / "x")
    remove(tmp_path / "x")
    assert names(tmp_path) == []


def test_json_is_readable_utf8_with_a_newline_and_keeps_the_order_of_keys(tmp_path):
    write_json(tmp_path / "x.json", {"b": "é", "a": 1})
    assert (tmp_path / "x.json").read_bytes() == '{\n  "b": "é",\n  "a": 1\n}\n'.encode()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_never_written(number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes({"x": number})


def test_the_hash_of_a_file_is_the_hash_of_its_bytes(tmp_path):
    content = bytes(range(256)) * 9000
    (tmp_path / "x").write_bytes(content)
    assert sha256_file(tmp_path / "x") == hashlib.sha256(content).hexdigest()


# Locks


def test_the_second_process_is_refused_with_the_holder_named(tmp_path):
    path = tmp_path / "locks" / "x.lock"
    with (
        process(HOLD, path, "holding", CROMA_IMAGE="shared:1"),
        pytest.raises(LockHeld) as caught,
        lock(path, "x"),
    ):
        pytest.fail("both hold the lock")
    said = caught.value
    assert said.exit_code == 4
    assert said.problem == "another run is at work on it"
    assert said.found.startswith(f"uid {os.getuid()} on {socket.gethostname()} since 20")
    assert "(image shared:1)" in said.found
    assert str(path) in said.found
    assert said.then == "Wait for it to end."


def test_a_killed_holder_frees_the_lock_at_once(tmp_path):
    path = tmp_path / "x.lock"
    with process(HOLD, path, "holding") as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with lock(path, "x"):
            assert json.loads(path.read_text())["user"] == str(os.getuid())


def test_a_lock_is_free_after_its_holder_ended_well_or_badly(tmp_path):
    path = tmp_path / "x.lock"
    with pytest.raises(ZeroDivisionError), lock(path, "x"):
        raise ZeroDivisionError
    with lock(path, "x"):
        pass
    assert path.read_bytes() == b"", "nobody is named as holder any more"


def test_locks_of_two_jobs_do_not_meet(tmp_path):
    with lock(tmp_path / "a.lock", "a"), lock(tmp_path / "b.lock", "b"):
        assert (tmp_path / "a.lock").read_bytes()


@pytest.mark.parametrize("text", [b"", b"not json", b"[]", b'{"user": 1}', b"\xff\xfe"])
def test_a_lock_file_of_any_text_is_held_only_by_flock(tmp_path, text):
    path = tmp_path / "x.lock"
    path.write_bytes(text)
    with lock(path, "x"):
        pass
    path.write_bytes(text)
    with path.open("rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(LockHeld, match="a run that has not said who it is"), lock(path, "x"):
            pytest.fail("both hold the lock")


@pytest.fixture
def no_flock(monkeypatch):
    """A file system without locks, as NFS and Lustre may be: only the system call's answer is replaced."""

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def held_by_another(path: Path, seconds_ago: float) -> None:
    path.write_text(json.dumps({"user": "7", "host": "node3", "container": "", "started": "2026-01-01T00:00:00Z"}))
    os.utime(path, (time.time() - seconds_ago,) * 2)


def test_without_flock_a_fresh_heartbeat_holds_and_names_the_holder(no_flock, tmp_path):
    path = tmp_path / "x.lock"
    held_by_another(path, seconds_ago=STALE_AFTER - 60)
    with pytest.raises(LockHeld, match="uid 7 on node3 since 2026-01-01T00:00:00Z"), lock(path, "x"):
        pytest.fail("both hold the lock")
    assert json.loads(path.read_text())["host"] == "node3", "the refused one leaves the holder's name"


def test_without_flock_five_minutes_of_silence_free_the_lock(no_flock, tmp_path):
    path = tmp_path / "x.lock"
    held_by_another(path, seconds_ago=5 * 60 + 1)
    with lock(path, "x"):
        assert json.loads(path.read_text())["host"] == socket.gethostname()


def test_without_flock_an_ended_run_frees_the_lock_at_once(no_flock, tmp_path):
    path = tmp_path / "x.lock"
    with lock(path, "x"), pytest.raises(LockHeld), lock(path, "x"):
        pytest.fail("both hold the lock")
    with lock(path, "x"):
        pass


def test_without_flock_the_holder_keeps_its_heartbeat_and_stops_it_at_the_end(no_flock, tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "STALE_AFTER", 1.0)
    path = tmp_path / "x.lock"
    with lock(path, "x"):
        os.utime(path, (0, 0))
        assert within(5, lambda: time.time() - path.stat().st_mtime < 1), "no heartbeat came"
    os.utime(path, (0, 0))
    time.sleep(0.3)
    assert path.stat().st_mtime == 0, "a heartbeat came after the end"


def test_without_flock_a_lock_file_swept_away_by_someone_does_not_break_the_run(no_flock, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(durable, "STALE_AFTER", 0.5)
    path = tmp_path / "x.lock"
    with lock(path, "x"):
        path.unlink()
        time.sleep(0.3)
    assert capfd.readouterr().err == ""
