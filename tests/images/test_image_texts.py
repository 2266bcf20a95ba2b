"""What compose.yaml and the Dockerfile promise in their text; no engine needed."""

from __future__ import annotations

import re
from pathlib import Path

from croma_bundle import __version__

REPOSITORY = Path(__file__).resolve().parents[2]
COMPOSE = (REPOSITORY / "compose.yaml").read_text(encoding="utf-8")
DOCKERFILE = (REPOSITORY / "images" / "Dockerfile").read_text(encoding="utf-8")
IMAGES = {"score", "tiles", "torch", "shared", "waiv", "rudolfv2"}


def test_versions_are_the_package_s() -> None:
    assert set(re.findall(r"croma-bundle/\w+:(\d+\.\d+\.\d+)", COMPOSE)) == {__version__}
    assert set(re.findall(r"ARG VERSION=(\S+)", DOCKERFILE)) == {__version__}


def test_the_default_base_is_named_by_digest_and_is_the_only_one() -> None:
    assert re.search(r"^ARG PINNED_DIGEST=sha256:[0-9a-f]{64}$", DOCKERFILE, re.M)
    assert re.search(r"^ARG PINNED=\S+@\$\{PINNED_DIGEST\}$", DOCKERFILE, re.M)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.M))
    chosen = re.compile(r"\w+-\$\{(IMAGE|TORCH)\}")
    bases = {base for base in re.findall(r"^FROM (\S+)", DOCKERFILE, re.M) if not chosen.fullmatch(base)}
    assert bases - stages == {"${BASE_IMAGE:-${PINNED}}"}


def test_no_frontend_of_a_registry_is_needed() -> None:
    assert "syntax=" not in DOCKERFILE


def test_every_image_is_built_by_one_service_and_enters_at_a_subcommand() -> None:
    assert sorted(re.findall(r"^        IMAGE: (\w+)$", COMPOSE, re.M)) == sorted(IMAGES)
    entries = dict(re.findall(r"^FROM \w+ AS run-(\w+)\nENTRYPOINT \[(.*)\]$", DOCKERFILE, re.M))
    assert set(entries) == IMAGES
    assert {name: entry.replace('"', "").split(", ") for name, entry in entries.items()} == {
        "score": ["croma-bundle", "score"],
        "tiles": ["croma-bundle", "tiles"],
        "torch": ["python"],
        **{name: ["croma-bundle", "embed", "--family", name] for name in ("shared", "waiv", "rudolfv2")},
    }


def test_the_context_holds_what_is_copied_and_nothing_of_the_volume() -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[1] == "*"
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    assert {"src", "manifests", "images/*/*.lock", "images/common/*.py"} <= let_in
    assert not {name for name in let_in if name.startswith(("volume", ".", "tests"))}


def test_what_the_build_mounts_is_in_a_clone() -> None:
    """`build/` is ignored by git, to name one."""
    ignored = {line.strip("/") for line in (REPOSITORY / ".gitignore").read_text(encoding="utf-8").splitlines()}
    for source in re.findall(r"type=bind,source=(\S+?),", DOCKERFILE):
        assert (REPOSITORY / source).is_dir()
        assert not ignored & set(Path(source).parts), source


def test_compose_needs_no_variable() -> None:
    """`${VAR:?}` would stop every service, also those that do not use it."""
    assert all(":-" in use for use in re.findall(r"\$\{[^}]*\}", COMPOSE))


def test_compose_asks_for_no_device() -> None:
    assert not re.search(r"^\s*(deploy|devices|runtime|gpus|privileged|ports)\s*:", COMPOSE, re.M)
