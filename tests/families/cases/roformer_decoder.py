"""RoFormer as a decoder: configs beyond its own small one."""

VARIANTS = {
    "turned-values": {"rotary_value": True, "embedding_size": None, "hidden_act": "relu"},
    "untied": {"tie_word_embeddings": False, "embedding_size": 30, "hidden_size": 30, "num_attention_heads": 5},
}

REFUSED = {"roformer_decoder": [({"is_decoder": False}, "is_decoder: without it this class lets tokens see later")]}
