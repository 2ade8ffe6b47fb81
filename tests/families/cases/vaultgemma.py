"""VaultGemma: configs beyond its own small one."""

VARIANTS = {
    "uncapped": {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
    "all-global": {"layer_types": ["full_attention"] * 4, "num_key_value_heads": 1, "tie_word_embeddings": False},
}
