"""Packaged pins joined with the declarations on a volume."""

from __future__ import annotations

import shutil
import tomllib

import pytest
from test_manifest_files import encoder_toml

from croma_bundle.errors import InputError, ManifestError, SeveralErrors
from croma_bundle.manifests.catalogue import load_catalogue, packaged_manifests

FOLDER = 'source = "folder"\nconfounder = "scanner"\nroot = "/data/tiles"\n'


@pytest.fixture
def manifests(tmp_path):
    """A copy of the packaged manifests, to be changed."""
    return shutil.copytree(packaged_manifests(), tmp_path / "manifests")


def declare(volume, name, text=FOLDER):
    path = volume.tileset_declaration(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def declare_encoder(volume, file, text):
    volume.encoder_declarations.mkdir(exist_ok=True)
    (volume.encoder_declarations / file).write_text(text, encoding="utf-8")
    return volume.encoder_declarations / file


def test_the_packaged_files_are_the_catalogue_of_an_empty_volume(volume):
    """Every table of every packaged file, read here by plain tomllib, is one entry and no more."""
    folder = packaged_manifests()
    catalogue = load_catalogue(volume)
    files = sorted((folder / "encoders").glob("*.toml"))
    by_family = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in files}
    assert list(catalogue.encoders) == [name for tables in by_family.values() for name in tables]
    for family, tables in by_family.items():
        first_recipes = [name for name, table in tables.items() if "of" not in table]
        assert [entry.name for entry in catalogue.family(family)] == first_recipes
    assert set(catalogue.tilesets) == {path.stem for path in (folder / "tilesets").glob("*.toml")}
    assert set(catalogue.benchmarks) == set(tomllib.loads((folder / "benchmarks.toml").read_text(encoding="utf-8")))
    assert {"phantom"} <= set(catalogue.tilesets) & set(catalogue.benchmarks)


def test_a_volume_that_does_not_exist_has_the_packaged_catalogue(volume):
    volume.root.rmdir()
    assert "phantom" in load_catalogue(volume).tilesets
    assert not volume.root.exists()


def test_a_tileset_on_the_volume_is_a_benchmark_of_its_name_over_all_its_rows(volume):
    path = declare(volume, "mine", FOLDER + 'design = "paired_2x2"\n')
    catalogue = load_catalogue(volume)
    benchmark = catalogue.benchmark("mine")
    assert (benchmark.tileset, benchmark.confounder, benchmark.design, benchmark.rows) == (
        "mine",
        "scanner",
        "paired_2x2",
        {},
    )
    assert (benchmark.protocol, benchmark.k_grid, benchmark.k_max, benchmark.cross) == ("median-k", "sparse", 100, None)
    assert catalogue.declared["tileset", "mine"] == catalogue.declared["benchmark", "mine"] == path


def test_a_private_encoder_on_the_volume_joins_with_the_family_it_names(volume):
    path = declare_encoder(volume, "ours.toml", encoder_toml("Private-1", family='"classical"'))
    catalogue = load_catalogue(volume)
    assert catalogue.encoder("Private-1").family == "classical"
    assert catalogue.family("classical")[-1].name == "Private-1"
    assert catalogue.declared["encoder", "Private-1"] == path


def test_a_private_encoder_without_a_family_is_told_that_it_is_missing(volume):
    declare_encoder(volume, "ours.toml", encoder_toml("Private-1"))
    with pytest.raises(ManifestError, match=r"Private-1\.family: missing"):
        load_catalogue(volume)


def test_an_encoder_declared_in_the_package_and_on_the_volume_is_refused_with_both_files(volume):
    path = declare_encoder(volume, "ours.toml", encoder_toml("Thumbnail", family='"classical"'))
    with pytest.raises(ManifestError) as caught:
        load_catalogue(volume)
    assert caught.value.subject == "encoder Thumbnail"
    assert caught.value.problem == "the name is declared twice"
    assert caught.value.found == f"{packaged_manifests() / 'encoders' / 'classical.toml'} and {path}"


def test_a_tileset_declared_in_the_package_and_on_the_volume_is_refused_with_both_files(volume):
    path = declare(volume, "phantom")
    with pytest.raises(SeveralErrors) as caught:
        load_catalogue(volume)
    said = {error.subject: error for error in caught.value.errors}
    assert set(said) == {"tileset phantom", "benchmark phantom"}
    assert said["tileset phantom"].found == f"{packaged_manifests() / 'tilesets' / 'phantom.toml'} and {path}"
    assert said["benchmark phantom"].found == f"{packaged_manifests() / 'benchmarks.toml'} and {path}"


def test_a_tileset_called_as_a_packaged_benchmark_is_refused(volume, manifests):
    with (manifests / "benchmarks.toml").open("a", encoding="utf-8") as handle:
        handle.write('\n[mine]\ntileset = "phantom"\n')
    path = declare(volume, "mine")
    with pytest.raises(ManifestError) as caught:
        load_catalogue(volume, manifests)
    assert caught.value.subject == "benchmark mine"
    assert caught.value.found == f"{manifests / 'benchmarks.toml'} and {path}"


