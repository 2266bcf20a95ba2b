"""DEVICE: what auto becomes, and what is refused. GPUs are stood in for by executables that answer like the driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_tools import Answer, fake_tool

from croma_bundle.errors import EnvironmentFault, UsageError
from croma_bundle.launch.device import Offer, choose, cpu_note, has_toolkit, offered_by_engine, offered_by_host
from croma_bundle.manifests.models import Encoder

GPU, NONE = Offer(True, "1 GPUs"), Offer(False, "nvidia-smi shows no GPU")
LISTED = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c9f)\nGPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77aa)\n"


def encoder(name: str, precision: str) -> Encoder:
    return Encoder.model_construct(name=name, precision=precision)


@pytest.mark.parametrize(
    ("device", "offer", "chosen"),
    [
        ("auto", GPU, "cuda"),
        ("auto", NONE, "cpu"),
        ("cpu", GPU, "cpu"),
        ("cuda", GPU, "cuda"),
        ("cuda:1", GPU, "cuda:1"),
    ],
)
def test_what_a_device_becomes(device: str, offer: Offer, chosen: str):
    assert choose(device, offer) == chosen


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_gpu_that_cannot_be_had_is_an_error_never_the_cpu(device: str):
    with pytest.raises(EnvironmentFault, match="no GPU can be had") as told:
        choose(device, NONE)
    assert NONE.why in str(told.value)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", ""])
def test_there_is_no_such_device(device: str):
    with pytest.raises(UsageError):
        choose(device, GPU)


def test_the_line_for_the_cpu_names_the_encoders_that_were_not_published_so():
    note = cpu_note([encoder("Virchow2", "mixed-float16"), encoder("Phikon", "float32")], NONE)
    assert "Virchow2" in note
    assert "Phikon" not in note
    assert "\n" not in note
    assert "published" not in cpu_note([encoder("Phikon", "float32")], NONE)


def engine_says(tools: Path, **info: object) -> None:
    fake_tool(tools, "docker", Answer(["info"], json.dumps({"Runtimes": {"runc": {}}, **info})))


def test_the_host_offers_what_its_driver_lists(tools: Path):
    assert offered_by_host() == NONE
    fake_tool(tools, "nvidia-smi", Answer(["--list-gpus"], LISTED))
    assert offered_by_host() == Offer(True, "2 GPUs")
    fake_tool(tools, "nvidia-smi", Answer([], "NVIDIA-SMI has failed\n", code=9))
    assert not offered_by_host().gpu


@pytest.mark.parametrize(
    ("info", "there"),
    [
        ({}, False),
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "vendor.example/nic=0"}]}, False),
    ],
)
def test_the_engine_needs_the_runtime_or_a_device_of_it(tools: Path, info: dict[str, object], there: bool):
    engine_says(tools, **info)
    assert has_toolkit() is there
    fake_tool(tools, "nvidia-smi", Answer([], LISTED))
    assert offered_by_engine().gpu is there


def test_the_hook_on_the_path_is_enough(tools: Path):
    engine_says(tools)
    fake_tool(tools, "nvidia-container-runtime-hook")
    assert has_toolkit()


def test_an_engine_with_toolkit_on_a_host_without_gpu_offers_none(tools: Path):
    engine_says(tools, Runtimes={"nvidia": {}})
    assert not offered_by_engine().gpu
