"""The SBOM writer of the image builds, on packages laid out as pip leaves them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "images" / "common" / "sbom.py"
PLACE = "share/croma-bundle/sbom.cdx.json"


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(venv: Path, name: str, *lines: str, version: str = "1.0", sha256: str | None = "ab" * 32) -> dict[str, Any]:
    """Lay out a package; what pip's report says of it."""
    info = venv / "lib" / "python3.11" / "site-packages" / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    text = "\n".join(("Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines, ""))
    (info / "METADATA").write_text(text, encoding="utf-8")
    archive = {"hashes": {"sha256": sha256}} if sha256 else {}
    return {"metadata": {"name": name, "version": version}, "download_info": {"url": "…", "archive_info": archive}}


def read(venv: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((venv / PLACE).read_text(encoding="utf-8"))
    return document


def test_a_package_is_told_by_purl_and_the_hash_of_its_archive(sbom: ModuleType, tmp_path: Path) -> None:
    sbom.renew_sbom(tmp_path, [install(tmp_path, "Typing_Extensions", version="4.16.0", sha256="cd" * 32)])
    document = read(tmp_path)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    (package,) = document["components"]
    assert package["purl"] == package["bom-ref"] == "pkg:pypi/typing-extensions@4.16.0"
    assert package["hashes"] == [{"alg": "SHA-256", "content": "cd" * 32}]


def test_a_second_report_adds_and_keeps_the_hashes_of_the_first(sbom: ModuleType, tmp_path: Path) -> None:
    sbom.renew_sbom(tmp_path, [install(tmp_path, "torch", sha256="01" * 32)])
    sbom.renew_sbom(tmp_path, [install(tmp_path, "timm", sha256="02" * 32)])
    hashes = {each["name"]: each["hashes"][0]["content"] for each in read(tmp_path)["components"]}
    assert hashes == {"torch": "01" * 32, "timm": "02" * 32}


def test_the_checkout_s_own_wheel_is_not_said_to_be_on_the_index(sbom: ModuleType, tmp_path: Path) -> None:
    sbom.renew_sbom(tmp_path, [install(tmp_path, "croma-bundle", sha256=None)])
    (package,) = read(tmp_path)["components"]
    assert package["purl"] == "pkg:generic/croma-bundle@1.0"
    assert package["hashes"] == []


@pytest.mark.parametrize(
    ("lines", "licences"),
    [
        (["License-Expression: MIT OR Apache-2.0", "License: ignored"], [{"expression": "MIT OR Apache-2.0"}]),
        (
            [
                "License: long text",
                "Classifier: License :: OSI Approved",
                "Classifier: License :: OSI Approved :: BSD License",
            ],
            [{"license": {"name": "BSD License"}}],
        ),
        (
            ["License: NVIDIA Proprietary Software", "Classifier: Topic :: Software"],
            [{"license": {"name": "NVIDIA Proprietary Software"}}],
        ),
        (["License: Apache License", "        of 2004"], [{"license": {"name": "Apache License"}}]),
        ([], []),
    ],
)
def test_licences_are_those_the_package_states(
    sbom: ModuleType, tmp_path: Path, lines: list[str], licences: list[dict[str, Any]]
) -> None:
    sbom.renew_sbom(tmp_path, [install(tmp_path, "some", *lines)])
    assert read(tmp_path)["components"][0]["licenses"] == licences


def test_the_same_packages_give_the_same_bytes_in_whatever_order(sbom: ModuleType, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for venv, names in ((one, ("b", "a")), (other, ("a", "b"))):
        sbom.renew_sbom(venv, [install(venv, name) for name in names])
    assert (one / PLACE).read_bytes() == (other / PLACE).read_bytes()


def test_it_names_the_image(sbom: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGE", "waiv")
    monkeypatch.setenv("VERSION", "1.2.3")
    sbom.renew_sbom(tmp_path, [install(tmp_path, "some")])
    told = {"type": "container", "name": "croma-bundle/waiv", "version": "1.2.3"}
    assert read(tmp_path)["metadata"]["component"] == told
