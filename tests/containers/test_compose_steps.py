"""The steps through compose on a real engine: same bytes as the venv, offline, and the right end to every mishap."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from container_checkout import Checkout, host_cli

pytestmark = pytest.mark.containers

SMALL = ("--tile-size", "64", "--slides-per-cell", "2", "--tiles-per-slide", "6")
TOKEN = "hf_canary_of_the_containers"
CONTENTS = {".npy", ".csv", ".gz", ".json"}


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """An empty volume that every uid may write to."""
    folder = tmp_path / "a volume"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture(scope="session")
def host(steps: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spine in the test venv: phantom tiles, classical embeddings, tables."""
    volume = tmp_path_factory.mktemp("spine") / "volume"
    volume.mkdir()
    host_cli(volume, "tiles", "phantom", "small", *SMALL)
    host_cli(volume, "tiles", "fetch", "small")
    host_cli(volume, "embed", "--family", "classical", "--tileset", "small")
    host_cli(volume, "score", "--protocol", "median-k")
    return volume


def spread_open(folder: Path) -> None:
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o777 if each.is_dir() else 0o666)


def tables(volume: Path) -> dict[str, bytes]:
    """Every table of the small phantom, unpacked (Pythons carry different compressors); run.json holds versions."""
    root = volume / "metrics" / "median-k"
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix in CONTENTS and path.name != "run.json"]
    return {
        str(path.relative_to(root)): gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in files
    }


def matrices(volume: Path, tileset: str = "small") -> dict[str, str]:
    folder = volume / "embeddings" / tileset
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.npy")}


def docker_run(steps: Checkout, volume: Path, *options: str, command: tuple[str, ...], exits: int = 0) -> str:
    """The tiles image without compose; the output of both streams."""
    image, user = steps.images["tiles"], "--user=12345:12345"
    isolation = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs=/tmp")
    entry = ("--entrypoint=croma-bundle", f"--volume={volume}:/volume")
    done = steps.run("docker", "run", "--rm", user, *isolation, *entry, *options, image, *command, exits=exits)
    return done.stdout + done.stderr


# The spine


def test_the_spine_through_compose_without_network_gives_the_venv_s_bytes(
    steps: Checkout, host: Path, open_folder: Path
) -> None:
    offline = steps.with_env(CROMA_FETCH_NETWORK="none")
    offline.compose("tiles", "phantom", "small", *SMALL, volume=open_folder)
    offline.compose("tiles", "fetch", "small", volume=open_folder)
    offline.compose("embed-classical", "--tileset", "small", volume=open_folder)
    offline.compose("score", "--protocol", "median-k", volume=open_folder)
    assert len(matrices(host)) == 4
    assert matrices(open_folder) == matrices(host)
    assert len(tables(host)) > 7
    assert tables(open_folder) == tables(host)
    written = list(open_folder.rglob("*"))
    assert {(path.stat().st_uid, path.stat().st_gid) for path in written} == {(12345, 12345)}
    offline.compose("verify", "artifacts", volume=open_folder)
    assert "embedded 108 × 768" in offline.compose("status", volume=open_folder).stdout
    assert "HaematoxylinTexture" in offline.compose("list", "encoders", volume=open_folder).stdout


@pytest.fixture
def silent_name_server(engine: None) -> Iterator[tuple[str, Callable[[], int]]]:
    """A name server on the engine's bridge that never answers: its address, and how many questions it has heard."""
    show = ["docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}"]
    gateway = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip() or "172.17.0.1"
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        server.bind((gateway, 53))
    except OSError as error:
        pytest.skip(f"port 53 of {gateway} cannot be had here: {error.strerror}")
    server.setblocking(False)

    def heard() -> int:
        count = 0
        with contextlib.suppress(BlockingIOError):
            while server.recv(4096):
                count += 1
        return count

    yield gateway, heard
    server.close()


