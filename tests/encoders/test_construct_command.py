"""`construct` where there is no torch; what it does where there is one: tests/containers/test_construct.py."""

from __future__ import annotations

import importlib.util

import pytest

from croma_bundle import __version__


def test_without_torch_it_names_what_is_missing_and_the_image_that_has_it(cli):
    if importlib.util.find_spec("torch"):
        pytest.skip("torch is installed here")
    done = cli("construct", "--family", "waiv", exits=4)
    assert "torch is not installed here" in done.stderr
    assert f"croma-bundle/waiv:{__version__} construct --encoders Mascaret,Phaet" in done.stderr
    assert ".venv-waiv/bin/python -m croma_bundle construct --encoders Mascaret,Phaet" in done.stderr


def test_a_descriptor_has_nothing_to_construct(cli):
    done = cli("construct", "--encoders", "Thumbnail", exits=3)
    assert "encoder Thumbnail: it is a descriptor without a network" in done.stderr


def test_it_must_be_told_which(cli):
    assert "which encoders?" in cli("construct", exits=2).stderr
