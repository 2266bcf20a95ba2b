"""An embed killed before every single change that it makes to the volume: nothing half-done is ever accepted, and the
next run ends with the very bytes of a run that was never killed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from crash_driver import TILES_PER_CHUNK

from croma_bundle.artifacts.pair import embedded, verify_pair
from croma_bundle.durable import sha256_file
from croma_bundle.errors import ArtifactError, BundleError
from croma_bundle.extraction import chunks
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.verification.artifacts import verify_all
from embedded import Recorder, add_cohort, artifacts, declare_encoder, embed_here, names

NAME = "Mine"
RENAME = "os.rename matrix.staged → Mine.npy"
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _the_chunk_size_of_the_killed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "TILES_PER_CHUNK", TILES_PER_CHUNK)


@dataclass(frozen=True)
class Scenario:
    """Volumes killed before each change, what was about to happen in each, and the hashes of the old and new matrix."""

    volumes: list[Volume]
    points: list[str | None]
    old: str | None
    new: str

    def copies(self, folder: Path) -> list[Volume]:
        """The killed volumes, copied to be worked on."""
        for volume in self.volumes:
            shutil.copytree(volume.root, folder / volume.root.name)
        return [Volume(folder / volume.root.name) for volume in self.volumes]

    def killed_before(self, point: str, folder: Path, later: int = 0) -> Volume:
        """A copy of the volume of the run killed before `point`, or `later` changes after it."""
        volume = self.volumes[self.points.index(point) + later]
        shutil.copytree(volume.root, folder / "cut")
        return Volume(folder / "cut")


def crash_everywhere(template: Volume, folder: Path, *flags: str) -> tuple[list[Volume], list[str | None]]:
    command = [sys.executable, str(HERE / "crash_driver.py"), str(template.root), str(folder), NAME, *flags]
    path = os.pathsep.join([str(HERE.parent), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, "CROMA_GIT_COMMIT": "0" * 40}  # spares every forked run a call of git
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)
    return [Volume(folder / f"{n:03d}") for n in range(len(points))], points


def template_volume(folder: Path) -> Volume:
    """Twelve tiles in batches of 4, so two chunks (8 and 4)."""
    volume = Volume(folder / "template")
    add_cohort(volume, folder / "tiles", size=32, slides=1, tiles=3)
    declare_encoder(volume, NAME, model="Thumbnail", width=768, batch_size=4)
    return volume


def undisturbed(volume: Volume) -> str:
    """The hash of the matrix that a run makes which nothing disturbs, on a copy."""
    copy = Volume(volume.root.parent / "undisturbed")
    shutil.copytree(volume.root, copy.root)
    embed_here(copy, NAME, force=True)
    return sha256_file(copy.matrix("cohort", NAME))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """The first embed of an encoder."""
    folder = tmp_path_factory.mktemp("fresh")
    template = template_volume(folder)
    new = undisturbed(template)
    return Scenario(*crash_everywhere(template, folder), None, new)


@pytest.fixture(scope="module")
def over_same_contract(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """--force over an artifact of the same contract but of other bytes (as from a machine that rounds otherwise)."""
    folder = tmp_path_factory.mktemp("same")
    template = template_volume(folder)
    embed_here(template, NAME)
    path = template.matrix("cohort", NAME)
    content = bytearray(path.read_bytes())
    content[-4] ^= 1  # the last bit of a mantissa
    path.write_bytes(content)
    marker = template.sidecar("cohort", NAME)
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "matrix_sha256": sha256_file(path)}))
    old = sha256_file(path)
    new = undisturbed(template)
    assert old != new
    return Scenario(*crash_everywhere(template, folder, "--force"), old, new)


@pytest.fixture(scope="module")
def over_other_contract(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """--force over an artifact that another model made, of another width."""
    folder = tmp_path_factory.mktemp("other")
    template = template_volume(folder)
    declare_encoder(template, NAME, model="ColourStatistics", width=72)
    embed_here(template, NAME)
    old = sha256_file(template.matrix("cohort", NAME))
    declare_encoder(template, NAME, model="Thumbnail", width=768, batch_size=4)
    return Scenario(*crash_everywhere(template, folder, "--force"), old, undisturbed(template))


def outcome_of(act: Callable[[], object]) -> object:
    """What `act` returns, or the `ArtifactError` that it raises."""
    try:
        return act()
    except ArtifactError as error:
        return error


@pytest.fixture(params=["fresh", "over_same_contract", "over_other_contract"])
def scenario(request: pytest.FixtureRequest) -> Scenario:
    return request.getfixturevalue(request.param)


def test_the_crash_points_reach_every_step_of_publication(scenario: Scenario):
    told = "\n".join(point or "" for point in scenario.points)
    for step in (
        "open .job.json",
        "→ chunk-00000.npy",
        "→ chunk-00001.json",
        "→ matrix.staged",
        "→ publish.json",
        "os.remove Mine.npy.json",
        RENAME,
        "→ Mine.npy.json",
        "os.remove publish.json",
        "os.rmdir",
    ):
        assert step in told, f"no run was killed before {step!r}:\n{told}"
    assert scenario.points[-1] is None


def test_only_a_whole_old_or_a_whole_new_artifact_is_ever_accepted(scenario: Scenario):
    for volume, point in zip(scenario.volumes, scenario.points, strict=True):
        if not embedded(volume, "cohort"):
            assert scenario.old is None, f"the old artifact vanished before {point!r}"
            continue
        refused = outcome_of(lambda volume=volume: verify_pair(volume, "cohort", NAME))
        if isinstance(refused, ArtifactError):
            assert refused.subject == f"cohort · {NAME}"
            assert "half an artifact" in refused.problem, (point, refused)
            with pytest.raises(BundleError, match="half an artifact"):
                verify_all(volume, load_catalogue(volume), None, Recorder())
        else:
            found = sha256_file(volume.matrix("cohort", NAME))
            assert found in (scenario.old, scenario.new), f"a third matrix, killed before {point!r}"


def test_the_next_run_ends_with_the_bytes_of_an_undisturbed_one(scenario: Scenario, tmp_path: Path):
    """Without --force where nothing valid stands; an old valid artifact is kept or refused, then replaced with it."""
    outcomes = set()
    for volume, point in zip(scenario.copies(tmp_path), scenario.points, strict=True):
        result = outcome_of(lambda volume=volume: embed_here(volume, NAME)[0])
        if isinstance(result, ArtifactError):
            assert "another artifact stands under this name" in result.problem, (point, result)
            assert sha256_file(volume.matrix("cohort", NAME)) == scenario.old
        outcomes.add(str(result))
        if sha256_file(volume.matrix("cohort", NAME)) == scenario.old:
            assert embed_here(volume, NAME, force=True)[0] == "embedded"
        assert sha256_file(volume.matrix("cohort", NAME)) == scenario.new, f"other bytes, killed before {point!r}"
        verify_pair(volume, "cohort", NAME)
        left = {name for name in names(artifacts(volume)) if not name.startswith(".manifest.csv.")}
        assert left == {"manifest.csv", f"{NAME}.npy", f"{NAME}.npy.json"}, f"left over, killed before {point!r}"
    assert "completed" in outcomes, "some kill must fall between the two renames"


def test_a_completed_publication_is_the_one_that_was_cut_off_not_a_new_one(fresh: Scenario, tmp_path: Path):
    """The recorded sidecar is published as it was, and nothing is computed again."""
    cut = fresh.killed_before(RENAME, tmp_path)
    recorded = json.loads((cut.work("cohort", NAME) / "publish.json").read_text())["sidecar"]
    outcome, sidecar = embed_here(cut, NAME)
    assert outcome == "completed"
    assert sidecar == recorded == json.loads(cut.sidecar("cohort", NAME).read_text())


@pytest.mark.parametrize("harm", ["staged", "record", "record is a list", "contract"])
def test_a_cut_off_publication_whose_traces_do_not_fit_is_never_completed(fresh: Scenario, tmp_path: Path, harm: str):
    cut = fresh.killed_before(RENAME, tmp_path)
    work = cut.work("cohort", NAME)
    if harm == "staged":
        content = bytearray((work / "matrix.staged").read_bytes())
        content[5000] ^= 1
        (work / "matrix.staged").write_bytes(content)
    elif harm == "record":
        (work / "publish.json").write_text('{"sidecar": ')
    elif harm == "record is a list":
        (work / "publish.json").write_text('{"sidecar": [], "replaces": null}')
    else:
        declare_encoder(cut, NAME, model="ColourStatistics", width=72)
    outcome, _ = embed_here(cut, NAME)
    assert outcome == "embedded"
    matrix = np.load(cut.matrix("cohort", NAME))
    verify_pair(cut, "cohort", NAME)
    if harm == "contract":
        assert matrix.shape == (12, 72)
    else:
        assert sha256_file(cut.matrix("cohort", NAME)) == fresh.new


def test_a_lone_matrix_of_other_bytes_is_not_finished_with_the_recorded_sidecar(fresh: Scenario, tmp_path: Path):
    after_rename = fresh.killed_before(RENAME, tmp_path, later=1)
    path = after_rename.matrix("cohort", NAME)
    content = bytearray(path.read_bytes())
    content[9000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="half an artifact"):
        embed_here(after_rename, NAME)
    assert not after_rename.sidecar("cohort", NAME).exists()
