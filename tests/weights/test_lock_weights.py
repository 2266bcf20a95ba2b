"""`lock-weights`: what entries leave open, asked of the hub once, written to a generated file, and read from it."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from hub_encoders import CONFIG, WEIGHTS, declare, one_line, sha256

from croma_bundle.errors import ManifestError
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue, packaged_manifests
from croma_bundle.weights.wanted import wanted_files
from loopback_hub import Wrong

REPOSITORY = "owner/toy"


@pytest.fixture
def lock(tmp_path) -> Path:
    """weights.lock.toml in a copy of the manifests."""
    folder = tmp_path / "manifests"
    shutil.copytree(packaged_manifests(), folder, ignore=shutil.ignore_patterns("weights.lock.toml"))
    return folder / "weights.lock.toml"


@pytest.fixture
def commit(hub) -> str:
    return hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, "model.bin": b"pickle", "config.json": CONFIG})


def entry(volume: Volume, lock: Path, name: str = "Toy"):
    return load_catalogue(volume, lock.parent).encoder(name)


def resolve_all(bundle, lock, *options, **how):
    """Lock what the test declared; the packaged encoders' repositories are not on this hub."""
    own = ",".join(sorted(path.stem for path in bundle.volume.encoder_declarations.iterdir()))
    return bundle.run("lock-weights", "--encoders", own, "--output", lock, *options, **how)


def test_an_open_revision_becomes_the_newest_commit_with_the_hashes_it_states(bundle, volume, commit, lock):
    declare(volume, "Toy", ["model.safetensors", "config.json"], repository=REPOSITORY)
    done = resolve_all(bundle, lock)
    assert f"Toy: revision, sha256 at {REPOSITORY}@{commit}" in done.stdout
    table = tomllib.loads(lock.read_text("utf-8"))["Toy"]
    assert table.pop("resolved")[:3] == "202"
    assert table == {
        "repository": REPOSITORY,
        "revision": commit,
        "files": {
            "model.safetensors": {"sha256": sha256(WEIGHTS), "bytes": len(WEIGHTS)},
            "config.json": {"sha256": sha256(CONFIG), "bytes": len(CONFIG)},
        },
        "transform": {},
    }


def test_large_files_are_not_downloaded_for_it(bundle, hub, volume, commit, lock):
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    resolve_all(bundle, lock)
    assert not hub.received("GET", "model.safetensors")


def test_the_catalogue_fills_nulls_from_it_and_the_weights_step_takes_them(bundle, volume, commit, lock):
    declare(volume, "Toy", ["model.bin", "config.json"], repository=REPOSITORY)
    resolve_all(bundle, lock)
    toy = entry(volume, lock)
    assert (toy.revision, toy.pinned) == (commit, True)
    pickle, _ = wanted_files(toy)
    assert (pickle.sha256, pickle.sha256_source) == (sha256(b"pickle"), f"hub@{commit}")
    assert load_catalogue(volume, lock.parent, locked=False).encoder("Toy").revision is None


def test_what_is_pinned_by_hand_is_neither_asked_nor_repeated(bundle, hub, volume, commit, lock):
    declare(volume, "Toy", {"model.safetensors": sha256(WEIGHTS)}, repository=REPOSITORY, revision=commit)
    resolve_all(bundle, lock)
    assert hub.requests == []
    assert not lock.exists()


def test_hand_written_files_stay_as_they_are(bundle, volume, commit, lock):
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY)
    before = {path: path.read_bytes() for path in [*lock.parent.rglob("*.toml"), *volume.root.rglob("*.toml")]}
    resolve_all(bundle, lock)
    assert {path: path.read_bytes() for path in before} == before


def test_what_was_locked_stays_when_the_repository_moves_on_unless_asked_again(bundle, hub, volume, commit, lock):
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY)
    resolve_all(bundle, lock)
    text = lock.read_text("utf-8")
    newer = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS + b"2"})
    assert "holds all that is open" in resolve_all(bundle, lock).stderr
    assert lock.read_text("utf-8") == text
    resolve_all(bundle, lock, "--again")
    assert tomllib.loads(lock.read_text("utf-8"))["Toy"]["revision"] == newer


def test_an_entry_pinned_otherwise_since_is_refused_with_both_sides(bundle, hub, volume, commit, lock):
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY)
    resolve_all(bundle, lock)
    declare(volume, "Toy", {"model.safetensors": "ab" * 32}, repository=REPOSITORY)
    with pytest.raises(ManifestError) as told:
        entry(volume, lock)
    assert "its sha256 of model.safetensors is not that of weights.lock.toml" in str(told.value)
    assert f"wanted   {'ab' * 32} (its entry)" in str(told.value)
    assert f"found    {sha256(WEIGHTS)} (weights.lock.toml)" in str(told.value)


