"""XGLM: configs beyond its own small one."""

VARIANTS = {
    "unscaled": {"scale_embedding": False, "activation_function": "relu"},
    "untied": {"tie_word_embeddings": False, "d_model": 36, "attention_heads": 3},
}

REFUSED = {"xglm": [({"pad_token_id": 5}, "pad_token_id: 5 takes the sines of position 3 away")]}
