"""push, pull, save and load against a real registry: what runs afterwards is exactly what was pushed.

CROMA_TEST_REGISTRY names a registry that takes pushes without asking, such as one on loopback.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_checkout import COMMIT, Checkout

pytestmark = pytest.mark.containers

LOCK = "manifests/images.lock.toml"
OVERRIDE = "compose.override.yaml"


@pytest.fixture(scope="session")
def registry() -> str:
    """A path of its own in the registry."""
    found = os.environ.get("CROMA_TEST_REGISTRY")
    if not found:
        pytest.skip("no registry: CROMA_TEST_REGISTRY names one that takes pushes, as host:port")
    return f"{found}/test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def pushed(steps: Checkout, registry: str, tmp_path: Path) -> Iterator[Checkout]:
    """A checkout whose score and tiles images were pushed, with what that wrote."""
    root = shutil.copytree(steps.root, tmp_path / "site", ignore=shutil.ignore_patterns("volume", "other volume"))
    site = steps.at(root)
    site.run("make", "push", f"REGISTRY={registry}", "IMAGES=score,tiles")
    yield site
    for name in ("score", "tiles"):
        site.run("docker", "image", "rm", "--force", entries(site)[name]["image"] + ":0.1.0", exits=None)
        site.run("docker", "image", "rm", "--force", pinned(site, name), exits=None)
    steps.build("IMAGES=score,tiles")  # the tags of the other tests


def entries(site: Checkout) -> dict[str, dict[str, str]]:
    return tomllib.loads((site.root / LOCK).read_text(encoding="utf-8"))


def pinned(site: Checkout, name: str) -> str:
    entry = entries(site)[name]
    return f"{entry['image']}@{entry['digest']}"


def delete_local(site: Checkout, *names: str) -> None:
    """Every name of the images, so that the engine has them no more."""
    for name in names:
        for reference in (site.images[name], f"{entries(site)[name]['image']}:0.1.0", pinned(site, name)):
            site.run("docker", "image", "rm", "--force", reference, exits=None)
        assert site.run("docker", "image", "inspect", site.images[name], exits=None).returncode != 0


def verdict(site: Checkout, *, exits: int) -> str:
    done = site.run(f"{site.env['VENV']}/bin/croma-bundle", "verify", "images", exits=exits)
    return done.stdout + done.stderr


def test_the_lock_holds_what_the_registry_has(pushed: Checkout) -> None:
    found = entries(pushed)
    assert set(found) == {"score", "tiles"}
    for name, entry in found.items():
        lock = f"images/{name}/requirements.lock"
        assert entry["built_from"] == COMMIT
        assert entry["locks"][lock] == hashlib.sha256((pushed.root / lock).read_bytes()).hexdigest()
        assert entry["image_id"] == pushed.inspect(name)["Id"]
        assert pinned(pushed, name) in pushed.inspect(name)["RepoDigests"]
    assert "base_digest" not in found["score"] or found["score"]["base_digest"].startswith("sha256:")
    verdict(pushed, exits=0)


def test_pushed_deleted_and_pulled_by_digest_it_runs_as_that(pushed: Checkout, open_volume: Path) -> None:
    delete_local(pushed, "score", "tiles")
    pushed.run("make", "pull")
    assert "published" in verdict(pushed, exits=0)
    done = pushed.compose("score", "--protocol", "median-k", volume=open_volume)
    assert "written to metrics/median-k/small" in done.stdout
    running = json.loads(pushed.run("docker", "compose", "config", "--format", "json").stdout)["services"]
    assert running["score"]["image"] == running["verify"]["image"] == pinned(pushed, "score")

    embed = ("--tileset", "small", "--encoders", "Thumbnail", "--force")
    for folder in open_volume.rglob("*"):
        folder.chmod(0o777 if folder.is_dir() else 0o666)
    pushed.compose("embed-classical", *embed, volume=open_volume)
    bare = json.loads((open_volume / "embeddings/small/Thumbnail.npy.json").read_text())["environment"]
    pushed.launch("embed", *embed, CROMA_VOLUME=open_volume, CROMA_UID="12345", CROMA_GID="12345")
    launched = json.loads((open_volume / "embeddings/small/Thumbnail.npy.json").read_text())["environment"]
    for environment in (bare, launched):
        assert environment["image"] == pinned(pushed, "tiles")
        assert environment["image_digest"] == entries(pushed)["tiles"]["digest"]


def test_one_byte_of_a_lock_changes_the_verdict(pushed: Checkout) -> None:
    with (pushed.root / "images/score/requirements.lock").open("ab") as handle:
        handle.write(b"\n")
    told = verdict(pushed, exits=1)
    assert "FAILED   image score: it was built from other bytes than those of images/score/requirements.lock" in told
    assert "image tiles: built from the locks that lie here" in told
    done = pushed.run("make", "push", "REGISTRY=127.0.0.1:9", "IMAGES=score", exits=2)
    assert "it was not built from images/score/requirements.lock as that lies here" in done.stderr


def test_a_tag_that_moves_here_or_there_changes_nothing_that_runs_and_is_told(pushed: Checkout) -> None:
    pushed.run("make", "pull")
    before = entries(pushed)["score"]
    pushed.run("docker", "tag", pushed.images["tiles"], pushed.images["score"])
    assert "the tag was moved, or built again" in verdict(pushed, exits=1)
    moved = f"{before['image']}:{before['tag']}"
    pushed.run("docker", "tag", pushed.images["tiles"], moved)
    pushed.run("docker", "push", moved)
    pushed.run("make", "pull")
    verdict(pushed, exits=0)
    assert pushed.inspect("score")["Id"] == before["image_id"], "pulled by digest, whatever the tag says"


def test_saved_and_loaded_without_a_registry_it_is_known_to_be_the_published(
    pushed: Checkout, open_volume: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "to the ward.tar"
    said = pushed.run("make", "save", f"FILE={archive}", "IMAGES=score").stdout
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in said
    delete_local(pushed, "score")
    said = pushed.run("make", "load", f"FILE={archive}").stdout
    assert f"the published {entries(pushed)['score']['digest']}" in said
    verdict(pushed, exits=0)
    running = json.loads(pushed.run("docker", "compose", "config", "--format", "json").stdout)["services"]["score"]
    assert (running["image"], running["pull_policy"]) == (pushed.images["score"], "never")
    pushed.compose("score", "--protocol", "median-k", volume=open_volume)


def test_what_names_no_commit_is_not_pushed(steps: Checkout, registry: str) -> None:
    """The label of a checkout with changes ends in -dirty; nothing is pushed and no lock is written."""
    image = f"{steps.images['score']}-dirty"
    label = "--label=org.opencontainers.image.revision=" + "a" * 40 + "-dirty"
    steps.run("docker", "build", label, f"--tag={image}", "-", stdin=f"FROM {steps.images['score']}\n")
    try:
        push = ("make", "push", f"REGISTRY={registry}", "IMAGES=score")
        done = steps.run(*push, exits=2, CROMA_SCORE_IMAGE=image)
        assert "it names no commit" in done.stderr
        assert entries(steps) == {}
    finally:
        steps.run("docker", "image", "rm", image)


def test_pull_without_a_lock_and_push_without_a_registry_say_what_to_do(steps: Checkout) -> None:
    assert "no image is published" in steps.run("make", "pull", exits=2).stderr
    assert "REGISTRY=" in steps.run("make", "push", exits=2).stderr
    done = steps.run("make", "load", "FILE=nothing.tar", exits=2)
    assert "nothing.tar: it is no archive of images" in done.stderr