def test_another_revision_in_the_entry_is_resolved_anew(bundle, hub, volume, commit, lock):
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    resolve_all(bundle, lock)
    newer = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS + b"2"})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=newer)
    with pytest.raises(ManifestError, match="its revision is not that of"):
        entry(volume, lock)
    resolve_all(bundle, lock)
    assert wanted_files(entry(volume, lock))[0].sha256 == sha256(WEIGHTS + b"2")


def test_a_gated_repository_states_its_hashes_to_everybody_but_not_its_small_files(bundle, hub, volume, lock):
    commit = hub.commit("owner/gated", {"model.safetensors": WEIGHTS, "config.json": CONFIG}, gated=True)
    declare(volume, "Open", ["model.safetensors"], repository="owner/gated", revision=commit)
    declare(volume, "Shut", ["config.json"], repository="owner/gated", revision=commit)
    said = one_line(resolve_all(bundle, lock, exits=4).stderr)
    assert f"warning: owner/gated@{commit[:12]}: config.json was not read" in said
    assert "owner/gated: access to it is granted by its owners" in said
    assert set(tomllib.loads(lock.read_text("utf-8"))) == {"Open"}


TIMM = {
    "architecture": "vit_small_patch16_224",
    "pretrained_cfg": {"interpolation": "bicubic", "crop_pct": 0.9, "mean": [0.485, 0.456, 0.406], "crop_mode": None},
}
PROCESSOR = {"do_resize": True, "size": {"shortest_edge": 224, "height": None}, "resample": 3, "processor_class": "X"}


def test_how_images_are_prepared_is_taken_over_in_the_repository_s_words(bundle, hub, volume, lock):
    files = {"config.json": json.dumps(TIMM).encode(), "preprocessor_config.json": json.dumps(PROCESSOR).encode()}
    hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, **files})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY)
    resolve_all(bundle, lock)
    assert tomllib.loads(lock.read_text("utf-8"))["Toy"]["transform"] == {
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "mean": [0.485, 0.456, 0.406],
        "do_resize": True,
        "size": {"shortest_edge": 224},
        "resample": 3,
    }


@pytest.mark.parametrize("text", [b"[1, 2]", b'{"pretrained_cfg": 3}', b"{}"])
def test_a_configuration_that_says_nothing_of_images_leaves_the_transform_empty(bundle, hub, volume, lock, text):
    hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, "config.json": text})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY)
    resolve_all(bundle, lock)
    assert tomllib.loads(lock.read_text("utf-8"))["Toy"]["transform"] == {}


def test_a_configuration_that_is_not_json_is_told(bundle, hub, volume, lock):
    hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, "config.json": b"{interpolation: bicubic}"})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY)
    assert "config.json: it is not JSON" in resolve_all(bundle, lock, exits=3).stderr


def test_a_small_file_that_is_not_what_the_hub_states_is_not_locked(bundle, hub, volume, commit, lock):
    declare(volume, "Toy", ["config.json"], repository=REPOSITORY, revision=commit)
    hub.fault(REPOSITORY, "config.json", Wrong(b"z" * len(CONFIG)))
    assert "what was read is not what the hub states" in resolve_all(bundle, lock, exits=3).stderr


def test_a_name_with_a_dot_or_a_recipe_is_written_and_read_back(bundle, volume, commit, lock):
    for name in ("Mine-v1.5", "Mine@croma-0.3.0", "Mine-B"):
        declare(volume, name, ["model.safetensors"], repository=REPOSITORY)
    resolve_all(bundle, lock)
    assert set(tomllib.loads(lock.read_text("utf-8"))) == {"Mine-v1.5", "Mine@croma-0.3.0", "Mine-B"}
    assert entry(volume, lock, "Mine-v1.5").revision == commit


def test_a_damaged_lock_is_told_with_file_and_key(volume, lock):
    lock.write_text('[Toy]\nrepository = "owner/toy"\nrevision = "main"\nresolved = "2026-01-01"\n')
    with pytest.raises(ManifestError, match=r"weights\.lock\.toml"):
        load_catalogue(volume, lock.parent)


def test_a_lock_that_cannot_be_written_is_told(bundle, volume, commit, tmp_path):
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY)
    (tmp_path / "file").write_text("x")
    said = bundle.run(
        "lock-weights", "--encoders", "Toy", "--output", tmp_path / "file" / "weights.lock.toml", exits=4
    ).stderr
    assert "it cannot be written" in said


def test_json_events_name_the_commit(bundle, volume, commit, lock):
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY)
    done = bundle.run("--json", "lock-weights", "--encoders", "Toy", "--output", lock)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["revision"] for event in events if event["event"] == "locked"] == [commit]
