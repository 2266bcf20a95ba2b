"""Bind sources are checked before anything starts, and files belong to whom they should."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from croma_bundle.errors import InputError, SeveralErrors, UsageError
from croma_bundle.launch.place import Place, find_checkout, open_place, owner_of_files, require_sources
from croma_bundle.launch.steps import Step

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
REPOSITORY = Path(__file__).resolve().parents[2]


def place_of(folder: Path) -> Place:
    return Place(folder, folder / "volume", folder / "weights", folder / "ca.crt", 1, 1)


def test_every_missing_source_is_named_with_who_declared_it(tmp_path: Path):
    step = Step("embed-waiv", own_tiles=tmp_path / "tiles")
    with pytest.raises(SeveralErrors) as told:
        require_sources(place_of(tmp_path).binds(step))
    text = str(told.value)
    for name, declared in (("volume", "CROMA_VOLUME"), ("weights", "CROMA_WEIGHTS"), ("tiles", "tileset.toml")):
        assert f"{tmp_path / name}: " in text
        assert declared in text
    assert "ca.crt" not in text, "a step without network is given no certificates"
    assert told.value.exit_code == 3
    assert not any(tmp_path.iterdir()), "nothing is made"


@pytest.mark.parametrize(
    ("service", "given"),
    [
        ("score", {"volume"}),
        ("embed-classical", {"volume"}),
        ("embed-waiv", {"volume", "weights"}),
        ("weights", {"volume", "weights", "ca.crt"}),
        ("tiles", {"volume", "ca.crt"}),
    ],
)
def test_a_step_is_given_what_it_needs_and_no_more(tmp_path: Path, service: str, given: set[str]):
    assert {bind.source.name for bind in place_of(tmp_path).binds(Step(service))} == given


def test_what_is_there_passes(tmp_path: Path):
    (tmp_path / "volume").mkdir()
    require_sources(place_of(tmp_path).binds(Step("score")))
    with pytest.raises(InputError, match="no such path"):
        require_sources(place_of(tmp_path).binds(Step("embed-shared")))


def test_the_checkout_is_the_working_folder_or_where_the_package_lies(tmp_path: Path):
    assert find_checkout(tmp_path) == REPOSITORY
    (tmp_path / "compose.yaml").touch()
    (tmp_path / "images").mkdir()
    assert find_checkout(tmp_path) == tmp_path


@AS_ROOT
def test_root_s_files_belong_to_the_owner_of_the_volume_and_a_new_volume_to_10001(tmp_path: Path):
    new = tmp_path / "new" / "volume"
    assert owner_of_files(new, {}) == (10001, 10001)
    assert (new.stat().st_uid, new.stat().st_gid) == (10001, 10001)
    given = tmp_path / "given"
    given.mkdir()
    os.chown(given, 4321, 1234)
    assert owner_of_files(given, {}) == (4321, 1234)
    used = tmp_path / "used"
    (used / "tilesets").mkdir(parents=True)
    assert owner_of_files(used, {}) == (0, 0), "root's own files stay root's"
    assert owner_of_files(given, {"CROMA_UID": "7", "CROMA_GID": "8"}) == (7, 8)
    committed = tmp_path / "committed"
    committed.mkdir()
    (committed / ".gitkeep").touch()
    assert owner_of_files(committed, {}) == (10001, 10001)


def test_an_owner_that_is_no_number_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="CROMA_UID=me"):
        owner_of_files(tmp_path, {"CROMA_UID": "me"})


def test_folders_are_absolute_however_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    place = open_place(Path("volume"), {"CROMA_WEIGHTS": "cache", "CROMA_CA_BUNDLE": "ca.crt"})
    assert (place.volume, place.weights) == (tmp_path / "volume", tmp_path / "cache")
    assert place.certificates == tmp_path / "ca.crt"
    assert open_place(Path("volume"), {}).weights == tmp_path / "volume" / "weights"