def test_a_benchmark_over_an_unknown_tileset_is_refused_with_the_nearest_one(volume, manifests):
    with (manifests / "benchmarks.toml").open("a", encoding="utf-8") as handle:
        handle.write('\n[other]\ntileset = "fantom"\n')
    with pytest.raises(ManifestError) as caught:
        load_catalogue(volume, manifests)
    assert caught.value.paragraph() == (
        "benchmark other: its tileset 'fantom' is not declared; did you mean 'phantom'?\n"
        f"  declared {manifests / 'benchmarks.toml'}"
    )


def test_a_tileset_file_that_is_broken_is_not_also_called_undeclared(volume, manifests):
    (manifests / "tilesets" / "phantom.toml").write_text("source = 'phantom'\n", encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        load_catalogue(volume, manifests)
    assert caught.value.subject == str(manifests / "tilesets" / "phantom.toml")


def test_the_faults_of_all_files_are_told_at_once(volume, manifests):
    broken = [
        declare(volume, "a", "source = 'folder'\n"),
        declare(volume, "b", "not toml"),
        declare_encoder(volume, "c.toml", encoder_toml("C", family='"classical"', revision='"main"')),
    ]
    with (manifests / "benchmarks.toml").open("a", encoding="utf-8") as handle:
        handle.write('\n[d]\ntilset = "phantom"\n')
    broken.append(manifests / "benchmarks.toml")
    with pytest.raises(SeveralErrors) as caught:
        load_catalogue(volume, manifests)
    assert {error.subject for error in caught.value.errors} == {str(path) for path in broken}
    assert caught.value.exit_code == 3
    assert "d.tilset: unknown key; did you mean 'tileset'?" in str(caught.value)


@pytest.mark.parametrize("name", ["with space", "a@b", "x.npy", "ü"])
def test_a_folder_on_the_volume_that_cannot_be_a_name_is_refused(volume, name):
    declare(volume, name)
    with pytest.raises(SeveralErrors) as caught:
        load_catalogue(volume)
    assert f"tileset {name!r}" in {error.subject for error in caught.value.errors}


def test_files_beside_the_declarations_do_not_matter(volume):
    declare_encoder(volume, "README.md", "# hello")
    (volume.tilesets / "empty").mkdir(parents=True)
    (volume.tilesets / "stray.toml").write_text("???")
    assert set(load_catalogue(volume).tilesets) == set(load_catalogue(volume).tilesets)
    assert "empty" not in load_catalogue(volume).tilesets


@pytest.mark.parametrize(
    ("kind", "typed", "meant"),
    [("encoder", "thumbnail", "Thumbnail"), ("tileset", "fantom", "phantom"), ("benchmark", "phantoms", "phantom")],
)
def test_a_mistyped_name_is_told_what_is_declared_and_where_to_look(volume, kind, typed, meant):
    with pytest.raises(InputError) as caught:
        getattr(load_catalogue(volume), kind)(typed)
    said = caught.value
    assert said.subject == f"{kind} {typed!r}"
    assert said.problem == f"it is not declared; did you mean '{meant}'?"
    assert meant in said.wanted
    assert said.then == f"croma-bundle list {kind}s"


def test_a_mistyped_family_is_told_the_families(volume):
    with pytest.raises(InputError, match="encoder family 'clasical': it is not declared; did you mean 'classical'"):
        load_catalogue(volume).family("clasical")


def test_the_command_line_lists_what_a_volume_declares_and_exits_with_three_for_a_broken_one(cli, volume):
    declare(volume, "mine")
    assert "mine" in cli("list", "tilesets").stdout
    assert "mine" in cli("list", "benchmarks").stdout
    path = declare(volume, "mine", FOLDER + "desing = 'all'\n")
    said = cli("list", "tilesets", exits=3).stderr
    assert said.splitlines() == [
        f"error: {path}: one key is wrong",
        "  desing: unknown key; did you mean 'design'?",
    ]


def test_a_family_that_is_nearly_one_with_an_image_is_refused_and_one_of_your_own_is_not(volume):
    declare_encoder(volume, "own.toml", encoder_toml("Mine", family='"ours"'))
    assert load_catalogue(volume).encoder("Mine").family == "ours"
    path = declare_encoder(volume, "own.toml", encoder_toml("Mine", family='"share"'))
    with pytest.raises(ManifestError, match="family = 'share' has no image; did you mean 'shared'") as caught:
        load_catalogue(volume)
    assert caught.value.subject == str(path)


def test_a_fault_of_an_entry_names_the_file_that_declares_it(volume):
    path = declare_encoder(volume, "own.toml", encoder_toml("Mine", family='"ours"'))
    catalogue = load_catalogue(volume)
    with pytest.raises(ManifestError) as caught, catalogue.telling_where():
        raise ManifestError("encoder Mine, model.bin", "it is wrong")
    assert caught.value.declared == str(path)
    with pytest.raises(InputError) as caught, catalogue.telling_where():
        raise InputError("the hub", "it cannot be reached")
    assert caught.value.declared is None
