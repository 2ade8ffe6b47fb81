"""BERT with its masked-LM head. Its pooler and its next-sentence head are no part of that, and are left out: what its presets are, and configs beyond its own small one."""

SIZES = {
    "bert-base": (768, 12, 12, 12, 64, 3072, 30522, 512, 1e-12, True),
    "bert-large": (1024, 24, 16, 16, 64, 4096, 30522, 512, 1e-12, True),
}

FACTS = {
    "bert-base": {
        "topology": "encoder",
        "embed.token_types": 2,
        "/norm.embedding": True,
        "head.transform": True,
        "head.bias": True,
        "0/ffn.kind": "gelu",
        "0/attention.pattern": "full",
    }
}

VARIANTS = {
    "relu": {"hidden_act": "relu", "num_attention_heads": 1},
    "untied": {"tie_word_embeddings": False, "hidden_size": 30, "num_attention_heads": 5, "type_vocab_size": 1},
}
