"""Which libraries a family's checkpoints are loaded with, and what an embed without them says."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from croma_bundle.encoders.families import LIBRARIES
from croma_bundle.layout import Volume
from embedded import add_cohort

REPOSITORY = Path(__file__).resolve().parents[2]
PIN = re.compile(r"^(timm|transformers)==(\S+)$", re.M)


def test_the_families_libraries_are_those_that_their_images_pin():
    pinned = {path.parent.name: dict(PIN.findall(path.read_text())) for path in REPOSITORY.glob("images/*/*.in")}
    assert {family: found for family, found in pinned.items() if found} == LIBRARIES


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed here")
def test_without_torch_embedding_names_the_family_and_the_line_to_type(cli, volume: Volume, tmp_path):
    add_cohort(volume, tmp_path / "tiles", size=32, slides=1, tiles=1)
    done = cli("embed", "--tileset", "cohort", "--encoders", "EfficientNet-Lite0,Phaet", "--workers", "0", exits=4)
    assert "encoder EfficientNet-Lite0: it is of the family shared, whose libraries are not these" in done.stderr
    assert "wanted   torch, timm 1.0.28, transformers 4.57.6\n  found    torch is not installed here" in done.stderr
    assert "make embed FAMILY=shared TILESET=… ENCODERS=EfficientNet-Lite0" in done.stderr
    assert "make embed FAMILY=waiv TILESET=… ENCODERS=Phaet" in done.stderr
    assert not volume.matrix("cohort", "Phaet").exists()
