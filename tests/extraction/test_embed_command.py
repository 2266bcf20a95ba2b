"""`croma-bundle embed` as typed: what is chosen, where tiles are read from, which device computes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from builders import write_csv
from croma_bundle.layout import Volume
from embedded import add_cohort, artifacts, declare_encoder, names

MAP = ("sample_id", "canonical_image_path", "access_path")


@pytest.fixture
def cohort(volume: Volume, tmp_path: Path):
    return add_cohort(volume, tmp_path / "tiles", size=32)


def test_a_family_is_embedded_and_each_encoder_has_its_line(cli, volume: Volume, cohort):
    done = cli("embed", "--family", "classical", "--tileset", "cohort", "--workers", "1")
    lines = done.stdout.splitlines()
    order = [line.split(" · ")[1].split(":")[0] for line in lines]
    assert order == ["ColourStatistics", "Thumbnail", "HaematoxylinTexture", "GaborEnergy"]
    assert all("embedded, 24 × " in line for line in lines)
    again = cli("embed", "--family", "classical", "--tileset", "cohort", "--workers", "0")
    assert again.stdout.count("up to date, skipped") == 4
    assert names(artifacts(volume)) == {"manifest.csv"} | {f"{n}.npy{e}" for n in order for e in ("", ".json")}


def test_one_encoder_failing_does_not_stop_the_others(cli, volume: Volume, cohort):
    declare_encoder(volume, "Aaa", width=71)
    done = cli("embed", "--encoders", "Aaa,Thumbnail", "--tileset", "cohort", "--workers", "0", exits=3)
    assert "cohort · Thumbnail: embedded" in done.stdout
    assert "cohort · Aaa: failed" in done.stderr
    assert "encoder Aaa: its width is wrong\n  wanted   72\n  found    width = 71 in the manifest" in done.stderr


def test_the_highest_exit_code_of_several_failures_wins(cli, volume: Volume, cohort):
    declare_encoder(volume, "Aaa", width=71)
    volume.embeddings("cohort").mkdir(parents=True)
    volume.matrix("cohort", "Thumbnail").write_bytes(b"lone")
    done = cli("embed", "--encoders", "Aaa,Thumbnail", "--tileset", "cohort", "--workers", "0", exits=5)
    assert "its width is wrong" in done.stderr
    assert "cohort · Thumbnail: half an artifact" in done.stderr
    assert "croma-bundle embed --tileset cohort --encoders Thumbnail --force" in done.stderr
    assert "Thumbnail: embedded" in cli("embed", "--encoders", "Thumbnail", "--tileset", "cohort", "--force").stdout


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_cuda_for_an_encoder_that_has_no_gpu_code_is_an_error_never_the_cpu(cli, volume: Volume, cohort, device: str):
    done = cli("embed", "--encoders", "Thumbnail", "--tileset", "cohort", "--device", device, exits=4)
    assert f"--device {device}: Thumbnail computes on the CPU only" in done.stderr
    assert "wanted   auto or cpu" in done.stderr
    assert names(artifacts(volume)) <= {"manifest.csv"}


def test_auto_is_the_cpu_and_says_so(cli, volume: Volume, cohort):
    cli("embed", "--encoders", "Thumbnail", "--tileset", "cohort", "--device", "auto", "--workers", "0")
    assert json.loads(volume.sidecar("cohort", "Thumbnail").read_text())["environment"]["device"] == "cpu"


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", ""])
def test_a_device_that_does_not_exist_is_a_usage_error(cli, cohort, device: str):
    done = cli("embed", "--encoders", "Thumbnail", "--tileset", "cohort", "--device", device, exits=2)
    assert "there is no such device" in done.stderr
    assert "auto, cpu, cuda or cuda:N" in done.stderr


def test_names_typed_wrong_get_suggestions_all_at_once(cli, cohort):
    done = cli("embed", "--encoders", "Thumbnale,GaborEnergie", "--tileset", "cohort", exits=3)
    assert "did you mean 'Thumbnail'?" in done.stderr
    assert "did you mean 'GaborEnergy'?" in done.stderr
    done = cli("embed", "--family", "clasical", "--tileset", "cohort", exits=3)
    assert "did you mean 'classical'?" in done.stderr
    done = cli("embed", "--family", "classical", "--tileset", "cohrt", exits=3)
    assert "did you mean 'cohort'?" in done.stderr
    done = cli("embed", "--tileset", "cohort", exits=2)
    assert "--family NAME, or --encoders A,B" in done.stderr


def test_an_encoder_of_another_family_is_told_with_its_own(cli, volume: Volume, cohort):
    declare_encoder(volume, "Mine", family="private")
    done = cli("embed", "--family", "classical", "--encoders", "Mine", "--tileset", "cohort", exits=3)
    assert "encoder Mine: it is of the family private, not classical" in done.stderr
    assert "FAMILY=private ENCODERS=Mine" in done.stderr


def moved(cohort, folder: Path) -> tuple[Path, list[dict[str, str]]]:
    """A copy of the images elsewhere under other names, the originals removed, and the map's rows in reverse order."""
    folder.mkdir()
    rows = []
    for i, row in enumerate(cohort.rows):
        target = folder / f"fast-{i}.png"
        shutil.move(cohort.root / row["image_path"], target)
        rows.append(dict(zip(MAP, (row["sample_id"], row["image_path"], str(target)), strict=True)))
    return folder, rows[::-1]


