"""MPT (MosaicML 2023): ALiBi, LayerNorm first without bias, GELU, a tied head, and no bias anywhere."""

from typing import Any

from anyformer.families.config_keys import COMMON, TABLE, SpecView, each, flag, must, number, text, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, series, sizes
from anyformer.families.statemap import decoder_map
from anyformer.specs.codec import Problems
from anyformer.specs.formulas import evaluate
from anyformer.specs.model import ModelSpec

# Where the public class computes one thing whatever the file says, only a file that says so is read.
ATTENTION = COMMON | {
    "attn_type": must("multihead_attention"),
    "attn_pdrop": number(0.0),
    "attn_impl": text("torch"),
    **each(number(None), "clip_qkv", "softmax_scale"),
    **each(must(False), "prefix_lm", "qk_ln", "attn_uses_sequence_id"),
    "alibi": must(True),
    "alibi_bias_max": number(8),
}
"""The keys of `attn_config`."""


class MPT(Family, kind="mpt"):
    """MPT."""

    base = {
        "norm": {"kind": "layernorm", "eps": 1e-5, "bias": False},
        "position": {"kind": "alibi"},
        "ffn": {"kind": "gelu"},
        "head": {"kind": "lm", "tied": True},
    }
    presets = series("mpt-{}", "MPT {SIZE} (2023)",
        ("7b", sizes(4096, 32, 32) | {"context": 2048}, 6_649_286_656, "only rounded, to 6.7B, on its card",
         "a vocabulary of 50432 in the release; the training file and the public class's default say 50368",
         "the table on its card and the publisher's training file"),
        ("30b", sizes(7168, 48, 64) | {"context": 8192}, 29_957_200_896, "only rounded, to 29.95B, on its card",
         "64 heads of 112 by the card; a training file of the publisher has 56 of 128, which has the same count and "
         "other slopes", "the table on its card"),
        changes={"vocab": 50432},
    )  # fmt: skip
    architectures = ("MptForCausalLM", "MPTForCausalLM")
    keys = {
        **usual(d_model=2048, n_heads=16, n_layers=24, max_seq_len=2048, vocab_size=50368, layer_norm_epsilon=1e-5),
        **usual(initializer_range=0.02, tie_word_embeddings=True),
        "expansion_ratio": must(4),
        "attn_config": TABLE,
        "logit_scale": must(None),
        "no_bias": must(True),
        "norm_type": must("low_precision_layernorm", "layernorm"),
        # Without effect in the public class: with ALiBi, in training, or ever.
        "learned_pos_emb": flag(True),
        **each(number(0.0), "resid_pdrop", "emb_pdrop", "embedding_fraction"),
        "init_device": text("cpu"),
        "init_config": TABLE,
        "tokenizer_name": text(None),
        "verbose": whole(0),
    }
    tensors = decoder_map(
        "transformer.blocks",
        {"qkv": "attn.Wqkv", "o": "attn.out_proj", "up": "ffn.up_proj", "down": "ffn.down_proj"}
        | {"attention_inner": "norm_1", "ffn_inner": "norm_2", "tokens": "wte", "final": "norm_f"},
    )
    # Six heads for the reason that BLOOM's have.
    small = {"d_model": 36, "n_heads": 6, "attn_config": {"clip_qkv": 0.8}, "bos_token_id": 1, "eos_token_id": 2}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        attention = Values(c["attn_config"] or {}, ATTENTION, Problems(), c.reads)
        c.take("attn_config", attention)
        if attention["alibi_bias_max"] != 8:
            c.refuse("attn_config.alibi_bias_max", "has no effect in the public class, which takes 8", "8")
        scale, clip, dropout = (attention[name] for name in ("softmax_scale", "clip_qkv", "attn_pdrop"))
        return super().read(c) | {
            "attention.scale": "1/sqrt(head_dim)" if scale is None else float(scale),
            # A clip of 0 is none.
            "attention.clip_qkv": float(clip) if clip else None,
            "attention.dropout": float(dropout or 0.0),
            "block.dropout": float(dropout or 0.0),
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        view = SpecView.of(spec)
        usual, scale = evaluate("1/sqrt(head_dim)", view.dims.names()), view.get("attention.scale")
        attention = {
            "clip_qkv": view.layer.attention.clip_qkv,
            "softmax_scale": None if scale == usual else scale,
            # The public class wants a whole number where there is none.
            "attn_pdrop": view.layer.attention.dropout or 0,
        }
        return super().write(spec) | {"attn_config": attention}
