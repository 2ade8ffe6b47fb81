"""Generation in every way: what passes, and that each kind of mistake is found by the ways that it concerns."""

import dataclasses
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from anyformer.generation.engine import engine
from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.parts.paged_cache import PagedKVCache
from anyformer.parts.static_cache import StaticPool
from anyformer.verify.generation import MODES, SAME, Completion, DecodingMode, Equality, equality
from anyformer.verify.packing import randomise
from tests.contract.draw import BASE

BLOCKS = {"in blocks, in pieces", "with proposals", "with look-up", "continuous batching"}


def model_of(changes: dict[str, Any]) -> af.Model:
    return randomise(af.build(af.spec(BASE, changes), dtype=torch.float64), 0)


def checked(changes: dict[str, Any], **more: Any) -> Equality:
    return equality(model_of(changes), **({"prompts": 2, "new": 6} | more))


def names(found: Equality) -> set[str]:
    return {row.mode for row in found.wrong}


def test_equality_of_a_right_model_counts_its_answers():
    found = checked({"attention.pattern": "causal & window(5)"}, prompts=3)
    assert found.passed
    assert found.exact
    assert len(set(found.lengths)) == 3
    assert {row.mode: row.cases for row in found.rows} == {way.name: 6 for way in MODES}
    assert all(row.tokens == 36 and row.mismatches == row.ties == 0 for row in found.rows)
    assert all(row.difference is None or row.difference < 1e-12 for row in found.rows)
    assert max(found.lengths) + found.new > 5
    assert not found.notes


def test_equality_of_an_encoder_decoder_says_what_it_has_not():
    found = checked({"topology": "encoder-decoder", "ids.start": 0}, temperatures=(1.0,))
    assert found.passed
    assert {row.mode for row in found.rows if row.absent} == {"prompt in pieces"}


def test_equality_with_draws_that_depend_on_the_row_is_found_by_batches(monkeypatch):
    honest = engine.keys
    monkeypatch.setattr(
        engine, "keys", lambda *given, **named: (keys := honest(*given, **named)) + torch.arange(len(keys))
    )
    found = checked({}, prompts=3)
    assert {"in a batch, padded left", "in a batch, padded right", "streamed", "without a cache"} <= names(found)
    assert {row.first for row in found.wrong if row.first} != set()
    assert all("temperature 1" in row.first for row in found.wrong if row.first)


def test_equality_with_blocks_that_say_a_little_else_is_found_by_probabilities(monkeypatch):
    honest = PagedKVCache.update
    monkeypatch.setattr(
        PagedKVCache, "update", lambda self, layer, k, v, **more: honest(self, layer, k, v * (1 + 1e-7), **more)
    )
    found = checked({}, prompts=2)
    assert names(found) == BLOCKS
    assert all((row.difference or 0) > SAME for row in found.wrong)


def test_equality_with_a_cache_that_forgets_is_found_by_whoever_reads_again(monkeypatch):
    honest = ModelRunner.decode

    def forgets(self, sequences, ids):
        if isinstance(self.pool, StaticPool) and self.pool.cache.used % 3 == 0:
            ids = [0] * len(ids)
        return honest(self, sequences, ids)

    monkeypatch.setattr(ModelRunner, "decode", forgets)
    found = checked({})
    assert not found.passed
    # Those that keep tokens in the same way are wrong in the same way.
    assert {"without a cache", "prompt in pieces"} | BLOCKS <= names(found)


def other_way(token: int) -> DecodingMode:
    """A way in which every answer begins with this token."""
    return DecodingMode(
        "odd", lambda task, known, rng: [dataclasses.replace(said, ids=(token, *said.ids[1:])) for said in known]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equality_below_fp64_counts_an_equally_likely_token_as_a_tie(dtype):
    model = model_of({"head.tied": False}).to(dtype)
    with torch.no_grad():
        weight = model.get_parameter("head.weight")
        weight[5] = weight[6] = weight[5] * 20
    seen: list[Completion] = []
    given: dict[str, Any] = {"prompts": 6, "new": 1, "temperatures": (0.0,)}
    equality(model, modes=(DecodingMode("look", lambda task, known, rng: seen.extend(known) or known),), **given)
    fives = sum(said.ids == (5,) for said in seen)
    assert 0 < fives < 6
    (row,) = equality(model, modes=(other_way(6),), **given).rows
    assert row.ties == (fives if dtype == torch.float32 else 0)
    assert row.mismatches == 6 - row.ties


def test_equality_of_an_approximate_mixer_is_for_information():
    found = checked({"attention.mixer": {"kind": "lsh", "chunk": 4, "buckets": 4}, "attention.kv_heads": 6})
    assert not found.exact
    assert found.passed


@pytest.mark.parametrize(
    ("changes", "more", "said"),
    [
        ({}, {"prompts": 1}, "prompts: 1 can't show"),
        ({"position.kind": "learned", "context": 12}, {"length": 10}, "length: 10 is more than the 7 tokens"),
        (
            {"position.kind": "learned", "context": 12},
            {"new": 13},
            "new: 13 tokens after a prompt need more than the 12",
        ),
        ({"topology": "encoder", "attention.pattern": "full"}, {}, "an encoder reads a text at once"),
    ],
)
def test_equality_of_what_can_not_be_checked_is_refused(changes, more, said):
    with pytest.raises(InputError, match=said):
        checked(changes, **more)


def test_equality_of_rows_within_a_pattern_says_so():
    found = checked({"attention.pattern": "causal & window(60)", "context": 64}, length=9, modes=MODES[:1])
    assert found.notes == ("patterns span 60 tokens, more than any row has here",)
