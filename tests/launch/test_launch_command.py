"""`croma-bundle launch …` as make calls it: what is missing is fetched, exit codes pass, `auto` finds its way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_tools import ABSENT, NO_HUB, Answer, calls, fake_tool

from croma_bundle.layout import Volume

Cli = Callable[..., subprocess.CompletedProcess[str]]
SMALL = ("--tile-size", "32", "--slides-per-cell", "1", "--tiles-per-slide", "3")


@pytest.fixture
def declared(cli: Cli) -> None:
    cli("tiles", "phantom", "small", *SMALL)


def test_an_embed_fetches_the_tiles_that_are_missing_and_only_then(cli: Cli, declared: None, volume: Volume):
    embed = ("launch", "--runtime", "venv", "embed", "--tileset", "small", "--encoders", "Thumbnail", "--workers", "0")
    first = cli(*embed)
    assert "tileset small: 27 tiles" in first.stdout
    assert volume.sidecar("small", "Thumbnail").exists()
    assert not volume.sidecar("small", "GaborEnergy").exists()
    second = cli(*embed)
    assert "27 tiles" not in second.stdout
    assert "small · Thumbnail: up to date, skipped" in second.stdout
    forced = cli(*embed, "--force")
    assert "small · Thumbnail: embedded" in forced.stdout


def test_a_batch_size_of_ones_own_is_recorded_and_is_another_artifact(cli: Cli, declared: None, volume: Volume):
    embed = ("launch", "--runtime", "venv", "embed", "--tileset", "small", "--encoders", "Thumbnail", "--workers", "0")
    cli(*embed, "--batch", "7")
    assert json.loads(volume.sidecar("small", "Thumbnail").read_bytes())["batch_size"] == 7
    other = cli(*embed, "--batch", "9", exits=5)
    assert "batch_size" in other.stderr
    assert json.loads(volume.sidecar("small", "Thumbnail").read_bytes())["batch_size"] == 7


def test_weights_that_cannot_be_fetched_stop_only_their_own_encoder(cli: Cli, declared: None, volume: Volume):
    """A private encoder whose repository no hub on this machine has, beside those that need no weights."""
    volume.encoder_declarations.mkdir()
    (volume.encoder_declarations / "absent.toml").write_text(ABSENT)
    launch = ("launch", "--runtime", "venv", "embed", "--tileset", "small", "--workers", "0")
    done = cli(*launch, exits=4, env=NO_HUB)
    assert "the hub: it cannot be reached" in done.stderr
    assert [name for name in ("Thumbnail", "GaborEnergy") if not volume.sidecar("small", name).exists()] == []
    assert "small · Absent: failed" in done.stderr
    alone = cli(*launch, "--encoders", "Absent", exits=4, env=NO_HUB)
    assert "small · Absent" not in alone.stderr, "nothing is left to embed"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("run", "score"), 3, "nothing to score"),
        (("run", "score", "--protocol", "median"), 2, "'median' is not one of"),
        (("run", "skore"), 2, "service 'skore': there is none; did you mean 'score'?"),
        (("embed", "--tileset", "nope"), 3, "tileset 'nope': it is not declared"),
        (("embed", "--tileset", "small", "--family", "clasical"), 3, "did you mean 'classical'?"),
        (("embed", "--tileset", "small", "--encoders", "Thumbnale"), 3, "did you mean 'Thumbnail'?"),
        (("embed", "--tileset", "small", "--encoders", "Virchow2"), 3, "it is of the family shared, not classical"),
        (("embed", "--tileset", "small", "--device", "cuda"), 4, "computes on the CPU only"),
        (("tiles", "nope"), 3, "tileset 'nope': it is not declared"),
    ],
)
def test_a_step_that_fails_fails_the_launch_with_its_own_code(
    cli: Cli, declared: None, arguments: tuple[str, ...], code: int, told: str
):
    assert told in cli("launch", "--runtime", "venv", *arguments, exits=code).stderr


def test_auto_takes_the_venv_for_a_light_step_without_an_engine_and_says_so(cli: Cli, volume: Volume):
    done = cli("launch", "run", "status", env={"DOCKER_HOST": "unix:///no/engine.sock"})
    assert f"volume {volume.root}" in done.stdout
    assert "without network isolation" in done.stderr


def test_docker_without_an_engine_is_told_the_way_out(cli: Cli):
    done = cli("launch", "--runtime", "docker", "run", "status", exits=4, env={"DOCKER_HOST": "unix:///no/engine.sock"})
    assert "a Docker engine, 20.10 or newer, with the compose v2 plugin" in done.stderr
    assert "RUNTIME=venv" in done.stderr or "docs/hospital-it.md" in done.stderr  # no engine or compose; no docker
    assert "Run 'docker" not in done.stderr


def test_an_interrupted_step_is_waited_for_and_leaves_130(volume: Volume, cli: Cli):
    """SIGTERM to the launcher interrupts the step; nothing of it runs on."""
    cli("tiles", "phantom", "long", "--tile-size", "256", "--slides-per-cell", "4", "--tiles-per-slide", "100")
    program = [sys.executable, "-m", "croma_bundle", "--volume", str(volume.root)]
    command = [*program, "launch", "--runtime", "venv", "tiles", "long", "--workers", "0"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not any((volume.root / "tilesets").glob(".long.lock")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "interrupted" in said
    assert not volume.pixels("long").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)


# The engine's side of a GPU, stood in for by executables that answer as docker and the driver do


CONFIG = json.dumps({"services": {name: {"image": "here/waiv:1"} for name in ("embed-waiv", "weights", "tiles")}})
IMAGE = json.dumps([{"Id": "sha256:" + "a" * 64, "RepoDigests": [], "Config": {"Labels": {}}}])


def fake_engine(tools: Path, *, gpu: bool) -> None:
    runtimes = {"runc": {}, **({"nvidia": {}} if gpu else {})}
    fake_tool(
        tools,
        "docker",
        Answer(["config"], CONFIG),
        Answer(["inspect"], IMAGE),
        Answer(["info"], json.dumps({"Runtimes": runtimes})),
        read=["HF_TOKEN_PATH"],
    )
    if gpu:
        fake_tool(tools, "nvidia-smi", Answer([], "GPU 0: NVIDIA A100 (UUID: GPU-1)\n"))


@pytest.mark.parametrize(("gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_auto_adds_the_gpu_file_where_the_engine_offers_one(
    tools: Path, checkout: Path, volume: Volume, gpu: bool, device: str
):
    from croma_bundle.launch.run import device_for, launcher
    from croma_bundle.launch.steps import Step
    from croma_bundle.progress import Reporter

    fake_engine(tools, gpu=gpu)
    launch = launcher(volume, "docker", {}, Reporter())
    chosen, on_gpu = device_for(launch, Step("embed-waiv"), "auto", [])
    assert (chosen, on_gpu) == (device, gpu)
    assert launch.run(Step("embed-waiv", ("--device", chosen), on_gpu=on_gpu)) == 0
    (run,) = [call for call in calls(tools, "docker") if "run" in call.argv]
    files = ["-f", "compose.yaml", *(["-f", "compose.gpu.yaml"] if gpu else [])]
    name = run.argv[run.argv.index("--name") + 1]
    assert name.startswith("croma-bundle-embed-waiv-")
    assert run.argv == ["compose", *files, "run", "--rm", "--name", name, "embed-waiv", "--device", device]
    assert run.cwd == str(checkout)
    assert run.env["CROMA_VOLUME"] == str(volume.root)
    assert run.env["CROMA_IMAGE_DIGEST"] == "unpublished, image id sha256:" + "a" * 64


def test_only_a_fetching_service_is_given_the_token_and_only_as_a_file(
    tools: Path, checkout: Path, volume: Volume, monkeypatch: pytest.MonkeyPatch
):
    from croma_bundle.launch.run import launcher
    from croma_bundle.launch.steps import Step
    from croma_bundle.progress import Reporter

    token = "hf_canary_of_docker"
    monkeypatch.setenv("HF_TOKEN", token)
    fake_engine(tools, gpu=False)
    launch = launcher(volume, "docker", {"HF_TOKEN": token}, Reporter())
    launch.run(Step("weights"))
    launch.run(Step("embed-waiv"))
    weights, embed = (call for call in calls(tools, "docker") if "run" in call.argv)
    assert weights.files == {"HF_TOKEN_PATH": token}
    assert embed.files == {}
    assert "HF_TOKEN_PATH" not in embed.env
    for call in calls(tools, "docker"):
        assert token not in json.dumps([call.argv, call.env])


def test_compose_is_asked_once_which_images_it_runs(tools: Path, checkout: Path, volume: Volume):
    from croma_bundle.launch.run import launcher
    from croma_bundle.launch.steps import Step
    from croma_bundle.progress import Reporter

    fake_engine(tools, gpu=False)
    launch = launcher(volume, "auto", {}, Reporter())
    for step in ("tiles", "weights", "tiles"):
        assert launch.run(Step(step)) == 0
    asked = [call.argv for call in calls(tools, "docker") if "config" in call.argv]
    assert asked == [["compose", "-f", "compose.yaml", "config", "--format", "json"]]
    assert len([call for call in calls(tools, "docker") if "run" in call.argv]) == 3
