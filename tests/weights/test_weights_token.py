"""Gated repositories and the token: each refusal with its remedy, and the token nowhere to be read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hub_encoders import CONFIG, WEIGHTS, declare, noise, one_line

from loopback_hub import Cut, Stall, Status

REPOSITORY = "owner/gated"
CANARY = "hf_CanaryThatMustNotSing"


@pytest.fixture
def gated(hub, volume) -> str:
    """The commit of a gated repository, declared as Toy."""
    commit = hub.commit(REPOSITORY, {"model.safetensors": WEIGHTS, "config.json": CONFIG}, gated=True)
    declare(volume, "Toy", ["model.safetensors", "config.json"], repository=REPOSITORY, revision=commit)
    return commit


def test_no_token_names_repository_page_and_where_the_token_goes(bundle, hub, gated):
    said = one_line(bundle.fetch("Toy", exits=4).stderr)
    assert f"error: {REPOSITORY}: access to it is granted by its owners" in said
    assert f"wanted the licence accepted at {hub.url}/{REPOSITORY}, and HF_TOKEN" in said
    assert "found no token" in said


def test_a_token_without_access_names_the_page_to_accept(bundle, hub, gated):
    hub.grant(CANARY)
    said = one_line(bundle.fetch("Toy", exits=4, token=CANARY).stderr)
    assert "found a token whose account has not been granted access" in said
    assert f"Accept the licence at {hub.url}/{REPOSITORY} with the token's account" in said


def test_a_token_that_the_hub_refuses_is_told_apart_from_missing_access(bundle, gated):
    said = one_line(bundle.fetch("Toy", exits=4, token=CANARY).stderr)
    assert "error: the hub's token: it cannot be used" in said
    assert "the hub refuses it (HTTP 401" in said
    assert "expired, revoked or mistyped" in said


@pytest.mark.parametrize("text", [CANARY, f"{CANARY}\n", f"  {CANARY}\r\n"])
def test_white_space_around_the_token_does_not_matter(bundle, hub, gated, text):
    hub.grant(CANARY, REPOSITORY)
    assert "Toy: fetched" in bundle.fetch("Toy", token=text).stdout


def test_the_hub_s_token_file_serves_as_well(bundle, hub, gated, tmp_path):
    hub.grant(CANARY, REPOSITORY)
    path = tmp_path / "secret"
    path.write_text(f"{CANARY}\n")
    assert "Toy: fetched" in bundle.fetch("Toy", env={"HF_TOKEN_PATH": str(path)}).stdout


def test_an_empty_token_file_is_no_token(bundle, gated):
    said = one_line(bundle.fetch("Toy", exits=4, env={"HF_TOKEN_PATH": "/dev/null"}).stderr)
    assert "found no token" in said


@pytest.mark.parametrize("text", [f"{CANARY} {CANARY}", f"{CANARY}\u00e9", f"{CANARY}\u202e"])
def test_what_cannot_be_a_token_is_refused_before_it_is_sent(bundle, hub, gated, text):
    done = bundle.fetch("Toy", exits=4, token=text)
    assert "it is not one line of plain characters" in done.stderr
    assert CANARY not in done.stderr + done.stdout
    assert hub.requests == []


def test_a_token_file_that_is_no_text_is_refused(bundle, gated, tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"\xff\xfe\x00" + CANARY.encode())
    done = bundle.fetch("Toy", exits=4, env={"HF_TOKEN_PATH": str(path)})
    assert "its file cannot be read (UnicodeDecodeError)" in done.stderr
    assert CANARY not in done.stderr + done.stdout


def files_below(*roots: Path) -> list[Path]:
    return [path for root in roots for path in root.rglob("*") if path.is_file()]


def test_the_token_is_nowhere_to_be_read(bundle, hub, volume, gated, tmp_path):
    """Not in what is said, well or ill, nor on the volume, however loud the hub's client is asked to be."""
    loud = {"HF_DEBUG": "1", "HF_HUB_VERBOSITY": "debug"}
    said = [bundle.fetch("Toy", token=CANARY, exits=4, env=loud)]
    hub.grant(CANARY)
    said.append(bundle.fetch("Toy", token=CANARY, exits=4, env=loud))
    hub.grant(CANARY, REPOSITORY)
    hub.fault(REPOSITORY, "model.safetensors", Cut(after=3), *[Status(500)] * 20)
    said.append(bundle.fetch("Toy", token=CANARY, exits=4, env=loud))
    hub.heal()
    said.append(bundle.run("--json", "weights", "--encoders", "Toy", token=CANARY, env=loud))
    said.append(bundle.fetch("Toy", token=CANARY, exits=0, env=loud))
    assert not [done for done in said if CANARY in done.stdout + done.stderr]
    kept = files_below(volume.root, bundle.home) if bundle.home.exists() else files_below(volume.root)
    assert len(kept) >= 4
    assert not [path for path in kept if CANARY.encode() in path.read_bytes()]


def test_the_token_is_not_in_the_process_list(bundle, hub, volume):
    commit = hub.commit(REPOSITORY, {"model.safetensors": noise(30 << 20)}, gated=True)
    declare(volume, "Toy", ["model.safetensors"], repository=REPOSITORY, revision=commit)
    hub.grant(CANARY, REPOSITORY)
    stall = Stall(after=1000)
    hub.fault(REPOSITORY, "model.safetensors", stall)
    command = bundle.command("weights", "--encoders", "Toy")
    environment = hub.environment(bundle.home, token=CANARY)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert stall.reached.wait(60)
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        stall.go.set()
        out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert any(b"croma_bundle" in line for line in lines)
    assert not [line for line in lines if CANARY.encode() in line]
    assert CANARY.encode() not in out + error
