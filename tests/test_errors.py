"""What a user reads when something is wrong, and the exit code a script sees."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from croma_bundle.errors import (
    ArtifactError,
    BundleError,
    CohortError,
    DegenerateEmbedding,
    DeviceMemory,
    EnvironmentFault,
    InputError,
    LockHeld,
    ManifestError,
    PixelError,
    SeveralErrors,
    TileManifestError,
    UsageError,
    VerdictFailed,
    did_you_mean,
    raise_all,
    some,
)

# contracts.md: 1 verdict, 2 usage, 3 input, 4 environment or lock, 5 artifact.
EXIT_CODES = {
    VerdictFailed: 1,
    UsageError: 2,
    InputError: 3,
    ManifestError: 3,
    TileManifestError: 3,
    PixelError: 3,
    CohortError: 3,
    DegenerateEmbedding: 3,
    EnvironmentFault: 4,
    LockHeld: 4,
    DeviceMemory: 4,
    ArtifactError: 5,
}


def every_kind(kind: type[BundleError] = BundleError) -> set[type[BundleError]]:
    below = set(kind.__subclasses__())
    return below.union(*map(every_kind, below)) if below else below


def full_error(kind: type[BundleError] = ArtifactError) -> BundleError:
    return kind(
        "camelyon · Virchow2",
        "the matrix does not match its sidecar",
        wanted="4f1c  Virchow2.npy.json",
        found="91aa  Virchow2.npy",
        declared="manifests/encoders/shared.toml",
        detail="It changed after it was written.",
        then="make embed FORCE=1",
    )


def fail_in_worker(kind: type[BundleError]) -> None:
    raise full_error(kind)


def fail_severally_in_worker() -> None:
    raise SeveralErrors([full_error(PixelError), full_error(ArtifactError)])


@pytest.mark.parametrize(("kind", "code"), EXIT_CODES.items(), ids=lambda v: getattr(v, "__name__", str(v)))
def test_each_kind_of_fault_has_the_exit_code_of_the_contract(kind, code):
    assert kind("a", "b").exit_code == code


def test_no_kind_of_fault_is_without_an_exit_code_in_the_contract():
    assert {k for k in every_kind() if k.__module__ == "croma_bundle.errors"} == {*EXIT_CODES, SeveralErrors}


def test_the_paragraph_names_subject_wanted_found_declared_reason_and_next_command_in_that_order():
    assert full_error().paragraph().splitlines() == [
        "camelyon · Virchow2: the matrix does not match its sidecar",
        "  wanted   4f1c  Virchow2.npy.json",
        "  found    91aa  Virchow2.npy",
        "  declared manifests/encoders/shared.toml",
        "  It changed after it was written.",
        "  make embed FORCE=1",
    ]


def test_what_is_not_known_leaves_no_empty_line():
    assert UsageError("embed", "which encoders?").paragraph() == "embed: which encoders?"


def test_str_follows_a_field_that_was_changed_later():
    error = full_error()
    error.subject = "tolkach-esca · Phaet"
    assert str(error).startswith("tolkach-esca · Phaet: the matrix")


@pytest.mark.parametrize("codes", [(3, 5, 4), (5, 3, 4), (4, 3)])
def test_several_errors_exit_with_the_highest_code(codes):
    kinds = {3: InputError, 4: EnvironmentFault, 5: ArtifactError}
    assert SeveralErrors([kinds[code]("x", "y") for code in codes]).exit_code == max(codes)


def test_several_errors_are_told_together_one_paragraph_after_the_other():
    text = str(SeveralErrors([PixelError("a.png", "it is truncated"), full_error()]))
    assert text.startswith("a.png: it is truncated\ncamelyon · Virchow2: ")
    assert text.endswith("make embed FORCE=1")


def test_several_errors_within_several_errors_are_one_flat_list():
    inner = SeveralErrors([PixelError("a", "bad"), ArtifactError("b", "bad")])
    outer = SeveralErrors([inner, LockHeld("c", "held")])
    assert [error.subject for error in outer.errors] == ["a", "b", "c"]
    assert outer.exit_code == 5


def test_raise_all_raises_nothing_for_none_the_one_itself_and_several_together():
    raise_all([])
    one, other = PixelError("a", "bad"), ArtifactError("b", "bad")
    with pytest.raises(PixelError) as single:
        raise_all([one])
    assert single.value is one
    with pytest.raises(SeveralErrors) as several:
        raise_all([one, other])
    assert several.value.errors == (one, other)


@pytest.fixture(scope="module")
def worker():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("kind", EXIT_CODES, ids=lambda kind: kind.__name__)
def test_an_error_comes_whole_out_of_a_worker_process(worker, kind):
    sent = full_error(kind)
    with pytest.raises(kind) as caught:
        worker.submit(fail_in_worker, kind).result()
    got = caught.value
    assert type(got) is kind
    for field in ("subject", "problem", "wanted", "found", "declared", "detail", "then", "exit_code"):
        assert getattr(got, field) == getattr(sent, field), field
    assert str(got) == str(sent)


def test_several_errors_come_whole_out_of_a_worker_process(worker):
    with pytest.raises(SeveralErrors) as caught:
        worker.submit(fail_severally_in_worker).result()
    assert [type(error) for error in caught.value.errors] == [PixelError, ArtifactError]
    assert caught.value.exit_code == 5
    assert caught.value.errors[1].then == "make embed FORCE=1"


def test_an_error_survives_two_pickles_and_a_later_change():
    error = full_error()
    error.subject = "changed"
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    assert again.subject == "changed"
    assert str(again).startswith("changed: ")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("camelion", "camelyon"), ("CAMELYON", "camelyon"), ("mascarett", "Mascaret"), ("virchow2", "Virchow2")],
)
def test_a_mistyped_name_is_met_with_the_nearest_known_one_in_its_own_spelling(typed, meant):
    assert did_you_mean(typed, ["Mascaret", "camelyon", "Virchow2"]) == f"; did you mean '{meant}'?"


def test_nothing_is_suggested_for_a_name_that_is_like_none():
    assert did_you_mean("zzz", ["Mascaret", "camelyon"]) == ""
    assert did_you_mean("camelyon", []) == ""


def test_a_long_list_is_cut_and_says_how_many_more():
    assert some(["a", "b"], 2) == "a, b"
    assert some(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_control_characters_of_what_was_found_are_shown_and_not_obeyed():
    said = InputError("a", "b", found="x\x1b[31m\x07\r\x9by\u00fc\t1\n2").paragraph()
    assert said == "a: b\n  found    x\\x1b[31m\\x07\\x0d\\x9by\u00fc\t1\n2"
