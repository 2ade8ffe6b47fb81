"""BERT for generation: configs beyond its own small one."""

VARIANTS = {
    "encoder": {"is_decoder": False, "hidden_act": "relu", "num_attention_heads": 1},
    "untied": {"tie_word_embeddings": False, "hidden_size": 30, "num_attention_heads": 5},
}

SEEDS = {"bert_generation": 3}

REFUSED = {"bert_generation": [({"add_cross_attention": True}, "add_cross_attention: True changes")]}
