"""Counts from the spec alone: published parameter numbers, and every formula against one written out here."""

import dataclasses
import math
from typing import Any

import pytest

import anyformer as af
from anyformer.errors import InputError
from anyformer.specs import ModelSpec
from anyformer.specs.codec import read
from anyformer.specs.count import BYTES, Count, dtype_bytes
from anyformer.specs.pair_count import allowed_pairs, keys_seen
from anyformer.specs.parameters import weights
from anyformer.specs.patterns import Pattern
from tests.parts.pattern_samples import enumerate_pairs
from tests.specs.small import small

pytestmark = pytest.mark.quick

LLAMA = {
    "vocab": 128256, "width": 4096, "depth": 32, "context": 8192, "attention": {"heads": 32, "kv_heads": 8},
    "position": {"kind": "rope", "theta": 500000.0}, "ffn": {"kind": "swiglu", "width": 14336}, "norm": {"eps": 1e-5},
}  # fmt: skip
PHI3 = {
    "vocab": 32064, "width": 3072, "depth": 32, "context": 4096, "attention": {"heads": 32, "pattern": "window(2047)"},
    "ffn": {"kind": "swiglu", "width": 8192},
}  # fmt: skip
GPT2 = {
    "vocab": 50257, "width": 768, "depth": 12, "context": 1024, "attention": {"heads": 12, "bias": "qkvo"},
    "position": "learned", "ffn": {"kind": "gelu_tanh", "bias": True}, "norm": {"kind": "layernorm"},
    "head": {"kind": "lm", "tied": True},
}  # fmt: skip
BERT = {
    "topology": "encoder", "vocab": 30522, "width": 768, "depth": 12, "context": 512, "position": "learned",
    "attention": {"heads": 12, "bias": "qkvo"}, "ffn": {"kind": "gelu", "bias": True},
    "norm": {"kind": "layernorm", "eps": 1e-12, "placement": "post", "embedding": True},
    "embed": {"kind": "tokens", "token_types": 2},
    "head": {"kind": "lm", "tied": True, "transform": True, "bias": True},
}  # fmt: skip
T5 = {
    "topology": "encoder-decoder", "vocab": 32128, "width": 512, "depth": 6, "context": 512, "position": "t5",
    "attention": {"heads": 8, "scale": 1.0}, "ffn": {"kind": "relu", "width": 2048},
    "head": {"kind": "lm", "tied": True}, "ids": {"start": 0},
}  # fmt: skip
GEMMA2 = {
    "vocab": 256000, "width": 2304, "depth": 26, "context": 8192,
    "attention": {"heads": 8, "kv_heads": 4, "head_dim": 256}, "ffn": {"kind": "geglu", "width": 9216},
    "norm": {"placement": "sandwich"}, "head": {"kind": "lm", "tied": True},
    "layers": {"order": "local, global", "local": {"attention": {"pattern": "window(4096)"}}, "global": {}},
}  # fmt: skip
OPT = {
    "vocab": 50272, "width": 1024, "depth": 24, "context": 2048, "attention": {"heads": 16, "bias": "qkvo"},
    "position": {"kind": "learned", "offset": 2}, "ffn": {"kind": "relu", "bias": True},
    "norm": {"kind": "layernorm", "placement": "post"}, "head": {"kind": "lm", "tied": True},
    "embed": {"kind": "tokens", "width": 512},
}  # fmt: skip

VIT = {
    "topology": "encoder", "width": 768, "depth": 12, "context": 197, "position": "learned",
    "attention": {"heads": 12, "bias": "qkvo"}, "ffn": {"kind": "gelu", "bias": True}, "norm": {"kind": "layernorm"},
    "embed": {"kind": "patches", "image": 224, "patch": 16}, "head": {"kind": "sequence", "labels": 1000},
}  # fmt: skip

PUBLISHED = {
    "llama-3-8b": (LLAMA, 8_030_261_248),
    "phi-3-mini-4k": (PHI3, 3_821_079_552),
    "gpt2-small": (GPT2, 124_439_808),
    "bert-base": (BERT, 109_514_298),
    "t5-small": (T5, 60_506_624),
    "gemma-2-2b": (GEMMA2, 2_614_341_888),
    "opt-350m": (OPT, 331_196_416),
    "vit-b-16": (VIT, 86_567_656),
}


