"""The scoring image and its compose service, against a real engine (`make test-containers`).

CROMA_TEST_BASE_IMAGE names the base to build on (default: the pinned one), CROMA_TEST_CA_BUNDLE the certificates that
a build needs here.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from container_checkout import CA_MARKER, COMMIT, PIP_MARKER, Checkout, host_cli

from croma_bundle import __version__

pytestmark = pytest.mark.containers

TABLES = ("metrics.csv", "metrics.json", "k_sweep.csv", "m_sweep.csv")


# What is in it


def test_a_second_build_without_cache_gives_the_same_files(built: Checkout) -> None:
    again = f"{built.image}-again"
    built.docker_build("score", again, "--no-cache")
    try:
        files = [
            json.loads(built.run("docker", "run", "--rm", "--entrypoint=python", image, "-c", FILES).stdout)
            for image in (built.image, again)
        ]
        assert len(files[0]) > 1000
        assert files[0] == files[1]
    finally:
        built.run("docker", "image", "rm", again)


def test_no_torch_no_image_library_no_client_of_the_network_no_build_tools(built: Checkout, no_volume: Path) -> None:
    unwanted = ["torch", "PIL", "skimage", "matplotlib", "pip", "setuptools", "hatchling"]
    unwanted += ["huggingface_hub", "requests", "httpx", "urllib3", "aiohttp", "certifi"]
    program = f"""
import importlib.util, json, shutil
print(json.dumps([m for m in {unwanted} if importlib.util.find_spec(m)] +
                 [c for c in ("cc", "gcc", "c++", "make", "git", "curl", "wget") if shutil.which(c)]))"""
    assert json.loads(built.inside(program, volume=no_volume)) == []


def test_a_lock_other_than_the_stated_one_stops_the_build(checkout: Checkout) -> None:
    done = checkout.run("docker", "compose", "build", "score", exits=None, CROMA_SCORE_LOCK_SHA256="0" * 64)
    assert done.returncode != 0
    assert "requirements.lock: FAILED" in done.stdout + done.stderr


# Secrets of the build


def test_secrets_of_the_build_are_in_no_layer_of_any_stage(built: Checkout, tmp_path: Path) -> None:
    stage = f"{built.image}-wheel-stage"
    built.docker_build("score", stage, "--target=wheel")
    try:
        for image, locked in ((built.image, "pydantic-core==2."), (stage, "hatchling==1.")):
            history = built.run("docker", "history", "--no-trunc", image).stdout
            saved = tmp_path / "image.tar"
            built.run("docker", "save", "--output", saved, image)
            found = _found_in(saved, [CA_MARKER, PIP_MARKER, locked])
            assert found == {locked}, "the lock is in a layer, so the search works"
            assert CA_MARKER not in history
            assert PIP_MARKER not in history
            saved.unlink()
    finally:
        built.run("docker", "image", "rm", stage)


def test_who_has_no_secrets_builds_with_compose_alone(built: Checkout) -> None:
    """Secrets are no part of the cache's key, so the step with network is not run again, proxy or not."""
    plain = f"{built.image}-plain"
    built.run("docker", "compose", "build", "score", CROMA_SCORE_IMAGE=plain)
    built.run("docker", "image", "rm", plain)


# Scoring


def test_compose_scores_a_volume_of_the_host_to_the_same_bytes(
    built: Checkout, embedded: Path, open_volume: Path, tmp_path: Path
) -> None:
    ours = shutil.copytree(embedded, tmp_path / "host volume")
    host_cli(ours, "score", "--protocol", "median-k")
    done = built.compose("score", "--protocol", "median-k", volume=open_volume)
    assert "written to metrics/median-k/small" in done.stdout

    here, there = (volume / "metrics" / "median-k" / "small" for volume in (ours, open_volume))
    run = json.loads((there / "run.json").read_text(encoding="utf-8"))
    assert run["versions"]["bundle"] == {"version": __version__, "git_commit": COMMIT}
    assert sorted(p.relative_to(here) for p in here.rglob("*")) == sorted(
        p.relative_to(there) for p in there.rglob("*")
    )
    if run["versions"]["numpy"] == np.__version__:
        names = [*TABLES, *(f"per_sample/{p.name}" for p in (here / "per_sample").iterdir())]
        unequal = [name for name in names if _content(here / name) != _content(there / name)]
        assert unequal == []
    else:
        host_cli(ours, "verify", "tables", str(there), str(here), "--tolerance", "1e-9")


def test_files_belong_to_the_uid_that_was_asked_for_one_without_name_or_home(
    built: Checkout, open_volume: Path
) -> None:
    built.compose("score", "--protocol", "median-k", volume=open_volume, uid=12345, gid=54321)
    written = [open_volume / "metrics", *(open_volume / "metrics").rglob("*")]
    assert len(written) > 8
    assert {(path.stat().st_uid, path.stat().st_gid) for path in written} == {(12345, 54321)}


def test_docker_run_alone_is_enough_and_is_not_root(built: Checkout, open_volume: Path) -> None:
    isolation = ("--network=none", "--read-only", "--tmpfs=/tmp", f"--volume={open_volume}:/volume")
    built.run("docker", "run", "--rm", *isolation, built.image, "--protocol", "median-k")
    assert (open_volume / "metrics" / "median-k" / "small" / "metrics.csv").stat().st_uid == 1000


