"""`tiles fetch` of a hub tileset: real processes against a hub and a metadata server on loopback."""

from __future__ import annotations

import csv
import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from parquet_sets import csv_bytes, declare, encoded, metadata_rows, parquet_bytes, picture, sha256
from PIL import Image

from loopback_hub import Cut, LoopbackHub, Slow, Stall, Status, Wrong

REPOSITORY = "owner/tiles"


class Published:
    """A tileset `set` of `parts` parquet files, its tiles in another order than its metadata."""

    def __init__(self, volume, hub, server, folder, *, parts=1, kind="PNG", rows=None, **table):
        self.volume, self.hub, self.server, self.folder = volume, hub, server, folder
        self.rows = rows if rows is not None else metadata_rows()
        keys = list(dict.fromkeys((r["slide_id"], r["patch_id"]) for r in self.rows))
        by_key = {(r["slide_id"], r["patch_id"]): r for r in self.rows}
        stored = [by_key[key] for key in keys]
        self.pictures = {key: encoded(picture(i), kind) for i, key in enumerate(keys)}
        order = np.random.default_rng(0).permutation(len(stored)).tolist()
        self.files = {}
        for part in range(parts):
            mine = [stored[i] for i in order[part::parts]]
            name = f"data/train-{part:05d}-of-{parts:05d}.parquet"
            images = [self.pictures[r["slide_id"], r["patch_id"]] for r in mine]
            self.files[name] = parquet_bytes(mine, images)
        self.commit = hub.commit(REPOSITORY, self.files, kind="dataset")
        self.csv = csv_bytes(folder, self.rows)
        server.files["/meta/set.csv"] = self.csv
        self.table = {
            "source": "hub",
            "confounder": "medical_center",
            "licence": "CC0-1.0",
            "citation": "Nobody, 2026.",
            "dataset": {
                "repository": REPOSITORY,
                "revision": self.commit,
                "files": [{"name": n, "sha256": sha256(c), "bytes": len(c)} for n, c in self.files.items()],
            },
            "metadata": {"url": server.url("/meta/set.csv"), "sha256": sha256(self.csv)},
            **table,
        }
        self.redeclare()

    def redeclare(self):
        declare(self.volume, "set", self.table)

    def command(self, *args):
        return [sys.executable, "-m", "croma_bundle", "--volume", str(self.volume.root), *map(str, args)]

    def run(self, *args, exits=0, token=None):
        env = self.hub.environment(self.folder / "home", token=token)
        done = subprocess.run(self.command(*args), capture_output=True, text=True, env=env, timeout=120)
        assert done.returncode == exits, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def fetch(self, exits=0, **how):
        return self.run("tiles", "fetch", "set", "--workers", 0, exits=exits, **how)

    def manifest(self):
        with self.volume.tile_manifest("set").open(newline="") as handle:
            return list(csv.DictReader(handle))


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as running:
        yield running


@pytest.fixture
def publish(volume, hub, server, tmp_path):
    def make(**how):
        return Published(volume, hub, server, tmp_path, **how)

    return make


def digest(encoded_image: bytes) -> str:
    """The pixel digest by Pillow and hashlib over the definition."""
    import io

    rgb = np.asarray(Image.open(io.BytesIO(encoded_image)).convert("RGB"))
    size = rgb.shape[1].to_bytes(4, "little") + rgb.shape[0].to_bytes(4, "little")
    return hashlib.sha256(size + rgb.tobytes()).hexdigest()


@pytest.mark.parametrize(("parts", "kind"), [(1, "PNG"), (1, "JPEG"), (3, "JPEG")])
def test_rows_follow_the_metadata_and_each_tile_is_its_own(publish, parts, kind):
    tileset = publish(parts=parts, kind=kind)
    tileset.fetch()
    rows = tileset.manifest()
    assert [(r["group_id"], r["label"], r["medical_center"], r["subset"]) for r in rows] == [
        (r["slide_id"], r["biological_class"], r["medical_center"], r["subset"]) for r in tileset.rows
    ]
    record = json.loads(tileset.volume.pixels("set").read_text())
    keys = [(r["slide_id"], r["patch_id"]) for r in tileset.rows]
    assert record["rows"] == [digest(tileset.pictures[key]) for key in keys]
    assert record["formats"] == {kind: len(rows)}
    for row, (slide, patch) in zip(rows, keys, strict=True):
        part = row["image_path"].removeprefix("source/").partition(".parquet#")[0]
        suffix = "" if parts == 1 else "__" + part.replace("/", "_")
        assert row["sample_id"] == f"{slide}__{patch}{suffix}"
        assert not (tileset.volume.tileset("set") / row["image_path"]).exists()