def spec_of(data: dict[str, Any]) -> ModelSpec:
    return ModelSpec.from_data(data)


def pattern(text: str) -> Pattern:
    return small({"topology": "encoder", "attention.pattern": text}).attention.pattern


@pytest.mark.parametrize("name", PUBLISHED)
def test_params_equal_the_published_number(name: str):
    data, params = PUBLISHED[name]
    assert spec_of(data).count().params == params


@pytest.mark.parametrize("data", [data for data, _ in PUBLISHED.values()])
def test_params_by_part_add_up_to_all_and_none_is_nameless(data: dict[str, Any]):
    count = spec_of(data).count()
    assert sum(count.params_by_part.values()) == count.params
    known = {"embedding", "head", "position", "norm", "attention", "cross-attention", "ffn"}
    assert set(count.params_by_part) <= known


def test_params_by_part_of_a_small_model_are_those_of_its_formulas():
    count = small({"attention.bias": "q", "head.kind": "lm", "head.bias": True, "position": {"kind": "t5"}}).count()
    width, heads, inner = 16, 4, 64
    assert count.params_by_part == {
        "embedding": 32 * width,
        "position": 32 * heads,
        "attention": 4 * (2 * width * width + 2 * width * (width // 2) + width),
        "ffn": 4 * 3 * width * inner,
        "norm": 4 * 2 * width + width,
        "head": 32 * width + 32,
    }
    assert count.embedding_params == 32 * width
    assert count.active_params == count.params


def test_tied_table_is_counted_once():
    tied, untied = (small({"head": {"kind": "lm", "tied": tied}}).count() for tied in (True, False))
    assert untied.params - tied.params == 32 * 16
    assert "head.weight" not in tied.weights
    assert untied.flops(8).head == tied.flops(8).head == 2 * 8 * 32 * 16


def test_weights_are_named_in_the_order_of_the_forward_pass():
    names = list(weights(small({"depth": 1})))
    assert names == [
        "embed.tokens.weight", "decoder.blocks.0.attention.inner.weight", "decoder.blocks.0.attention.body.q.weight",
        "decoder.blocks.0.attention.body.k.weight", "decoder.blocks.0.attention.body.v.weight",
        "decoder.blocks.0.attention.body.o.weight", "decoder.blocks.0.ffn.inner.weight",
        "decoder.blocks.0.ffn.body.gate.weight", "decoder.blocks.0.ffn.body.up.weight",
        "decoder.blocks.0.ffn.body.down.weight", "decoder.final_norm.weight", "head.weight",
    ]  # fmt: skip


def test_flops_of_a_llama_are_two_for_each_weight_and_four_for_each_pair():
    count, length = spec_of(LLAMA).count(), 1000
    flops = count.flops(length)
    layer = 4096 * 4096 * 2 + 4096 * 1024 * 2
    assert flops.projections == 2 * length * 32 * layer
    assert flops.ffn == 2 * length * 32 * 3 * 4096 * 14336
    assert flops.scores == 32 * 4 * 4096 * (length * (length + 1) // 2)
    assert flops.head == 2 * length * 4096 * 128256
    assert flops.embed == 0
    assert flops.total == flops.projections + flops.ffn + flops.scores + flops.head
    assert count.flops_per_token(length) == flops.total / length


@pytest.mark.parametrize("length", [1, 2, 7, 33])
@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("causal", lambda t: t * (t + 1) // 2),
        ("full", lambda t: t * t),
        ("window(4)", lambda t: sum(min(i, 4) for i in range(1, t + 1))),
        ("window(100)", lambda t: t * (t + 1) // 2),
        ("symmetric_window(2)", lambda t: sum(min(i + 2, t - 1) - max(i - 2, 0) + 1 for i in range(t))),
        ("chunked(4)", lambda t: (t // 4) * 16 + (t % 4) ** 2),
        ("causal & chunked(4)", lambda t: (t // 4) * 10 + (t % 4) * (t % 4 + 1) // 2),
        ("window(2) | chunked(4)", None),
        ("causal & (window(3) | chunked(4))", None),
        ("causal & window(3) | chunked(4) & full", None),
    ],
)
def test_allowed_pairs_equal_the_formula_and_the_enumeration(text: str, pairs: Any, length: int):
    found = allowed_pairs(pattern(text), length)
    assert found == enumerate_pairs(pattern(text), length)
    assert pairs is None or found == pairs(length)


def test_allowed_pairs_of_a_long_document_do_not_enumerate():
    length = 1_000_000
    assert allowed_pairs(pattern("causal"), length) == length * (length + 1) // 2


def test_enumeration_in_blocks_of_rows_covers_every_row(monkeypatch):
    monkeypatch.setattr("anyformer.specs.pair_count.PAIRS", 4 * 13)
    assert enumerate_pairs(pattern("causal"), 13) == 13 * 14 // 2


@pytest.mark.parametrize(("text", "seen"), [("causal", 10), ("window(4)", 3), ("causal & chunked(4)", 2), ("full", 10)])
def test_keys_seen_are_those_that_the_predicate_allows(text: str, seen: int):
    assert keys_seen(pattern(text), 10, 10) == seen


def test_windows_cost_less_than_causal_and_only_in_their_layers():
    spec = small({"depth": 2, "layers": {"0": {"attention": {"pattern": "window(4)"}}}})
    pairs = 32 * 33 // 2, sum(min(i, 4) for i in range(1, 33))
    assert spec.count().flops(32).scores == 4 * 16 * sum(pairs)


def test_encoder_sees_all_pairs_by_default():
    assert small({"topology": "encoder"}).count().flops(10).scores == 4 * 4 * 16 * 100


def test_flops_of_an_encoder_decoder_count_both_stacks_and_the_cross_attention():
    flops = spec_of(T5).count().flops(10, source=30)
    square = 512 * 512
    assert flops.projections == 2 * 6 * (30 * 4 * square + 10 * 4 * square + 10 * 2 * square + 30 * 2 * square)
    assert flops.scores == 6 * 4 * 512 * (30 * 30 + 10 * 11 // 2 + 10 * 30)
    assert flops.ffn == 2 * 6 * (30 + 10) * 2 * 512 * 2048
    assert flops.head == 2 * 10 * 512 * 32128


def test_source_is_as_long_as_the_target_unless_given():
    count = spec_of(T5).count()
    assert count.flops(10) == count.flops(10, source=10) != count.flops(10, source=11)


def test_factorised_embedding_costs_its_projections():
    flops = spec_of(OPT).count().flops(10)
    assert flops.embed == 2 * 10 * 512 * 1024
    assert flops.head == 2 * 10 * (512 * 1024 + 512 * 50272)


def test_factorised_embedding_that_is_projected_last_costs_the_same():
    last = spec_of(OPT | {"embed": {"kind": "tokens", "width": 512, "project": "last"}})
    assert last.count().flops(10) == spec_of(OPT).count().flops(10)
    assert spec_of(OPT).count().params - last.count().params == (2048 + 2) * 512


def test_patches_cost_their_projection_but_the_class_token_does_not():
    spec = small({
        "topology": "encoder", "vocab": 0, "embed": {"kind": "patches", "image": 8, "patch": 4}, "context": 5,
        "head": {"kind": "sequence", "labels": 3},
    })  # fmt: skip
    flops = spec.count().flops(5)
    assert flops.embed == 2 * 4 * 16 * (3 * 4 * 4)
    assert flops.head == 2 * 16 * 3


def test_position_scheme_with_products_of_its_own_costs_more():
    plain, xl = (small({"position": kind}).count().flops(8) for kind in ("none", "xl"))
    pairs, inner = 8 * 9 // 2, 16
    assert xl.scores - plain.scores == 4 * (pairs * 2 * inner + 8 * (2 * inner * 16 + 2 * inner))


def test_kv_bytes_are_two_vectors_a_token_and_layer():
    count = spec_of(LLAMA).count()
    assert count.kv_bytes(1000) == 2 * 32 * 8 * 128 * 1000 * 2
    assert count.kv_bytes(1000, "float32", batch=3) == 3 * 2 * count.kv_bytes(1000)


def test_kv_bytes_of_a_window_are_those_of_its_ring():
    count, token = small({"attention.pattern": "window(8)"}).count(), 2 * 4 * 2 * 4 * 4
    assert [count.kv_bytes(n, "float32") for n in (5, 8, 9, 1000)] == [n * token for n in (5, 8, 8, 8)]
    assert count.kv_bytes(1000, "float32", batch=3) == 3 * 8 * token
    assert count.kv_bytes(1000, "float32", chunk=5) == (8 + 4) * token
    assert count.kv_bytes(9, "float32", chunk=5) == 9 * token
    assert spec_of(LLAMA).count().kv_bytes(100, chunk=5) == spec_of(LLAMA).count().kv_bytes(100)


def test_kv_bytes_of_chunks_are_those_of_one_chunk():
    count = small({"attention.pattern": "causal & chunked(8)"}).count()
    assert count.kv_bytes(1000) == count.kv_bytes(8) == small().count().kv_bytes(8)


def test_kv_bytes_of_a_fixed_pattern_are_a_block_and_the_columns_of_the_others():
    count = small({"attention.pattern": "causal & fixed(8, 2)"}).count()
    assert count.kv_bytes(100) == small().count().kv_bytes(8 + 12 * 2)


def test_kv_bytes_of_global_projections_are_keys_and_values_twice():
    shape = {"attention.pattern": "causal & (window(8) | global_tokens(2, marks=False))"}
    once, twice = (small({**shape, "attention.global_projections": own}).count() for own in (False, True))
    assert twice.kv_bytes(100) == 2 * once.kv_bytes(100) == 2 * small().count().kv_bytes(8 + 2)


def test_kv_bytes_of_a_state_do_not_grow_and_are_never_half():
    spec = small({"attention.mixer": {"kind": "linear"}, "attention.kv_heads": 4})
    count, stack = spec.count(), spec.stack("decoder")
    shapes = spec.attention.mixer.state(spec.dims(stack.layers[0], stack))
    numbers = sum(math.prod(shape) for shape in shapes)
    assert count.kv_bytes(5) == count.kv_bytes(5000) == 4 * numbers * 4
    assert count.kv_bytes(5, "float64", batch=2) == 2 * 4 * numbers * 8
    assert list(count.kv_bytes_by_part(5)) == [spec.attention.mixer.called()]
    weights = sum(w.size for w in count.weights.values() if w.role != "embedding")
    assert count.bytes_moved("decode", 10) == 2 * weights + 2 * count.kv_bytes(10)


def test_kv_bytes_of_an_encoder_decoder_hold_the_source_too():
    assert spec_of(T5).count().kv_bytes(10, "float32", source=30) == 2 * 6 * 512 * (10 + 30) * 4


def test_kv_bytes_of_an_encoder_are_none():
    assert spec_of(BERT).count().kv_bytes(10) == 0


def test_kv_bytes_follow_the_heads_of_each_layer():
    spec = small({"depth": 2, "layers": {"0": {"attention": {"kv_heads": 4}}}})
    assert spec.count().kv_bytes(10, "float32") == 2 * (4 + 2) * 4 * 10 * 4


def test_decoding_a_big_model_alone_is_bound_by_memory_and_training_by_arithmetic():
    count = spec_of(LLAMA).count()
    assert count.intensity("decode", 4096) < 10
    assert count.intensity("train", 8192) > 200
    assert count.intensity("prefill", 8192) > 200


def test_decoding_many_rows_reads_the_weights_once():
    count = spec_of(LLAMA).count()
    alone, many = count.bytes_moved("decode", 128), count.bytes_moved("decode", 128, batch=64)
    assert many - alone == 63 * count.kv_bytes(129)
    assert count.intensity("decode", 128, batch=64) > 30 * count.intensity("decode", 128)


def test_bytes_of_a_decoding_step_are_weights_and_the_cache_that_it_sees():
    count = spec_of(LLAMA).count()
    matrices = count.params - 128256 * 4096
    assert count.bytes_moved("decode", 1000) == 2 * matrices + count.kv_bytes(1000) + count.kv_bytes(1)
    windowed = spec_of(LLAMA).vary({"attention.pattern": "window(100)"}).count()
    assert windowed.bytes_moved("decode", 1000) == 2 * matrices + count.kv_bytes(100)


def test_decoding_step_of_an_encoder_decoder_does_not_read_the_encoder():
    count = spec_of(T5).count()
    decoder = sum(w.size for n, w in count.weights.items() if n.startswith("decoder."))
    cache = count.kv_bytes(10, "float32", source=30) + 2 * 6 * 512 * 4
    assert count.bytes_moved("decode", 10, "float32", source=30) == 4 * (decoder + 32128 * 512) + cache


def test_flops_of_a_decoding_step_are_those_of_one_more_token():
    for data in (LLAMA, {**LLAMA, "attention": {"heads": 32, "kv_heads": 8, "pattern": "window(100)"}}, OPT):
        count = spec_of(data).count()
        assert count.phase_flops("decode", 500) == count.flops(501).total - count.flops(500).total


def test_flops_of_an_encoder_decoders_step_leave_out_what_the_cache_holds():
    count = spec_of(T5).count()
    one_more = count.flops(11, source=30).total - count.flops(10, source=30).total
    assert count.phase_flops("decode", 10, source=30) == one_more


def test_training_is_three_times_the_forward_pass():
    count = spec_of(GPT2).count()
    assert count.phase_flops("train", 100, batch=2) == 6 * count.flops(100).total
    assert count.phase_flops("prefill", 100, batch=2) == 2 * count.flops(100).total


def test_activation_bytes_grow_linearly_with_length_and_batch():
    count = spec_of(LLAMA).count()
    once = count.activation_bytes(128)
    assert [count.activation_bytes(128 * n) for n in (2, 3, 8)] == [2 * once, 3 * once, 8 * once]
    assert count.activation_bytes(128, batch=5) == 5 * once
    assert once > 128 * (32 * 3 * 14336 * 2 + 128256 * 4)


def test_activation_bytes_of_a_small_model_are_those_of_its_formula():
    width, keys, inner, vocab = 16, 4, 64, 32
    layer = (2 * width + 2 * width + 2 * keys) + (2 * width + 3 * inner)
    assert small({"attention.kv_heads": 1}).count().activation_bytes(10, "float32") == 10 * (4 * layer * 4 + vocab * 4)
    crossed = (2 * width + 2 * width + 2 * keys) * 4
    both = (
        small({"topology": "encoder-decoder", "attention.kv_heads": 1})
        .count()
        .activation_bytes(10, "float32", source=30)
    )
    assert both == 30 * 4 * layer * 4 + 10 * (4 * layer * 4 + crossed * 4 + vocab * 4)


def test_bytes_of_a_training_step_are_three_times_the_weights_and_the_activations_twice_both_ways():
    count = spec_of(GPT2).count()
    assert count.bytes_moved("train", 64) == 3 * 2 * count.params + 4 * count.activation_bytes(64)


def test_flops_of_cross_attention_count_the_position_scheme_only_if_it_is_used():
    shape = {"topology": "encoder-decoder", "position": "xl", "depth": 1}
    without, used = (small({**shape, "attention.cross_position": on}).count() for on in (False, True))
    pairs, inner = 10 * 30, 16
    assert used.flops(10, 30).scores - without.flops(10, 30).scores == pairs * 2 * inner + 10 * (
        2 * inner * 16 + 2 * inner
    )
    one_more = used.flops(11, 30).total - used.flops(10, 30).total
    assert used.phase_flops("decode", 10, source=30) == one_more


def test_bytes_of_a_prefill_are_weights_activations_and_the_cache():
    count = spec_of(LLAMA).count()
    matrices = 2 * (count.params - 128256 * 4096)
    assert count.bytes_moved("prefill", 64) == matrices + 2 * count.activation_bytes(64) + count.kv_bytes(64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.kv_bytes(8, "bfloat61"), "dtype 'bfloat61' is unknown; did you mean 'bfloat16'?"),
        (lambda c: c.bytes_moved("decoding", 8), "phase 'decoding' is unknown; did you mean 'decode'?"),
        (lambda c: c.phase_flops("serve", 8), "phase 'serve' is unknown (known: decode, prefill, train)"),
        (lambda c: c.flops(8, source=8), "source is for encoder-decoders; topology is 'decoder'"),
        (lambda c: c.flops(0), "context must be at least 1, got 0"),
        (lambda c: c.kv_bytes(8, batch=0), "batch must be at least 1, got 0"),
        (lambda c: c.kv_bytes(8, chunk=0), "chunk must be at least 1, got 0"),
        (lambda c: c.intensity("train", -1), "context must be at least 1, got -1"),
    ],
)
def test_count_of_nonsense_is_refused(call: Any, message: str):
    with pytest.raises(InputError) as caught:
        call(small().count())
    assert str(caught.value).startswith(message)


def test_count_with_an_empty_source_is_refused():
    with pytest.raises(InputError, match="source must be at least 1, got 0"):
        spec_of(T5).count().flops(8, source=0)


def test_encoder_does_not_decode():
    with pytest.raises(InputError, match="phase 'decode' is for decoders; an encoder reads its input at once"):
        spec_of(BERT).count().bytes_moved("decode", 8)


@pytest.mark.parametrize("name", BYTES)
def test_dtype_is_given_by_name_or_as_torchs_own(name: str):
    import torch

    assert dtype_bytes(name) == dtype_bytes(getattr(torch, name)) == getattr(torch, name).itemsize


def test_count_is_a_frozen_value_of_the_spec():
    assert small().count() == Count(spec=small())
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().count().spec = small()


def test_stack_that_is_not_there_is_refused_by_name():
    with pytest.raises(
        InputError, match="there is no stack 'encoder'; a spec with topology 'decoder' has only its own"
    ):
        small().stack("encoder")


def test_read_of_a_hint_that_the_codec_does_not_know_is_our_own_mistake():
    with pytest.raises(TypeError, match="the codec has no rule for"):
        read(complex, 1j, "x", None)


def test_cache_bytes_by_part_add_up_and_tell_patterns_and_cross_attention_apart():
    table = {"layers": {"order": "1 near, far", "near": {"attention": {"pattern": "window(8)"}}, "far": {}}, "depth": 4}
    count = small(table).count()
    parts = count.kv_bytes_by_part(100, "float32", 2)
    assert list(parts) == ["window(8)", "causal"]
    assert sum(parts.values()) == count.kv_bytes(100, "float32", 2)
    both = small({"topology": "encoder-decoder", "ids": {"start": 0}}).count()
    parts = both.kv_bytes_by_part(10, "float32", source=30)
    assert parts["cross-attention"] == 3 * parts["causal"]


def test_reversible_stack_keeps_less_and_moves_more_than_a_serial_one():
    serial = af.spec("gpt2-small", {"norm.placement": "pre"}).count()
    both = af.spec("gpt2-small", {"block.wiring": "reversible"}).count()
    assert both.activation_bytes(1024) < serial.activation_bytes(1024) / 2
    assert both.bytes_moved("prefill", 1024) == serial.bytes_moved("prefill", 1024)
    assert both.bytes_moved("train", 1024) > serial.bytes_moved("train", 1024)


def test_chunked_feed_forward_keeps_the_inside_of_one_chunk():
    whole = af.spec("gpt2-small").count()
    pieces = af.spec("gpt2-small", {"ffn.chunk": 64}).count()
    saved = 12 * 2 * 3072 * (1024 - 64) * 2
    assert whole.activation_bytes(1024) - pieces.activation_bytes(1024) == saved
    assert whole.bytes_moved("train", 1024) == pieces.bytes_moved("train", 1024)
