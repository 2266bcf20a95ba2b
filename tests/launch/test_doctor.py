"""doctor: each question on its own, from what it reads; then the command as a whole.

Servers, locks, files and processes are real. Only a GPU's driver and an engine with GPUs are stood in for.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from fake_tools import Answer, fake_tool

from croma_bundle.launch import probes
from croma_bundle.launch.doctor import Check, Question, examine
from croma_bundle.launch.images import ARCHITECTURES
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue, load_catalogue
from croma_bundle.manifests.models import Encoder

TOKEN = "hf_canary_of_the_doctor"
CUDA_12 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CONFIG = Answer(["config"], json.dumps({"services": {"embed-waiv": {"shm_size": "1073741824"}, "embed-classical": {}}}))
NO_IMAGE = Answer(["image", "inspect"], err="Error: No such image: croma-bundle/waiv:0.1.0\n", code=1)
NO_GPU = Answer(["info"], json.dumps({"Runtimes": {"runc": {}}}))


def encoder(name: str, **more: object) -> Encoder:
    """An entry with what the checks read of it."""
    facts = {"name": name, "family": "waiv", "width": 1536, "gated": False, "precision": "float32"}
    facts |= {"repository": None, "code_repository": None}
    return Encoder.model_construct(**{**facts, **more})


def question(volume: Volume, *encoders: Encoder, family: str = "waiv", **more: object) -> Question:
    catalogue = Catalogue({entry.name: entry for entry in encoders}, {}, {}, {})
    facts = {"runtime": "docker", "tileset": None, "network": False, "environ": {}}
    return Question(volume, catalogue, family=family, **{**facts, **more})  # type: ignore[arg-type]


def found(asked: Question, name: str) -> list[Check]:
    return [check for check in examine(asked) if check.check.startswith(name)]


def verdicts(asked: Question, name: str) -> list[str]:
    return [check.verdict for check in found(asked, name)]


# Questions


@pytest.mark.parametrize(
    ("version", "read"),
    [("20.10.24+dfsg1", (20, 10, 24)), ("v2.26.1-4", (2, 26, 1)), ("535.183.01", (535, 183, 1)), ("dev", ())],
)
def test_versions_are_numbers(version: str, read: tuple[int, ...]):
    assert probes.numbers(version) == read


def test_ten_is_above_three():
    assert probes.numbers("1.0.10") > probes.numbers("1.0.3")


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ("8.0", CUDA_12, True),
        ("8.9", CUDA_12, True),  # Ada: machine code of 8.6 runs on later minors of the same major
        ("9.0", CUDA_12, True),
        ("12.0", CUDA_12, False),  # Blackwell: another major, and no PTX to compile
        ("10.0", [*CUDA_12, "compute_90"], True),
        ("3.7", CUDA_12, False),
        ("5.2", CUDA_12, True),
        ("7.0", ["sm_75"], False),  # machine code runs on no earlier minor
    ],
)
def test_which_gpu_a_wheel_runs_on(capability: str, built: list[str], runs: bool):
    """CUDA C++ programming guide: binary compatibility within a major version, PTX forward."""
    assert probes.fits(capability, built) is runs


def test_free_room_is_that_of_the_first_folder_that_exists(tmp_path: Path):
    space = os.statvfs(tmp_path)
    assert probes.free_bytes(tmp_path / "a" / "b") == pytest.approx(space.f_bavail * space.f_frsize, rel=0.05)


def test_the_shared_memory_of_a_service():
    config = json.dumps({"services": {"embed-waiv": {"shm_size": "1073741824"}, "score": {}}})
    assert probes.shm_of_service(config, "embed-waiv") == 1 << 30
    assert probes.shm_of_service(config, "score") == 64 << 20


def test_available_memory(tmp_path: Path):
    (tmp_path / "meminfo").write_text("MemTotal:       24000000 kB\nMemAvailable:    1048576 kB\n")
    assert probes.available_memory(tmp_path / "meminfo") == 1 << 30
    assert probes.available_memory(tmp_path / "none") is None


def test_a_matrix_takes_four_bytes_a_number():
    assert probes.matrix_bytes(20_400, [encoder("a", width=2560), encoder("b", width=384)]) == [208_896_000, 31_334_400]


HOLD = """
import sys; from pathlib import Path; from croma_bundle.durable import lock
with lock(Path(sys.argv[1]), "x"): print("held", flush=True); sys.stdin.read()"""


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        yield
        holder.stdin.close()


def test_a_lock_that_is_held_is_found_and_a_left_one_is_not(volume: Volume):
    path = volume.job_lock("camelyon", "Phaet")
    with held(path):
        ((where, who),) = probes.held_locks(volume.root)
        assert where == path
        assert json.loads(who)["user"] == str(os.getuid())
        (check,) = found(question(volume, encoder("Phaet")), "lock")
        assert check.verdict == "warn"
        assert f"uid {os.getuid()} on " in check.found
    assert path.exists()
    assert list(probes.held_locks(volume.root)) == []


def test_looking_at_a_lock_does_not_take_it(volume: Volume):
    path = volume.job_lock("camelyon", "Phaet")
    with held(path):
        pass
    for _ in probes.held_locks(volume.root):
        pytest.fail("nobody holds it")
    with held(path):
        assert len(list(probes.held_locks(volume.root))) == 1


def test_a_local_file_system_has_this_machine_s_clock(tmp_path: Path):
    assert abs(probes.file_clock_skew(tmp_path)) < 5
    assert list(tmp_path.iterdir()) == []


# The hub, as a server on loopback that knows three accounts


class Hub(BaseHTTPRequestHandler):
    ahead = 0.0
    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        who = self.headers.get("Authorization")
        type(self).seen.append((self.path, who))
        status, code = {
            ("/api/models/open/model/auth-check", None): (200, None),
            ("/api/models/gated/model/auth-check", f"Bearer {TOKEN}"): (200, None),
            ("/api/models/gated/model/auth-check", None): (401, "GatedRepo"),
            ("/api/models/gated/model/auth-check", "Bearer hf_stranger"): (403, "GatedRepo"),
            ("/api/models/no/model/auth-check", f"Bearer {TOKEN}"): (404, "RepoNotFound"),
        }.get((self.path, who), (401, None))
        self.send_response_only(status)
        self.send_header("Date", formatdate(time.time() + self.ahead, usegmt=True))
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.seen, Hub.ahead = [], 0.0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("repository", "token", "word"),
    [
        ("gated/model", TOKEN, "granted"),
        ("open/model", None, "granted"),
        ("gated/model", None, "no token"),
        ("gated/model", "hf_expired", "bad token"),
        ("gated/model", "hf_stranger", "not granted"),
        ("no/model", TOKEN, "no such repository"),
    ],
)
def test_what_the_hub_says(hub: str, repository: str, token: str | None, word: str):
    said, ahead = probes.hub_access(hub, repository, token)
    assert said == word
    assert ahead is not None
    assert abs(ahead) < 5


def test_a_hub_that_is_not_there_is_unknown_not_a_failure():
    said, ahead = probes.hub_access("http://127.0.0.1:9", "gated/model", TOKEN)
    assert said.startswith("unreachable")
    assert TOKEN not in said
    assert ahead is None


def test_access_is_asked_of_gated_repositories_and_only_with_network(hub: str, volume: Volume):
    entries = (encoder("Phaet", gated=True, repository="gated/model"), encoder("Free", repository="open/model"))
    environ = {"HF_ENDPOINT": hub, "HF_TOKEN": TOKEN}
    assert verdicts(question(volume, *entries, environ=environ), "gated access") == ["unknown"]
    assert Hub.seen == []
    assert verdicts(question(volume, *entries, environ=environ, network=True), "access to gated/model") == ["pass"]
    assert [path for path, _ in Hub.seen] == ["/api/models/gated/model/auth-check"]
    environ["HF_TOKEN"] = "hf_stranger"
    (check,) = found(question(volume, *entries, environ=environ, network=True), "access to gated/model")
    assert check.verdict == "fail"
    assert "ask for access at " in check.fix


def test_a_clock_that_is_off_is_told(hub: str, volume: Volume):
    Hub.ahead = 3600
    entry = encoder("Phaet", gated=True, repository="gated/model")
    asked = question(volume, entry, environ={"HF_ENDPOINT": hub, "HF_TOKEN": TOKEN}, network=True)
    off = [check for check in found(asked, "clock") if check.verdict == "warn"]
    assert len(off) == 1
    assert "+3600 s" in off[0].found or "+3599 s" in off[0].found


# Checks of the machine


def gpu_machine(tools: Path, *, capability: str, driver: str = "550.54.15", label: str = " ".join(CUDA_12)) -> None:
    image = [{"Id": "sha256:" + "a" * 64, "RepoDigests": [], "Config": {"Labels": {ARCHITECTURES: label}}}]
    fake_tool(
        tools,
        "docker",
        Answer(["info"], json.dumps({"Runtimes": {"nvidia": {}}})),
        Answer(["inspect"], json.dumps(image)),
        Answer(["compose", "version"], "2.30.0\n"),
        Answer(["version"], "27.1.0\n"),
        CONFIG,
    )
    fake_tool(
        tools, "nvidia-smi", Answer(["--query-gpu=name,compute_cap,driver_version"], f"GPU X, {capability}, {driver}\n")
    )


@pytest.mark.parametrize(
    ("capability", "driver", "expected"),
    [
        ("8.0", "550.54.15", ["pass", "pass"]),
        ("12.0", "570.10", ["pass", "fail"]),
        ("8.0", "470.57.02", ["fail", "pass"]),
    ],
)
def test_a_gpu_is_held_against_the_wheel_and_its_driver_against_cuda_12(
    tools: Path, checkout: Path, volume: Volume, capability: str, driver: str, expected: list[str]
):
    gpu_machine(tools, capability=capability, driver=driver)
    asked = question(volume, encoder("Phaet"))
    assert verdicts(asked, "gpu") == expected
    for name in ("engine", "compose", "container toolkit", "shared memory"):
        assert verdicts(asked, name) == ["pass"], name


def test_an_image_that_does_not_say_what_it_is_built_for_leaves_the_gpu_unknown(
    tools: Path, checkout: Path, volume: Volume
):
    gpu_machine(tools, capability="8.0", label="")
    assert verdicts(question(volume, encoder("Phaet")), "gpu") == ["pass", "unknown"]


def test_a_machine_without_gpu_is_warned_where_a_family_can_use_one(tools: Path, checkout: Path, volume: Volume):
    fake_tool(tools, "docker", NO_GPU, CONFIG, NO_IMAGE)
    assert verdicts(question(volume, encoder("Phaet")), "gpu") == ["warn"]
    assert verdicts(question(volume, encoder("Phaet")), "container toolkit") == ["warn"]
    assert verdicts(question(volume, encoder("T", family="classical"), family="classical"), "gpu") == []


@pytest.mark.parametrize(("runtime", "verdict"), [("docker", "fail"), ("auto", "warn")])
def test_no_engine_is_a_failure_only_where_one_is_asked_for(
    volume: Volume, monkeypatch: pytest.MonkeyPatch, tools: Path, runtime: str, verdict: str
):
    fake_tool(tools, "docker", Answer([], err="Cannot connect to the Docker daemon\n", code=1))
    (check,) = found(question(volume, encoder("Phaet"), runtime=runtime), "engine")
    assert check.verdict == verdict
    assert "Cannot connect" in check.found


def test_an_old_engine_is_told(tools: Path, checkout: Path, volume: Volume):
    old = (Answer(["compose", "version"], "2.2.3\n"), Answer(["version"], "19.03.15\n"))
    fake_tool(tools, "docker", NO_GPU, CONFIG, NO_IMAGE, *old)
    asked = question(volume, encoder("Phaet"))
    assert verdicts(asked, "engine") + verdicts(asked, "compose") == ["warn", "warn"]


def test_an_image_that_was_not_built_is_told_before_the_run_meets_it(tools: Path, checkout: Path, volume: Volume):
    """Where none is published; only the family that the tools' venv can embed with falls back to that."""
    fake_tool(tools, "docker", NO_GPU, CONFIG, NO_IMAGE)
    waiv, colours = encoder("Phaet"), encoder("T", family="classical")
    (check,) = found(question(volume, waiv), "images")
    assert (check.verdict, check.found) == ("fail", "the engine does not have croma-bundle/waiv:0.1.0")
    assert "RUNTIME=venv" in check.fix
    assert verdicts(question(volume, colours, family="classical", runtime="auto"), "images") == ["warn"]
    assert verdicts(question(volume, colours, family="classical", runtime="docker"), "images") == ["fail"]
    fake_tool(tools, "docker", NO_GPU, CONFIG, Answer(["image", "inspect"], json.dumps([{"Config": {}}])))
    assert verdicts(question(volume, waiv), "images") == ["pass"]


