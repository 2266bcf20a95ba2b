"""The weights folder: odd paths, an existing hub cache, read-only, full, busy, damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from hub_encoders import CONFIG, WEIGHTS, Bundle, declare, one_line, sha256

import croma_bundle
from croma_bundle.durable import lock
from croma_bundle.errors import ArtifactError, InputError
from croma_bundle.layout import Volume, WeightsFolder
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.weights.resolve import resolve
from loopback_hub import LoopbackHub

REPOSITORY = "owner/toy"


@pytest.fixture
def commit(hub) -> str:
    return hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, "config.json": CONFIG})


@pytest.fixture
def toy(volume, commit) -> str:
    """Toy, with the weights' hash pinned and the configuration's for the hub to state."""
    pins = {"model.safetensors": sha256(WEIGHTS), "config.json": None}
    declare(volume, "Toy", pins, repository=REPOSITORY, revision=commit)
    return "Toy"


def resolved(bundle: Bundle, folder: Path | None = None):
    entry = load_catalogue(bundle.volume).encoder("Toy")
    return resolve(WeightsFolder(folder) if folder else bundle.weights, entry)


# reading what was fetched


def test_what_was_fetched_is_resolved_with_hash_size_and_who_stated_it(bundle, toy, commit):
    bundle.fetch("Toy")
    weights, config = resolved(bundle)
    assert weights.as_recorded() == {
        "file": "model.safetensors",
        "sha256": sha256(WEIGHTS),
        "sha256_source": "manifest",
        "bytes": len(WEIGHTS),
    }
    assert config.sha256_source == f"hub@{commit}"
    assert config.path.read_bytes() == CONFIG


def test_resolving_needs_no_hub_client(bundle, toy):
    bundle.fetch("Toy")
    code = (
        "import sys; from pathlib import Path; from croma_bundle.layout import Volume, WeightsFolder; "
        "from croma_bundle.manifests.catalogue import load_catalogue; "
        "from croma_bundle.weights.resolve import resolve; v = Volume(Path(sys.argv[1])); "
        "print(len(resolve(WeightsFolder(v.weights), load_catalogue(v).encoder('Toy')))); "
        "assert not {'huggingface_hub', 'httpx2', 'requests'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(bundle.volume.root)], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


def test_a_flipped_byte_is_found_before_loading(bundle, toy, commit):
    bundle.fetch("Toy")
    (bundle.weights.snapshot(REPOSITORY, commit) / "model.safetensors").write_bytes(b"X" + WEIGHTS[1:])
    with pytest.raises(ArtifactError, match="its bytes are not those that were pinned") as told:
        resolved(bundle)
    assert told.value.then == "croma-bundle weights --encoders Toy --verify"


def test_what_was_never_fetched_names_the_command_for_every_file(bundle, toy):
    with pytest.raises(Exception, match="there is no weights folder") as told:
        resolved(bundle)
    assert str(told.value).count("make weights FAMILY=private ENCODERS=Toy") == 2


def test_a_cache_copied_without_its_blobs_is_told(bundle, toy, commit):
    bundle.fetch("Toy")
    bundle.weights.blob(REPOSITORY, sha256(WEIGHTS)).unlink()
    with pytest.raises(InputError, match="link target missing"):
        resolved(bundle)
    bundle.fetch("Toy")
    assert len(resolved(bundle)) == 2


def test_a_damaged_record_is_told(bundle, toy):
    bundle.fetch("Toy")
    bundle.weights.record.write_text('{"files": [{"encoder": ')
    with pytest.raises(ArtifactError, match="it is damaged"):
        resolved(bundle)
    assert "weights.lock.json: it is damaged" in bundle.fetch("Toy", exits=5).stderr


# a cache that another program filled


@pytest.fixture
def cache(hub, commit, tmp_path, monkeypatch) -> Path:
    """A hub cache that the hub's own client filled with Toy's files."""
    folder = tmp_path / "their cache"
    environment = hub.environment(tmp_path / "their home")
    code = (
        "import sys, huggingface_hub as h; repository, commit, folder, *files = sys.argv[1:]; "
        "[h.hf_hub_download(repository, file, revision=commit, cache_dir=folder) for file in files]"
    )
    subprocess.run(
        [sys.executable, "-c", code, REPOSITORY, commit, str(folder), "model.safetensors", "config.json"],
        env=environment,
        check=True,
        capture_output=True,
    )
    return folder


def test_an_existing_hub_cache_is_verified_without_a_download(bundle, hub, toy, cache):
    hub.requests.clear()
    done = bundle.run("weights", "--encoders", "Toy", "--weights", cache)
    assert "Toy: verified, was there" in done.stdout
    assert not hub.received("GET", "/resolve/")
    assert len(resolved(bundle, cache)) == 2


def test_an_existing_cache_is_named_by_the_environment_too(bundle, toy, cache):
    done = bundle.fetch("Toy", env={"CROMA_WEIGHTS": str(cache)})
    assert "verified, was there" in done.stdout
    assert not (bundle.volume.root / "weights").exists()


def test_a_file_whose_hash_nobody_stated_is_not_loaded(bundle, toy, cache):
    with pytest.raises(InputError, match="nobody has stated its sha256") as told:
        resolved(bundle, cache)
    assert "config.json" in told.value.subject
    assert "make weights FAMILY=private ENCODERS=Toy" in told.value.then


def test_pins_alone_suffice_for_a_cache_without_a_record(bundle, volume, commit, cache):
    pins = {"model.safetensors": sha256(WEIGHTS), "config.json": sha256(CONFIG)}
    declare(volume, "Toy", pins, repository=REPOSITORY, revision=commit)
    assert [file.sha256_source for file in resolved(bundle, cache)] == ["manifest", "manifest"]


# a private checkpoint


def test_own_files_are_checked_where_they_lie(bundle, hub, volume):
    declare(volume, "Mine", {"model.safetensors": sha256(WEIGHTS)})
    path = bundle.weights.local("Mine") / "model.safetensors"
    said = one_line(bundle.fetch("Mine", exits=3).stderr)
    assert f"encoder Mine, model.safetensors: it is not there wanted {path}" in said
    path.parent.mkdir()
    path.write_bytes(WEIGHTS)
    assert "Mine: verified, was there" in bundle.fetch("Mine").stdout
    assert [file.path for file in resolve(bundle.weights, load_catalogue(volume).encoder("Mine"))] == [path]
    path.write_bytes(WEIGHTS + b"2")
    said = bundle.fetch("Mine", exits=3).stderr
    assert "its bytes are not those that were pinned" in said
    wanted = f"wanted sha256 {sha256(WEIGHTS)} (manifest) found sha256 {sha256(WEIGHTS + b'2')} ({path})"
    assert f"{wanted} declared {volume.encoder_declarations}" in one_line(said)
    assert path.exists(), "nobody's own file is ever removed"
    assert hub.requests == []


def test_an_own_file_without_a_hash_is_refused(bundle, volume):
    declare(volume, "Mine", ["model.safetensors"])
    assert "a file of your own needs its sha256" in bundle.fetch("Mine", exits=3).stderr


def test_a_pin_that_the_hub_contradicts_costs_nobody_a_file(bundle, volume, commit, cache):
    declare(volume, "Toy", {"model.safetensors": "ab" * 32}, repository=REPOSITORY, revision=commit)
    said = bundle.run("weights", "--encoders", "Toy", "--weights", cache, exits=3).stderr
    assert "the hub has another file than is pinned" in said
    assert (WeightsFolder(cache).snapshot(REPOSITORY, commit) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_damaged_file_stays_where_the_hub_cannot_be_reached(bundle, toy, commit):
    bundle.fetch("Toy")
    path = bundle.weights.snapshot(REPOSITORY, commit) / "model.safetensors"
    path.write_bytes(b"X" + WEIGHTS[1:])
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    done = bundle.run("weights", "--encoders", "Toy", "--verify", exits=4, env=nowhere)
    assert f"warning: Toy, model.safetensors: its sha256 is {sha256(path.read_bytes())}" in done.stderr
    assert path.exists()


# folders that are difficult


def test_spaces_and_other_scripts_in_the_path(hub, tmp_path, commit):
    root = tmp_path / "Klinik für Pathologie" / "重み ☂"
    root.mkdir(parents=True)
    bundle = Bundle(Volume(root), hub, tmp_path / "hömé dir")
    declare(bundle.volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    assert "Toy: fetched" in bundle.fetch("Toy").stdout
    assert len(resolved(bundle)) == 1


def test_a_folder_that_another_run_fetches_into_is_left_to_it(bundle, toy):
    bundle.weights.root.mkdir()
    with lock(bundle.weights.lock, "another"):
        said = bundle.fetch("Toy", exits=4).stderr
    assert f"error: weights {bundle.weights.root}: another run is at work on it" in said


def test_a_disk_without_room_is_told_before_the_download(bundle, hub, toy):
    hub.claimed[REPOSITORY, "model.safetensors"] = 10**17
    said = one_line(bundle.fetch("Toy", exits=4).stderr)
    assert "there is no room for Toy" in said
    assert f"wanted {10**17 + len(CONFIG) + (64 << 20):,} bytes" in said
    assert not hub.received("GET", "/resolve/")


def test_a_file_where_the_folder_should_be_is_told(bundle, toy):
    bundle.weights.root.write_text("x")
    assert f"error: weights {bundle.weights.root}: it is a file" in bundle.fetch("Toy", exits=4).stderr


# somebody else's folder


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter (pytest's own are private)."""
    folder = Path(tempfile.mkdtemp(prefix="croma-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def owned(hub, public, commit) -> Bundle:
    """A volume of root's in a folder that all may enter; Toy's weights are fetched into it."""
    (public / "volume").mkdir()
    bundle = Bundle(Volume(public / "volume"), hub, public / "home")
    pins = {"model.safetensors": sha256(WEIGHTS), "config.json": sha256(CONFIG)}
    declare(bundle.volume, "Toy", pins, repository=REPOSITORY, revision=commit)
    bundle.fetch("Toy")
    return bundle


def as_stranger(bundle: Bundle, *arguments: str) -> subprocess.CompletedProcess[str]:
    if os.getuid() or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv to become another user")
    identity = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
    source = str(Path(croma_bundle.__file__).parents[1])
    environment = {**bundle.hub.environment(bundle.home), "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*identity, *bundle.command(*arguments)], capture_output=True, text=True, env=environment, timeout=60
    )


def test_a_read_only_folder_that_holds_all_is_enough(owned, hub):
    owned.weights.record.unlink()
    hub.requests.clear()
    done = as_stranger(owned, "weights", "--encoders", "Toy")
    assert done.returncode == 0, done.stderr
    assert "Toy: verified, was there" in done.stdout
    assert hub.requests == []
    assert not owned.weights.record.exists()


def test_a_read_only_folder_that_lacks_a_file_says_so(owned, commit):
    (owned.weights.snapshot(REPOSITORY, commit) / "config.json").unlink()
    done = as_stranger(owned, "weights", "--encoders", "Toy")
    assert done.returncode == 4, done.stderr
    assert "it cannot be written to (no write permission), and Toy lacks config.json" in done.stderr
    assert "CROMA_WEIGHTS=DIR make weights" in done.stderr


def test_the_record_is_json_that_another_program_can_read(bundle, toy):
    bundle.fetch("Toy")
    document = json.loads(bundle.weights.record.read_text("utf-8"))
    assert document["schema"] == 1
    assert {row["file"] for row in document["files"]} == {"model.safetensors", "config.json"}
    assert huggingface_hub.scan_cache_dir(bundle.weights.root).size_on_disk == len(WEIGHTS) + len(CONFIG)


def test_the_hub_is_told_apart_from_the_machine(hub: LoopbackHub, bundle, toy, commit):
    """A folder that refuses a file is the machine's fault, told with the file's name."""
    blobs = bundle.weights.blob(REPOSITORY, "x").parent
    blobs.parent.mkdir(parents=True)
    blobs.write_text("in the way")
    said = bundle.fetch("Toy", exits=4).stderr
    assert f"error: {blobs}: the machine refused" in said
