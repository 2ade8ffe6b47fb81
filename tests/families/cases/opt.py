"""OPT: what its presets are, and configs beyond its own small one."""

SIZES = {"opt-175b": (12288, 96, 96, 96, 128, 49152, 50272, 2048, 1e-05, True)}

FACTS = {"opt-175b": {"0/position.offset": 2, "0/ffn.kind": "relu", "0/norm.attention_placement": "pre"}}

VARIANTS = {
    "350m": {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
    "no-final-norm": {"_remove_final_layer_norm": True, "enable_bias": False},
    "bare-norms": {"layer_norm_elementwise_affine": False, "activation_function": "gelu"},
}
