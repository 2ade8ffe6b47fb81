"""OPT: what its presets are, and configs beyond its own small one."""

SIZES = {
    "opt-125m": (768, 12, 12, 12, 64, 3072, 50272, 2048, 1e-05, True),
    "opt-350m": (1024, 24, 16, 16, 64, 4096, 50272, 2048, 1e-05, True),
    "opt-1.3b": (2048, 24, 32, 32, 64, 8192, 50272, 2048, 1e-05, True),
    "opt-2.7b": (2560, 32, 32, 32, 80, 10240, 50272, 2048, 1e-05, True),
    "opt-6.7b": (4096, 32, 32, 32, 128, 16384, 50272, 2048, 1e-05, True),
    "opt-13b": (5120, 40, 40, 40, 128, 20480, 50272, 2048, 1e-05, True),
    "opt-30b": (7168, 48, 56, 56, 128, 28672, 50272, 2048, 1e-05, True),
    "opt-66b": (9216, 64, 72, 72, 128, 36864, 50272, 2048, 1e-05, True),
    "opt-175b": (12288, 96, 96, 96, 128, 49152, 50272, 2048, 1e-05, True),
}

FACTS = {
    "opt-175b": {"0/position.offset": 2, "0/ffn.kind": "relu", "0/norm.attention_placement": "pre"},
    "opt-350m": {"embed.width": 512, "0/norm.attention_placement": "post", "/norm.final": False},
}

VARIANTS = {
    "odd-heads": {"hidden_size": 36, "num_attention_heads": 3, "tie_word_embeddings": False},
    "350m": {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
    "no-final-norm": {"_remove_final_layer_norm": True, "enable_bias": False},
    "bare-norms": {"layer_norm_elementwise_affine": False, "activation_function": "gelu"},
}
