"""What compose.yaml and compose.gpu.yaml come to, as the engine's own compose resolves them.

No GPU is needed: that a reservation works on hardware is not shown here, only that it is what is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from container_checkout import REPOSITORY

from croma_bundle.launch.images import IMAGES
from croma_bundle.launch.steps import SERVICES

pytestmark = pytest.mark.containers

TOKEN = "hf_canary_of_the_config"
Services = dict[str, dict[str, Any]]


def resolved(*files: str, **env: str) -> Services:
    """The services of the files, with no variable of ours set but those of `env`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("CROMA_", "HF_", "CUDA_"))}
    command = ["docker", "compose", *(part for file in files for part in ("-f", file)), "config", "--format", "json"]
    done = subprocess.run(command, cwd=REPOSITORY, env={**plain, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]


@pytest.fixture(scope="module")
def services() -> Services:
    return resolved("compose.yaml")


@pytest.fixture(scope="module")
def with_gpu() -> Services:
    return resolved("compose.yaml", "compose.gpu.yaml")


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened_and_runs_what_the_launcher_thinks(services: Services, name: str):
    service, known = services[name], SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "1000:1000"
    assert service["init"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["pull_policy"] == "never"
    assert service["image"] == IMAGES[known.image].reference({})
    in_image = ["croma-bundle", "score"] if name == "score" else None
    assert (service.get("entrypoint") or in_image) == ["croma-bundle", *known.command]


def test_no_service_is_unknown_to_the_launcher(services: Services):
    assert set(services) == set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_network_and_token_are_the_fetching_services_alone(services: Services, name: str):
    service, fetches = services[name], SERVICES[name].fetches
    assert service["network_mode"] == ("bridge" if fetches else "none")
    assert [secret["source"] for secret in service.get("secrets", [])] == (["hf_token"] if fetches else [])
    assert "HF_TOKEN" not in (service.get("environment") or {})


@pytest.mark.parametrize("name", SERVICES)
def test_weights_are_written_by_one_service_and_read_only_elsewhere(services: Services, name: str):
    mounts = {mount["target"]: mount for mount in services[name]["volumes"]}
    wanted = SERVICES[name].weights
    assert ("/weights" in mounts) == (wanted != "none")
    if wanted != "none":
        assert mounts["/weights"].get("read_only", False) == (wanted == "read")
        assert mounts["/weights"]["source"] == str(REPOSITORY / "volume" / "weights")
    assert not any(mount["bind"].get("create_host_path") for mount in mounts.values())


def test_shared_memory_is_enlarged_for_what_embeds(services: Services):
    sizes = {name: int(service.get("shm_size", 0)) for name, service in services.items()}
    assert {name for name, size in sizes.items() if size == 1 << 30} == {n for n in SERVICES if n.startswith("embed-")}


def test_the_folders_follow_the_variables():
    env = {"CROMA_VOLUME": "/data/croma", "CROMA_TILES_ROOT": "/scans/tiles", "CROMA_UID": "7", "CROMA_GID": "8"}
    embed = resolved("compose.yaml", **env)["embed-waiv"]
    mounts = {mount["target"]: mount for mount in embed["volumes"]}
    assert mounts["/volume"]["source"] == "/data/croma"
    assert mounts["/weights"]["source"] == "/data/croma/weights"
    assert mounts["/scans/tiles"]["source"] == "/scans/tiles"
    assert mounts["/scans/tiles"]["read_only"] is True
    assert embed["user"] == "7:8"
    cache = resolved("compose.yaml", CROMA_WEIGHTS="/hub/cache", **env)["embed-waiv"]
    assert "/hub/cache" in {mount["source"] for mount in cache["volumes"]}


def test_a_token_in_the_environment_is_in_no_configuration():
    text = json.dumps(resolved("compose.yaml", "compose.gpu.yaml", HF_TOKEN=TOKEN, HUGGING_FACE_HUB_TOKEN=TOKEN))
    assert TOKEN not in text


def test_certificates_proxies_and_mirrors_reach_the_fetching_services_and_no_other():
    env = {"CROMA_CA_BUNDLE": "/etc/pki/ca.crt", "HTTPS_PROXY": "http://proxy.example:3128"}
    env |= {"PIP_INDEX_URL": "https://proxy.example/python"}
    services = resolved("compose.yaml", **env)
    for name in ("tiles", "weights"):
        assert services[name]["environment"]["SSL_CERT_FILE"] == "/etc/pki/ca.crt"
        assert services[name]["environment"]["HTTPS_PROXY"] == "http://proxy.example:3128"
        assert services[name]["environment"]["PIP_INDEX_URL"] == "https://proxy.example/python"
        assert "/etc/pki/ca.crt" in {mount["target"] for mount in services[name]["volumes"]}
    for name in set(SERVICES) - {"tiles", "weights"}:
        assert "proxy.example" not in json.dumps({k: v for k, v in services[name].items() if k != "build"})


# GPUs, unit-tested on the configuration


def test_the_gpu_file_reserves_gpus_for_the_families_that_use_them_and_changes_nothing_else(
    services: Services, with_gpu: Services
):
    assert {name for name in with_gpu if with_gpu[name].get("deploy")} == {n for n, s in SERVICES.items() if s.gpu}
    for name, service in with_gpu.items():
        plain = dict(service)
        reserved = plain.pop("deploy", None)
        environment = plain.get("environment")
        if SERVICES[name].gpu:
            (device,) = reserved["resources"]["reservations"]["devices"]
            assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
            assert device["count"] == -1, "all of them; --device cuda:N chooses"
            environment.pop("CUDA_VISIBLE_DEVICES")
        assert plain == services[name]


def test_without_the_gpu_file_nothing_asks_for_a_device(services: Services):
    assert not any(key in service for service in services.values() for key in ("deploy", "devices", "runtime", "gpus"))


def test_a_scheduler_s_choice_of_gpu_is_passed_on():
    services = resolved("compose.yaml", "compose.gpu.yaml", CUDA_VISIBLE_DEVICES="3")
    assert services["embed-waiv"]["environment"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in (services["score"].get("environment") or {})


def test_the_files_resolve_from_a_copy_alone(tmp_path: Path):
    """A machine that only runs images needs no checkout."""
    for name in ("compose.yaml", "compose.gpu.yaml"):
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    done = subprocess.run(["docker", "compose", "config", "--quiet"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