def test_an_image_path_map_redirects_reads_and_never_enters_the_artifact(cli, volume: Volume, cohort, tmp_path: Path):
    command = ("embed", "--encoders", "Thumbnail", "--tileset", "cohort", "--workers", "0")
    cli(*command)
    matrix = volume.matrix("cohort", "Thumbnail").read_bytes()
    plain = json.loads(volume.sidecar("cohort", "Thumbnail").read_text())
    folder, rows = moved(cohort, tmp_path / "nvme")
    path_map = write_csv(tmp_path / "map.csv", rows)
    assert "there is no such file" in cli(*command, "--force", exits=3).stderr
    cli(*command, "--force", "--image-path-map", path_map)
    assert volume.matrix("cohort", "Thumbnail").read_bytes() == matrix
    text = volume.sidecar("cohort", "Thumbnail").read_text()
    assert str(folder) not in text
    assert "map" not in json.dumps(json.loads(text)["replay"])
    mapped = json.loads(text)
    for stamp in ("started", "finished"):
        mapped.pop(stamp)
        plain.pop(stamp)
    assert mapped == plain


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows[:-1], "'normal-east-0-0' of the manifest is missing"),
        (lambda rows: [*rows, rows[0]], "stands there a second time"),
        (lambda rows: [{**rows[0], "sample_id": "stranger"}, *rows[1:]], "'stranger' is not in the manifest"),
        (lambda rows: [{**rows[0], "canonical_image_path": "x.png"}, *rows[1:]], "canonical_image_path"),
        (lambda rows: [{**rows[0], "access_path": " "}, *rows[1:]], "access_path is blank"),
    ],
)
def test_a_map_that_is_not_one_to_one_is_refused(cli, volume: Volume, cohort, tmp_path: Path, change, reason: str):
    _, rows = moved(cohort, tmp_path / "nvme")
    path_map = write_csv(tmp_path / "map.csv", change(rows))
    command = ("embed", "--encoders", "Thumbnail", "--tileset", "cohort", "--image-path-map", path_map)
    assert reason in cli(*command, exits=3).stderr
    assert not volume.embeddings("cohort").exists()


def test_a_map_to_other_pixels_is_noticed(cli, volume: Volume, cohort, tmp_path: Path):
    _, rows = moved(cohort, tmp_path / "nvme")
    rows[0]["access_path"], rows[1]["access_path"] = rows[1]["access_path"], rows[0]["access_path"]
    path_map = write_csv(tmp_path / "map.csv", rows)
    command = ("embed", "--encoders", "Thumbnail", "--tileset", "cohort", "--image-path-map", path_map)
    done = cli(*command, exits=3)
    assert rows[0]["access_path"] in done.stderr
    assert rows[1]["access_path"] in done.stderr
    assert "not those that were hashed" in done.stderr
    assert names(artifacts(volume)) == {"manifest.csv", ".work/Thumbnail/failing.csv", ".work/Thumbnail/job.json"}


def test_missing_tiles_are_all_named_before_anything_is_computed(cli, volume: Volume, cohort):
    gone = [row["image_path"] for row in cohort.rows[5:8]]
    for name in gone:
        (cohort.root / name).unlink()
    done = cli("embed", "--family", "classical", "--tileset", "cohort", exits=3)
    assert [name for name in gone if f"{name}: there is no such file" not in done.stderr] == []
    assert not volume.embeddings("cohort").exists()
