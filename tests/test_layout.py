"""Where things lie on the volume, and what they may be called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from croma_bundle.errors import EnvironmentFault, UsageError
from croma_bundle.layout import Volume, checked_name

V = Volume(Path("/v"))


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (V.tile_manifest("camelyon"), "tilesets/camelyon/manifest.csv"),
        (V.tileset_declaration("camelyon"), "tilesets/camelyon/tileset.toml"),
        (V.pixels("camelyon"), "tilesets/camelyon/pixels.json"),
        (V.tile_source("camelyon"), "tilesets/camelyon/source"),
        (V.embedding_manifest("camelyon"), "embeddings/camelyon/manifest.csv"),
        (V.matrix("camelyon", "RudolfV-2-S"), "embeddings/camelyon/RudolfV-2-S.npy"),
        (V.sidecar("camelyon", "RudolfV-2-S"), "embeddings/camelyon/RudolfV-2-S.npy.json"),
        (V.matrix("camelyon", "DINOv2-B@croma-0.3.0"), "embeddings/camelyon/DINOv2-B@croma-0.3.0.npy"),
        (V.work("camelyon", "Phaet"), "embeddings/camelyon/.work/Phaet"),
        (V.metrics("median-k", "camelyon"), "metrics/median-k/camelyon"),
        (V.metrics("median-k", "camelyon", "scanner"), "metrics/median-k/camelyon@scanner"),
        (V.cross_benchmark("k-star"), "metrics/k-star/cross_benchmark.csv"),
        (V.cross_record("k-star"), "metrics/k-star/cross_benchmark.json"),
        (V.encoder_declarations, "encoders"),
        (V.golden("DINOv2-B@croma-0.3.0"), "parity/DINOv2-B@croma-0.3.0.json"),
    ],
)
def test_paths_are_those_of_the_contract(path, wanted):
    assert path == Path("/v") / wanted


@pytest.mark.parametrize(
    "column", ["../../../etc", "a/b", "a%2Fb", "/", "medical center", "Zentrum ü"], ids=lambda c: repr(c)
)
def test_a_confounder_column_of_any_name_is_one_folder_of_its_protocol(column):
    folder = V.metrics("median-k", "camelyon", column)
    assert Path(os.path.normpath(folder)).parent == Path("/v/metrics/median-k")


def test_two_confounder_columns_never_share_a_folder():
    columns = ["a/b", "a%2Fb", "a%252Fb", "a b", "a"]
    assert len({V.metrics("median-k", "camelyon", column) for column in columns}) == len(columns)


def test_locks_lie_beside_what_they_guard_and_never_inside_a_folder_that_is_replaced():
    assert not V.tileset_lock("x").is_relative_to(V.tileset("x"))
    assert not V.job_lock("x", "E").is_relative_to(V.work("x", "E"))
    assert V.tileset_lock("x") != V.tileset_lock("y")


@pytest.mark.parametrize("name", ["RudolfV-2-S", "Virchow2", "DINOv2-B@croma-0.3.0", "a", "0", "a" * 100, "C++_1.2"])
def test_published_names_are_names_of_encoders(name):
    assert checked_name("encoder", name) == name


BAD = [
    "", ".", "..", "../x", "a/b", "a\\b", ".hidden", "-rf", "_x", "a b", "a\n", "a\0", "é", "a:b", "a*", "a" * 101,
    "@x", "a@", "a@@b", "a@b@c", "x.npy", "x.json", "x.npy.json", "x.csv", "x.tmp", "x.lock",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD, ids=ascii)
@pytest.mark.parametrize("kind", ["encoder", "tileset", "benchmark"])
def test_what_could_not_be_a_file_name_everywhere_or_looks_like_our_files_is_no_name(kind, name):
    with pytest.raises(UsageError) as caught:
        checked_name(kind, name)
    assert caught.value.paragraph().startswith(f"{kind} {name!r}: this name cannot be used\n  wanted   letters, digits")


@pytest.mark.parametrize("kind", ["tileset", "benchmark"])
def test_only_an_encoder_may_name_a_recipe_because_at_separates_a_confounder_in_folders(kind):
    with pytest.raises(UsageError, match="cannot be used"):
        checked_name(kind, "camelyon@scanner")


def test_a_path_inside_the_volume_is_told_relative_and_any_other_in_full():
    assert V.relative(V.tileset("x")) == "tilesets/x"
    assert V.relative(Path("/elsewhere/x")) == "/elsewhere/x"


def as_nobody(root: Path) -> str:
    """What `require_writable` says when run by uid 65534, who owns nothing (needs root to become it)."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom croma_bundle.layout import Volume\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: Volume(Path(sys.argv[1])).require_writable()\n"
        "except Exception as e: print(type(e).__name__, e, sep='\\n')\n"
        "else: print('writable')\n"
    )
    return subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def open_path(tmp_path):
    """A folder of uid 1234 whose parents any user may pass through."""
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    owned = tmp_path / "owned"
    owned.mkdir()
    if os.getuid() == 0:
        os.chown(owned, 1234, 4321)
    owned.chmod(0o755)
    return owned


def test_an_unwritable_volume_names_both_users_and_the_line_to_type(open_path):
    lines = as_nobody(open_path).splitlines()
    assert lines[0] == "EnvironmentFault"
    assert lines[1] == f"volume {open_path}: it cannot be written to (no write permission)"
    assert lines[2].split() == ["wanted", "a", "folder", "that", "uid", "65534", "may", "write", "to"]
    assert lines[3].split() == ["found", "owner", "1234:4321", "of", str(open_path)]
    assert lines[4].strip() == "CROMA_UID=1234 CROMA_GID=4321 docker compose run --rm score"


def test_a_volume_that_cannot_be_made_names_the_owner_of_the_folder_above(open_path):
    said = as_nobody(open_path / "volume" / "deep")
    assert "Permission denied" in said
    assert f"owner 1234:4321 of {open_path}" in said


def test_a_volume_in_a_folder_that_may_not_be_looked_into_is_told_too(open_path):
    open_path.chmod(0o700)
    said = as_nobody(open_path / "volume")
    assert said.startswith("EnvironmentFault\nvolume")
    assert "Permission denied" in said


def test_a_writable_volume_is_made_with_its_parents(tmp_path):
    root = tmp_path / "a" / "b c" / "vølume"
    Volume(root).require_writable()
    assert root.is_dir()


def test_a_volume_that_is_a_file_is_said_to_be_one(tmp_path):
    (tmp_path / "volume").write_text("x")
    with pytest.raises(EnvironmentFault, match="it is a file"):
        Volume(tmp_path / "volume").require_writable()
