"""Configs beyond each family's own small one: every switch that a published config may turn."""

from typing import Any

from anyformer.families.family import Family, families

HALF = [1.0, 1.3, 1.9, 2.5]

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "llama": {
        "tied": {"tie_word_embeddings": True},
        "biased": {"attention_bias": True, "mlp_bias": True},
        "wide-heads": {"head_dim": 12, "num_key_value_heads": None},
        "gelu": {"hidden_act": "gelu"},
        "linear": {"rope_scaling": {"type": "linear", "factor": 3.0}},
        "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 8},
        "llama3": {
            "rope_theta": None,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 900.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 40,
            },
        },
        "yarn": {
            "rope_theta": 900.0,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        },
        "yarn-mscale": {
            "rope_theta": None,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "original_max_position_embeddings": 16,
                "mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0,
            },
        },
        "longrope": {
            "max_position_embeddings": 64,
            "rope_theta": None,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 900.0, "short_factor": HALF, "long_factor": HALF[::-1],
                "original_max_position_embeddings": 16,
            },
        },
    },
    "mistral": {"no-window": {"sliding_window": None}},
    "qwen2": {
        "no-window": {"use_sliding_window": False, "tie_word_embeddings": False},
        "layer-types": {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "max_window_layers": 3,
        },
    },
    "olmo2": {"biased": {"attention_bias": True, "num_key_value_heads": None}},
    "gemma2": {
        "no-caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
        "layer-types": {
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
        "untied": {"tie_word_embeddings": False},
    },
    "phi3": {
        "whole-heads": {"partial_rotary_factor": 1.0, "sliding_window": None, "num_key_value_heads": None},
        "longrope": {
            "partial_rotary_factor": 1.0, "sliding_window": None, "original_max_position_embeddings": 16,
            "rope_scaling": {"type": "longrope", "short_factor": HALF, "long_factor": HALF[::-1]},
        },
    },
    "gpt2": {
        "untied": {"tie_word_embeddings": False},
        "unscaled": {"scale_attn_weights": False, "activation_function": "relu", "n_inner": None},
    },
    "gptj": {"tied": {"tie_word_embeddings": True}},
    "gpt_neox": {
        "serial": {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"},
        "new-keys": {
            "rotary_pct": None, "rotary_emb_base": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5},
        },
    },
    "opt": {
        "350m": {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
        "no-final-norm": {"_remove_final_layer_norm": True, "enable_bias": False},
        "bare-norms": {"layer_norm_elementwise_affine": False, "activation_function": "gelu"},
    },
    "bloom": {"untied": {"tie_word_embeddings": False}, "power-of-two": {"n_head": 4}},
    "gpt": {"relu": {"afn": "relu"}},
    "bert": {"relu": {"hidden_act": "relu"}},
    "t5": {
        "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "silu": {"feed_forward_proj": "gated-silu", "num_decoder_layers": None, "d_kv": 8},
    },
    "transformer": {
        "plain": {"scale_embedding": False, "activation_function": "gelu", "decoder_attention_heads": 4},
        "two-tables": {"share_encoder_decoder_embeddings": False},
    },
}  # fmt: skip

LENGTHS = ("dynamic", "longrope")
"""Variants whose angles depend on the length: the public classes read the longest of the batch, we each document's."""


def cases() -> list[tuple[str, str]]:
    """Kind and variant of every case; each family's own small config comes first."""
    return [(family.kind, name) for family in families() for name in ("tiny", *VARIANTS.get(family.kind, {}))]


def config_of(kind: str, variant: str) -> dict[str, Any]:
    """The config of a case. A key of RoPE that is None is taken out; elsewhere null is a value."""
    family = Family.named(kind)
    assert family is not None
    changes = {} if variant == "tiny" else VARIANTS[kind][variant]
    config = family.tiny() | changes
    return {name: value for name, value in config.items() if not (value is None and name.startswith("ro"))}
