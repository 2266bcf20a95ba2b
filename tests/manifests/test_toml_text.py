"""What we write as TOML is read back by an independent parser as it was."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from croma_bundle.manifests.toml_text import toml_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUE = TEXT | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None, derandomize=True, database=None, max_examples=300)
@given(st.dictionaries(st.sampled_from("abcdef"), VALUE), st.dictionaries(st.sampled_from("xyz"), VALUE, min_size=1))
def test_any_text_number_or_truth_value_survives(table, nested):
    assert tomllib.loads(toml_text({**table, "nested": nested}, "comment")) == {**table, "nested": nested}


@pytest.mark.parametrize("root", ["/a b", "/ü✓🔬", "/q\"'\\", "/tab\t", "/del\x7f", "/nl\nx", "/bell\x07", "/{x}$[0]"])
def test_a_folder_of_any_name_survives(root):
    assert tomllib.loads(toml_text({"root": root}, "c"))["root"] == root


def test_what_is_null_is_left_out_at_both_levels():
    assert tomllib.loads(toml_text({"a": None, "b": 1, "t": {"c": None, "d": 2}}, "c")) == {"b": 1, "t": {"d": 2}}


def test_plain_keys_after_a_table_stay_outside_of_it():
    assert tomllib.loads(toml_text({"t": {"x": 1}, "a": 2}, "c")) == {"t": {"x": 1}, "a": 2}
