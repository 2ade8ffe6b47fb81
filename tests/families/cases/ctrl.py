"""CTRL: configs beyond its own small one."""

VARIANTS = {
    "untied": {"tie_word_embeddings": False, "n_layer": 1},
    "odd-heads": {"n_embd": 36, "n_head": 3, "dff": 144},
}

REFUSED = {"ctrl": [({"layer_norm_epsilon": 1e-3}, "layer_norm_epsilon: 0.001 changes")]}