def test_it_is_embedded_from_the_parquet_as_from_png_files_and_exported_to_them(publish):
    tileset = publish(parts=2, kind="JPEG")
    tileset.fetch()
    out = tileset.folder / "png"
    tileset.run("tiles", "export", "set", "--output", out, "--workers", 0)
    with (out / "manifest.csv").open(newline="") as handle:
        exported = list(csv.DictReader(handle))
    for row, known in zip(exported, tileset.rows, strict=True):
        assert digest((out / row["image_path"]).read_bytes()) == digest(
            tileset.pictures[known["slide_id"], known["patch_id"]]
        )
        assert row["image_path"].endswith(".png")
    tileset.run("tiles", "add", "copy", "--manifest", out / "manifest.csv", "--workers", 0)
    for name in ("set", "copy"):
        tileset.run(
            "embed", "--family", "classical", "--encoders", "ColourStatistics", "--tileset", name, "--workers", 1
        )
    one, two = (np.load(tileset.volume.matrix(name, "ColourStatistics")) for name in ("set", "copy"))
    assert one.shape[0] == len(tileset.rows)
    assert np.array_equal(one, two)


def test_licence_and_citation_are_said_once_and_written_beside_the_data(publish):
    tileset = publish()
    assert "licence CC0-1.0. Cite: Nobody, 2026." in tileset.fetch().stderr
    assert "Nobody, 2026." in tileset.volume.tileset_notice("set").read_text()
    assert REPOSITORY in tileset.volume.tileset_notice("set").read_text()
    tileset.hub.requests.clear()
    tileset.server.requests.clear()
    assert "Cite" not in tileset.fetch().stderr
    assert (tileset.hub.requests, tileset.server.requests) == ([], [])


def test_files_copied_by_hand_need_no_network(publish):
    tileset = publish()
    source = tileset.volume.tile_source("set")
    for name, content in {**tileset.files, "set.csv": tileset.csv}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    tileset.hub.requests.clear()
    tileset.fetch()
    assert (tileset.hub.requests, tileset.server.requests) == ([], [])


def test_a_table_whose_sha256_is_not_known_is_refused_with_the_command_before_anything_is_fetched(publish):
    tileset = publish()
    del tileset.table["metadata"]["sha256"]
    tileset.redeclare()
    told = tileset.fetch(exits=3).stderr
    assert "make lock-tilesets" in told
    assert "null" in told
    assert tileset.server.requests == []
    assert tileset.hub.received("GET", "resolve") == []


def test_wrong_bytes_are_refused_and_removed(publish):
    tileset = publish()
    (name,) = tileset.files
    tileset.hub.fault(REPOSITORY, name, Wrong(b"x" * len(tileset.files[name])))
    told = tileset.fetch(exits=3).stderr
    assert "not what was pinned" in told
    assert sha256(tileset.files[name]) in told
    assert not list(tileset.volume.tile_source("set").rglob("*.parquet*"))
    assert not tileset.volume.pixels("set").exists()
    tileset.fetch()


def test_another_metadata_table_is_refused_and_removed(publish):
    tileset = publish()
    tileset.server.files["/meta/set.csv"] = tileset.csv + b"ID,more,1,tumor,RUMC\n"
    told = tileset.fetch(exits=3).stderr
    assert "set.csv: what was downloaded is not what was pinned" in told
    assert not (tileset.volume.tile_source("set") / "set.csv").exists()


def test_a_hub_that_states_another_hash_is_believed_before_the_download(publish):
    tileset = publish()
    tileset.table["dataset"]["files"][0]["sha256"] = "0" * 64
    tileset.redeclare()
    assert "the hub has another file than is pinned" in tileset.fetch(exits=3).stderr
    assert tileset.hub.received("GET", "resolve") == []


