"""TOML files with every kind of fault: all faults of a file in one message, with file and key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from croma_bundle.errors import ManifestError
from croma_bundle.manifests.load import read_named, read_single
from croma_bundle.manifests.models import Benchmark, Encoder, Tileset, plain

REVISION = "0123456789abcdef0123456789abcdef01234567"
ENCODER = {
    "backend": '"classical"',
    "model": '"ColourStatistics"',
    "width": "72",
    "pooling": '"whole tile"',
    "batch_size": "64",
    "generation": '"g1"',
    "control": "true",
    "votes": "false",
    "licence": '"Apache-2.0"',
    "citation": '"Stricker 1995"',
}


def encoder_toml(name: str = "Enc", /, **changes: str | None) -> str:
    keys = {**ENCODER, **changes}
    return f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items() if value is not None)


@pytest.fixture
def write(tmp_path):
    def to(text: str | bytes, name: str = "family.toml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return to


def encoders(path: Path) -> list[Encoder]:
    return read_named(path, Encoder, {"family": path.stem})


def faults_of(path: Path, read=encoders) -> list[str]:
    """The lines below the first of what is said; the first must name the file."""
    with pytest.raises(ManifestError) as caught:
        read(path)
    first, *rest = caught.value.paragraph().splitlines()
    assert first.startswith(f"{path}: ")
    return [line.strip() for line in rest]


def tileset(path: Path) -> Tileset:
    return read_single(path, Tileset, {"name": "mine"})


def test_a_good_entry_has_its_name_from_the_table_its_family_from_the_file_and_the_documented_defaults(write):
    (entry,) = encoders(write(encoder_toml("DINOv2-B")))
    assert (entry.name, entry.family, entry.width, entry.control) == ("DINOv2-B", "family", 72, True)
    assert (entry.precision, entry.revision, entry.gated, entry.exposed, entry.pinned) == (
        "float32",
        None,
        False,
        (),
        True,
    )


def test_entries_keep_the_order_of_the_file(write):
    path = write("".join(encoder_toml(name) for name in ("Z", "A", "M")))
    assert [entry.name for entry in encoders(path)] == ["Z", "A", "M"]


def test_an_entry_cannot_be_changed_after_it_was_read(write):
    (entry,) = encoders(write(encoder_toml()))
    with pytest.raises(ValueError, match="frozen"):
        entry.width = 3


def test_an_unknown_key_is_refused_with_the_nearest_known_one(write):
    assert faults_of(write(encoder_toml(batchsize="8", batch_size=None))) == [
        "Enc.batch_size: missing",
        "Enc.batchsize: unknown key; did you mean 'batch_size'?",
    ]


def test_an_unknown_key_like_none_is_refused_without_a_suggestion(write):
    assert faults_of(write(encoder_toml(zzzz="1"))) == ["Enc.zzzz: unknown key"]


def test_an_unknown_key_of_a_nested_table_is_suggested_from_the_keys_of_that_table(write):
    text = 'source = "phantom"\nconfounder = "medical_center"\n[phantom]\ntilesize = 64\n'
    assert faults_of(write(text), tileset) == ["phantom.tilesize: unknown key; did you mean 'tile_size'?"]


def test_all_faults_of_all_entries_of_a_file_come_in_one_message(write):
    text = (
        encoder_toml("A", width='"72"', colour="1")
        + encoder_toml("B", control='"no"', licence=None)
        + encoder_toml("C")
    )
    with pytest.raises(ManifestError) as caught:
        encoders(write(text))
    assert caught.value.problem == "4 keys are wrong"
    said = caught.value.paragraph()
    for key in ("A.width: ", "A.colour: unknown key", "B.control: ", "B.licence: missing"):
        assert said.count(key) == 1
    assert "found '72'" in said
    assert "found 'no'" in said
    assert "C." not in said


@pytest.mark.parametrize(
    "revision",
    ["main", "v1.0", "latest", REVISION[:7], REVISION + "0", REVISION[:-1], REVISION.upper(), REVISION + "\\n", ""],
)
def test_a_floating_or_malformed_revision_is_refused(write, revision):
    (fault,) = faults_of(write(encoder_toml(revision=f'"{revision}"')))
    shown = revision.replace("\\n", "\n")
    assert fault == f"Enc.revision: must be a commit of 40 hex digits, not a branch or tag; found {shown!r}"


def test_a_revision_of_forty_hex_digits_pins_a_repository_and_its_absence_leaves_it_unpinned(write):
    (pinned,) = encoders(write(encoder_toml(repository='"a/b"', revision=f'"{REVISION}"')))
    (floating,) = encoders(write(encoder_toml(repository='"a/b"')))
    assert (pinned.pinned, floating.pinned) == (True, False)


@pytest.mark.parametrize(
    ("key", "value"),
    [("width", "72.0"), ("width", "0"), ("width", "-1"), ("width", "true"), ("batch_size", "0"), ("control", "1"),
     ("precision", '"float16"'), ("backend", '"tim"'), ("pooling", '""'), ("exposed", "[1]"), ("batch_size", "65537"),
     ("model", '"hf-hub:some/repo"'), ("model", '"local-dir:/x"'), ("model", '"/x"'), ("model", '"http://x"')],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused_not_converted(write, key, value):
    (fault,) = faults_of(write(encoder_toml(**{key: value})))
    assert fault.startswith(f"Enc.{key}")


@pytest.mark.parametrize(
    ("key", "value"),
    [("std", "[0.0, 1.0, 1.0]"), ("std", "[-0.2, 1.0, 1.0]"), ("std", "[nan, 1.0, 1.0]"), ("std", "[inf, 1.0, 1.0]"),
     ("mean", "[inf, 0.0, 0.0]"), ("mean", "[nan, 0.0, 0.0]"), ("size", "16385"), ("crop", "100_000")],
)  # fmt: skip
def test_a_recipe_that_cannot_be_computed_is_refused(write, key, value):
    good = {"size": "8", "crop": "8", "mean": "[0.5, 0.5, 0.5]", "std": "[0.5, 0.5, 0.5]"}
    rest = 'edge = "shorter", interpolation = "bicubic", via = "pil"'
    recipe = lambda keys: "{ " + ", ".join([*(f"{k} = {v}" for k, v in keys.items()), rest]) + " }"  # noqa: E731
    assert encoders(write(encoder_toml(recipe=recipe(good))))[0].recipe.std == (0.5, 0.5, 0.5)
    (fault,) = faults_of(write(encoder_toml(recipe=recipe({**good, key: value}))))
    assert fault.startswith(f"Enc.recipe.{key}")


@pytest.mark.parametrize("norms", ["[5.0, 1.0]", "[0.0, 1.0]", "[-1.0, 1.0]", "[1.0, inf]", "[nan, 1.0]"])
def test_norms_that_no_vector_can_have_are_refused(write, norms):
    (fault,) = faults_of(write(encoder_toml(norms=norms)))
    assert "norms = the least and the greatest length, above 0" in fault


@pytest.mark.parametrize(("project", "version"), [("../x", "1"), ("x", "../../1"), ("x/y", "1"), ("x", "1 ; y")])
def test_a_wheel_is_named_and_not_a_path(write, project, version):
    wheel = f'{{ project = "{project}", version = "{version}", sha256 = "{"0" * 64}" }}'
    assert faults_of(write(encoder_toml(wheel=wheel)))[0].startswith("Enc.wheel.")


@pytest.mark.parametrize(
    "key", ["pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"]
)
def test_arguments_by_which_a_library_would_load_other_weights_are_refused(write, key):
    (fault,) = faults_of(write(encoder_toml(backend='"timm"', arguments=f'{{ {key} = "/x" }}')))
    assert f"arguments may not have {key}: weights are those of `files`" in fault


@pytest.mark.parametrize(("key", "text"), [("name", '"Other"'), ("family", '"waiv"')])
def test_what_the_place_of_an_entry_decides_cannot_be_said_otherwise(write, key, text):
    decided = {"name": "Enc", "family": "family"}[key]
    assert faults_of(write(encoder_toml(**{key: text}))) == [f"Enc.{key}: it is {decided!r} by its place, remove it"]


def test_a_tileset_is_called_as_its_folder_whatever_it_says(write):
    text = 'name = "other"\nsource = "folder"\nconfounder = "c"\nroot = "/data"\n'
    assert faults_of(write(text), tileset) == ["name: it is 'mine' by its place, remove it"]


def test_a_key_outside_any_table_is_told_what_an_entry_is(write):
    faults = faults_of(write("width = 72\n" + encoder_toml()))
    assert len(faults) == 1
    assert faults[0].startswith(
        "width: stands outside a table; every entry is [<name>] with keys backend, model, width"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[A\nwidth = 1\n", "this is not TOML"),
        (b"[A]\nwidth = 1\nwidth = 2\n", "this is not TOML"),
        (b"[A]\n[A]\n", "this is not TOML"),
        (b"a,b,c\n1,2,3\n", "this is not TOML"),
        (b"[A]\nmodel = '\xff'\n", "this is not UTF-8 text"),
    ],
    ids=["bracket", "key twice", "entry twice", "CSV", "latin-1"],
)
def test_what_is_no_toml_is_told_with_the_place(write, content, said):
    with pytest.raises(ManifestError) as caught:
        encoders(write(content))
    assert caught.value.problem == said
    assert ("line" in caught.value.found) or caught.value.found == "byte 13"


@pytest.mark.parametrize("content", ["a = " + "9" * 5000, "a = " + "[" * 5000])
def test_what_the_reader_of_toml_gives_up_on_is_told(write, content):
    with pytest.raises(ManifestError, match="this is no TOML that can be read"):
        encoders(write(content))


def test_tables_in_tables_without_end_are_told(write):
    assert faults_of(write("a." * 5000 + "b = 1"))[0] == "a: its tables are nested too deep"


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ManifestError, match=r"pipe\.toml: it is not a file"):
        encoders(tmp_path / "pipe.toml")


def test_a_file_that_is_not_there_is_said_to_be_unreadable(tmp_path):
    with pytest.raises(ManifestError, match=r"it cannot be read \(No such file or directory\)"):
        encoders(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('source = "folder"\nconfounder = "c"\n', "a folder source with images needs root"),
        ('source = "folder"\nconfounder = "c"\nroot = "tiles"\n', "root must be an absolute folder, found 'tiles'"),
        (
            'source = "folder"\nconfounder = "c"\nroot = "/t"\nimages = false\n',
            "root goes with source = 'folder' and images",
        ),
        ('source = "phantom"\nconfounder = "c"\n', "the table [phantom] goes with source = 'phantom'"),
        ('source = "folder"\nconfounder = "c"\nroot = "/t"\n[phantom]\n', "the table [phantom] goes with"),
        ('source = "phantom"\nconfounder = "c"\nroot = "/t"\n[phantom]\n', "root goes with source = 'folder'"),
        ('source = "s3"\nconfounder = "c"\n', "source: "),
        ('source = "folder"\nconfounder = ""\nroot = "/t"\n', "confounder: "),
        ('source = "folder"\nconfounder = "c"\nroot = "/t"\ndesign = "paired"\n', "design: "),
    ],
)
def test_a_tileset_whose_keys_contradict_each_other_is_refused(write, text, said):
    faults = faults_of(write(text, "tileset.toml"), tileset)
    assert len(faults) == 1
    assert said in faults[0]


def test_rows_of_a_paired_benchmark_would_be_ignored_and_are_refused(write):
    path = write('[b]\ntileset = "t"\ndesign = "paired_2x2"\nrows = {label = ["tumour"]}\n')
    (fault,) = faults_of(path, lambda p: read_named(p, Benchmark))
    assert "b: rows goes with design = 'all'" in fault


def test_toml_arrays_become_tuples_also_inside_tables(write):
    path = write('[b]\ntileset = "t"\nrows = {label = ["tumour", "NA"]}\n')
    (entry,) = read_named(path, Benchmark)
    assert entry.rows == {"label": ("tumour", "NA")}
    assert plain(entry)["rows"] == {"label": ["tumour", "NA"]}
    assert (entry.protocol, entry.k_grid, entry.k_max, entry.design) == ("median-k", "sparse", 100, "all")
