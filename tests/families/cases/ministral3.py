"""Ministral 3: configs beyond its own small one."""

from anyformer.families.ministral3 import BETA, ORIGINAL

VARIANTS = {
    "no-window": {"sliding_window": None, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True},
    "unstretched": {"rope_parameters": {"rope_type": "default", "rope_theta": 900.0, BETA: 0.7, ORIGINAL: 5}},
}
