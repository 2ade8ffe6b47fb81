"""CodeGen: configs beyond its own small one."""

VARIANTS = {
    "tied": {"tie_word_embeddings": True, "rotary_dim": 8},
    "eight-heads": {"n_embd": 48, "n_head": 8, "rotary_dim": 2, "n_inner": None, "activation_function": "gelu"},
}

REFUSED = {"codegen": [({"n_head": 2}, "n_head: 2 heads are not four equal parts")]}