def test_an_embed_that_has_a_network_asks_no_name_of_it(
    steps: Checkout, host: Path, open_folder: Path, silent_name_server: tuple[str, Callable[[], int]]
) -> None:
    """With a network whose names resolve nowhere nothing can stall, because nothing is looked up."""
    address, heard = silent_name_server
    shutil.copytree(host / "tilesets", open_folder / "tilesets")
    spread_open(open_folder)
    dead = (f"--dns={address}", "--dns-option=timeout:1", "--dns-option=attempts:1", "--env=HF_HUB_OFFLINE=0")
    ask = "import socket\ntry: socket.getaddrinfo('hub.example', 443)\nexcept OSError: pass"
    steps.run("docker", "run", "--rm", *dead, "--entrypoint=python", steps.images["tiles"], "-c", ask)
    assert heard() > 0, "the container can ask, so the proof means something"
    embed = ("embed", "--family", "classical", "--tileset", "small", "--workers", "0")
    docker_run(steps, open_folder, *dead, command=embed)
    assert heard() == 0
    assert matrices(open_folder) == matrices(host)


def test_8_mb_of_shared_memory_are_enough(steps: Checkout, host: Path, open_folder: Path) -> None:
    shutil.copytree(host / "tilesets", open_folder / "tilesets")
    spread_open(open_folder)
    embed = ("embed", "--family", "classical", "--tileset", "small", "--workers", "2")
    docker_run(steps, open_folder, "--network=none", "--shm-size=8m", command=embed)
    assert matrices(open_folder) == matrices(host)


def test_shared_memory_that_is_too_small_for_workers_is_named_with_its_remedy(
    steps: Checkout, host: Path, open_folder: Path
) -> None:
    """4 KB hold one semaphore; a pool of workers needs several."""
    shutil.copytree(host / "tilesets", open_folder / "tilesets")
    spread_open(open_folder)
    embed = ("embed", "--family", "classical", "--tileset", "small", "--encoders", "Thumbnail", "--workers")
    small = ("--network=none", "--tmpfs=/dev/shm:size=4k")
    said = docker_run(steps, open_folder, *small, command=(*embed, "2"), exits=4)
    assert "worker processes: they cannot be started (No space left on device)" in said
    assert "/dev/shm" in said
    assert "WORKERS=0" in said
    assert "Traceback" not in said
    docker_run(steps, open_folder, *small, command=(*embed, "0"))


# The launcher and make


def test_make_runs_the_spine_in_the_images_and_gives_the_files_to_the_owner(
    steps: Checkout, host: Path, tmp_path: Path
) -> None:
    volume = tmp_path / "new volume"
    common = {"CROMA_VOLUME": volume}
    steps.launch("run", "tiles", "phantom", "small", *SMALL, **common)
    steps.run("make", "tiles", "RUNTIME=docker", "TILESET=small", **common)
    done = steps.run("make", "embed", "RUNTIME=docker", "TILESET=small", "ENCODERS=Thumbnail", "WORKERS=0", **common)
    assert "embed-classical in " in done.stderr
    assert "tiles in " not in done.stderr, "they are there"
    steps.run("make", "score", "RUNTIME=docker", "BENCHMARK=small", **common)
    assert matrices(volume) == {"Thumbnail.npy": matrices(host)["Thumbnail.npy"]}
    owner = (10001, 10001) if os.getuid() == 0 else (os.getuid(), os.getgid())
    assert {(path.stat().st_uid, path.stat().st_gid) for path in volume.rglob("*")} == {owner}
    environment = json.loads((volume / "embeddings/small/Thumbnail.npy.json").read_text())["environment"]
    image_id = json.loads(steps.run("docker", "image", "inspect", steps.images["tiles"]).stdout)[0]["Id"]
    assert environment["image"] == steps.images["tiles"]
    assert environment["image_digest"] == f"unpublished, image id {image_id}"


def test_bare_compose_records_that_the_image_is_unpublished(steps: Checkout, host: Path, open_folder: Path) -> None:
    shutil.copytree(host / "tilesets", open_folder / "tilesets")
    spread_open(open_folder)
    steps.compose("embed-classical", "--tileset", "small", "--encoders", "Thumbnail", volume=open_folder)
    environment = json.loads((open_folder / "embeddings/small/Thumbnail.npy.json").read_text())["environment"]
    assert (environment["image"], environment["image_digest"]) == (steps.images["tiles"], "unpublished")