def test_a_file_that_was_damaged_on_the_volume_is_fetched_again(publish):
    tileset = publish()
    tileset.fetch()
    (name,) = tileset.files
    path = tileset.volume.tile_source("set") / name
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    tileset.volume.pixels("set").unlink()
    assert "removed and fetched again" in tileset.fetch().stderr
    assert path.read_bytes() == tileset.files[name]


def test_a_cut_connection_is_taken_up_where_it_broke(publish):
    tileset = publish()
    (name,) = tileset.files
    tileset.hub.fault(REPOSITORY, name, Cut(after=5000))
    tileset.fetch()
    assert (tileset.volume.tile_source("set") / name).read_bytes() == tileset.files[name]


@pytest.mark.parametrize("damaged", [False, True])
def test_what_a_killed_run_left_of_a_file_is_taken_up_and_costs_nothing_but_a_download_where_it_is_damaged(
    publish, damaged
):
    tileset = publish()
    (name,) = tileset.files
    path, content = tileset.volume.tile_source("set") / name, tileset.files[name]
    path.parent.mkdir(parents=True)
    path.with_name(f".{path.name}.incomplete").write_bytes(b"x" * 6000 if damaged else content[:6000])
    if damaged:
        assert "it was removed" in tileset.fetch(exits=3).stderr
    tileset.fetch()
    assert path.read_bytes() == content
    ranges = [request.range for request in tileset.hub.received("GET", "/cdn/")]
    assert ranges == (["bytes=6000-", None] if damaged else ["bytes=6000-"])
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_slow_answers_are_waited_for(publish):
    tileset = publish()
    (name,) = tileset.files
    tileset.hub.fault(REPOSITORY, name, Slow(pieces=5, pause=0.2))
    tileset.server.pause = 1.0
    tileset.fetch()
    assert (tileset.volume.tile_source("set") / name).read_bytes() == tileset.files[name]


def test_a_metadata_table_is_fetched_from_where_its_address_leads_and_again_where_it_broke_off(publish):
    tileset = publish()
    tileset.server.files["/moved/set.csv"] = tileset.server.files.pop("/meta/set.csv")
    tileset.server.redirects["/meta/set.csv"] = tileset.server.url("/moved/set.csv").replace("127.0.0.1", "localhost")
    tileset.server.cuts = [40]
    tileset.fetch()
    assert tileset.server.requests == ["/meta/set.csv", "/moved/set.csv"] * 2
    assert (tileset.volume.tile_source("set") / "set.csv").read_bytes() == tileset.csv


def test_a_page_served_in_the_place_of_a_metadata_table_is_not_taken_for_it(publish):
    tileset = publish()
    tileset.server.redirects["/meta/set.csv"] = tileset.server.url("/sign-in")
    tileset.server.files["/sign-in"] = b"<html>Sign in to the network</html>"
    assert "what was downloaded is not what was pinned" in tileset.fetch(exits=3).stderr
    assert not (tileset.volume.tile_source("set") / "set.csv").exists()


def test_a_killed_fetch_leaves_nothing_that_counts_and_frees_its_lock(publish):
    tileset = publish()
    (name,) = tileset.files
    stall = Stall(after=3000)
    tileset.hub.fault(REPOSITORY, name, stall)
    env = tileset.hub.environment(tileset.folder / "home")
    running = subprocess.Popen(tileset.command("tiles", "fetch", "set"), env=env, stderr=subprocess.PIPE)
    try:
        assert stall.reached.wait(60)
        assert "another run is at work on it" in tileset.fetch(exits=4).stderr
        running.send_signal(signal.SIGKILL)
    finally:
        running.kill()
        running.communicate()
        stall.go.set()
    assert not tileset.volume.pixels("set").exists()
    assert not (tileset.volume.tile_source("set") / name).exists()
    tileset.fetch()


def test_a_gated_dataset_tells_no_token_a_bad_one_and_no_access_apart_and_shows_none(publish, hub):
    tileset = publish()
    hub.repositories["dataset", REPOSITORY].gated = True
    said = [tileset.fetch(exits=4).stderr, tileset.fetch(exits=4, token="hf_unknown").stderr]
    hub.grant("hf_secret")
    said.append(tileset.fetch(exits=4, token="hf_secret").stderr)
    assert "found    no token" in said[0]
    assert "the hub's token: it cannot be used" in said[1]
    assert "found    a token whose account has not been granted access" in said[2]
    assert f"/datasets/{REPOSITORY}" in said[0]
    assert f"/datasets/{REPOSITORY}" in said[2]
    assert not [text for text in said if "hf_unknown" in text or "hf_secret" in text]
    hub.grant("hf_secret", REPOSITORY)
    tileset.fetch(token="hf_secret")


