"""GTE with its masked-LM head: configs beyond its own small one."""

VARIANTS = {
    # As gte-base-en: no token types.
    "typeless": {"type_vocab_size": 0, "hidden_act": "silu", "rope_theta": 160000.0},
    "untied": {"tie_word_embeddings": False, "head_dim": 6},
}

REFUSED = {"gte": [({"hidden_act": "mish"}, "hidden_act: 'mish' is an activation of the gate that we don't have")]}
