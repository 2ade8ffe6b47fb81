"""BLOOM (BigScience 2022): ALiBi, LayerNorm first and once more on the embeddings, GELU by tanh, tied head."""

from __future__ import annotations

from dataclasses import replace

from anyformer.families.config_keys import flag, must, number, special_ids, whole
from anyformer.families.family import Family, Preset
from anyformer.families.gpt2 import BASE
from anyformer.families.statemap import PerHead, Rule, decoder_map

MEGATRON = {
    "up": "mlp.dense_h_to_4h",
    "down": "mlp.dense_4h_to_h",
    "attention_inner": "input_layernorm",
    "ffn_inner": "post_attention_layernorm",
}
"""Parts of a block that GPT-NeoX and Falcon call as BLOOM does."""


def _preset(
    size: str, width: int, depth: int, heads: int, params: int, published: str = "", evidence: str = "", note: str = ""
) -> Preset:
    return Preset(
        name=f"bloom-{size}",
        hub=("bigscience/bloom" if size == "176b" else f"bigscience/bloom-{size}",),
        title=f"BLOOM {size.upper()} (2022)",
        changes={
            "width": width, "depth": depth, "attention.heads": heads, "vocab": 250880,
            "ids.bos": 1, "ids.eos": [2], "ids.pad": 3,
        },
        params=params,
        published=published,
        evidence=evidence or "the publisher's training scripts and one other project",
        note=note,
    )  # fmt: skip


class Bloom(Family, kind="bloom"):
    """BLOOM. Its files state no context, as ALiBi needs none: 2048 is what it was trained with."""

    base = BASE | {
        "context": 2048,
        "norm": {"kind": "layernorm", "eps": 1e-5, "embedding": True},
        "position": {"kind": "alibi"},
    }
    presets = (
        _preset("560m", 1024, 24, 16, 559_214_592),
        _preset("1b1", 1536, 24, 16, 1_065_314_304),
        _preset("1b7", 2048, 24, 16, 1_722_408_960),
        _preset("3b", 2560, 30, 32, 3_002_557_440),
        _preset("7b1", 4096, 30, 32, 7_069_016_064, "only its name, which rounds to 7.1B"),
        _preset("176b", 14336, 70, 112, 176_247_271_424, evidence="the publisher's notes on the training run",
                note="176B; a '175B' with 96 layers of 12288 that circulates is another shape"),
    )  # fmt: skip
    architectures = ("BloomForCausalLM",)
    model_type = "bloom"
    keys = special_ids(bos=1, eos=2) | {
        "vocab_size": whole(250880, "vocab"),
        "hidden_size": whole(64, "width"),
        "n_embed": whole(None, "width"),
        "n_layer": whole(2, "depth"),
        "num_hidden_layers": whole(None, "depth"),
        "n_head": whole(8, "attention.heads"),
        "num_attention_heads": whole(None, "attention.heads"),
        "layer_norm_epsilon": number(1e-5, "norm.eps"),
        "initializer_range": number(0.02, "init.std"),
        "seq_length": replace(whole(None, "context"), read=lambda c, name: {"context": c[name] or 2048}),
        "n_inner": must(None),
        "apply_residual_connection_post_layernorm": must(False),
        "hidden_dropout": number(0.0, "block.dropout"),
        "attention_dropout": number(0.0, "attention.dropout"),
        # These change the order of rounding in the public class, not what is computed.
        "slow_but_exact": flag(False),
        "masked_softmax_fusion": flag(True),
        "attention_softmax_in_fp32": flag(True),
        "bias_dropout_fusion": flag(True),
        "skip_bias_add": flag(True),
        "skip_bias_add_qkv": flag(False),
        "offset_alibi": whole(None),
        "unk_token_id": whole(None),
        "tie_word_embeddings": flag(True, "head.tied"),
    }
    tensors = decoder_map(
        "transformer",
        "h",
        {"qkv": "self_attention.query_key_value", "o": "self_attention.dense"} | MEGATRON,
        Rule("transformer.word_embeddings_layernorm.{p}", "decoder.embedding_norm.{p}"),
        tokens="word_embeddings",
        final="ln_f",
        op=PerHead(),
    )
    # Six heads: not a power of two, so that slopes are taken from two sequences.
    small = {
        "vocab_size": 61, "hidden_size": 24, "n_layer": 3, "n_head": 6, "layer_norm_epsilon": 1e-3,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3,
    }  # fmt: skip
