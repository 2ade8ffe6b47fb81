"""CamemBERT: configs beyond its own small one."""

VARIANTS = {
    "relu": {"hidden_act": "relu", "pad_token_id": 2, "eos_token_id": 1, "type_vocab_size": 1},
    "untied": {"tie_word_embeddings": False, "hidden_size": 30, "num_attention_heads": 5},
}
