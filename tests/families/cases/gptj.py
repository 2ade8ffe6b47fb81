"""GPT-J: what its presets are, and configs beyond its own small one."""

SIZES = {"gpt-j-6b": (4096, 28, 16, 16, 256, 16384, 50400, 2048, 1e-05, False)}

FACTS = {
    "gpt-j-6b": {
        "0/position.layout": "interleaved",
        "0/position.dims": 64,
        "0/block.wiring": "parallel",
        "head.bias": True,
        "0/attention.bias": "",
        "0/ffn.bias": True,
    }
}

VARIANTS = {
    "tied": {"tie_word_embeddings": True},
    "odd-heads": {"n_embd": 36, "n_head": 3, "rotary_dim": 12, "n_inner": None, "activation_function": "gelu"},
}
