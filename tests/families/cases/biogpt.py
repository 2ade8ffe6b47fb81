"""BioGPT: configs beyond its own small one."""

VARIANTS = {
    "unscaled": {"scale_embedding": False, "hidden_act": "relu"},
    "untied": {"tie_word_embeddings": False, "hidden_size": 36, "num_attention_heads": 3},
}
