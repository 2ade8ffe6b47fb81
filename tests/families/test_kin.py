"""Models that were never released, made small, against the nearest public classes."""

import pytest
import torch
import transformers

import anyformer as af
from anyformer.families.checkpoint import fill
from anyformer.families.gpt2 import GPT2
from anyformer.families.statemap import Rule, StateMap, uncovered
from tests.families.oracle import lifted, randomise
from tests.tolerances import assert_close

IDS = torch.randint(0, 61, (2, 21), generator=torch.Generator().manual_seed(1))
SMALL = {"vocab": 61, "width": 32, "depth": 4, "attention.heads": 4, "context": 64}


def filled(spec, table, theirs):
    """Our model with the weights of a public one."""
    entries = table.entries(spec)
    assert uncovered(spec, entries) == []
    tensors = theirs.state_dict()
    model = af.build(spec, dtype=torch.float64)
    fill(model, entries, {name: name for name in tensors}, tensors, "in memory", copy=True)
    return model.eval()


@torch.no_grad()
def test_gpt3_equals_the_layers_of_gpt2_under_a_mask_for_each_kind_of_layer():
    band = 5
    spec = af.spec(
        "gpt3-small", SMALL | {"layers.banded.attention.pattern": f"window({band})", "ids.bos": None, "ids.eos": []}
    )
    config = {"vocab_size": 61, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
    table = GPT2.weights(spec)
    with lifted():
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config)).double().eval()
    randomise(theirs, table, seed=0)
    gap = torch.arange(21)[:, None] - torch.arange(21)
    with lifted():
        x = theirs.transformer.wte(IDS) + theirs.transformer.wpe(torch.arange(21))
        for i, block in enumerate(theirs.transformer.h):
            seen = (gap >= 0) & (gap < band if i % 2 else gap == gap)
            x = block(x, attention_mask=seen[None, None])
            x = x[0] if isinstance(x, tuple) else x
        wanted = theirs.lm_head(theirs.transformer.ln_f(x))
    assert_close("oracle", filled(spec, table, theirs)(IDS).logits, wanted)


@torch.no_grad()
@pytest.mark.parametrize("head_dim", [8, 6])
def test_lamda_equals_the_decoder_of_t5_run_without_an_encoder(head_dim):
    changes = {"attention.head_dim": head_dim, "ffn.width": 40, "position.buckets": 8, "position.max_distance": 14}
    spec = af.spec("lamda-137b", SMALL | changes)
    config = transformers.T5Config(
        vocab_size=61, d_model=32, d_kv=head_dim, d_ff=40, num_layers=4, num_heads=4, feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=8, relative_attention_max_distance=14, is_decoder=True, use_cache=False,
        is_encoder_decoder=False,
    )  # fmt: skip
    block, ours = "block.{i}.layer", "decoder.blocks.{i}"
    ffn = {"wi_0": "gate", "wi_1": "up", "wo": "down"}
    table = StateMap(
        rules=(
            Rule("embed_tokens.weight", "embed.tokens.weight"),
            Rule("block.0.layer.0.SelfAttention.relative_attention_bias.weight", "decoder.positions.0.table"),
            *(Rule(f"{block}.0.SelfAttention.{n}.weight", f"{ours}.attention.body.{n}.weight") for n in "qkvo"),
            Rule(f"{block}.0.layer_norm.weight", f"{ours}.attention.inner.weight"),
            Rule(f"{block}.2.layer_norm.weight", f"{ours}.ffn.inner.weight"),
            *(Rule(f"{block}.2.DenseReluDense.{n}.weight", f"{ours}.ffn.body.{own}.weight") for n, own in ffn.items()),
            Rule("final_layer_norm.weight", "decoder.final_norm.weight"),
        )
    )
    with lifted():
        theirs = transformers.models.t5.modeling_t5.T5Stack(config).double().eval()
    randomise(theirs, table, seed=0)
    with lifted():
        states = theirs(input_ids=IDS).last_hidden_state
    wanted = states @ theirs.embed_tokens.weight.T * 32**-0.5
    assert_close("oracle", filled(spec, table, theirs)(IDS).logits, wanted)
