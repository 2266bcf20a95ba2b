"""A loopback hub, and a caller without a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_encoders import Bundle

from croma_bundle.layout import Volume
from loopback_hub import LoopbackHub


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as running:
        yield running


@pytest.fixture
def bundle(volume: Volume, hub: LoopbackHub, tmp_path: Path) -> Bundle:
    return Bundle(volume, hub, tmp_path / "home")
