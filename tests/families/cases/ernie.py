"""ERNIE: configs beyond its own small one."""

VARIANTS = {
    "relu": {"hidden_act": "relu", "num_attention_heads": 1, "use_task_id": False},
    "untied": {"tie_word_embeddings": False, "hidden_size": 30, "num_attention_heads": 5, "type_vocab_size": 1},
}
