"""RUNTIME=apptainer, run against an executable that writes down what it was called with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_tools import Answer, calls, fake_tool, only_call

from croma_bundle.errors import EnvironmentFault
from croma_bundle.launch.image_lock import write_image_lock
from croma_bundle.launch.run import launcher
from croma_bundle.launch.steps import Step
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import PublishedImage
from croma_bundle.progress import Reporter

TOKEN = "hf_canary_of_apptainer"
DIGEST = "sha256:" + "d" * 64


@pytest.fixture
def published(checkout: Path) -> None:
    """Every image that the tests run, as if pushed."""
    entries = {
        name: PublishedImage(
            name=name,
            image=f"registry.example/croma-bundle/{name}",
            tag="0.1.0",
            digest=DIGEST,
            image_id="sha256:" + "1" * 64,
            built_from="c" * 40,
            locks={},
        )
        for name in ("tiles", "waiv", "score")
    }
    write_image_lock(checkout, entries)


def launch(volume: Volume, step: Step, **environ: str) -> int:
    return launcher(volume, "apptainer", environ, Reporter()).run(step)


def test_an_embed_step_is_this_command(tools: Path, checkout: Path, published: None, volume: Volume, tmp_path: Path):
    tool = fake_tool(tools, "apptainer")
    (tmp_path / "tiles").mkdir()
    arguments = ("--tileset", "camelyon", "--device", "cuda:1")
    step = Step("embed-waiv", arguments, own_tiles=tmp_path / "tiles", on_gpu=True)
    assert launch(volume, step) == 0
    source = f"docker://registry.example/croma-bundle/waiv@{DIGEST}"
    assert [str(tool), *only_call(tools, "apptainer").argv] == [
        str(tool),
        *("exec", "--containall", "--cleanenv", "--net", "--network", "none", "--nv"),
        *("--bind", f"{volume.root}:/volume"),
        *("--bind", f"{volume.root}/weights:/weights:ro"),
        *("--bind", f"{tmp_path}/tiles:{tmp_path}/tiles:ro"),
        *("--env", "CROMA_VOLUME=/volume", "--env", f"CROMA_IMAGE={source}", "--env", f"CROMA_IMAGE_DIGEST={DIGEST}"),
        *("--env", "CROMA_WEIGHTS=/weights", "--env", "HF_HUB_OFFLINE=1"),
        *("--pwd", "/volume", source, "croma-bundle", "embed", "--family", "waiv", *arguments),
    ]


def test_it_is_printed_as_it_can_be_typed(
    tools: Path, checkout: Path, published: None, volume: Volume, capsys: pytest.CaptureFixture[str]
):
    tool = fake_tool(tools, "apptainer")
    launch(volume, Step("score", ("--benchmark", "a b")))
    printed = capsys.readouterr().err
    assert f"score: {tool} exec --containall --cleanenv --net --network none --bind" in printed
    assert "croma-bundle score --benchmark 'a b'" in printed


def test_a_fetching_step_has_network_and_the_token_as_a_file_and_nowhere_else(
    tools: Path, checkout: Path, published: None, volume: Volume, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    (tmp_path / "ca.crt").touch()
    fake_tool(tools, "apptainer")
    environ = {"HF_TOKEN": TOKEN, "CROMA_CA_BUNDLE": str(tmp_path / "ca.crt")}
    launch(volume, Step("weights", ("--family", "waiv")), **environ)
    call = only_call(tools, "apptainer")
    assert "--network" not in call.argv
    assert f"{volume.root}/weights:/weights:rw" in call.argv
    assert "HTTPS_PROXY=http://proxy.example:3128" in call.argv
    assert f"SSL_CERT_FILE={tmp_path}/ca.crt" in call.argv
    (bind,) = [part for part in call.argv if part.endswith(":/run/secrets/hf_token:ro")]
    assert not Path(bind.split(":")[0]).exists(), "gone with the step"
    assert TOKEN not in json.dumps([call.argv, call.env])


def test_its_exit_code_is_ours(tools: Path, checkout: Path, published: None, volume: Volume):
    fake_tool(tools, "apptainer", Answer(["score"], code=3))
    assert launch(volume, Step("score")) == 3


def test_singularity_will_do(tools: Path, checkout: Path, published: None, volume: Volume):
    fake_tool(tools, "singularity")
    assert launch(volume, Step("score")) == 0
    assert len(calls(tools, "singularity")) == 1


def test_an_image_file_comes_before_the_registry(
    tools: Path, checkout: Path, published: None, volume: Volume, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("CROMA_SIF", str(tmp_path))
    (tmp_path / "score.sif").touch()
    fake_tool(tools, "apptainer")
    launch(volume, Step("score"))
    argv = only_call(tools, "apptainer").argv
    assert str(tmp_path / "score.sif") in argv
    assert "CROMA_IMAGE_DIGEST=unpublished" in argv


def test_without_apptainer_or_image_it_says_what_is_wanted(tools: Path, checkout: Path, volume: Volume):
    with pytest.raises(EnvironmentFault, match="apptainer or singularity"):
        launch(volume, Step("score"))
    fake_tool(tools, "apptainer")
    with pytest.raises(EnvironmentFault, match=r"there is no \.sif file of it, and no published one"):
        launch(volume, Step("score"))
