"""The zoo as a table: every preset once, with the count of its own spec."""

import pytest

from anyformer.errors import InputError
from anyformer.explain.zoo_table import undisclosed, zoo_table
from anyformer.families.zoo import UNDISCLOSED, named, presets


def test_zoo_table_has_every_preset_once():
    found = zoo_table()
    assert {name for entry in found for name in (entry.name, *entry.also)} == set(presets())
    assert len(found) == len({entry.name for entry in found})


def test_zoo_table_shows_what_the_spec_says():
    (entry,) = zoo_table("llama-3-8b")
    spec = named("llama-3-8b")
    assert (entry.params, entry.context, entry.depth) == (spec.count().params, 8192, 32)
    shown = (entry.attention, entry.position, entry.ffn, entry.norm, entry.placement)
    assert shown == ("GQA 32/8", "RoPE", "SwiGLU", "RMSNorm", "pre")


def test_zoo_table_filter_reads_names_and_columns_in_any_case():
    assert all("GQA" in entry.attention for entry in zoo_table("gqa 64"))
    assert {entry.topology for entry in zoo_table("encoder-decoder")} == {"encoder-decoder"}


def test_zoo_table_filter_that_matches_nothing_names_the_nearest():
    with pytest.raises(InputError, match="'llama-3-8c' matches no preset; did you mean 'llama-3-8b'"):
        zoo_table("llama-3-8c")


def test_zoo_table_knows_what_can_have_no_preset():
    assert undisclosed("gpt-4") == {"gpt-4": UNDISCLOSED["gpt-4"]}
    assert undisclosed() == UNDISCLOSED
    assert zoo_table("gpt-4") == []