def test_room_is_held_against_the_tileset_and_the_widths(volume: Volume):
    volume.tileset("mine").mkdir(parents=True)
    rows = "".join(f"s{i},s{i}.png,a,c,g\n" for i in range(10))
    volume.tile_manifest("mine").write_text(f"sample_id,image_path,label,medical_center,group_id\n{rows}")
    small, vast = encoder("small", width=8), encoder("vast", width=1 << 42)
    assert verdicts(question(volume, small, tileset="mine"), "disk") == ["pass"]
    assert verdicts(question(volume, small, tileset="mine"), "memory") == ["pass"]
    assert verdicts(question(volume, small, vast, tileset="mine"), "disk") == ["fail"]
    assert verdicts(question(volume, small, vast, tileset="mine"), "memory") == ["fail"]
    assert verdicts(question(volume, small, tileset="other"), "disk") == ["unknown"]
    assert verdicts(question(volume, small), "disk") == ["unknown"]


def test_a_token_is_wanted_only_for_gated_encoders_and_never_shown(volume: Volume):
    free, gated = encoder("Free"), encoder("Phaet", gated=True)
    assert verdicts(question(volume, free), "token") == ["pass"]
    (check,) = found(question(volume, free, gated), "token")
    assert check.verdict == "warn"
    assert "Phaet" in check.found
    assert "Free" not in check.found
    checks = list(examine(question(volume, gated, environ={"HF_TOKEN": TOKEN})))
    assert [check.verdict for check in checks if check.check == "token"] == ["pass"]
    assert TOKEN not in str(checks)