def test_own_tiles_outside_the_volume_embed_in_the_container(
    steps: Checkout, host: Path, open_folder: Path, tmp_path: Path
) -> None:
    """The launcher mounts the tileset's root; bare compose takes it from CROMA_TILES_ROOT."""
    shutil.copytree(host / "tilesets/small", tmp_path / "my tiles")
    for each in tmp_path.parents:
        if each.stat().st_uid == os.getuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o055)
    tmp_path.chmod(0o755)
    host_cli(open_folder, "tiles", "add", "mine", "--manifest", str(tmp_path / "my tiles/manifest.csv"))
    spread_open(open_folder)
    launch = ("embed", "--tileset", "mine", "--encoders", "Thumbnail")
    steps.launch(*launch, CROMA_VOLUME=open_folder, CROMA_UID="12345")
    assert matrices(open_folder, "mine") == {"Thumbnail.npy": matrices(host)["Thumbnail.npy"]}

    bare = ("embed-classical", "--tileset", "mine", "--encoders", "ColourStatistics")
    done = steps.compose(*bare, volume=open_folder, exits=3)
    assert "there is no such file" in done.stderr
    steps.with_env(CROMA_TILES_ROOT=str(tmp_path / "my tiles")).compose(*bare, volume=open_folder)
    assert matrices(open_folder, "mine")["ColourStatistics.npy"] == matrices(host)["ColourStatistics.npy"]


def test_missing_sources_are_all_named_and_none_is_made(steps: Checkout, open_folder: Path, tmp_path: Path) -> None:
    places = {"CROMA_WEIGHTS": tmp_path / "hub", "CROMA_CA_BUNDLE": tmp_path / "no.crt"}
    done = steps.launch("run", "weights", exits=3, CROMA_VOLUME=open_folder, CROMA_UID="12345", **places)
    assert f"{tmp_path}/no.crt: the certificates of this step: there is no such path" in done.stderr
    roots = {"CROMA_TILES_ROOT": str(tmp_path / "no tiles")}
    bare = ("docker", "compose", "run", "--rm", "embed-classical", "--tileset", "x")
    done = steps.run(*bare, exits=None, CROMA_VOLUME=open_folder, **roots)
    assert done.returncode != 0
    assert f"does not exist: {tmp_path}/no tiles" in done.stderr
    assert not (tmp_path / "no tiles").exists()
    assert not (tmp_path / "no.crt").exists()


# Isolation


PROBE = """
import errno, json, os, pathlib
def attempt(folder):
    try: open(os.path.join(folder, f"by-{os.getuid()}"), "w").close()
    except OSError as error: return errno.errorcode[error.errno]
    return "written"
print(json.dumps({folder: attempt(folder) for folder in ("/", "/opt/venv", "/tmp", "/volume", "/weights")}
                 | {"shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize}))"""


def test_an_embed_service_writes_to_the_volume_and_tmp_and_not_to_the_weights(
    steps: Checkout, open_folder: Path
) -> None:
    """Any image shows it; the tiles image stands in for a family's."""
    (open_folder / "weights").mkdir(mode=0o777)
    spread_open(open_folder)
    stand_in = steps.with_env(CROMA_WAIV_IMAGE=steps.images["tiles"])
    for uid in (12345, 0):
        found = json.loads(
            stand_in.compose("--entrypoint", "python", "embed-waiv", "-c", PROBE, volume=open_folder, uid=uid).stdout
        )
        assert found.pop("shm") == 1 << 30
        assert {place for place, outcome in found.items() if outcome == "written"} == {"/tmp", "/volume"}
        assert found["/weights"] == "EROFS"
    writer = stand_in.compose("--entrypoint", "python", "weights", "-c", PROBE, volume=open_folder)
    assert json.loads(writer.stdout)["/weights"] == "written"


