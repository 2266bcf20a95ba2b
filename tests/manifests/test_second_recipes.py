"""Second recipes: one checkpoint, declared once, under a second name with another preparation or pooling."""

from __future__ import annotations

import json

import pytest
from test_manifest_files import REVISION, encoder_toml

from croma_bundle.errors import InputError, ManifestError
from croma_bundle.layout import WeightsFolder
from croma_bundle.manifests.catalogue import load_catalogue
from croma_bundle.manifests.choice import choose_encoders
from croma_bundle.manifests.load import entries_of
from croma_bundle.manifests.models import Encoder
from croma_bundle.manifests.second_recipes import with_second_recipes
from croma_bundle.weights.wanted import wanted_files

FIRST = {"backend": "timm", "width": 4, "generation": "g1", "votes": True, "repository": "o/r", "batch_size": 2}
SECOND = {"of": "A", "generation": "g0", "votes": False}
AGAIN = '\n["{first}@again"]\nof = "{first}"\ngeneration = "again-1"\nvotes = false\n'


def faults(table: dict, tables: dict | None = None, known: dict | None = None) -> list[str]:
    return with_second_recipes({"A": FIRST, "A@old": table, **(tables or {})}, known or {})[1]


def test_what_it_does_not_say_is_the_first_entry_s_but_for_generation_and_vote():
    tables, wrong = with_second_recipes({"A": FIRST, "A@old": {**SECOND, "width": 8}, "A@bare": {"of": "A"}}, {})
    assert wrong == []
    assert tables["A"] == FIRST
    assert tables["A@old"] == {**FIRST, **SECOND, "width": 8}
    assert {"generation", "votes"}.isdisjoint(tables["A@bare"]), "so that the entry misses them"


@pytest.mark.parametrize("key", ["repository", "revision", "files", "backend", "model", "control", "licence", "gated"])
def test_what_the_checkpoint_is_may_not_be_said_again(key):
    assert faults({**SECOND, key: "x"}) == [f"A@old.{key}: it is that of A, remove it"]


def test_its_first_entry_must_exist_and_be_one():
    assert faults({**SECOND, "of": "B"}) == ["A@old.of: there is no entry 'B'"]
    assert faults({**SECOND, "of": "Aa"})[0].startswith("A@old.of: there is no entry 'Aa'; did you mean 'A'")
    assert faults(SECOND, {"A@old@x": {"of": "A@old"}}) == ["A@old@x.of: A@old is a second recipe itself"]


def test_unknown_keys_are_refused_as_everywhere_and_told_with_its_own_faults(tmp_path):
    path = tmp_path / "private.toml"
    tables, wrong = with_second_recipes({"A@old": {**SECOND, "polling": "cls", "licence": "x"}}, {"A": {**FIRST}})
    with pytest.raises(ManifestError) as told:
        entries_of(path, tables, Encoder, None, wrong)
    assert "A@old.licence: it is that of A, remove it" in str(told.value)
    assert "A@old.polling: unknown key; did you mean 'pooling'" in str(told.value)


@pytest.fixture
def own(volume):
    """Writes private declarations."""

    def to(text: str) -> None:
        volume.encoder_declarations.mkdir(exist_ok=True)
        (volume.encoder_declarations / "mine.toml").write_text(text, "utf-8")

    return to


def said(volume) -> str:
    with pytest.raises(ManifestError) as told:
        load_catalogue(volume)
    return str(told.value)


def test_it_is_named_for_its_first_and_has_no_vote(volume, own):
    own(encoder_toml("Mine", family='"classical"') + '[Other]\nof = "Mine"\ngeneration = "g"\nvotes = false\n')
    assert "Other: a second recipe of Mine is named Mine@NAME" in said(volume)
    own(encoder_toml("Mine", family='"classical"') + AGAIN.format(first="Mine").replace("false", "true"))
    assert "Mine@again: a second recipe does not vote: votes = false" in said(volume)