# The command

Cli = Callable[..., subprocess.CompletedProcess[str]]


def test_the_command_prints_every_check_and_a_remedy_and_exits_4_on_failure(cli: Cli, volume: Volume):
    env = {"DOCKER_HOST": "unix:///no/engine.sock", "HF_TOKEN": TOKEN}
    done = cli("doctor", "--runtime", "docker", exits=4, env=env)
    assert "fail     engine: " in done.stdout
    assert "RUNTIME=venv" in done.stdout
    assert "pass     locks: none is held" in done.stdout
    assert "error: doctor: " in done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_the_command_speaks_json(cli: Cli, volume: Volume):
    done = cli("--json", "doctor", "--runtime", "venv")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert {event["event"] for event in events} == {"check"}
    assert {"check", "verdict", "found", "fix"} <= set(events[0])
    assert {event["verdict"] for event in events} <= {"pass", "warn", "unknown"}


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_volume_that_cannot_be_written_to_is_told(volume: Volume):
    volume.root.chmod(0o500)
    assert verdicts(question(volume, encoder("Phaet")), "volume") == ["fail"]


def test_a_volume_that_is_a_file_is_told(tmp_path: Path):
    (tmp_path / "file").touch()
    assert verdicts(question(Volume(tmp_path / "file"), encoder("Phaet")), "volume") == ["fail"]


def test_every_family_of_the_catalogue_can_be_asked_about(volume: Volume):
    for family in {entry.family for entry in load_catalogue(volume).encoders.values()}:
        asked = Question(volume, load_catalogue(volume), "venv", family, None, False, {})
        assert [check for check in examine(asked) if check.verdict == "fail"] == []
