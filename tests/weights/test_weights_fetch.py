"""`croma-bundle weights` against a real hub on loopback: what is fetched, where it lies, whether it is right."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import huggingface_hub
import pytest
from hub_encoders import CONFIG, WEIGHTS, Bundle, declare, noise, one_line, sha256

from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.weights.resolve import resolve
from loopback_hub import Cut, IgnoreRange, Slow, Stall, Status, Wrong

REPOSITORY = "owner/toy"
CHUNK = 10 << 20
"""What the client reads before it writes."""
LARGE = CHUNK * 2 + 4000


def test_files_lie_where_the_hub_s_own_client_looks_for_them(bundle, hub, volume):
    commit = hub.commit(
        REPOSITORY, {"model.safetensors": WEIGHTS, "sub/config.json": CONFIG, "README.md": b"not wanted"}
    )
    declare(volume, "Toy", ["model.safetensors", "sub/config.json"], repository=REPOSITORY, revision=commit)
    bundle.fetch("Toy")
    folder = volume.root / "weights"
    for name, content in (("model.safetensors", WEIGHTS), ("sub/config.json", CONFIG)):
        found = huggingface_hub.hf_hub_download(
            REPOSITORY, name, revision=commit, cache_dir=folder, local_files_only=True
        )
        assert Path(found).read_bytes() == content
    link = folder / "models--owner--toy" / "snapshots" / commit / "model.safetensors"
    assert str(link.readlink()) == f"../../blobs/{sha256(WEIGHTS)}"
    assert not (link.parent / "README.md").exists()
    assert not hub.received("GET", "README.md")


def test_the_record_says_who_stated_each_hash(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, "config.json": CONFIG})
    pins = {"model.safetensors": sha256(WEIGHTS), "config.json": None}
    declare(volume, "Toy", pins, repository=REPOSITORY, revision=commit)
    bundle.fetch("Toy")
    weights, config = bundle.record()["Toy", "model.safetensors"], bundle.record()["Toy", "config.json"]
    assert weights.pop("fetched_at")[:2] == "20"
    assert weights == {
        "encoder": "Toy",
        "repository": REPOSITORY,
        "revision": commit,
        "file": "model.safetensors",
        "sha256": sha256(WEIGHTS),
        "sha256_source": "manifest",
        "bytes": len(WEIGHTS),
    }
    assert (config["sha256"], config["sha256_source"]) == (sha256(CONFIG), f"hub@{commit}")


def test_a_second_run_asks_the_hub_nothing(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    assert "Toy: fetched, 1 files, 23 bytes" in bundle.fetch("Toy").stdout
    hub.requests.clear()
    done = bundle.fetch("Toy")
    assert hub.requests == []
    assert done.stdout == "Toy: up to date, skipped, 1 files, 23 bytes\n"
    assert "weights: 0 ok, 1 skipped, 0 failed" in done.stderr


def test_the_hub_is_asked_for_the_commit_and_its_files_and_for_nothing_more(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    bundle.fetch("Toy")
    assert [f"{request.method} {request.path}" for request in hub.requests] == [
        f"GET /api/models/{REPOSITORY}/revision/{commit}",
        f"GET /{REPOSITORY}/resolve/{commit}/model.safetensors",
        f"GET /cdn/model/{REPOSITORY}/{commit}/model.safetensors",
    ]


def test_a_second_recipe_of_the_same_checkpoint_downloads_nothing(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS})
    for name in ("Toy", "Toy2"):
        declare(volume, name, ["model.safetensors"], repository=REPOSITORY, revision=commit)
    bundle.fetch("Toy")
    hub.requests.clear()
    assert "Toy2: verified, was there" in bundle.fetch("Toy2").stdout
    assert hub.requests == []
    assert bundle.record()["Toy2", "model.safetensors"]["sha256_source"] == f"hub@{commit}"


def test_a_family_is_fetched_whole_and_an_encoder_without_weights_needs_none(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    declare(volume, "Bare", [])
    done = bundle.run("weights", "--family", "private")
    assert done.stdout == "Bare: needs none\nToy: fetched, 1 files, 23 bytes\n"
    assert bundle.run("weights", "--family", "classical").stdout.count("needs none") == 4


def test_the_redirect_of_a_large_file_never_carries_the_token(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, "config.json": CONFIG}, gated=True)
    hub.grant("hf_secret", REPOSITORY)
    declare(volume, "Toy", ["model.safetensors", "config.json"], repository=REPOSITORY, revision=commit)
    bundle.fetch("Toy", token="hf_secret")
    assert {request.token for request in hub.received("GET", "/resolve/")} == {"hf_secret"}
    assert [request.token for request in hub.received("GET", "/cdn/")] == [None]


def test_code_may_come_from_a_commit_of_another_repository(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, "modeling.py": b"print('old')"})
    code = hub.commit("owner/code", {"modeling.py": b"print('new')"})
    declare(
        volume,
        "Toy",
        ["model.safetensors", "modeling.py"],
        repository=REPOSITORY,
        revision=commit,
        code_repository="owner/code",
        code_revision=code,
    )
    bundle.fetch("Toy")
    weights, modeling = resolve(bundle.weights, load_catalogue(volume).encoder("Toy"))
    assert (weights.code, modeling.code) == (False, True)
    assert modeling.path == bundle.weights.snapshot("owner/code", code) / "modeling.py"
    assert modeling.as_recorded() == {"file": "modeling.py", "sha256": sha256(b"print('new')")}


# what is not what was pinned


def test_a_pin_that_the_hub_contradicts_is_refused_before_anything_is_downloaded(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS})
    declare(volume, "Toy", {"model.safetensors": "ab" * 32}, repository=REPOSITORY, revision=commit)
    said = one_line(bundle.fetch("Toy", exits=3).stderr)
    assert f"wanted sha256 {'ab' * 32} (manifest) found sha256 {sha256(WEIGHTS)} (hub@{commit})" in said
    assert not hub.received("GET", "/resolve/")


def test_other_bytes_than_the_hub_states_are_removed_and_the_next_run_is_well(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    hub.fault(REPOSITORY, "model.safetensors", Wrong(b"x" * len(WEIGHTS)))
    said = one_line(bundle.fetch("Toy", exits=3).stderr)
    assert "what was downloaded is not what was pinned; it was removed" in said
    assert f"wanted sha256 {sha256(WEIGHTS)} (hub@{commit}) found sha256 {sha256(b'x' * len(WEIGHTS))}" in said
    assert [p for p in bundle.weights.root.rglob("*") if p.is_file() and p.name != bundle.weights.lock.name] == []
    assert "fetched" in bundle.fetch("Toy").stdout


def test_a_small_file_is_checked_against_git_s_name_of_it(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"config.json": CONFIG})
    declare(volume, "Toy", ["config.json"], repository=REPOSITORY, revision=commit)
    hub.fault(REPOSITORY, "config.json", Wrong(b"y" * len(CONFIG)))
    assert "wanted git blob" in one_line(bundle.fetch("Toy", exits=3).stderr)


def test_a_pinned_small_file_that_differs_is_refused(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"modeling.py": b"print(1)\n"})
    wanted = sha256(b"print(2)\n")
    declare(volume, "Toy", {"modeling.py": wanted}, repository=REPOSITORY, revision=commit)
    said = one_line(bundle.fetch("Toy", exits=3).stderr)
    assert f"wanted sha256 {wanted} (manifest)" in said


@pytest.mark.parametrize("name", ["model.bin", "GPFM.pth", "weights.pt"])
def test_a_pickle_without_a_pinned_hash_is_refused_without_a_request(bundle, hub, volume, name):
    commit = hub.commit(REPOSITORY, {name: b"pickle"})
    declare(volume, "Toy", [name], repository=REPOSITORY, revision=commit)
    said = one_line(bundle.fetch("Toy", exits=3).stderr)
    assert f"encoder Toy, {name}: a pickle can run code" in said
    assert "make lock-weights ENCODERS=Toy" in said
    assert hub.requests == []


def test_a_pickle_with_a_pinned_hash_is_fetched(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.bin": b"pickle"})
    declare(volume, "Toy", {"model.bin": sha256(b"pickle")}, repository=REPOSITORY, revision=commit)
    assert "Toy: fetched" in bundle.fetch("Toy").stdout


def test_verify_finds_a_flipped_byte_and_fetches_the_file_again(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, "config.json": CONFIG})
    declare(volume, "Toy", ["model.safetensors", "config.json"], repository=REPOSITORY, revision=commit)
    bundle.fetch("Toy")
    path = bundle.weights.snapshot(REPOSITORY, commit) / "model.safetensors"
    path.write_bytes(b"X" + WEIGHTS[1:])
    assert "up to date" in bundle.fetch("Toy").stdout, "size and record only, without --verify"
    hub.requests.clear()
    done = bundle.run("weights", "--encoders", "Toy", "--verify")
    assert "Toy, model.safetensors is removed and fetched again" in done.stderr
    assert path.read_bytes() == WEIGHTS
    assert [r.path.rsplit("/")[-1] for r in hub.received("GET", "/resolve/")] == ["model.safetensors"]


# names that lead nowhere


def test_a_floating_revision_is_refused(bundle, volume):
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision="main")
    assert "must be a commit of 40 hex digits, not a branch or tag" in bundle.fetch("Toy", exits=3).stderr


def test_no_revision_names_the_command_that_resolves_it(bundle, hub, volume):
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY)
    said = bundle.fetch("Toy", exits=3).stderr
    assert "encoder Toy: it is unpinned" in said
    assert "make lock-weights ENCODERS=Toy" in said
    assert hub.requests == []


def test_a_name_that_no_repository_can_have(bundle, volume):
    declare(volume, "Toy", ["model.safetensors"], repository="owner/toy name", revision="0" * 40)
    said = one_line(bundle.fetch("Toy", exits=3).stderr)
    assert "repository 'owner/toy name': this cannot be one wanted owner/name on the hub" in said


def test_a_commit_that_the_hub_does_not_have(bundle, hub, volume):
    hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision="0" * 40)
    assert f"{REPOSITORY}: the hub has no commit {'0' * 40} of it" in bundle.fetch("Toy", exits=3).stderr


def test_a_file_that_the_commit_does_not_have_gets_a_suggestion(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, "config.json": CONFIG, "README.md": b""})
    declare(volume, "Toy", ["modle.safetensors"], repository=REPOSITORY, revision=commit)
    said = bundle.fetch("Toy", exits=3).stderr
    assert f"{REPOSITORY} has no modle.safetensors at commit {commit}; did you mean 'model.safetensors'?" in said
    assert "found    config.json, model.safetensors\n" in said, "what an encoder could load, and not the README"


def test_a_repository_that_does_not_exist(bundle, volume):
    declare(volume, "Toy", ["model.safetensors"], repository="owner/nothing", revision="0" * 40)
    said = one_line(bundle.fetch("Toy", exits=3).stderr)
    assert "owner/nothing: the hub has no such repository, or does not show it found no token" in said


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/../../b.json", "a\\b.json"])
def test_a_file_name_that_leads_out_of_its_folder_is_refused(bundle, hub, volume, name):
    declare(volume, "Toy", [name], repository=REPOSITORY, revision="0" * 40)
    assert "leads out of its repository" in bundle.fetch("Toy", exits=3).stderr
    assert hub.requests == []


# broken connections


def test_a_cut_connection_is_taken_up_where_it_broke(bundle, hub, volume):
    content = noise(LARGE)
    commit = hub.commit(REPOSITORY, {"model.safetensors": content})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    hub.fault(REPOSITORY, "model.safetensors", Cut(after=CHUNK + 5))
    bundle.fetch("Toy")
    assert (bundle.weights.snapshot(REPOSITORY, commit) / "model.safetensors").read_bytes() == content
    assert [request.range for request in hub.received("GET", "/cdn/")] == [None, f"bytes={CHUNK}-"]


def start_and_kill(bundle: Bundle, stall: Stall) -> None:
    """Start fetching Toy, and kill it −9 once two chunks of its file are on disk."""
    environment = bundle.hub.environment(bundle.home)
    command = bundle.command("weights", "--encoders", "Toy")
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert stall.reached.wait(60)
    deadline = time.monotonic() + 60
    while sum(p.stat().st_size for p in bundle.weights.root.rglob("*.incomplete")) < 2 * CHUNK:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    stall.go.set()


def test_killed_in_the_middle_then_run_again(bundle, hub, volume):
    content = noise(LARGE)
    commit = hub.commit(REPOSITORY, {"model.safetensors": content})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    stall = Stall(after=2 * CHUNK)
    hub.fault(REPOSITORY, "model.safetensors", stall)
    start_and_kill(bundle, stall)
    assert not bundle.weights.snapshot(REPOSITORY, commit).exists(), "nothing that looks finished"
    bundle.fetch("Toy")
    assert (bundle.weights.snapshot(REPOSITORY, commit) / "model.safetensors").read_bytes() == content
    assert [request.range for request in hub.received("GET", "/cdn/")] == [None, f"bytes={2 * CHUNK}-"]
    assert list(bundle.weights.root.rglob("*.incomplete")) == []


def test_a_cache_between_that_ignores_ranges_does_not_spoil_a_resumed_file(bundle, hub, volume):
    content = noise(LARGE)
    commit = hub.commit(REPOSITORY, {"model.safetensors": content})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    stall = Stall(after=2 * CHUNK)
    hub.fault(REPOSITORY, "model.safetensors", stall, IgnoreRange())
    start_and_kill(bundle, stall)
    bundle.fetch("Toy")
    assert (bundle.weights.snapshot(REPOSITORY, commit) / "model.safetensors").read_bytes() == content


@pytest.mark.parametrize("fault", [Status(503), Status(429), Slow(pieces=4, pause=0.05), Cut(after=3)])
def test_a_fault_that_passes_is_waited_out(bundle, hub, volume, fault):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    hub.fault(REPOSITORY, "model.safetensors", fault)
    assert "Toy: fetched" in bundle.fetch("Toy").stdout


def test_a_fault_that_stays_is_told(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS})
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    hub.fault(REPOSITORY, "model.safetensors", *[Status(500)] * 20)
    assert f"{REPOSITORY}, model.safetensors: the hub answers HTTP 500" in bundle.fetch("Toy", exits=4).stderr


def test_a_hub_that_cannot_be_reached_is_told_once_for_all_encoders(bundle, hub, volume):
    for name in ("Toy", "Toy2", "Toy3"):
        declare(volume, name, ["model.safetensors"], repository=REPOSITORY, revision="0" * 40)
    done = bundle.fetch("Toy", "Toy2", "Toy3", exits=4, env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert done.stderr.count("error: the hub: it cannot be reached") == 1
    assert "wanted   a connection to http://127.0.0.1:9" in done.stderr
    assert "weights: 0 ok, 0 skipped, 3 failed" in done.stderr


def test_a_name_that_nobody_resolves_is_told(bundle, volume):
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision="0" * 40)
    done = bundle.fetch("Toy", exits=4, env={"HF_ENDPOINT": "http://hub.invalid"})
    assert "error: the hub: it cannot be reached" in done.stderr


def test_offline_mode_is_named(bundle, volume):
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision="0" * 40)
    done = bundle.fetch("Toy", exits=4, env={"HF_HUB_OFFLINE": "1"})
    assert "the hub: offline mode is on" in done.stderr
    assert "HF_HUB_OFFLINE" in done.stderr


def test_one_that_fails_stops_no_other(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS})
    declare(volume, "Good", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    declare(volume, "Absent", ["model.safetensors"], repository="owner/nothing", revision=commit)
    declare(volume, "Unpinned", ["model.safetensors"], repository=REPOSITORY)
    done = bundle.fetch("Unpinned", "Absent", "Good", exits=3)
    assert "Good: fetched" in done.stdout
    assert "weights: 1 ok, 0 skipped, 2 failed" in done.stderr
    assert done.stderr.count("error: ") == 2
