"""The software bill of materials of a venv: CycloneDX JSON, the same bytes for the same packages.

What is installed says what is in it; pip's reports add the SHA-256 of the archive that each package came from. What the
base image brings is not in it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

PLACE = "share/croma-bundle/sbom.cdx.json"


def renew_sbom(venv: Path, installed: Iterable[Mapping[str, Any]]) -> None:
    """Write the venv's SBOM; `installed` are the entries of pip's report on what was added since the last one."""
    path = venv / PLACE
    hashes = known_hashes(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    hashes |= {normal(item["metadata"]["name"]): archive_hash(item["download_info"]) for item in installed}
    (packages,) = venv.glob("lib/python3.*/site-packages")
    found = {normal(each.name): each for each in distributions(path=[str(packages)])}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject(os.environ.get("IMAGE", "torch"), os.environ.get("VERSION"))},
        "components": [component(name, found[name], hashes.get(name)) for name in sorted(found)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def known_hashes(document: Mapping[str, Any]) -> dict[str, str | None]:
    return {each["name"]: each["hashes"][0]["content"] for each in document["components"] if each["hashes"]}


def archive_hash(download: Mapping[str, Any]) -> str | None:
    """SHA-256 of the wheel; none of our own, which is made here from the checkout."""
    digest: str | None = download["archive_info"].get("hashes", {}).get("sha256")
    return digest


def subject(image: str, version: str | None) -> dict[str, str]:
    return {"type": "container", "name": f"croma-bundle/{image}", **({"version": version} if version else {})}


def component(name: str, package: Distribution, digest: str | None) -> dict[str, Any]:
    purl = f"pkg:{'pypi' if digest else 'generic'}/{name}@{package.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": package.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest}] if digest else [],
        "licenses": licences(package),
    }


def licences(package: Distribution) -> list[dict[str, Any]]:
    """The SPDX expression; else the trove classifiers; else the first line of the free text; else nothing."""
    expression, classifiers, text = (
        package.metadata.get_all(key) or [] for key in ("License-Expression", "Classifier", "License")
    )
    if expression:
        return [{"expression": expression[0]}]
    names = [each.rsplit(" :: ", 1)[1] for each in classifiers if re.match("License :: .* :: ", each)]
    names = names or "".join(text).strip().splitlines()[:1]
    return [{"license": {"name": name}} for name in sorted(set(names))]
