"""The locks: complete, by hash, from wherever the reader's index is, and of one mind where they overlap."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from locks import FAMILIES, REPOSITORY, TORCH, entries, lock_paths, locks_of, pins

COMPILER = {"ziglang"}
"""Has no requirements, and no place in a venv."""
OF_TORCH = re.compile(r"torch|torchvision|triton|nvidia-.*")
X86 = {
    "platform_machine": "x86_64",
    "sys_platform": "linux",
    "python_full_version": "3.11.16",
    "python_version": "3.11",
}


def named(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_every_input_has_a_lock_that_make_renews() -> None:
    inputs = {
        named(path.with_suffix(""))
        for path in (*REPOSITORY.glob("requirements/*.in"), *REPOSITORY.glob("images/*/*.in"))
    }
    assert inputs == {named(path.with_suffix("")) for path in lock_paths()}
    loop = re.search(
        r"\nlock: .*?\n\t@for name in (.*?); do", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.S
    )
    assert loop is not None
    assert set(loop[1].replace("\\", " ").split()) == inputs


@pytest.mark.parametrize("lock", lock_paths(), ids=named)
def test_every_package_has_an_exact_version_and_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    assert "git+" not in text
    assert not re.search(r"^\s*-", re.sub(r"(?m)^\s*--hash=.*$", "", text), re.M), "an option of pip, such as an index"
    found = entries(lock)
    assert found
    for pin, values in found.items():
        assert [each.operator for each in pin.specifier] == ["=="], pin
        assert pin.url is None, pin
        assert values, pin
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in values), pin


@pytest.mark.parametrize("lock", lock_paths(), ids=named)
def test_a_lock_holds_what_its_input_asks_for(lock: Path) -> None:
    held = {**pins(REPOSITORY / TORCH, environment=X86), **pins(lock, environment=X86)}
    asked = [line for line in lock.with_suffix(".in").read_text(encoding="utf-8").splitlines() if line[:1] not in "#-"]
    for wanted in map(Requirement, filter(None, asked)):
        assert wanted.specifier.contains(held[canonicalize_name(wanted.name)]), wanted


@pytest.mark.parametrize("image", ["score", "tiles", "wheel"])
def test_a_light_lock_holds_all_that_its_packages_require(image: str) -> None:
    """By the packages' own metadata, as installed where this runs; tests/containers does it for the families."""
    held = pins(*locks_of(image))
    for name, version in held.items():
        if name in COMPILER:
            continue
        assert distribution(name).version == version, "the venv is not that of the lock: make test renews it"
        for wanted in map(Requirement, distribution(name).requires or ()):
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                assert wanted.specifier.contains(held[canonicalize_name(wanted.name)]), f"{name} requires {wanted}"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_s_lock_is_what_it_adds_to_torch_and_nothing_that_torch_has(family: str) -> None:
    torch, own = locks_of(family)
    assert pins(own, environment=X86).keys() & pins(torch, environment=X86).keys() == set()
    for name in re.findall(r"(?m)^ +# +(?:via )?([a-z0-9-]+)$", own.read_text(encoding="utf-8")):
        assert name in pins(own, environment=X86) or name == "via", f"{name} requires something and is not held"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_published_runtime_is_the_families(family: str) -> None:
    """Hibou's code needs transformers 4; the others were published on torch 2.7.1, transformers 5.14.1, timm 1.0.28."""
    held = pins(*locks_of(family), environment=X86)
    assert held["torch"] == "2.7.1"
    assert held["transformers"] == ("4.57.6" if family == "shared" else "5.14.1")
    assert held.get("timm", "1.0.28") == "1.0.28"


def test_what_our_own_code_needs_has_one_version_everywhere() -> None:
    for name in ("numpy", "pillow", "pyarrow", "click", "pydantic", "pydantic-core"):
        found = {version for lock in lock_paths() if (version := pins(lock, environment=X86).get(name))}
        assert len(found) == 1, f"{name}: {found}"


@pytest.mark.parametrize("part", ["score", "tiles", "wheel"])
def test_a_light_image_holds_the_versions_of_the_tools_venv(part: str) -> None:
    tools, test = (pins(REPOSITORY / f"requirements/{name}.lock") for name in ("tools", "test"))
    own = {name: version for name, version in pins(*locks_of(part)).items() if name not in COMPILER}
    assert own.items() <= tools.items() <= test.items()


def test_torch_for_newer_gpus_differs_in_torch_alone() -> None:
    usual, newer = (
        pins(REPOSITORY / f"images/torch/{name}.lock", environment=X86) for name in ("requirements", "blackwell")
    )
    assert newer["torch"] > usual["torch"]
    assert {name for name, _ in usual.items() ^ newer.items() if not OF_TORCH.fullmatch(name)} == set()


def test_the_score_lock_is_light() -> None:
    assert set(pins(*locks_of("score"))) == {
        *("annotated-types", "click", "numpy"),
        *("pydantic", "pydantic-core", "typing-extensions", "typing-inspection"),
        *("scikit-learn", "scipy", "joblib", "threadpoolctl", "narwhals", "cloudpickle"),  # for `probe`
    }
