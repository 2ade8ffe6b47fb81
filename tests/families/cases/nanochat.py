"""nanochat: configs beyond its own small one."""

VARIANTS = {
    "biased": {"attention_bias": True, "final_logit_softcapping": None, "tie_word_embeddings": True},
    "one-kv-head": {"num_key_value_heads": 1, "hidden_size": 36, "num_attention_heads": 3, "hidden_act": "gelu"},
}