def test_a_read_only_volume_is_told(steps: Checkout, host: Path, open_folder: Path) -> None:
    shutil.copytree(host / "tilesets", open_folder / "tilesets")
    image, embed = steps.images["tiles"], ("embed", "--family", "classical", "--tileset", "small")
    run = ("docker", "run", "--rm", "--network=none", "--entrypoint=croma-bundle")
    done = steps.run(*run, f"--volume={open_folder}:/volume:ro", image, *embed, exits=4)
    assert "mounted read-only" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_told_and_leaves_nothing_that_looks_finished(
    steps: Checkout, host: Path, open_folder: Path
) -> None:
    """The volume is 200 KB of memory; the tiles are mounted into it. Thumbnail's matrix alone has 331 KB."""
    shutil.copytree(host / "tilesets", open_folder / "tilesets")
    spread_open(open_folder)
    disk = (
        "--tmpfs=/disk:size=200k,mode=1777",
        "--env=CROMA_VOLUME=/disk",
        f"--volume={open_folder}/tilesets:/disk/tilesets:ro",
    )
    embed = "croma-bundle embed --family classical --tileset small --encoders Thumbnail"
    script = f"{embed}; code=$?; find /disk; exit $code"
    run = ("docker", "run", "--rm", "--network=none", "--user=12345:12345", "--read-only", "--tmpfs=/tmp", *disk)
    done = steps.run(*run, "--entrypoint=sh", steps.images["tiles"], "-c", script, exits=4)
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "/disk/embeddings/small" in done.stdout
    assert "Thumbnail.npy" not in done.stdout


# Two at once, and killed


