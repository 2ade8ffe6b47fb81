"""BLOOM (BigScience 2022): ALiBi, LayerNorm first and once more on the embeddings, GELU by tanh, tied head."""

from dataclasses import replace
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import each, flag, must, usual, whole
from anyformer.families.family import Family, Preset, series, sizes
from anyformer.families.gpt2 import BASE
from anyformer.families.statemap import Rule, decoder_map
from anyformer.families.tensor_ops import PerHead


def megatron(attention: str) -> dict[str, str]:
    """The parts of a block in families that were trained with Megatron's code, by what they call the attention."""
    return like.PRE_NORMS | {
        "qkv": f"{attention}.query_key_value",
        "o": f"{attention}.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    }


MEGATRON = megatron("self_attention") | {"tokens": "word_embeddings", "final": "ln_f"}
"""The parts of BLOOM and of Falcon."""

SHARED: dict[str, Any] = {"vocab": 250880, "ids.bos": 1, "ids.eos": [2], "ids.pad": 3}


class Bloom(Family, kind="bloom"):
    """BLOOM. Its files state no context, as ALiBi needs none: 2048 is what it was trained with."""

    base = BASE | {
        "context": 2048,
        "norm": {"kind": "layernorm", "eps": 1e-5, "embedding": True},
        "position": {"kind": "alibi"},
    }
    presets = (
        *series("bloom-{}", "BLOOM {SIZE} (2022)",
            ("560m", sizes(1024, 24, 16), 559_214_592),
            ("1b1", sizes(1536, 24, 16), 1_065_314_304),
            ("1b7", sizes(2048, 24, 16), 1_722_408_960),
            ("3b", sizes(2560, 30, 32), 3_002_557_440),
            ("7b1", sizes(4096, 30, 32), 7_069_016_064, "only its name, which rounds to 7.1B"),
            changes=SHARED, hub=("bigscience/bloom-{}",),
            evidence="the publisher's training scripts and one other project"),
        Preset("bloom-176b", "BLOOM 176B (2022)", sizes(14336, 70, 112) | SHARED, 176_247_271_424,
               hub=("bigscience/bloom",), evidence="the publisher's notes on the training run",
               note="176B; a '175B' with 96 layers of 12288 that circulates is another shape"),
    )  # fmt: skip
    architectures = ("BloomForCausalLM",)
    keys = {
        **usual(vocab_size=250880, hidden_size=64, n_embed=None, n_layer=2, num_hidden_layers=None),
        **usual(n_head=8, num_attention_heads=None, layer_norm_epsilon=1e-5, initializer_range=0.02),
        **usual(hidden_dropout=0.0, attention_dropout=0.0, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2),
        "seq_length": replace(whole(None, "context"), read=lambda c, name: {"context": c[name] or 2048}),
        "n_inner": must(None),
        "apply_residual_connection_post_layernorm": must(False),
        # These change the order of rounding in the public class, not what is computed.
        **each(flag(True), "masked_softmax_fusion", "attention_softmax_in_fp32", "bias_dropout_fusion"),
        **each(flag(False), "slow_but_exact", "skip_bias_add_qkv"),
        "skip_bias_add": flag(True),
        **each(whole(None), "offset_alibi", "unk_token_id"),
    }
    tensors = decoder_map(
        "transformer.h",
        MEGATRON,
        Rule("transformer.word_embeddings_layernorm.{p}", "decoder.embedding_norm.{p}"),
        op=PerHead(),
    )
    # Six heads: not a power of two, so that slopes are taken from two sequences.
    small = {"hidden_size": 24, "n_head": 6, "pad_token_id": 3}
