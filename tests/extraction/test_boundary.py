"""One encoder that fails, whatever the way: a fault with its name, and the next one is done all the same."""

import errno

import pytest

from croma_bundle.errors import ArtifactError, EnvironmentFault
from croma_bundle.extraction import run as running
from croma_bundle.extraction import smoke as smoking
from croma_bundle.extraction.boundary import fault_of
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.progress import Reporter
from embedded import add_cohort

ERRORS = [
    (OverflowError("too large"), "please report the lines above", "OverflowError: too large"),
    (ZeroDivisionError("by zero"), "please report the lines above", "ZeroDivisionError: by zero"),
    (MemoryError("112 GiB"), "the machine has not enough memory", "112 GiB"),
    (OSError(errno.ENOSPC, "No space left on device", "/v/x"), "the machine refused", "No space left on device  /v/x"),
]


@pytest.mark.parametrize(("error", "problem", "found"), ERRORS, ids=lambda value: type(value).__name__)
def test_the_fault_names_its_encoder_and_only_an_unforeseen_one_has_a_traceback(error, problem, found, capsys):
    fault = fault_of("t · E", error)
    assert isinstance(fault, EnvironmentFault)
    assert (fault.subject, fault.found) == ("t · E", found)
    assert problem in fault.problem
    assert (type(error).__name__ in capsys.readouterr().err) == ("report" in problem)


def test_a_fault_that_was_told_stays_as_it_is():
    told = ArtifactError("a", "b")
    assert fault_of("t · E", told) is told


def failing(monkeypatch, module, name):
    """Make a step fail for the first of two encoders in a way that nobody foresaw."""
    whole = getattr(module, name)

    def step(*given, **named):
        if any(getattr(value, "name", None) == "ColourStatistics" for value in given):
            raise OverflowError("too large")
        return whole(*given, **named)

    monkeypatch.setattr(module, name, step)


def test_the_next_encoder_is_embedded_and_smoked_all_the_same(volume, tmp_path, monkeypatch, capsys):
    add_cohort(volume, tmp_path / "cohort")
    catalogue, names = load_catalogue(volume), ["ColourStatistics", "Thumbnail"]
    failing(monkeypatch, running, "embed")
    failing(monkeypatch, smoking, "smoke")
    how = {"device": "cpu", "path_map": None, "workers": 0, "force": False, "reporter": Reporter()}
    with pytest.raises(EnvironmentFault, match=r"cohort · ColourStatistics: croma-bundle failed"):
        running.embed_all(volume, catalogue, tileset="cohort", family=None, encoders=names, **how)
    assert volume.matrix("cohort", "Thumbnail").exists()
    with pytest.raises(EnvironmentFault, match=r"encoder ColourStatistics: croma-bundle failed"):
        smoking.smoke_all(volume, [catalogue.encoders[name] for name in names], "cpu", Reporter())
    assert volume.golden("Thumbnail").exists()
    assert "OverflowError: too large" in capsys.readouterr().err
