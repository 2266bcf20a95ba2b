"""Every encoder's architecture at full size in its family's image, without network, weights or a volume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from container_checkout import Checkout

from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue

pytestmark = pytest.mark.containers

AT_ONCE = 8
"""Encoders of one run: a container that works for minutes, not for a quarter of an hour."""
STAND_INS = {
    "shared": {"Hibou-L", "Hibou-B", "GenBio-PathFM"},
    "waiv": {"Mascaret", "Phaet"},
    "rudolfv2": {"RudolfV-2", "RudolfV-2-B", "RudolfV-2-S"},
}
CHECKPOINT_BYTES = {
    "UNI2-h": 2_725_669_217,
    "UNI": 1_213_527_781,
    "H-optimus-0": 4_539_305_018,
    "H-optimus-1": 4_539_151_464,
    "H0-mini": 342_974_184,
    "Prov-GigaPath": 4_540_023_137,
    "DINOv2-B": 346_334_872,
}
"""Sizes of published float32 files: four bytes a parameter, and little else."""
PARAMETERS = {"Mascaret": 1_136_480_768, "Phaet": 303_400_000}
"""As published, the second to four digits."""

TWO_WRONG = """
import pathlib, subprocess
folder = pathlib.Path("/tmp/volume/encoders")
folder.mkdir(parents=True)
common = '''family = "mine"
backend = "timm"
model = "vit_tiny_patch16_224"
pooling = "cls"
batch_size = 1
generation = "mine"
control = false
votes = false
licence = "none"
citation = "none"
recipe.size = 224
recipe.edge = "squash"
recipe.interpolation = "bilinear"
recipe.via = "pil"
recipe.mean = [0.5, 0.5, 0.5]
recipe.std = [1.0, 1.0, 1.0]
tokens.patches = 196
'''
entries = {"Right": (192, 0), "Wide": (193, 0), "Registers": (192, 4)}
tables = (f"[{n}]\\n{common}width = {w}\\ntokens.registers = {r}\\n" for n, (w, r) in entries.items())
(folder / "mine.toml").write_text("".join(tables))
command = ["croma-bundle", "--volume", "/tmp/volume", "construct", "--family", "mine", "--out", "/tmp/out"]
done = subprocess.run(command, capture_output=True, text=True)
print(done.returncode, done.stdout, done.stderr, *(p.name for p in pathlib.Path("/tmp/out").iterdir()), sep="\\n")
"""


@pytest.fixture(params=["shared", "waiv", "rudolfv2"])
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_every_encoder_of_a_family_computes_in_its_image(every_image: Checkout, tmp_path: Path, family: str) -> None:
    entries = {entry.name: entry for entry in load_catalogue(Volume(tmp_path)).family(family)}
    computed = construct(every_image, family, list(entries))
    assert set(computed) == set(entries)
    assert {name for name, found in computed.items() if found["stand_in"]} == STAND_INS[family]
    for name, found in computed.items():
        tokens = entries[name].tokens if entries[name].pooling in ("cls", "cls+mean") else None
        assert found["width"] == entries[name].width
        assert found["tokens"] == (tokens.total if tokens else None), "the others return vectors"
        if name in CHECKPOINT_BYTES:
            assert found["parameters"] * 4 == pytest.approx(CHECKPOINT_BYTES[name], rel=5e-4), name
        if name in PARAMETERS:
            assert found["parameters"] == pytest.approx(PARAMETERS[name], rel=5e-4), name


def construct(checkout: Checkout, family: str, names: list[str]) -> Mapping[str, Mapping[str, Any]]:
    """What each encoder came to."""
    computed = {}
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        command = ("--json", "construct", "--family", family, "--encoders", ",".join(some))
        events = [
            json.loads(line) for line in checkout.hardened(family, *command, entrypoint="croma-bundle").splitlines()
        ]
        computed |= {event["encoder"]: event for event in events if event["event"] == "constructed"}
        summary = events[-1]
        assert summary["event"] == "summary"
        assert summary["computed"] == summary["asked"] == len(some)
        assert 0 < summary["peak_gib"] <= 8
    return computed


def test_one_that_does_not_compute_as_declared_fails_the_run_after_the_others_ran(every_image: Checkout) -> None:
    code, *lines = every_image.hardened("shared", "-c", TWO_WRONG).splitlines()
    text = "\n".join(lines)
    assert code == "1"
    assert "Right: vit_tiny_patch16_224, 5.5 M parameters, 197 tokens, width 192" in text
    assert (
        "encoder Wide: its vectors have another width\n  wanted   width = 193 (its entry)\n  found    width 192" in text
    )
    assert "encoder Registers: its tokens are others\n  wanted   201 tokens (1 class, 4 registers, 196 patches)" in text
    assert "1 of 3 architectures computed" in text
    assert "Traceback" not in text
    assert [line for line in lines if line.endswith(".npy")] == ["Right.npy"]