def test_no_such_commit_and_no_such_file_are_told_apart(publish):
    tileset = publish()
    pinned = tileset.table["dataset"]
    tileset.table["dataset"] = {**pinned, "revision": "1" * 40}
    tileset.redeclare()
    assert "the hub has no commit 1111" in tileset.fetch(exits=3).stderr
    tileset.table["dataset"] = {**pinned, "files": [{**pinned["files"][0], "name": "data/other.parquet"}]}
    tileset.redeclare()
    assert "has no data/other.parquet at commit" in tileset.fetch(exits=3).stderr


def test_a_metadata_server_that_is_busy_is_asked_again_and_a_missing_table_named(publish):
    tileset = publish()
    tileset.server.statuses = [503]
    tileset.fetch()
    assert tileset.server.requests == ["/meta/set.csv"] * 2
    other = publish()
    other.table["metadata"] = {"url": other.server.url("/meta/none.csv"), "sha256": "0" * 64}
    other.volume.pixels("set").unlink()
    other.redeclare()
    assert "HTTP 404" in other.fetch(exits=3).stderr


def test_a_hub_that_answers_an_error_is_told(publish):
    tileset = publish()
    (name,) = tileset.files
    tileset.hub.fault(REPOSITORY, name, *[Status(500)] * 9)
    assert "HTTP 500" in tileset.fetch(exits=4).stderr


def test_counts_that_differ_from_the_declaration_stop_it_before_pixels_are_hashed(publish):
    tileset = publish(expected={"rows": 61, "groups": 13})
    told = tileset.fetch(exits=3).stderr
    assert "tiles 61" in told
    assert "tiles 62" in told
    assert not tileset.volume.tile_manifest("set").exists()


def test_a_row_without_a_tile_is_named_by_its_line(publish):
    rows = metadata_rows()
    tileset = publish(rows=rows)
    text = tileset.csv + b"ID,nowhere,000,tumor,RUMC\n"
    tileset.server.files["/meta/set.csv"] = text
    tileset.table["metadata"]["sha256"] = sha256(text)
    tileset.redeclare()
    assert f"line {len(rows) + 2}: slide 'nowhere', patch '000' is in no parquet file" in tileset.fetch(exits=3).stderr


def test_a_sample_is_a_column_and_the_benchmark_of_its_rows_can_be_scored(publish, server, tmp_path):
    rows = metadata_rows()
    sample = csv_bytes(tmp_path / "sample", [r for r in rows if r["patch_id"] in ("000", "001")])
    server.files["/meta/sample.csv"] = sample
    tileset = publish(samples=[{"column": "reduced", "url": server.url("/meta/sample.csv"), "sha256": sha256(sample)}])
    tileset.fetch()
    assert [r["reduced"] for r in tileset.manifest()] == [
        "yes" if r["patch_id"] in ("000", "001") else "no" for r in rows
    ]


def test_a_paired_set_holds_each_tile_once_and_every_occurrence(publish):
    base = metadata_rows(ood=0)
    rows = [{**r, "subset": subset} for subset in ("a", "b") for r in base if subset == "a" or r["patch_id"] < "003"]
    tileset = publish(rows=rows, design="paired_2x2", expected={"rows": 60})
    assert "in 2 subsets" in tileset.fetch().stderr
    assert len(tileset.manifest()) == 60
    with tileset.volume.occurrences("set").open(newline="") as handle:
        found = [(r["sample_id"], r["subset"]) for r in csv.DictReader(handle)]
    assert found == [(f"{r['slide_id']}__{r['patch_id']}", r["subset"]) for r in rows]


def test_a_row_that_stands_twice_is_refused_where_the_set_is_not_paired(publish):
    rows = metadata_rows()
    tileset = publish(rows=[*rows, {**rows[0], "subset": "OOD"}])
    told = tileset.fetch(exits=3).stderr
    assert f"line {len(rows) + 2}: slide 'normal-RUMC-0', patch '000' stands there a second time" in told