def test_a_private_one_may_be_of_a_published_encoder(volume, own):
    own('["Virchow2@cls"]\nof = "Virchow2"\npooling = "cls"\nwidth = 1280\ngeneration = "mine-1"\nvotes = false\n')
    catalogue = load_catalogue(volume)
    first, cls = catalogue.encoder("Virchow2"), catalogue.encoder("Virchow2@cls")
    assert (cls.pooling, cls.width, cls.family, cls.recipe) == ("cls", 1280, "shared", first.recipe)
    assert wanted_files(cls) == wanted_files(first), "the same files at the same places"


def test_a_family_is_its_first_recipes_and_second_ones_run_when_they_are_named(volume):
    catalogue = load_catalogue(volume)
    assert [entry.name for entry in catalogue.family("shared") if "@" in entry.name] == []
    named = choose_encoders(catalogue, "embed", "shared", ["GPFM@croma-0.3.0", "GPFM"])
    assert [entry.name for entry in named] == ["GPFM@croma-0.3.0", "GPFM"]
    with pytest.raises(InputError, match="it is of the family shared, not waiv"):
        choose_encoders(catalogue, "embed", "waiv", ["GPFM@croma-0.3.0"])


def test_a_private_one_s_files_lie_in_the_first_entry_s_folder(volume, own):
    files = f'[{{ name = "w.safetensors", sha256 = "{"ab" * 32}" }}]'
    own(encoder_toml("Mine", family='"classical"', backend='"timm"', files=files) + AGAIN.format(first="Mine"))
    (file,) = wanted_files(load_catalogue(volume).encoder("Mine@again"))
    assert file.path(WeightsFolder(volume.weights)) == volume.weights / "local--Mine" / "w.safetensors"


def test_a_pin_of_the_lock_is_both_recipes(tmp_path, volume):
    (tmp_path / "encoders").mkdir()
    (tmp_path / "benchmarks.toml").touch()
    entry = encoder_toml("A", backend='"timm"', repository='"o/r"', files='[{ name = "m.safetensors" }]')
    (tmp_path / "encoders/f.toml").write_text(entry + AGAIN.format(first="A"), "utf-8")
    locked = f'[A]\nrepository = "o/r"\nrevision = "{REVISION}"\nresolved = "2026-12-01"\n'
    locked += f'files = {{ "m.safetensors" = {{ sha256 = "{"ab" * 32}", bytes = 1 }} }}\ntransform = {{}}\n'
    (tmp_path / "weights.lock.toml").write_text(locked, "utf-8")
    for name, entry in load_catalogue(volume, tmp_path).encoders.items():
        assert (entry.revision, entry.files[0].sha256) == (REVISION, "ab" * 32), name


def test_it_is_embedded_under_its_own_name_with_its_own_generation(cli, volume, own):
    own('["Thumbnail@mine"]\nof = "Thumbnail"\nbatch_size = 32\ngeneration = "mine-1"\nvotes = false\n')
    cli("tiles", "phantom", "few", "--tile-size", "32", "--slides-per-cell", "1", "--tiles-per-slide", "2")
    cli("tiles", "fetch", "few", "--workers", "0")
    cli("embed", "--tileset", "few", "--encoders", "Thumbnail@mine,Thumbnail", "--workers", "0")
    sidecar = json.loads(volume.sidecar("few", "Thumbnail@mine").read_text("utf-8"))
    contract = sidecar["extraction_contract"]
    assert (contract["encoder"], contract["generation"], sidecar["batch_size"]) == ("Thumbnail@mine", "mine-1", 32)
    assert volume.matrix("few", "Thumbnail@mine").read_bytes() == volume.matrix("few", "Thumbnail").read_bytes()
    assert "Thumbnail@mine " in cli("list", "encoders").stdout
    assert "Thumbnail@mine " in cli("status").stdout
