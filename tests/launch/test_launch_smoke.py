"""`croma-bundle launch smoke`: weights that are missing first, then the family's image or venv, offline."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fake_tools import ABSENT, NO_HUB, Answer, calls, fake_tool

from croma_bundle.launch.run import launcher
from croma_bundle.launch.smoke import launch_smoke
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.progress import Reporter


def test_it_runs_in_the_venv_what_needs_no_weights(cli, volume: Volume):
    done = cli("launch", "--runtime", "venv", "smoke", "--family", "classical", "--encoders", "Thumbnail")
    assert "Thumbnail: 9 golden tiles" in done.stdout
    assert "weights in" not in done.stderr, "nothing is missing"
    assert volume.golden("Thumbnail").exists()


def test_weights_that_cannot_be_fetched_stop_only_their_own_encoder(cli, volume: Volume):
    volume.encoder_declarations.mkdir()
    (volume.encoder_declarations / "absent.toml").write_text(ABSENT)
    launch = ("launch", "--runtime", "venv", "smoke", "--family", "classical")
    done = cli(*launch, "--encoders", "Absent,Thumbnail", exits=4, env=NO_HUB)
    assert "the hub: it cannot be reached" in done.stderr
    assert "Absent: failed" in done.stderr
    assert volume.golden("Thumbnail").exists()
    alone = cli(*launch, "--encoders", "Absent", exits=4, env=NO_HUB)
    assert "smoke-classical in" in done.stderr
    assert "smoke-classical in" not in alone.stderr, "nothing is left to smoke"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--family", "nope"), 3, "encoder family 'nope': it is not declared"),
        (("--family", "classical", "--encoders", "Virchow2"), 3, "it is of the family shared, not classical"),
        (("--family", "classical", "--encoders", "Thumbnail", "--device", "cuda"), 4, "computes on the CPU only"),
        ((), 2, "--family"),
    ],
)
def test_what_cannot_be_run_is_told_with_its_code(cli, arguments: Sequence[str], code: int, told: str):
    assert told in cli("launch", "--runtime", "venv", "smoke", *arguments, exits=code).stderr


@pytest.fixture
def engine(tools: Path, checkout: Path) -> Callable[[bool], None]:
    """An executable that answers as docker does, with or without a GPU."""

    def make(gpu: bool) -> None:
        services = {name: {"image": f"here/{name}:1"} for name in ("weights", "smoke-shared", "smoke-waiv")}
        runtimes = {"runc": {}, **({"nvidia": {}} if gpu else {})}
        image = [{"Id": "sha256:" + "a" * 64, "RepoDigests": [], "Config": {"Labels": {}}}]
        answers = [Answer(["config"], json.dumps({"services": services})), Answer(["inspect"], json.dumps(image))]
        fake_tool(tools, "docker", *answers, Answer(["info"], json.dumps({"Runtimes": runtimes})))
        if gpu:
            fake_tool(tools, "nvidia-smi", Answer([], "GPU 0: NVIDIA A100 (UUID: GPU-1)\n"))

    return make


@pytest.mark.parametrize(("gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_missing_weights_come_first_and_the_family_s_service_gets_the_gpu(engine, tools, volume, gpu, device):
    """The stand-in of an engine fetches nothing and succeeds, so the step is left to tell what it lacks."""
    engine(gpu)
    launch = launcher(volume, "docker", {}, Reporter())
    assert launch_smoke(launch, load_catalogue(volume), "shared", ["GPFM@croma-0.3.0", "GPFM"], "auto") == 0
    weights, smoke = (call.argv for call in calls(tools, "docker") if "run" in call.argv)
    names = ["--encoders", "GPFM@croma-0.3.0,GPFM"]
    assert weights[weights.index("weights") :] == ["weights", "--family", "shared", *names]
    assert smoke[smoke.index("smoke-shared") :] == ["smoke-shared", "--device", device, *names]
    assert ("compose.gpu.yaml" in smoke) == gpu
