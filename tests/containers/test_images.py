"""All images, against a real engine: what is in them, how small they are, and that they run with nothing but a /tmp.

No GPU is used: that torch was built for the GPUs its label names is read off its binaries.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from container_checkout import BUILT, COMMIT, REPOSITORY, Checkout
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from croma_bundle import __version__
from locks import FAMILIES, hashes, locks_of, pins

pytestmark = pytest.mark.containers

SBOM = "/opt/venv/share/croma-bundle/sbom.cdx.json"
MB = 1_000_000
IMPORTS = {
    "torch": ["torch", "torchvision", "numpy", "PIL", "pyarrow"],
    "score": ["numpy", "pydantic", "click", "croma_bundle.cli"],
    "tiles": ["huggingface_hub", "pyarrow.parquet", "PIL.Image", "skimage.feature", "sklearn.decomposition"],
    "shared": ["torch", "torchvision", "timm", "transformers.onnx", "einops", "einops_exts", "safetensors.torch"],
    "waiv": ["torch", "torchvision", "transformers", "safetensors.torch"],
    "rudolfv2": ["torch", "torchvision", "timm", "transformers", "safetensors.torch"],
}

ENVIRONMENT = """
import json, os, platform, sys
print(json.dumps({"python_full_version": platform.python_version(), "sys_platform": sys.platform, "os_name": os.name,
                  "python_version": "%d.%d" % sys.version_info[:2], "platform_machine": platform.machine(),
                  "platform_system": platform.system(), "implementation_name": sys.implementation.name,
                  "platform_python_implementation": platform.python_implementation()}))"""

INSTALLED = """
import json
from importlib.metadata import distributions
print(json.dumps({d.metadata["Name"].lower().replace("_", "-").replace(".", "-"): [d.version, d.requires or []]
                  for d in distributions()}))"""

UNCOMPILED = """
import ast, importlib.util, json, pathlib, sysconfig
def valid(path):
    try: ast.parse(path.read_bytes())
    except (SyntaxError, ValueError): return False
    return True
print(json.dumps([str(p) for p in pathlib.Path(sysconfig.get_path("purelib")).rglob("*.py")
                  if not pathlib.Path(importlib.util.cache_from_source(str(p))).exists() and valid(p)]))"""

WRITABLE = """
import json, os
found = []
for folder, _, _ in os.walk("/"):
    if not folder.startswith(("/proc", "/sys", "/dev")) and os.access(folder, os.W_OK):
        found.append(folder)
print(json.dumps(found))"""


def inside(images: Checkout, image: str, program: str) -> Any:
    """What a Python program prints as JSON where the image runs hardened."""
    return json.loads(images.hardened(image, "-c", program))


def locked(images: Checkout, image: str) -> dict[str, str]:
    """What the image's locks pin on its platform."""
    return pins(*locks_of(image), environment=inside(images, image, ENVIRONMENT))


# What is in them


@pytest.mark.parametrize("image", BUILT)
def test_it_holds_what_its_locks_say_and_nothing_else(every_image: Checkout, image: str) -> None:
    found = {name: version for name, (version, _) in inside(every_image, image, INSTALLED).items()}
    ours = {} if image == "torch" else {"croma-bundle": __version__}
    assert found == {**locked(every_image, image), **ours}


@pytest.mark.parametrize("image", BUILT)
def test_every_requirement_of_every_package_is_met(every_image: Checkout, image: str) -> None:
    environment = {**inside(every_image, image, ENVIRONMENT), "extra": ""}
    installed = inside(every_image, image, INSTALLED)
    for name, (_, requires) in installed.items():
        for wanted in map(Requirement, requires):
            if wanted.marker is None or wanted.marker.evaluate(environment):
                assert canonicalize_name(wanted.name) in installed, f"{name} requires {wanted}"
                assert wanted.specifier.contains(installed[canonicalize_name(wanted.name)][0]), f"{name}: {wanted}"


@pytest.mark.parametrize("image", BUILT)
def test_the_sbom_names_every_package_by_a_hash_of_its_lock(every_image: Checkout, image: str) -> None:
    sbom = json.loads(every_image.hardened(image, SBOM, entrypoint="cat"))
    assert sbom["metadata"]["component"]["name"] == f"croma-bundle/{image}"
    known = hashes(*locks_of(image))
    theirs = {each["name"]: each for each in sbom["components"] if each["name"] != "croma-bundle"}
    assert {name: each["version"] for name, each in theirs.items()} == locked(every_image, image)
    for name, each in theirs.items():
        (digest,) = each["hashes"]
        assert f"sha256:{digest['content']}" in known[name], name
        assert each["purl"] == f"pkg:pypi/{name}@{each['version']}"
    assert len(theirs) + (image != "torch") == len(sbom["components"])


@pytest.mark.parametrize("image", BUILT)
def test_every_module_is_compiled(every_image: Checkout, image: str) -> None:
    assert inside(every_image, image, UNCOMPILED) == []


@pytest.mark.parametrize("family", ["shared", "waiv", "rudolfv2", "tiles"])
def test_an_add_on_installed_again_is_the_same_set(every_image: Checkout, family: str, tmp_path: Path) -> None:
    """Nothing of the add-on comes from the cache: its lock got a comment. Torch's layer stays as it is."""
    root = shutil.copytree(every_image.root, tmp_path / "again")
    with (root / "images" / family / "requirements.lock").open("a", encoding="utf-8") as lock:
        lock.write(f"# {tmp_path}\n")
    again = f"{every_image.images[family]}-again"
    every_image.docker_build(family, again, root=root)
    try:
        boms = [
            every_image.run("docker", "run", "--rm", "--network=none", "--entrypoint=cat", image, SBOM).stdout
            for image in (every_image.images[family], again)
        ]
        assert boms[0] == boms[1]
    finally:
        every_image.run("docker", "image", "rm", again)


