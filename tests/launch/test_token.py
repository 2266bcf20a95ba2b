"""The token: whose it is, where it is looked for, and that it is gone when the step is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from croma_bundle.errors import EnvironmentFault
from croma_bundle.launch.token import private_token, read_token, token_file

TOKEN = "hf_canary_of_the_launcher"
ME = (os.getuid(), os.getgid())


def test_the_variable_comes_before_the_file(tmp_path: Path):
    (tmp_path / "token").write_text("hf_of_the_file\n")
    by_file = {"HF_TOKEN_PATH": str(tmp_path / "token")}
    assert read_token(by_file) == "hf_of_the_file"
    assert read_token({**by_file, "HF_TOKEN": TOKEN}) == TOKEN
    assert read_token({**by_file, "HF_TOKEN": " "}) == "hf_of_the_file"
    assert read_token({"HF_TOKEN_PATH": str(tmp_path / "none")}) is None


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"HOME": "/home/z"}, "/home/z/.cache/huggingface/token"),
        ({"HOME": "/home/z", "XDG_CACHE_HOME": "/fast"}, "/fast/huggingface/token"),
        ({"HOME": "/home/z", "HF_HOME": "/hub"}, "/hub/token"),
        ({"HOME": "/home/z", "HF_HOME": "/hub", "HF_TOKEN_PATH": "/run/t"}, "/run/t"),
    ],
)
def test_the_file_is_where_the_hub_s_client_keeps_it(environ: dict[str, str], path: str):
    assert token_file(environ) == Path(path)


def test_it_is_a_file_for_its_owner_alone_while_the_step_runs_and_gone_after():
    with private_token({"HF_TOKEN": TOKEN}, ME) as path:
        assert path.read_text() == TOKEN
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert (path.stat().st_uid, path.stat().st_gid) == ME
    assert not path.exists()
    assert not path.parent.exists()


def test_it_is_gone_after_a_step_that_failed():
    with pytest.raises(RuntimeError), private_token({"HF_TOKEN": TOKEN}, ME) as path:
        raise RuntimeError
    assert not path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_it_belongs_to_the_uid_that_the_step_runs_as():
    with private_token({"HF_TOKEN": TOKEN}, (12345, 54321)) as path:
        for each in (path, path.parent):
            assert (each.stat().st_uid, each.stat().st_gid) == (12345, 54321)


def test_without_a_token_there_is_an_empty_one():
    with private_token({}, ME) as path:
        assert path == Path(os.devnull)


def test_a_place_that_takes_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    full = tmp_path / "no folder"
    full.touch()
    monkeypatch.setattr("croma_bundle.launch.token.MEMORY", full)
    with pytest.raises(EnvironmentFault) as caught, private_token({"HF_TOKEN": TOKEN}, ME):
        pass
    said = caught.value.paragraph()
    assert f"{full}: the token for the step that fetches cannot be written there (Not a directory)" in said
    assert TOKEN not in said