def test_arguments_are_appended(built: Checkout, no_volume: Path) -> None:
    assert "--protocol" in built.compose("score", "--help", volume=no_volume).stdout
    done = built.compose("score", "--protocl", "median-k", volume=no_volume, exits=2)
    assert "No such option '--protocl'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_volume_that_cannot_be_written_to_exits_4_with_the_line_to_type(built: Checkout, embedded: Path) -> None:
    owner = embedded.stat()
    done = built.compose("score", volume=embedded, uid=owner.st_uid + 4321, exits=4)
    assert f"CROMA_UID={owner.st_uid} CROMA_GID={owner.st_gid} docker compose run" in done.stderr
    assert not (embedded / "metrics").exists()


def test_a_volume_that_does_not_exist_is_named_and_not_created(built: Checkout, tmp_path: Path) -> None:
    missing = tmp_path / "no such folder"
    ids = {"CROMA_UID": "12345", "CROMA_GID": "12345"}
    done = built.run("docker", "compose", "run", "--rm", "score", exits=None, CROMA_VOLUME=missing, **ids)
    assert done.returncode != 0
    assert f"does not exist: {missing}" in done.stderr
    assert not missing.exists()


def test_a_volume_by_a_relative_path_is_a_folder_of_the_checkout(built: Checkout, open_volume: Path) -> None:
    """In the short syntax of compose a name without `./` would be a new, empty named volume."""
    shutil.copytree(open_volume, built.root / "other volume", copy_function=shutil.copy)
    for folder in (built.root / "other volume").rglob("*"):
        if folder.is_dir():
            folder.chmod(0o777)
    (built.root / "other volume").chmod(0o777)
    built.compose("score", "--protocol", "median-k", volume=Path("other volume"))
    assert (built.root / "other volume" / "metrics" / "median-k" / "small" / "metrics.csv").exists()


def test_make_score_gives_files_to_the_caller(built: Checkout, embedded: Path, tmp_path: Path) -> None:
    volume = shutil.copytree(embedded, tmp_path / "volume")
    built.run("make", "score", "RUNTIME=docker", CROMA_VOLUME=volume)
    written = (volume / "metrics" / "median-k" / "small" / "metrics.csv").stat()
    assert (written.st_uid, written.st_gid) == (volume.stat().st_uid, volume.stat().st_gid)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_make_score_as_root_gives_an_empty_volume_of_its_own_to_10001(built: Checkout, tmp_path: Path) -> None:
    volume = tmp_path / "new volume"
    done = built.run("make", "score", "RUNTIME=docker", exits=2, CROMA_VOLUME=volume)
    assert "nothing to score" in done.stderr
    assert (volume.stat().st_uid, volume.stat().st_gid) == (10001, 10001)


def test_make_without_an_engine_says_so(checkout: Checkout) -> None:
    done = checkout.run("make", "images", exits=2, DOCKER_HOST="unix:///no/engine.sock")
    assert "error: docker: no engine answers" in done.stderr
    assert "unix:///no/engine.sock" in done.stderr


# Isolation


@pytest.mark.parametrize("uid", [12345, 0])
def test_no_capability_and_no_way_to_gain_one(built: Checkout, no_volume: Path, uid: int) -> None:
    status = built.inside("print(open('/proc/self/status').read())", volume=no_volume, uid=uid)
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == "1"


def test_no_network(built: Checkout, no_volume: Path) -> None:
    program = """
import json, socket
def reach(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        try: s.connect(address)
        except OSError: return False
    return True
print(json.dumps([[name for _, name in socket.if_nameindex()],
                  reach(socket.AF_INET, ("192.0.2.1", 53)), reach(socket.AF_INET6, ("2001:db8::1", 53))]))"""
    interfaces, ipv4, ipv6 = json.loads(built.inside(program, volume=no_volume))
    assert set(interfaces) & {"eth0"} == set()
    assert (ipv4, ipv6) == (False, False)


@pytest.mark.parametrize("uid", [12345, 0])
def test_nothing_but_the_volume_and_tmp_can_be_written(built: Checkout, open_volume: Path, uid: int) -> None:
    program = """
import errno, json, os
def attempt(folder):
    try: open(os.path.join(folder, "attempt"), "w").close()
    except OSError as error: return errno.errorcode[error.errno]
    return "written"
print(json.dumps({folder: attempt(folder) for folder in ("/", "/opt/venv", "/etc", "/var/tmp", "/tmp", "/volume")}))"""
    found = json.loads(built.inside(program, volume=open_volume, uid=uid))
    assert {folder for folder, outcome in found.items() if outcome == "written"} == {"/tmp", "/volume"}
    assert uid != 0 or found["/"] == found["/opt/venv"] == "EROFS"


FILES = """
import hashlib, json, pathlib
root = pathlib.Path("/opt/venv")
print(json.dumps({str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in root.rglob("*") if p.is_file()}))"""


def _content(path: Path) -> bytes:
    """The bytes of a table; of a compressed one the table's, since Pythons carry different compressors."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _found_in(saved: Path, texts: list[str]) -> set[str]:
    """Which texts occur in the layers and metadata of a saved image, compressed or not."""
    found: set[str] = set()
    with tarfile.open(saved) as archive:
        for member in archive:
            handle = archive.extractfile(member)
            if handle is None:
                continue
            tail = b""
            for block in _blocks(handle):
                window = tail + block
                found |= {text for text in texts if text.encode() in window}
                tail = window[-200:]
    return found


def _blocks(handle: IO[bytes]) -> Iterator[bytes]:
    first = handle.read(1 << 20)
    inflate = zlib.decompressobj(wbits=31) if first[:2] == b"\x1f\x8b" else None
    while first:
        yield inflate.decompress(first) if inflate else first
        first = handle.read(1 << 20)