# Size


def test_sizes_are_told_and_small(every_image: Checkout) -> None:
    told = every_image.build().stdout
    sizes = {image: every_image.inspect(image)["Size"] for image in BUILT}
    for image, size in sizes.items():
        identity = every_image.inspect(image)["Id"]
        assert re.search(rf"^{every_image.images[image]} +{size / MB:.1f} MB  {identity}$", told, re.M), told
    print(*(f"{image} {size / MB:.1f} MB" for image, size in sizes.items()), sep="\n")
    assert sizes["score"] <= 700 * MB
    assert {family: sizes[family] - sizes["torch"] <= 700 * MB for family in FAMILIES} == dict.fromkeys(FAMILIES, True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_stands_on_the_one_layer_of_torch(every_image: Checkout, family: str) -> None:
    torch, own = (every_image.inspect(image)["RootFS"]["Layers"] for image in ("torch", family))
    sizes = every_image.run("docker", "history", "--human=false", "--format={{.Size}}", every_image.images["torch"])
    depth = sum(1 for _ in torch)
    assert max(map(int, sizes.stdout.split())) > 4_000 * MB, "torch is one layer"
    shared = [ours == theirs for ours, theirs in zip(own, torch, strict=False)]
    assert all(shared[: depth - 2]), "all but the last, empty ones"


# Labels and environment


@pytest.mark.parametrize("image", BUILT)
def test_labels_say_what_it_is(every_image: Checkout, image: str) -> None:
    config = every_image.inspect(image)["Config"]
    labels, prefix = config["Labels"], "org.opencontainers.image."
    assert labels[f"{prefix}title"] == f"croma-bundle {image}"
    assert labels[f"{prefix}version"] == __version__
    assert labels[f"{prefix}revision"] == COMMIT
    assert labels[f"{prefix}licenses"].startswith("Apache-2.0")
    assert f"{prefix}source" in labels
    lock = REPOSITORY / "images" / image / "requirements.lock"
    assert labels["croma-bundle.lock.sha256"] == hashlib.sha256(lock.read_bytes()).hexdigest()
    base, digest = labels[f"{prefix}base.name"], labels[f"{prefix}base.digest"]
    assert base == every_image.env.get("BASE_IMAGE", base)
    assert base.endswith(f"@{digest}") if "@" in base else digest == "unknown"


@pytest.mark.parametrize("image", BUILT)
def test_the_environment_leaves_nothing_to_a_home_and_tells_nobody(every_image: Checkout, image: str) -> None:
    config = every_image.inspect(image)["Config"]
    env = dict(item.split("=", 1) for item in config["Env"])
    assert (env["CROMA_IMAGE"], env["CROMA_GIT_COMMIT"]) == (every_image.images[image], COMMIT)
    assert (env["LANG"], env["HOME"], config["User"]) == ("C.UTF-8", "/tmp", "1000:1000")
    caches = ("XDG_CACHE_HOME", "MPLCONFIGDIR", "NUMBA_CACHE_DIR", "HF_HOME", "HF_MODULES_CACHE", "TORCH_HOME")
    caches += ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
    assert {name for name in caches if not env[name].startswith("/tmp/")} == set()
    assert (env["HF_HUB_DISABLE_TELEMETRY"], env["DO_NOT_TRACK"]) == ("1", "1")
    offline = image in ("torch", *FAMILIES)
    assert ("HF_HUB_OFFLINE" in env, "TRANSFORMERS_OFFLINE" in env) == (offline, offline)
    assert not {name for name in env if "TOKEN" in name or name.startswith("PIP_")}


@pytest.mark.parametrize("image", ["torch", *FAMILIES])
def test_its_cuda_code_is_for_the_gpus_its_label_names(every_image: Checkout, image: str) -> None:
    built = inside(every_image, image, "import json, torch; print(json.dumps(torch._C._cuda_getArchFlags()))")
    labels = every_image.inspect(image)["Config"]["Labels"]
    assert labels["croma-bundle.torch"] == "requirements"
    assert labels["croma-bundle.cuda.architectures"] == built
    assert {"sm_70", "sm_80", "sm_90"} <= set(built.split())


# Running


@pytest.mark.parametrize("image", BUILT)
def test_it_works_for_any_uid_with_nothing_but_a_tmp(every_image: Checkout, image: str) -> None:
    program = f"import importlib, json; [importlib.import_module(m) for m in {IMPORTS[image]}]; print(json.dumps('ok'))"
    assert inside(every_image, image, program) == "ok"
    assert [folder for folder in inside(every_image, image, WRITABLE) if not folder.startswith("/tmp")] == []


@pytest.mark.parametrize("image", [image for image in BUILT if image != "torch"])
def test_arguments_append_to_its_subcommand(every_image: Checkout, image: str) -> None:
    entry = every_image.inspect(image)["Config"]["Entrypoint"]
    assert entry[0] == "croma-bundle"
    told = every_image.hardened(image, *entry[1:], "--help", entrypoint=entry[0])
    assert told.startswith(f"Usage: croma-bundle {entry[1]} ")


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_become_arrays_that_can_be_saved(every_image: Checkout, family: str) -> None:
    program = """
import json, numpy, torch
layer = torch.nn.Linear(3, 2, bias=False)
torch.nn.init.constant_(layer.weight, 0.5)
with torch.inference_mode():
    numpy.save("/tmp/x.npy", layer(torch.tensor([[1.0, 2.0, 3.0]])).float().numpy())
saved = numpy.load("/tmp/x.npy")
print(json.dumps([saved.tolist(), str(saved.dtype), torch.cuda.is_available()]))"""
    assert inside(every_image, family, program) == [[[3.0, 3.0]], "float32", False]