@pytest.fixture(scope="session")
def long(steps: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A volume with a tileset of three chunks, not embedded."""
    volume = tmp_path_factory.mktemp("long") / "volume"
    volume.mkdir()
    host_cli(
        volume, "tiles", "phantom", "long", "--tile-size", "128", "--slides-per-cell", "4", "--tiles-per-slide", "16"
    )
    host_cli(volume, "tiles", "fetch", "long")
    return volume


@pytest.fixture
def under_way(steps: Checkout, long: Path, open_folder: Path) -> Iterator[Callable[[], str]]:
    """Start an embed in a container that has finished a chunk when this returns its name."""
    shutil.copytree(long / "tilesets", open_folder / "tilesets")
    spread_open(open_folder)
    name = f"croma-test-{uuid.uuid4().hex[:8]}"

    def start() -> str:
        service = ("embed-classical", "--tileset", "long", "--encoders", "GaborEnergy", "--workers", "1")
        ids = {"CROMA_UID": "12345", "CROMA_GID": "12345", "CROMA_VOLUME": open_folder}
        steps.run("docker", "compose", "run", "--detach", "--name", name, *service, **ids)
        wait_for_chunk(open_folder)
        return name

    yield start
    subprocess.run(["docker", "rm", "--force", name], capture_output=True)


def wait_for_chunk(volume: Path) -> None:
    deadline = time.monotonic() + 600
    while not any((volume / "embeddings/long/.work/GaborEnergy").glob("chunk-*.json")):
        assert time.monotonic() < deadline, "no chunk was written"
        time.sleep(0.05)


EMBED_LONG = ("embed-classical", "--tileset", "long", "--encoders", "GaborEnergy")


def test_a_second_embed_of_the_same_is_told_who_has_it(
    steps: Checkout, under_way: Callable[[], str], open_folder: Path
) -> None:
    name = under_way()
    done = steps.compose(*EMBED_LONG, volume=open_folder, exits=4)
    assert "long · GaborEnergy: another run is at work on it" in done.stderr
    assert "uid 12345 on " in done.stderr
    assert steps.run("docker", "wait", name).stdout.strip() == "0"
    assert "up to date" in steps.compose(*EMBED_LONG, volume=open_folder).stdout


def test_killed_in_the_middle_it_resumes_to_the_bytes_of_an_uninterrupted_run(
    steps: Checkout, under_way: Callable[[], str], open_folder: Path, long: Path, tmp_path: Path
) -> None:
    steps.run("docker", "kill", under_way())
    folder = open_folder / "embeddings/long"
    assert not (folder / "GaborEnergy.npy.json").exists()
    assert not (folder / "GaborEnergy.npy").exists()
    done = steps.compose(*EMBED_LONG, volume=open_folder)
    assert "resuming after" in done.stderr
    whole = shutil.copytree(long, tmp_path / "whole")
    host_cli(whole, "embed", "--tileset", "long", "--encoders", "GaborEnergy")
    assert matrices(open_folder, "long") == matrices(whole, "long")


def test_stopped_it_says_so_and_resumes(steps: Checkout, under_way: Callable[[], str], open_folder: Path) -> None:
    """`docker stop` sends SIGINT, through init, and is not kept waiting for the kill."""
    name = under_way()
    steps.run("docker", "stop", name)
    state = json.loads(steps.run("docker", "inspect", name).stdout)[0]["State"]
    assert state["ExitCode"] == 130
    assert "interrupted" in steps.run("docker", "logs", name).stderr
    assert "resuming after" in steps.compose(*EMBED_LONG, volume=open_folder).stderr


def test_a_launcher_that_is_terminated_leaves_no_container_at_work(
    steps: Checkout, long: Path, open_folder: Path
) -> None:
    shutil.copytree(long / "tilesets", open_folder / "tilesets")
    spread_open(open_folder)
    embed = ("embed", "--tileset", "long", "--encoders", "GaborEnergy", "--workers", "1")
    command = [f"{steps.env['VENV']}/bin/croma-bundle", "launch", "--runtime", "docker", *embed]
    ids = {"CROMA_VOLUME": str(open_folder), "CROMA_UID": "12345", "CROMA_GID": "12345"}
    child = subprocess.Popen(command, cwd=steps.root, env={**steps.env, **ids}, stderr=subprocess.PIPE, text=True)
    wait_for_chunk(open_folder)
    child.terminate()
    _, said = child.communicate(timeout=600)
    assert child.returncode == 130, said
    running = steps.run("docker", "ps", "--all", "--filter", f"volume={open_folder}", "--quiet").stdout
    assert running == ""
    assert "resuming after" in steps.compose(*EMBED_LONG, volume=open_folder).stderr


# Secrets at run time


def test_the_token_reaches_the_fetching_step_and_is_nowhere_to_be_read(
    steps: Checkout, open_folder: Path, tmp_path: Path
) -> None:
    """Through the launcher, from HF_TOKEN: the container reads it; inspect, history, logs and config do not show it."""
    (open_folder / "weights").mkdir()
    spread_open(open_folder)
    secret = tmp_path / "token"
    secret.write_text(TOKEN)
    secret.chmod(0o444)
    name = f"croma-test-{uuid.uuid4().hex[:8]}"
    program = "import hashlib; print(hashlib.sha256(open('/run/secrets/hf_token', 'rb').read()).hexdigest())"
    env = {"HF_TOKEN_PATH": secret, "HF_TOKEN": TOKEN, "CROMA_VOLUME": open_folder}
    run = ("docker", "compose", "run", "--name", name, "--entrypoint", "python", "weights", "-c", program)
    try:
        said = steps.run(*run, **env).stdout
        assert said.strip() == hashlib.sha256(TOKEN.encode()).hexdigest()
        shown = [
            steps.run("docker", "inspect", name).stdout,
            steps.run("docker", "logs", name).stdout,
            steps.run("docker", "compose", "config", **env).stdout,
            *(steps.run("docker", "history", "--no-trunc", steps.env[i]).stdout for i in ("CROMA_TILES_IMAGE",)),
            *(steps.run("docker", "image", "inspect", image).stdout for image in (steps.image,)),
        ]
        assert all(shown)
        assert not any(TOKEN in text for text in shown)
    finally:
        steps.run("docker", "rm", "--force", name)


def test_a_token_in_the_caller_s_environment_is_in_no_file_of_the_volume(
    steps: Checkout, host: Path, open_folder: Path
) -> None:
    shutil.copytree(host / "tilesets", open_folder / "tilesets")
    spread_open(open_folder)
    env = {"HF_TOKEN": TOKEN, "CROMA_VOLUME": open_folder, "CROMA_UID": "12345", "CROMA_GID": "12345"}
    embed = steps.launch("embed", "--tileset", "small", "--encoders", "Thumbnail", **env)
    score = steps.launch("run", "score", "--protocol", "median-k", **env)
    fetch = steps.launch("run", "weights", "--family", "nobody", exits=None, **env)
    assert all(TOKEN not in done.stdout + done.stderr for done in (embed, score, fetch))
    files = [path for path in open_folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not any(TOKEN.encode() in path.read_bytes() for path in files)
    assert not list(Path("/dev/shm").glob("croma-*")), "the token's file is gone"
