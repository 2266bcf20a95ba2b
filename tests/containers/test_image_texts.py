"""What compose.yaml and the Dockerfile promise in their text; no engine needed."""

from __future__ import annotations

import re
from pathlib import Path

from croma_bundle import __version__

REPOSITORY = Path(__file__).resolve().parents[2]
COMPOSE = (REPOSITORY / "compose.yaml").read_text(encoding="utf-8")
DOCKERFILES = sorted((REPOSITORY / "images").glob("*/Dockerfile"))


def test_versions_are_the_package_s() -> None:
    assert set(re.findall(r"croma-bundle/\w+:(\d+\.\d+\.\d+)", COMPOSE)) == {__version__}
    for path in DOCKERFILES:
        assert set(re.findall(r"ARG VERSION=(\S+)", path.read_text(encoding="utf-8"))) == {__version__}, path


def test_the_default_base_is_named_by_digest() -> None:
    for path in DOCKERFILES:
        text = path.read_text(encoding="utf-8")
        assert re.search(r"^ARG PINNED_DIGEST=sha256:[0-9a-f]{64}$", text, re.M), path
        assert re.search(r"^ARG PINNED=\S+@\$\{PINNED_DIGEST\}$", text, re.M), path
        bases = re.findall(r"^FROM (\S+)", text, re.M)
        assert set(bases) == {"${BASE_IMAGE:-${PINNED}}"}, path


def test_no_frontend_of_a_registry_is_needed() -> None:
    for path in DOCKERFILES:
        assert "syntax=" not in path.read_text(encoding="utf-8"), path


def test_compose_needs_no_variable() -> None:
    """`${VAR:?}` would stop every service, also those that do not use it."""
    assert all(":-" in use for use in re.findall(r"\$\{[^}]*\}", COMPOSE))


def test_compose_asks_for_no_device() -> None:
    assert not re.search(r"^\s*(deploy|devices|runtime|gpus|privileged|ports)\s*:", COMPOSE, re.M)
