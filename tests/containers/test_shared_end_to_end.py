"""A real encoder that needs no token, from the package index to its matrix: in the container, and in the family's venv.

The venv is the one that `RUNTIME=venv` makes in this checkout, `.venv-shared`: minutes where it is not there yet.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_checkout import REPOSITORY, Checkout

from croma_bundle.artifacts.contract import differences
from croma_bundle.errors import EnvironmentFault
from croma_bundle.launch.venv import find_python

pytestmark = pytest.mark.containers

TILESET, ENCODER = "hgsc-simulated", "EfficientNet-Lite0"
TILES, WIDTH = 3 * 294, 1280
"""294 tiles in three simulated centres."""
LAUNCH = ("--family", "shared", "--tileset", TILESET, "--encoders", ENCODER, "--device", "cpu")
MAY_DIFFER = {"environment", "bundle", "started", "finished", "matrix_sha256", "spread"}
"""Parts of a sidecar that tell where, when and with which last bits; all others are the identity of the matrix."""
TOLERANCE = 1e-5
"""Of a vector's length: one torch on one processor, whose threads may share sums in another way."""


@pytest.fixture(scope="module")
def image(steps: Checkout) -> Checkout:
    steps.build("IMAGES=shared")
    given = os.environ.get("CROMA_TEST_CA_BUNDLE")
    return steps.with_env(CROMA_CA_BUNDLE=given) if given else steps


@pytest.fixture(scope="module")
def in_the_container(image: Checkout, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The volume after `make embed`, and what was said."""
    volume = tmp_path_factory.mktemp("end to end") / "volume"
    asked = ("FAMILY=shared", f"TILESET={TILESET}", f"ENCODERS={ENCODER}", "DEVICE=cpu")
    done = image.run("make", "embed", "RUNTIME=docker", *asked, CROMA_VOLUME=volume)
    return volume, done.stdout + done.stderr


@pytest.fixture(scope="module")
def in_the_venv(in_the_container: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A volume with the same tiles and weights, embedded with RUNTIME=venv from this checkout."""
    try:
        find_python()
    except EnvironmentFault as fault:
        pytest.skip(fault.paragraph())
    theirs, volume = in_the_container[0], tmp_path_factory.mktemp("venv") / "volume"
    for folder in ("tilesets", "weights"):
        shutil.copytree(theirs / folder, volume / folder)
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(volume), "launch", "--runtime", "venv", "embed"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("CROMA_")}
    done = subprocess.run([*command, *LAUNCH], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "without network isolation" in done.stderr
    return volume


def artifact(volume: Path) -> tuple[np.ndarray, dict[str, Any]]:
    path = volume / "embeddings" / TILESET / f"{ENCODER}.npy"
    return np.load(path), json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))


def test_make_embed_fetches_tiles_and_weights_then_embeds_without_network(
    image: Checkout, in_the_container: tuple[Path, str]
) -> None:
    volume, said = in_the_container
    steps = [said.index(f"{step} in {image.images[of]}") for step, of in RUN]
    assert steps == sorted(steps)
    x, sidecar = artifact(volume)
    assert (x.shape, x.dtype) == ((TILES, WIDTH), np.float32)
    assert np.isfinite(x).all()
    assert len(np.unique(x, axis=0)) == TILES
    assert sidecar["environment"]["image"] == image.images["shared"]
    assert (sidecar["precision"], sidecar["checkpoint_revision"], sidecar["control"]) == ("float32", None, True)
    config = json.loads(image.run("docker", "compose", "config", "--format", "json", CROMA_VOLUME=volume).stdout)
    assert config["services"]["embed-shared"]["network_mode"] == "none"


RUN = (("tiles", "tiles"), ("weights", "tiles"), ("embed-shared", "shared"))
"""The steps in their order, each in whose image."""


def test_the_venv_s_matrix_is_the_container_s_within_tolerance(
    in_the_container: tuple[Path, str], in_the_venv: Path
) -> None:
    (ours, here), (theirs, there) = artifact(in_the_venv), artifact(in_the_container[0])
    apart = np.linalg.norm(ours.astype(np.float64) - theirs, axis=1) / np.linalg.norm(theirs.astype(np.float64), axis=1)
    assert apart.max() <= TOLERANCE
    assert {key for key in {*here, *there} if here.get(key) != there.get(key)} <= MAY_DIFFER
    assert differences(here["extraction_contract"], there["extraction_contract"]) == []
    assert "image" not in here["environment"] or here["environment"]["image"] is None


def test_what_is_there_is_not_fetched_again(image: Checkout, in_the_container: tuple[Path, str]) -> None:
    """Not even with a network that leads nowhere."""
    volume, _ = in_the_container
    done = image.launch("embed", *LAUNCH, CROMA_VOLUME=volume, CROMA_FETCH_NETWORK="none")
    assert f"{TILESET} · {ENCODER}: up to date, skipped" in done.stdout
    assert "weights in " not in done.stderr
