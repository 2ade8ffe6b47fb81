"""GPT-NeoX for Japanese: configs beyond its own small one."""

VARIANTS = {
    "whole-heads": {"rotary_pct": 1.0, "tie_word_embeddings": False, "intermediate_multiple_size": 4},
    "odd-heads": {"hidden_size": 36, "num_attention_heads": 3, "rotary_pct": 0.34, "num_hidden_layers": 1},
}
