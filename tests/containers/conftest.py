"""A real engine, a checkout whose path has spaces, images built from it as docs/hospital-it.md says, and volumes."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_checkout import (
    BUILT,
    CA_MARKER,
    COMMIT,
    PIP_MARKER,
    Checkout,
    copy_repository,
    host_cli,
    tools_venv,
    trusted_certificates,
)


@pytest.fixture(scope="session")
def engine() -> None:
    done = subprocess.run(["docker", "info"], capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"no engine answers; leave these tests out with -m 'not containers'\n{done.stderr}", pytrace=False)


@pytest.fixture(scope="session")
def checkout(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """The repository, copied to a path with spaces, before anything is built."""
    root = tmp_path_factory.mktemp("a place") / "my checkout"
    copy_repository(root)
    secrets = tmp_path_factory.mktemp("secrets")
    ca_bundle, pip_conf = secrets / "ca bundle.crt", secrets / "pip.conf"
    ca_bundle.write_text(f"# {CA_MARKER}\n{trusted_certificates().read_text(encoding='utf-8')}", encoding="utf-8")
    pip_conf.write_text(f"# {PIP_MARKER}\n[global]\ntimeout = 60\n", encoding="utf-8")
    ca_bundle.chmod(0o600)

    name = f"croma-test-{uuid.uuid4().hex[:12]}"
    images = {image: f"{name}/{image}:test" for image in BUILT}
    env = {key: value for key, value in os.environ.items() if not key.startswith(("CROMA_", "MAKE", "MFLAGS"))}
    env |= {f"CROMA_{image.upper()}_IMAGE": reference for image, reference in images.items()}
    env |= {"COMPOSE_PROJECT_NAME": name, "CROMA_GIT_COMMIT": COMMIT}
    env |= {"VENV": str(tools_venv(tmp_path_factory.mktemp("tools") / "venv"))}
    if base := os.environ.get("CROMA_TEST_BASE_IMAGE"):
        env["BASE_IMAGE"] = base
    yield Checkout(root, images, ca_bundle, pip_conf, env)
    subprocess.run(["docker", "image", "rm", "--force", *images.values()], capture_output=True)


@pytest.fixture(scope="session")
def built(checkout: Checkout) -> Checkout:
    """The checkout with its scoring image built."""
    checkout.build("IMAGES=score")
    return checkout


@pytest.fixture(scope="session")
def every_image(checkout: Checkout) -> Checkout:
    """The checkout with all images built: torch once (about two minutes, 6 GB), then what stands on it."""
    checkout.build()
    return checkout


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A volume made on the host: a small phantom with its classical embeddings, not scored."""
    volume = tmp_path_factory.mktemp("host") / "volume"
    volume.mkdir()
    shape = ("--tile-size", "64", "--slides-per-cell", "2", "--tiles-per-slide", "6")
    host_cli(volume, "tiles", "phantom", "small", *shape)
    host_cli(volume, "tiles", "fetch", "small")
    host_cli(volume, "embed", "--family", "classical", "--tileset", "small")
    return volume


@pytest.fixture
def open_volume(embedded: Path, tmp_path: Path) -> Path:
    """A copy of `embedded` that every uid may write to."""
    copy = shutil.copytree(embedded, tmp_path / "volume")
    for folder in (copy, *(path for path in copy.rglob("*") if path.is_dir())):
        folder.chmod(0o777)
    return copy


@pytest.fixture(scope="session")
def no_volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty volume that every uid may read, for what only looks at the container."""
    folder = tmp_path_factory.mktemp("empty") / "volume"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture(scope="session")
def steps(checkout: Checkout) -> Checkout:
    """The checkout with the light images built: every step of the classical family."""
    checkout.build("IMAGES=score,tiles")
    return checkout
