"""A file server on loopback for the tilesets that are fetched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from parquet_sets import FileServer


@pytest.fixture
def server() -> Iterator[FileServer]:
    running = FileServer()
    yield running
    running.close()
