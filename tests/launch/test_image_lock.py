"""images.lock.toml: what it holds, what it refuses, and that a changed byte or a moved tag shows.

The engine is stood in for by an executable that knows two images; tests/containers push and pull for real.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path

import pytest
from fake_tools import Answer, fake_tool

from croma_bundle.errors import ManifestError, UsageError, VerdictFailed
from croma_bundle.launch.image_lock import (
    HEADER,
    OVERRIDE,
    compare,
    digest_word,
    lock_hashes,
    overridden,
    read_image_lock,
    verify_images,
    write_image_lock,
    write_override,
)
from croma_bundle.launch.images import ARCHITECTURES, BLACKWELL, BUILD, IMAGES
from croma_bundle.launch.steps import SERVICES
from croma_bundle.manifests.models import PublishedImage
from croma_bundle.progress import Reporter

REPOSITORY = Path(__file__).resolve().parents[2]
DIGEST, PUBLISHED_ID, OWN_ID = ("sha256:" + letter * 64 for letter in "dab")
REGISTRY = "registry.example/croma-bundle/score"


def entry(checkout: Path) -> PublishedImage:
    return PublishedImage(
        name="score",
        image=REGISTRY,
        tag="0.1.0",
        digest=DIGEST,
        image_id=PUBLISHED_ID,
        built_from="c" * 40,
        locks=lock_hashes(checkout, "score", {}),
    )


@pytest.fixture
def published(checkout: Path, tools: Path) -> PublishedImage:
    """The score image is published, and an engine that has nothing."""
    engine_has(tools)
    one = entry(checkout)
    write_image_lock(checkout, {"score": one})
    return one


def engine_has(tools: Path, **images: str) -> None:
    """`images` by reference; one pulled by digest has that in RepoDigests."""
    answers = [
        Answer(["inspect", reference], json.dumps([{"Id": image_id, "RepoDigests": [], "Config": {"Labels": {}}}]))
        for reference, image_id in images.items()
    ]
    fake_tool(tools, "docker", *answers, Answer(["inspect"], err="Error: No such image: x\n", code=1))


def test_what_is_written_is_read_back_and_is_toml(checkout: Path, published: PublishedImage):
    assert read_image_lock(checkout) == {"score": published}
    document = tomllib.loads((checkout / "manifests/images.lock.toml").read_text())
    lock = "images/score/requirements.lock"
    assert document["score"]["locks"][lock] == hashlib.sha256((checkout / lock).read_bytes()).hexdigest()
    assert "base_digest" not in document["score"], "what is unknown is not written"
    assert published.pinned == f"{REGISTRY}@{DIGEST}"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("digest", '"latest"', "digest"),
        ("image_id", f'"{"a" * 64}"', "image_id"),
        ("built_from", '"main"', "built_from"),
        ("digset", '"x"', "did you mean 'digest'"),
    ],
)
def test_what_floats_or_is_misspelt_is_refused(
    checkout: Path, published: PublishedImage, key: str, value: str, told: str
):
    path = checkout / "manifests/images.lock.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} =")]
    path.write_text("\n".join([*lines, f"{key} = {value}"]))
    with pytest.raises(ManifestError, match=told):
        read_image_lock(checkout)


def test_every_lock_file_that_is_named_exists():
    assert [
        lock
        for lock in {BUILD, *(lock for i in IMAGES.values() for lock in i.locks)}
        if not (REPOSITORY / lock).exists()
    ] == []


def test_the_committed_lock_can_be_read():
    assert set(read_image_lock(REPOSITORY)) <= set(IMAGES)


def test_every_lock_file_that_an_image_is_built_from_is_recorded(checkout: Path):
    assert list(lock_hashes(checkout, "waiv", {ARCHITECTURES: "sm_80 sm_90"})) == [
        "images/wheel/requirements.lock",
        "images/torch/requirements.lock",
        "images/waiv/requirements.lock",
    ]


def test_an_image_for_newer_gpus_stands_on_another_torch(checkout: Path):
    (checkout / BLACKWELL).write_text("# newer\n")
    hashes = lock_hashes(checkout, "waiv", {ARCHITECTURES: "sm_90 sm_100 sm_120"})
    assert list(hashes) == ["images/wheel/requirements.lock", BLACKWELL, "images/waiv/requirements.lock"]


def failed(checkout: Path) -> list[str]:
    return [finding.found for finding in compare(checkout) if not finding.holds]


@pytest.mark.parametrize("lock", ["images/score/requirements.lock", "images/wheel/requirements.lock"])
def test_one_byte_of_a_lock_file_changes_the_verdict(checkout: Path, published: PublishedImage, lock: str):
    assert failed(checkout) == []
    verify_images(Reporter())
    with (checkout / lock).open("ab") as handle:
        handle.write(b"\n")
    assert failed(checkout) == [f"it was built from other bytes than those of {lock}"]
    with pytest.raises(VerdictFailed, match=r"1 of 2 do not hold") as told:
        verify_images(Reporter())
    assert f"git checkout {lock}" in str(told.value)


def test_an_own_build_is_no_fault_but_no_published_one_either(checkout: Path, published: PublishedImage, tools: Path):
    engine_has(tools, **{"croma-bundle/score:0.1.0": OWN_ID})
    assert failed(checkout) == []
    assert any("a build of one's own" in finding.found for finding in compare(checkout))


def test_a_tag_that_was_moved_under_us_is_noticed(checkout: Path, published: PublishedImage, tools: Path):
    """Pulled: compose runs the digest, and the local tag was the same image."""
    write_override(checkout, {"score": published}, {"score": published.pinned})
    engine_has(tools, **{published.pinned: PUBLISHED_ID, "croma-bundle/score:0.1.0": PUBLISHED_ID})
    assert failed(checkout) == []
    engine_has(tools, **{published.pinned: PUBLISHED_ID, "croma-bundle/score:0.1.0": OWN_ID})
    (told,) = failed(checkout)
    assert OWN_ID in told
    assert DIGEST in told
    assert "the tag was moved" in told


def test_what_a_sidecar_records(published: PublishedImage):
    pulled = {"Id": OWN_ID, "RepoDigests": [f"elsewhere.example/score@{DIGEST}"]}
    loaded = {"Id": PUBLISHED_ID, "RepoDigests": []}
    built = {"Id": OWN_ID, "RepoDigests": [f"{REGISTRY}@sha256:{'e' * 64}"]}
    assert digest_word({"score": published}, "score", pulled) == DIGEST
    assert digest_word({"score": published}, "score", loaded) == DIGEST
    assert digest_word({"score": published}, "score", built) == f"unpublished, image id {OWN_ID}"
    assert digest_word({}, "score", pulled) == f"unpublished, image id {OWN_ID}"


def test_the_override_names_every_service_of_the_image(checkout: Path, published: PublishedImage):
    write_override(checkout, {"score": published}, {"score": published.pinned})
    text = (checkout / OVERRIDE).read_text()
    services = json.loads(text.removeprefix(HEADER))["services"]
    assert set(services) == {name for name, service in SERVICES.items() if service.image == "score"}
    assert {"score", "verify", "status", "list"} <= set(services)
    assert services["score"]["image"] == published.pinned
    assert services["score"]["pull_policy"] == "missing", "a digest may be pulled: it cannot be another image"
    assert overridden(checkout) == {"score": published.pinned}
    write_override(checkout, {"score": published}, {"score": "croma-bundle/score:0.1.0"})
    services = json.loads((checkout / OVERRIDE).read_text().removeprefix(HEADER))["services"]
    assert services["score"]["pull_policy"] == "never"


def test_a_compose_override_of_the_user_s_own_is_kept(checkout: Path, published: PublishedImage):
    (checkout / OVERRIDE).write_text("services: {}\n")
    with pytest.raises(UsageError, match="not of our making"):
        write_override(checkout, {"score": published}, {"score": published.pinned})
    assert (checkout / OVERRIDE).read_text() == "services: {}\n"
    assert overridden(checkout) == {}


def test_without_an_engine_the_files_are_still_compared(checkout: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/engine.sock")
    write_image_lock(checkout, {"score": entry(checkout)})
    assert [finding.holds for finding in compare(checkout)] == [True, True]
    assert any("was not looked for" in finding.found for finding in compare(checkout))
